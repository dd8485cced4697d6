"""Client: connections, producer, consumers and administration, on blocking sockets and threads.

It needs neither Spark nor our broker, and works with RocketMQ's brokers and with rocketpoll's.
`rocketpoll` has its public names.
"""
