"""What sends and pulls come to: values, with RocketMQ's words for their outcomes."""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from rmq_spark.errors import RecordError
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.record import StoredMessage, decode_record


class SendStatus(Enum):
    """How safe a message is that was taken; by the code that a broker answers with."""

    SEND_OK = ResponseCode.SUCCESS.value
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT.value
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE.value
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT.value


class SendResult(NamedTuple):
    """Where a message went. For a batch: the ids joined by commas, and the first offset."""

    send_status: SendStatus
    message_id: str
    queue: MessageQueue
    queue_offset: int
    offset_message_id: str
    transaction_id: str | None = None


class AppendResult(NamedTuple):
    """Where a chunk went: so many messages, at successive offsets from the first on."""

    queue_offset: int
    message_count: int
    store_timestamp: int


class PullStatus(Enum):
    """What a pull came to; by the code that a broker answers with."""

    FOUND = ResponseCode.SUCCESS.value
    NO_NEW_MSG = ResponseCode.PULL_NOT_FOUND.value
    NO_MATCHED_MSG = ResponseCode.PULL_RETRY_IMMEDIATELY.value
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED.value


class PullResult(NamedTuple):
    """What a pull brought, and where to go on.

    ``records`` lie back to back as the broker has them. ``sizes``, a numpy array, says how long each is where
    the broker has told (PULL_CHUNK), else it is None.
    """

    pull_status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    suggest_which_broker_id: int = 0
    records: Buffer = b""
    sizes: Any = None

    def first_message(self) -> StoredMessage | None:
        """Return the first message; None if there is none, or none that can be read."""
        if self.pull_status is not PullStatus.FOUND:
            return None
        try:
            return decode_record(self.records, check_crc=False)
        except RecordError:  # whoever reads the queue says so, and what is to become of it
            return None
