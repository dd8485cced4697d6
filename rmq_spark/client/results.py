"""Results of sends and pulls, with RocketMQ's names; and the health of producers and consumers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from rmq_spark.errors import RecordError
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.message.record import StoredMessage, decode_record
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.framing import Buffer


class SendStatus(Enum):
    """Safety with which a broker has stored a message; the values are RocketMQ's response codes.

    Attributes:
        SEND_OK: Stored as safely as the broker's settings demand.
        FLUSH_DISK_TIMEOUT: Stored, but not flushed to disk in time (SYNC_FLUSH).
        SLAVE_NOT_AVAILABLE: Stored, but there is no slave to replicate to (SYNC_MASTER).
        FLUSH_SLAVE_TIMEOUT: Stored, but not replicated in time (SYNC_MASTER).
    """

    SEND_OK = ResponseCode.SUCCESS.value
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT.value
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE.value
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT.value


class SendResult(NamedTuple):
    """Outcome of a send: the place at which the message is stored.

    Attributes:
        send_status: How safely the message is stored.
        message_id: Id given by the producer; of a batch, all ids joined by commas.
        queue: Queue that the message is in.
        queue_offset: Offset in that queue; of a batch, the first message's.
        offset_message_id: Id given by the broker.
        transaction_id: Id of the transaction, if the message belongs to one.
        region_id: Region of the broker, for traces; None if the broker does not report it.
        is_trace_on: Whether the broker allows traces of the message.
        recall_handle: Handle by which `recall` takes back a message that waits for its time of
            delivery; None for others.
    """

    send_status: SendStatus
    message_id: str
    queue: MessageQueue
    queue_offset: int
    offset_message_id: str
    transaction_id: str | None = None
    region_id: str | None = None
    is_trace_on: bool = True
    recall_handle: str | None = None


class AppendResult(NamedTuple):
    """Outcome of an appended chunk: its messages have successive offsets from the first on.

    Attributes:
        queue_offset: Offset of the first message.
        message_count: Number of messages stored.
        store_timestamp: Milliseconds since the epoch at which they were stored.
    """

    queue_offset: int
    message_count: int
    store_timestamp: int


class PullStatus(Enum):
    """Outcome of a pull; the values are RocketMQ's response codes.

    Attributes:
        FOUND: The pull returned messages.
        NO_NEW_MSG: The queue ends at the offset.
        NO_MATCHED_MSG: The filter skipped all messages; resume at the next offset.
        OFFSET_ILLEGAL: The queue does not have the offset; resume at the next offset.
    """

    FOUND = ResponseCode.SUCCESS.value
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND.value
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY.value
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED.value


class PopResult(NamedTuple):
    """Result of a pop: the messages as stored, and the parts of their receipts."""

    messages: tuple[StoredMessage, ...] = ()
    pop_time: int = 0
    invisible_time: int = 0
    revive_queue_id: int = 0
    start_offset_info: str | None = None


class PullResult(NamedTuple):
    """Result of a pull: records, and the offset to resume at.

    Attributes:
        pull_status: Outcome of the pull.
        next_begin_offset: Queue offset at which the next pull begins.
        min_offset: First offset of the queue.
        max_offset: Offset past the last message of the queue.
        suggest_which_broker_id: Number of the broker to pull from next; 0 is the master.
        records: Stored records, back to back.
        sizes: Array (of Python's or numpy's) of the records' lengths in bytes, if the broker has
            sent them (PULL_CHUNK, PULL_PLACES), else None.
        places: Array (numpy) of the records' physical offsets, if the broker has sent these instead
            of records (PULL_PLACES), else None.
    """

    pull_status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_which_broker_id: int = 0
    records: Buffer = b""
    sizes: Any = None
    physical_offsets: Any = None

    def first_message(self, queue: MessageQueue) -> StoredMessage | None:
        """Return the first message; None if it cannot be read, or is of another queue.

        A reader of the queue then reports the fault.
        """
        if self.pull_status is not PullStatus.FOUND:
            return None
        try:
            found = decode_record(self.records, check_crc=False)
        except RecordError:
            return None
        return found if queue.is_of(found.topic, found.queue_id) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerHealth:
    """The state of a producer at one moment, as `Producer.health` returns it.

    Attributes:
        is_running: True if the producer was started in this process, and it and its instance still
            run.
        pending_sends: Number of sends of `send_async` that wait for their responses, or are still
            being written.
        pending_bytes: Number of bytes in the bodies of these sends.
        pending_requests: Number of requests that wait for their replies.
        unwritten_bytes: Number of bytes of requests, on all connections of its instance, that are
            not written to sockets yet.
        dropped_traces: Number of traces that were dropped since the producer was made.
        threads: Number of the producer's own threads, without those of its instance.
        instance_threads: Number of threads of its instance, for connections and heartbeats; others
            may share them.
        silent_brokers: Addresses, as ``host:port``, at which no broker answers. Sends avoid them
            while they can.
    """

    is_running: bool
    pending_sends: int
    pending_bytes: int
    pending_requests: int
    unwritten_bytes: int
    dropped_traces: int
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
        dropped_traces: Number of traces that were dropped since the consumer was made.
        threads: Number of the consumer's own threads, without those of its instance.
        instance_threads: Number of threads of its instance, for connections and heartbeats; others
            may share them.
    """

    is_running: bool
    queues: int
    unreachable_queues: tuple[MessageQueue, ...]
    cached_messages: int
    cached_bytes: int
    dropped_traces: int
    threads: int
    instance_threads: int
