"""Health: the state of a producer or a consumer, for programs that monitor a service.

It is read from memory and asks no broker.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq_spark.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerHealth:
    """The state of a producer at one moment, as `Producer.health` returns it.

    Attributes:
        is_running: True if the producer was started in this process, and it and its instance still
            run.
        pending_sends: Number of sends of `send_async` that wait for their responses, or are still
            being written.
        pending_bytes: Number of bytes in the bodies of these sends.
        unwritten_bytes: Number of bytes of requests, on all connections of its instance, that are
            not written to sockets yet.
        threads: Number of the producer's own threads, without those of its instance.
        instance_threads: Number of threads of its instance, for connections and heartbeats; others
            may share them.
        silent_brokers: Addresses, as ``host:port``, at which no broker answers. Sends avoid them
            while they can.
    """

    is_running: bool
    pending_sends: int
    pending_bytes: int
    unwritten_bytes: int
    threads: int
    instance_threads: int
    silent_brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHealth:
    """The state of a consumer at one moment, as ``health()`` of a consumer returns it.

    Attributes:
        is_running: True if the consumer was started in this process, and it and its instance still
            run.
        queues: Number of queues that the consumer has.
        unreachable_queues: Queues whose broker is not connected, so that no messages arrive from
            them.
        cached_messages: Number of messages that were pulled and not yet consumed.
        cached_bytes: Number of bytes in the bodies of these messages.
        threads: Number of the consumer's own threads, without those of its instance.
        instance_threads: Number of threads of its instance, for connections and heartbeats; others
            may share them.
    """

    is_running: bool
    queues: int
    unreachable_queues: tuple[MessageQueue, ...]
    cached_messages: int
    cached_bytes: int
    threads: int
    instance_threads: int
