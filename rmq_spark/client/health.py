"""Health: what a producer or a consumer says of itself to whoever watches over a service.

It is a glance at what is in memory: nobody is asked, and nobody waited for. This module knows no client.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq_spark.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerHealth:
    """A producer at one moment."""

    is_running: bool
    """Whether it was started in this process, and neither it nor its instance was shut down."""

    pending_sends: int
    """How many sends of `send_async` wait for their answers."""

    pending_bytes: int
    """How many bytes their bodies have."""

    silent_brokers: tuple[str, ...]
    """Addresses where no broker answers: sends pass them over while they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHealth:
    """A consumer at one moment."""

    is_running: bool
    """Whether it was started in this process, and neither it nor its instance was shut down."""

    queues: int
    """How many queues it has."""

    unreachable_queues: tuple[MessageQueue, ...]
    """Those whose broker is not connected, so that nothing comes of them."""

    cached_messages: int
    """How many messages were pulled, and not yet consumed."""

    cached_bytes: int
    """How many bytes their bodies have."""

    threads: int
    """How many threads it has of its own; its instance has more, for its connections."""
