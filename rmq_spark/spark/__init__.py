"""The Spark source and sink, ``format("rocketpoll")``. Not built yet.

The only folder that will import pyspark. It knows the client and the wire's chunks, never the broker.
"""
