"""The client: connections, producer, consumers and administration, on blocking sockets.

It knows the wire, and neither pyspark nor the broker: it talks to RocketMQ's brokers and ours alike. Names
are imported when they are first used, so that a program pays only for what it needs.
"""
