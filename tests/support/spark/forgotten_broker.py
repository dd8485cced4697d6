"""Two brokers, the second of which a name server removes, as RocketMQ's removes one that is down.

The test runs a query's batches without Spark, with a clock that moves only in the query's pauses.
"""

import json
from contextlib import contextmanager
from types import SimpleNamespace

from support.servers.joining_name_server import JoiningNameServer
from support.spark.source_queries import query
from support.suite.clocks import Clock

from rmq_spark.client.concurrency import retry_timer
from rmq_spark.client.message import Message
from rmq_spark.spark.brokers import fan_out
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import EmbeddedBroker

A0, B0, B1 = MessageQueue("T", "a", 0), MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)
BOTH = json.dumps({"T": {"a": [0], "b": [0, 1]}})
"""The assigned queues, unless a test says otherwise."""


class Pair:
    """Two brokers and their name server. Time passes in pauses only, in which a broker
    may return."""

    def __init__(self, names, a, b):
        self.names = names
        self.a = a
        self.b = b
        self.clock = Clock()
        self.pauses = 0
        self.comes_back_in_pause = None

    def sleep(self, seconds):
        self.clock.now += seconds
        self.pauses += 1
        if self.pauses == self.comes_back_in_pause:
            self.names.brokers.append(self.b)

    def forget_b(self, *, comes_back_in_pause=None):
        self.names.forget(self.b)
        self.pauses, self.comes_back_in_pause = 0, comes_back_in_pause

    def send(self, *queues):
        for queue in queues:
            broker = self.a if queue.broker_name == "a" else self.b
            with broker.producer() as producer:
                producer.send(Message("T", b"x"), queue)

    @contextmanager
    def query(self, **more):
        """Return a query's batches, by default of all queues in `BOTH` from the first
        message on."""
        by_default = {"retryTimeoutMs": "2000"}
        if not any(name.startswith("starting") for name in more):
            by_default["startingOffsets"] = "earliest"
        if not more.keys() & {"subscribe", "subscribePattern"}:
            by_default["assign"] = BOTH
        with query(self.names, None, **by_default | more) as it:
            yield it


@contextmanager
def forgetful_pair(monkeypatch):
    """Yield a pair with a topic T of two queues on each broker."""
    with EmbeddedBroker(brokerName="a") as a, EmbeddedBroker(brokerName="b") as b:
        for broker in (a, b):
            broker.create_topic("T", 2)
        with JoiningNameServer(a, b) as names:
            pair = Pair(names, a, b)
            for module in (fan_out, retry_timer):
                monkeypatch.setattr(
                    module, "time", SimpleNamespace(monotonic=pair.clock, sleep=pair.sleep)
                )
            yield pair


def places(offset):
    """Return the next offset of each queue from a query's offset."""
    return {queue: at.next_offset for queue, at in offset.positions.items()}
