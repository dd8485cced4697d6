"""The results of a store's operations, and its state; statuses have RocketMQ's names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, overload

from rmq_spark.wire.remoting.framing import Buffer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


Numbers: TypeAlias = "list[int] | npt.NDArray[np.int64]"


# ---- QueueOffset and PhysicalOffset: the two offsets of a message, as distinct types for mypy.

if TYPE_CHECKING:

    class QueueOffset(int):
        """The number of a message in its queue."""

        def __add__(self, count: int, /) -> QueueOffset: ...
        @overload
        def __sub__(  # type: ignore[overload-overlap]  # an offset is also a number
            self, other: QueueOffset, /
        ) -> int: ...
        @overload
        def __sub__(self, count: int, /) -> QueueOffset: ...
        def __sub__(self, other: int, /) -> int: ...

    class PhysicalOffset(int):
        """A position in the commit log, in bytes from its original start."""

        def __add__(self, size: int, /) -> PhysicalOffset: ...
        @overload
        def __sub__(  # type: ignore[overload-overlap]  # an offset is also a number
            self, other: PhysicalOffset, /
        ) -> int: ...
        @overload
        def __sub__(self, size: int, /) -> PhysicalOffset: ...
        def __sub__(self, other: int, /) -> int: ...

else:
    QueueOffset = PhysicalOffset = int

FIRST_IN_QUEUE = QueueOffset(0)
LOG_START = PhysicalOffset(0)

Hole: TypeAlias = tuple[PhysicalOffset, PhysicalOffset]
"""The start and the end of a part of the log without readable records."""


_NO_PHYSICAL_OFFSET, _NO_QUEUE_OFFSET = PhysicalOffset(-1), QueueOffset(-1)


class PutMessageStatus(Enum):
    """The outcome of a put: whether a message is in the log."""

    PUT_OK = auto()
    FLUSH_DISK_TIMEOUT = auto()  # in the log, but the flush is not confirmed yet
    SERVICE_NOT_AVAILABLE = auto()  # the store is closed or a slave's, or its disk full or failed
    MESSAGE_ILLEGAL = auto()
    PROPERTIES_SIZE_EXCEEDED = auto()


class PutMessageResult(NamedTuple):
    """The result for one message, or for a batch: then the offsets are those of its first message.

    Under SYNC_FLUSH, the message is not confirmed before a flush up to ``end_offset``.
    """

    status: PutMessageStatus
    physical_offset: PhysicalOffset = _NO_PHYSICAL_OFFSET
    queue_offset: QueueOffset = _NO_QUEUE_OFFSET
    end_offset: PhysicalOffset = _NO_PHYSICAL_OFFSET
    store_timestamp: int = 0
    message_count: int = 0
    remark: str | None = None

    @property
    def is_stored(self) -> bool:
        """True if the message is in the log."""
        return self.status in _STORED_STATUSES


_STORED_STATUSES = (PutMessageStatus.PUT_OK, PutMessageStatus.FLUSH_DISK_TIMEOUT)


class GetMessageStatus(Enum):
    """The outcome of a get from a queue offset on."""

    FOUND = auto()
    NO_MATCHED_MESSAGE = auto()
    MESSAGE_WAS_REMOVING = auto()
    OFFSET_FOUND_NULL = auto()
    OFFSET_OVERFLOW_BADLY = auto()
    OFFSET_OVERFLOW_ONE = auto()
    OFFSET_TOO_SMALL = auto()
    NO_MESSAGE_IN_QUEUE = auto()


class GetMessageResult(NamedTuple):
    """Whole records, back to back in a few buffers, and the offset at which to continue.

    There are no buffers if only the positions of the records were requested.
    """

    status: GetMessageStatus
    next_begin_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    buffers: tuple[Buffer, ...] = ()
    sizes: Sequence[int] | npt.NDArray[np.int64] = ()
    physical_offsets: Sequence[int] | npt.NDArray[np.int64] = ()

    @property
    def message_count(self) -> int:
        """The number of records."""
        return len(self.sizes)

    def each_record(self) -> Iterator[memoryview]:
        """Yield the bytes of each record."""
        data = memoryview(b"".join(self.buffers))
        position = 0
        for size in map(int, self.sizes):
            yield data[position : position + size]
            position += size

    @property
    def record_bytes(self) -> int:
        """The total size of all records in bytes."""
        if self.buffers:
            return sum(map(len, self.buffers))
        return sum(self.sizes) if isinstance(self.sizes, Sequence) else int(self.sizes.sum())


class DeletedSpan(NamedTuple):
    """Deleted messages of one queue: offsets from ``first`` to before ``next``."""

    topic: str
    queue_id: int
    first: QueueOffset
    next: QueueOffset


@dataclass(frozen=True)
class DeletedFiles:
    """Files that were deleted from the front of the commit log, and the messages in them.

    Attributes:
        expired_files: The number of files older than `fileReservedTime`.
        forced_files: The number of younger files, deleted because the disk was too full.
        size_bytes: The total size of the files.
        first_ms: When the first deleted message was stored; None if unknown.
        next_ms: When the first remaining message was stored; None if unknown.
        used_ratio: The used share of the disk before the deletion.
        log_offset: Where the commit log begins now.
        spans: The messages that queues no longer offer.
    """

    expired_files: int
    forced_files: int
    size_bytes: int
    first_ms: int | None
    next_ms: int | None
    used_ratio: float
    log_offset: PhysicalOffset
    spans: tuple[DeletedSpan, ...]

    @property
    def message_count(self) -> int:
        """The number of messages that queues no longer offer."""
        return sum(span.next - span.first for span in self.spans)


@dataclass(frozen=True)
class StoreState:
    """The state of a store for its operator: offsets, holes, and what fails."""

    min_offset: PhysicalOffset
    written_offset: PhysicalOffset
    flushed_offset: PhysicalOffset
    reput_from_offset: PhysicalOffset
    holes: tuple[Hole, ...]
    failure: str | None
    unwritable_reason: str | None
    """The reason why the disk accepts no message, even a small one; None if it accepts some."""

    degradation: str | None
    """The work that the store cannot do for now, and the reason; None if it can do everything."""
    recovered_from_crash: bool
    lost_bytes: int
    """The bytes of the log that earlier runs had and the start did not find; usually 0."""

    @property
    def unsaved_reason(self) -> str:
        """The content that a shutdown in this state would not save, and the reason."""
        why = self.failure or self.degradation or "the disk takes too long to save a checkpoint"
        if self.flushed_offset == self.written_offset:
            return why
        return (
            f"{why}; messages from {self.flushed_offset} to {self.written_offset} of the commit "
            "log may not be on the disk"
        )
