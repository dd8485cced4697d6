"""Finding messages: by queue offset, by time, by place in the log, by key.

What is found is handed out as it lies in the log, without decoding: a few slices where messages lie
together, one gathered buffer where they are many and scattered. Nothing here writes.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from broker.store import chunks
from broker.store import lazy_numpy as np
from broker.store.commit_log import CommitLog
from broker.store.consume_queue import BLANK_SIZE, ENTRY, ENTRY_BYTES, ENTRY_STRUCT, ConsumeQueue, Entries
from broker.store.message_filter import MessageFilter
from broker.store.queue_table import QueueTable
from broker.store.results import GetMessageResult, GetMessageStatus
from rmq_spark.errors import RecordError
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.record import decode_record, record_size

if TYPE_CHECKING:
    import numpy.typing as npt

SLICES_MAX = 256
"""With more pieces than this, one copy is cheaper than handing them all to the network."""


_FEW = 64
"""So many entries are looked at one after the other: for them, that is cheaper than setting up arrays."""

_LOOK_BYTES_MAX = 4 << 20
"""Of messages that one get looks into for those that match: they are copied, and it keeps others waiting."""

_Numbers: TypeAlias = "list[int] | npt.NDArray[np.int64]"


class _Picked(NamedTuple):
    """Places and sizes of messages, how many entries were looked at, and what it means if there are none."""

    status: GetMessageStatus
    scanned: int
    places: _Numbers
    sizes: _Numbers


class MessageReader:
    """Reads log and consume queues together."""

    def __init__(self, log: CommitLog, queues: QueueTable) -> None:
        """Any number of these may read while one writer appends."""
        self._log = log
        self._queues = queues

    def get_message(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int,
        scan_max: int,
        message_filter: MessageFilter | None = None,
    ) -> GetMessageResult:
        """Messages of a queue from an offset on: the first however large, then as many as the limits let.

        At most ``scan_max`` entries are looked at, and none beyond the end of a consume-queue file.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return _nothing(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        outside = _outside(queue_offset, low, high)
        if outside is not None:
            return outside
        view = queue.view(queue_offset, scan_max)
        if not len(view):
            next_file = min(queue.next_file_offset(queue_offset), high)
            return _nothing(GetMessageStatus.OFFSET_FOUND_NULL, next_file, low, high)
        if message_filter is not None and message_filter.needs_messages:
            entries = np.frombuffer(view, ENTRY)
            picked = self._pick_by_messages(entries, count_max, bytes_max, message_filter)
        else:
            picked = (
                (self._pick_all(view, count_max, bytes_max) if message_filter is None else None)
                or self._pick_few(view, count_max, bytes_max, message_filter)
                or self._pick(np.frombuffer(view, ENTRY), count_max, bytes_max, message_filter)
            )
        status, scanned, places, sizes = picked
        if not len(places):
            return _nothing(status, queue_offset + scanned, low, high)
        return GetMessageResult(
            GetMessageStatus.FOUND,
            queue_offset + scanned,
            low,
            high,
            self._records(places, sizes),
            sizes,
        )

    def _pick_all(self, view: memoryview, count_max: int, bytes_max: int) -> _Picked | None:
        """What `_pick` does without a filter if that is all of the next few entries, as it mostly is.

        Entries behind them that are gone are left to the next pull, where `_pick` passes over them.
        """
        count = min(count_max, len(view) // ENTRY_BYTES)
        if not 0 < count <= _FEW:
            return None
        fields = _struct_of(count).unpack_from(view)
        places, sizes = list(fields[::3]), list(fields[1::3])
        if max(sizes) == BLANK_SIZE or min(places) < self._log.min_offset or sum(sizes) > bytes_max:
            return None
        return _Picked(GetMessageStatus.NO_MATCHED_MESSAGE, count, places, sizes)

    def _pick_few(
        self, view: memoryview, count_max: int, bytes_max: int, message_filter: MessageFilter | None
    ) -> _Picked | None:
        """What `_pick` does, one entry after the other; None if the first few do not decide."""
        log_min_offset = self._log.min_offset
        places: list[int] = []
        sizes: list[int] = []
        left = bytes_max
        number = 0
        for place, size, code in ENTRY_STRUCT.iter_unpack(view[: _FEW * ENTRY_BYTES]):
            if size == BLANK_SIZE or place < log_min_offset:
                if not number:
                    return None
            elif message_filter is None or message_filter.matches_code(code):
                if len(places) == count_max or (size > left and places):
                    return _Picked(GetMessageStatus.NO_MATCHED_MESSAGE, number, places, sizes)
                places.append(place)
                sizes.append(size)
                left -= size
            number += 1
        if number * ENTRY_BYTES < len(view):
            return None
        return _Picked(GetMessageStatus.NO_MATCHED_MESSAGE, number, places, sizes)

    def _pick(
        self, entries: Entries, count_max: int, bytes_max: int, message_filter: MessageFilter | None
    ) -> _Picked:
        """Which of these entries are there, match and are within the limits, and how many that decides."""
        if message_filter is None and self._is_there(entries[: count_max + 1]).all():
            entries = entries[: count_max + 1]  # what lies behind makes no difference, and may be much more
        is_there = self._is_there(entries)
        if not is_there[0]:
            return _missing(is_there)
        rows = _candidates(entries, is_there, message_filter)
        sizes = entries["size"][rows].astype(np.int64)
        within = int(np.searchsorted(np.cumsum(sizes), bytes_max, side="right"))
        taken = min(max(within, 1), count_max, len(rows))
        # Entries up to the first that was left out have been looked at.
        scanned = int(rows[taken]) if taken < len(rows) else len(entries)
        places = entries["physical_offset"][rows[:taken]].astype(np.int64)
        return _Picked(GetMessageStatus.NO_MATCHED_MESSAGE, scanned, places, sizes[:taken])

    def _pick_by_messages(
        self, entries: Entries, count_max: int, bytes_max: int, message_filter: MessageFilter
    ) -> _Picked:
        """The same, where the messages are to be looked at: a piece at a time, till there are enough."""
        is_there = self._is_there(entries)
        if not is_there[0]:
            return _missing(is_there)
        rows = _candidates(entries, is_there, message_filter)
        looked_at = np.cumsum(entries["size"][rows].astype(np.int64))
        places: list[int] = []
        sizes: list[int] = []
        left = bytes_max
        start, step = 0, _FEW
        while start < len(rows):
            if start and looked_at[start - 1] >= _LOOK_BYTES_MAX:
                return _Picked(GetMessageStatus.NO_MATCHED_MESSAGE, int(rows[start]), places, sizes)
            piece = rows[start : start + step]
            for row in self._matching(entries, piece, message_filter).tolist():
                place, size = int(entries["physical_offset"][row]), int(entries["size"][row])
                if places and (len(places) == count_max or size > left):
                    return _Picked(GetMessageStatus.NO_MATCHED_MESSAGE, row, places, sizes)
                places.append(place)
                sizes.append(size)
                left -= size
            start += len(piece)
            step *= 2
        return _Picked(GetMessageStatus.NO_MATCHED_MESSAGE, len(entries), places, sizes)

    def _is_there(self, entries: Entries) -> npt.NDArray[np.bool_]:
        is_there: npt.NDArray[np.bool_] = (entries["size"] != BLANK_SIZE) & (
            entries["physical_offset"] >= self._log.min_offset
        )
        return is_there

    def _matching(
        self, entries: Entries, rows: npt.NDArray[np.int64], message_filter: MessageFilter
    ) -> npt.NDArray[np.int64]:
        """Those of the rows whose messages match."""
        places = entries["physical_offset"][rows].astype(np.int64)
        sizes = entries["size"][rows].astype(np.int64)
        kept = message_filter.by_messages(chunks.RecordChunk(b"".join(self._records(places, sizes)), sizes))
        return rows if kept is None else rows[kept]

    def _records(self, places: _Numbers, sizes: _Numbers) -> tuple[Buffer, ...]:
        """The bytes of records that lie at these places, in order, file by file."""
        if not isinstance(places, list) or not isinstance(sizes, list):
            return self._records_of_many(np.asarray(places), np.asarray(sizes))
        file_size = self._log.files.file_size
        first, last, size = places[0], places[-1], sum(sizes)
        # A queue's records follow each other: if they fill what they span, there is nothing between them.
        if last + sizes[-1] - first == size and first // file_size == last // file_size:
            return (self._log.view(first, size),)
        pieces: list[Buffer] = []
        start = end = places[0]
        for place, size in zip(places, sizes, strict=True):
            if place != end or (place != start and not place % file_size):
                pieces.append(self._log.view(start, end - start))
                start = place
            end = place + size
        pieces.append(self._log.view(start, end - start))
        return tuple(pieces)

    def _records_of_many(
        self, places: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> tuple[Buffer, ...]:
        file_size = self._log.files.file_size
        ends = places + sizes
        # A run ends where the next record does not follow, or lies in another file.
        breaks = (places[1:] != ends[:-1]) | (places[1:] // file_size != places[:-1] // file_size)
        cuts = np.flatnonzero(breaks) + 1
        if len(cuts) < SLICES_MAX:
            starts = [0, *cuts.tolist()]
            stops = [*cuts.tolist(), len(places)]
            return tuple(
                self._log.view(int(places[a]), int(ends[b - 1] - places[a]))
                for a, b in zip(starts, stops, strict=True)
            )
        files = np.flatnonzero(np.diff(places // file_size)) + 1
        return tuple(
            self._gathered(piece, size)
            for piece, size in zip(np.split(places, files), np.split(sizes, files), strict=True)
        )

    def _gathered(self, places: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]) -> Buffer:
        first = int(places[0])
        view = self._log.view(first, int(places[-1] + sizes[-1]) - first)
        gathered = chunks.take_bytes(chunks.py_buffer(view), places - first, sizes)
        return memoryview(gathered.buffers()[2])[: int(sizes.sum())]

    def record_at(self, physical_offset: int) -> memoryview | None:
        """The record that starts at a place in the log; None if none does."""
        if not self._log.min_offset <= physical_offset < self._log.written_offset:
            return None
        view = self._log.view(physical_offset, self._log.written_offset - physical_offset)
        try:
            size = record_size(view, 0)
            if decode_record(view, 0).physical_offset != physical_offset:
                return None
        except RecordError:
            return None
        return view[:size]

    def store_timestamp(self, entry: Any) -> int:
        """When the message of a consume-queue entry was stored."""
        view = self._log.view(int(entry["physical_offset"]), int(entry["size"]))
        return decode_record(view, 0, check_crc=False).store_timestamp

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int, *, upper: bool = False) -> int:
        """The first offset stored at a time or later; upper: the last stored at that time or earlier.

        After the last message that is the queue's end, and its last offset; before the first, its first.
        """
        queue = self._queues.get(topic, queue_id)
        if queue is None:
            return 0
        if upper:
            beyond = queue.search(timestamp, self.store_timestamp, side="right")
            return max(beyond - 1, queue.min_offset)
        return queue.search(timestamp, self.store_timestamp)

    def earliest_timestamp(self, queue: ConsumeQueue) -> int:
        """When the first message of a queue was stored; -1 if there is none."""
        entries = queue.entries(queue.min_offset, 1)
        return self.store_timestamp(entries[0]) if len(entries) else -1


@lru_cache(maxsize=_FEW)
def _struct_of(count: int) -> Struct:
    """So many entries at once."""
    return Struct(">" + ENTRY_STRUCT.format[1:] * count)


def _candidates(
    entries: Entries, is_there: npt.NDArray[np.bool_], message_filter: MessageFilter | None
) -> npt.NDArray[np.int64]:
    """The rows that are there and whose codes match."""
    if message_filter is None:
        return np.flatnonzero(is_there)
    return np.flatnonzero(is_there & message_filter.by_tags_code(entries["tags_code"].astype(np.int64)))


def _missing(is_there: npt.NDArray[np.bool_]) -> _Picked:
    """The first of the entries has no message any more: go on where the next one is."""
    missing = int(np.argmax(is_there)) if is_there.any() else len(is_there)
    return _Picked(GetMessageStatus.MESSAGE_WAS_REMOVING, missing, [], [])


def _outside(queue_offset: int, low: int, high: int) -> GetMessageResult | None:
    if high == 0:
        return _nothing(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
    if queue_offset < low:
        return _nothing(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
    if queue_offset == high:
        return _nothing(GetMessageStatus.OFFSET_OVERFLOW_ONE, queue_offset, low, high)
    if queue_offset > high:
        return _nothing(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
    return None


def _nothing(status: GetMessageStatus, next_begin_offset: int, low: int, high: int) -> GetMessageResult:
    return GetMessageResult(status, next_begin_offset, low, high)
