"""The client: connections, producer, consumers and administration, on blocking sockets. Not built yet.

It will know the wire, and neither pyspark nor the broker: it talks to RocketMQ's brokers and ours alike.
"""
