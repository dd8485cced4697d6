"""Our clients of each side's broker, created when first needed and closed with the arena."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pyarrow as pa

from benchmarks.broker.arena import Arena
from benchmarks.broker.figures import Role
from benchmarks.broker.running import RunningBroker
from benchmarks.traffic import VariedTraffic
from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.transport.remoting_client import RemotingClient
from rmq_spark.wire.extensions import Extension
from rocketpoll import ClientError, Message, MessageQueue, Producer

BODY_BYTES = 100
_READY_TRIES = 100
_TIMEOUT_MS = 20_000  # a machine that is busy is no reason to fail
_BODY = random.Random(1).randbytes(BODY_BYTES)


def message(topic: str) -> Message:
    """Return one of the messages that all cases send."""
    return Message(topic, _BODY)


def varied_messages(topic: str, count: int) -> list[Message]:
    """Return messages as services send them."""
    traffic = VariedTraffic()
    return [
        Message(
            topic,
            traffic.body(),
            tags=traffic.tag(),
            keys=traffic.keys(),
            properties=traffic.properties(),
        )
        for _ in range(count)
    ]


def table(count: int) -> Any:
    """Return a table of ``count`` rows; body lengths differ, as equal ones could be easier."""
    bodies = [_BODY[: BODY_BYTES - number % 5] for number in range(5)]
    array = pa.array(bodies, pa.binary()).take(pa.array([number % 5 for number in range(count)]))
    return pa.table({"body": array})


class Clients:
    """Our clients of each side's broker, made when first needed and ended with the arena."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.producer = cache(self._producer)
        self.api = cache(self._api)
        self.queues = cache(self._queues)

    def broker(self, role: Role) -> RunningBroker:
        """Return the broker of a side."""
        return self._arena.broker(role)

    def address(self, role: Role) -> str:
        """Return the address of a side's broker."""
        return f"127.0.0.1:{self._arena.broker(role).port}"

    def name_server(self, role: Role) -> str:
        """Return the address of a side's name server."""
        return self._arena.broker(role).name_server

    def _queues(self, role: Role, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic, which a first message creates."""
        producer = self.producer(role)
        for attempt in range(_READY_TRIES):
            try:
                producer.send(message(topic))
                return producer.instance.routes.refresh(topic).publish_queues
            except ClientError:  # noqa: PERF203  # the name server learns of a new topic a little later
                if attempt == _READY_TRIES - 1:
                    raise
        raise AssertionError(topic)

    def _producer(self, role: Role) -> Producer:
        producer = Producer("benchmarks", self.name_server(role), send_timeout_ms=_TIMEOUT_MS)
        producer.start()
        self._arena.at_the_end(producer.shutdown)
        return producer

    def _api(self, extensions: frozenset[Extension]) -> BrokerApi:
        """Return a BrokerApi for one puller of any broker, which reads the answers itself."""
        connections = RemotingClient(reads_itself=True, extensions=extensions)
        self._arena.at_the_end(connections.shutdown)
        return BrokerApi(connections, _TIMEOUT_MS)
