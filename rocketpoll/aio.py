"""The client for asyncio: producers, consumers and administration that are awaited.

    from rocketpoll import Message, aio

    async with aio.Producer("shop", "localhost:9876") as producer:
        await producer.send(Message("orders", b"one"))

Messages, settings and errors are those of `rocketpoll`. This module names what
`rmq_spark.client.aio` has, and must not define anything.
"""

from __future__ import annotations

from rmq_spark.client.aio.admin import Admin
from rmq_spark.client.aio.client import Client
from rmq_spark.client.aio.consumer import Consumer
from rmq_spark.client.aio.producer import Producer

__all__ = ["Admin", "Client", "Consumer", "Producer"]
