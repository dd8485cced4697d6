"""rocketpoll.aio: the client for asyncio, with producers, consumers and administration to await.

    from rocketpoll import Message, aio

Messages, settings and errors are those of `rocketpoll`. This module re-exports
`rmq_spark.client.aio`, and must not define anything.
"""

from __future__ import annotations

from rmq_spark.client.aio.admin import Admin
from rmq_spark.client.aio.client import Client
from rmq_spark.client.aio.consumer import Consumer
from rmq_spark.client.aio.producer import Producer
from rmq_spark.client.aio.simple_consumer import SimpleConsumer
from rmq_spark.client.aio.transaction_producer import TransactionProducer

__all__ = ["Admin", "Client", "Consumer", "Producer", "SimpleConsumer", "TransactionProducer"]
