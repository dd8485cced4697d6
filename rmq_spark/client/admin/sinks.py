"""Broker sinks: list and remove the sinks that stage their batches on our brokers.

RocketMQ's brokers have no such sinks and are skipped. `committed_reads` lists the batches of sinks
that commit with manifests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rmq_spark.client.admin.admin import Admin
from rmq_spark.wire.bodies.staged_batches import SinkState
from rmq_spark.wire.extensions import Extension


class BrokerSink(NamedTuple):
    """A sink, with its state at one broker.

    Attributes:
        name: Name of the sink.
        broker_name: Name of the broker.
        state: The last batch that it has committed.
    """

    name: str
    broker_name: str
    state: SinkState


def broker_sinks(admin: Admin, topic: str | None = None) -> list[BrokerSink]:
    """Return the sinks that have committed staged batches on our brokers."""
    return [
        BrokerSink(name, broker_name, state)
        for broker_name, address in _staging_brokers(admin)
        for name, state in sorted(admin.instance.api.admin.sinks(address).items())
        if topic is None or topic in state.topics
    ]


def remove_sink(admin: Admin, name: str) -> list[str]:
    """Remove a sink and its staged rows from all brokers; return the names of those that had it."""
    return [
        broker_name
        for broker_name, address in _staging_brokers(admin)
        if admin.instance.api.admin.forget_sink(address, name)
    ]


def _staging_brokers(admin: Admin) -> Iterator[tuple[str, str]]:
    """Yield the names and addresses of the masters on which batches can be staged."""
    for name, address in admin.masters().items():
        if Extension.STAGED_BATCHES in admin.instance.api.agreement(address).extensions:
            yield name, address
