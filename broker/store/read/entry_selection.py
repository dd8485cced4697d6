"""Entry selection: which entries of a consume queue one get returns, and how far it has read.

Entries arrive in pieces, small ones first, so that a get reads little more of a queue than its
limits allow. It examines the first few one by one, which is cheaper than setting up arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from rmq_spark.wire.message.record_layout import BLANK_SIZE
from rmq_spark.wire.remoting.framing import Buffer

from ..bulk import lazy_numpy as np
from ..errors import UnreadableFile
from ..queues.consume_queue import ENTRY, ENTRY_BYTES, ENTRY_STRUCT, Entries
from ..queues.entry_check import FEW_MAX, WrongEntry
from ..results import GetMessageStatus, Numbers, PhysicalOffset

if TYPE_CHECKING:
    import numpy.typing as npt

    from rmq_spark.wire.chunk import RecordChunk


# ---- MessageFilter: the messages that a subscription accepts, by tags code and then by content.


class MessageFilter(Protocol):
    """The checks of a subscription: by tags code, of one entry or many, and then by content."""

    @property
    def needs_messages(self) -> bool:
        """True if codes alone do not decide, so that `by_messages` must be called as well."""

    @property
    def evaluated_max(self) -> int:
        """The maximum number of messages that `by_messages` evaluates in one get."""

    def matches_code(self, code: int) -> bool:
        """Return whether an entry may match, by its tags code alone."""

    def by_tags_code(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return a mask of the entries that may match, by their tags codes alone."""

    def by_messages(self, chunk: RecordChunk) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the messages that match, or None if all do.

        The tags codes of all these messages were accepted before.
        """

    def cost_of(self, chunk: RecordChunk) -> int:
        """Return the extra cost of `by_messages`, in bytes that could be read in the same time."""


FILTERED_BYTES_MAX = 4 << 20
"""Bytes of messages that one get evaluates, including the extra cost of the filter."""

_FILTER_STEP_BYTES = 1 << 18

ReadRecords: TypeAlias = "Callable[[Numbers, Numbers], RecordChunk]"
"""A function that returns the records at these positions with these sizes, in order, or raises
`WrongEntry` or `UnreadableFile`."""


class GetLimits(NamedTuple):
    """The limits of one get: messages, their bytes except the first's, and entries to examine."""

    count_max: int
    bytes_max: int
    scan_max: int


DEFAULT_LIMITS = GetLimits(count_max=32, bytes_max=262_144, scan_max=800)
"""The limits that RocketMQ applies by default."""


class SelectedEntries(NamedTuple):
    """The selected messages, and the number of entries examined."""

    scanned: int
    positions: Numbers
    sizes: Numbers
    status: GetMessageStatus = GetMessageStatus.NO_MATCHED_MESSAGE
    """The status if no message is selected."""


def select_all(
    entries: Buffer, limits: GetLimits, log_min_offset: PhysicalOffset
) -> SelectedEntries | None:
    """Select the first ``limits.count_max`` entries without a filter, or return None.

    Return None if they are too many to examine one by one, or if ``entries`` has fewer; rarely,
    also if a message is missing, or if all messages together are too large.
    """
    count = limits.count_max
    if count > FEW_MAX or count * ENTRY_BYTES > len(entries):
        return None
    fields = _struct_of(count).unpack_from(entries)
    positions, sizes = list(fields[::3]), list(fields[1::3])
    if max(sizes) == BLANK_SIZE or min(positions) < log_min_offset or sum(sizes) > limits.bytes_max:
        return None
    return SelectedEntries(count, positions, sizes)


def select_few(
    entries: Buffer,
    limits: GetLimits,
    log_min_offset: PhysicalOffset,
    message_filter: MessageFilter | None,
    *,
    are_all: bool,
) -> SelectedEntries | None:
    """Select from the first few entries, one by one; None if more entries have to be examined.

    ``are_all`` means that there are no further entries.
    """
    if len(entries) > FEW_MAX * ENTRY_BYTES:
        return None
    positions: list[int] = []
    sizes: list[int] = []
    left = limits.bytes_max
    number = 0
    for position, size, code in ENTRY_STRUCT.iter_unpack(entries):
        if size == BLANK_SIZE or 0 <= position < log_min_offset:
            if not number:
                return None
        elif message_filter is None or message_filter.matches_code(code):
            if size > left and positions:
                return SelectedEntries(number, positions, sizes)
            positions.append(position)
            sizes.append(size)
            left -= size
            if len(positions) == limits.count_max:
                return SelectedEntries(number + 1, positions, sizes)
        number += 1
    return SelectedEntries(number, positions, sizes) if are_all else None


class EntrySelection:
    """The messages that one get has selected so far, from entries that arrive in pieces."""

    def __init__(
        self,
        limits: GetLimits,
        log_min_offset: PhysicalOffset,
        message_filter: MessageFilter | None,
        records: ReadRecords,
    ) -> None:
        self._log_min_offset = log_min_offset
        self._filter = message_filter
        self._records = records
        self._count_left = limits.count_max
        self._bytes_left = limits.bytes_max
        self._evaluated_bytes = 0
        self._evaluations_left = message_filter.evaluated_max if message_filter is not None else 0
        self._scanned = 0
        self._positions: list[npt.NDArray[np.int64]] = []
        self._sizes: list[npt.NDArray[np.int64]] = []

    def select(self, pieces: Iterable[Buffer]) -> SelectedEntries:
        """Select from entries; this reads no more pieces than needed."""
        is_missing = is_removed = False
        for piece in pieces:
            entries = np.frombuffer(piece, ENTRY)
            positions = entries["physical_offset"].astype(np.int64)
            sizes = entries["size"].astype(np.int64)
            # An entry with an impossible position is not missing: its reader reports that it is
            # damaged.
            is_present = (sizes != BLANK_SIZE) & (
                (positions >= self._log_min_offset) | (positions < 0)
            )
            are_all_present = bool(is_present.all())
            is_missing |= not (self._scanned or is_present[0])
            if is_missing:  # the first message is missing: skip to the next one
                missing = int(np.argmax(is_present)) if is_present.any() else len(entries)
                is_removed |= bool((sizes[:missing] != BLANK_SIZE).any())
                self._scanned += missing
                if is_present.any():
                    break
            elif self._filter is None and are_all_present:
                if self._add_until_full(positions, sizes, None, len(entries)):
                    break
            elif self._add_matching_until_full(entries, positions, sizes, is_present):
                break
        if is_removed:
            return SelectedEntries(self._scanned, [], [], GetMessageStatus.MESSAGE_WAS_REMOVING)
        return SelectedEntries(
            self._scanned, _concatenated(self._positions), _concatenated(self._sizes)
        )

    def _add_until_full(
        self,
        positions: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64] | None,
        scanned: int,
    ) -> bool:
        """Add messages up to the limits; return whether a limit is reached.

        ``rows`` are their numbers among the next entries. If all messages are added, ``scanned``
        entries count as examined.
        """
        within = int(np.searchsorted(np.cumsum(sizes), self._bytes_left, side="right"))
        count = min(max(within, 0 if self._positions else 1), self._count_left, len(sizes))
        if count:
            self._positions.append(positions[:count])
            self._sizes.append(sizes[:count])
            self._count_left -= count
            self._bytes_left -= int(sizes[:count].sum())
        # The entries up to the last added message count as examined.
        if not self._count_left:
            self._scanned += count if rows is None else int(rows[count - 1]) + 1
            return True
        if count < len(sizes):  # the next get begins at the first message left out
            self._scanned += count if rows is None else int(rows[count])
            return True
        self._scanned += scanned
        return False

    def _add_matching_until_full(
        self,
        entries: Entries,
        positions: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
        is_present: npt.NDArray[np.bool_],
    ) -> bool:
        """Add the existing messages that match, up to the limits; return whether one is reached."""
        wanted = self._filter
        if wanted is not None:
            is_present = is_present & wanted.by_tags_code(entries["tags_code"].astype(np.int64))
        rows = np.flatnonzero(is_present)
        if wanted is None or not wanted.needs_messages:
            return self._add_until_full(positions[rows], sizes[rows], rows, len(entries))
        ends = np.cumsum(sizes[rows])
        start = done = 0
        while start < len(rows):  # a few messages at a time
            before = int(ends[start - 1]) if start else 0
            end = int(np.searchsorted(ends, before + _FILTER_STEP_BYTES, side="right"))
            end = max(min(end, start + self._evaluations_left), start + 1)
            try:
                chunk = self._read_readable(positions[rows[start:end]], sizes[rows[start:end]])
            except (WrongEntry, UnreadableFile):
                self._scanned += int(rows[start]) - done
                if self._scanned:  # the next get begins there
                    return True
                raise
            end = start + len(chunk)
            part = rows[start:end]
            self._evaluations_left -= len(part)
            self._evaluated_bytes += int(sizes[part].sum()) + wanted.cost_of(chunk)
            kept = wanted.by_messages(chunk)
            part = part if kept is None else part[kept]
            decided = int(rows[end]) if end < len(rows) else len(entries)
            if self._add_until_full(positions[part], sizes[part], part - done, decided - done):
                return True
            if self._evaluated_bytes >= FILTERED_BYTES_MAX or self._evaluations_left <= 0:
                return True
            start, done = end, decided
        self._scanned += len(entries) - done
        return False

    def _read_readable(
        self, positions: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> RecordChunk:
        """Return the messages before the first unreadable one; halve the range until it is found.

        Raises:
            WrongEntry, UnreadableFile: The first message cannot be read.
        """
        try:
            return self._records(positions, sizes)
        except (WrongEntry, UnreadableFile) as error:
            number = error.right_count if isinstance(error, WrongEntry) else None
            count = number or len(positions) // 2
            if not count:
                raise
        return self._read_readable(positions[:count], sizes[:count])


def _concatenated(parts: list[npt.NDArray[np.int64]]) -> Numbers:
    return np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else []


@lru_cache(maxsize=FEW_MAX)
def _struct_of(count: int) -> Struct:
    return Struct(">" + ENTRY_STRUCT.format[1:] * count)
