"""Rollback: marks rows of a batch that is not committed, in the log, in place.

The mark is that of RocketMQ's messages of a rolled-back transaction. No consume queue gets marked
rows, neither here nor in RocketMQ, nor when queues are rebuilt from the log. Other records between
them stay unchanged. Rolling back twice is harmless.

A start uses the marks to check whether the table of batches is current, and to end an open commit.
The table decides which batches are committed. The log shows which commits have begun: it has their
rows, each with a mark, past the offset saved in the table. A table without a record of them is an
older copy, with which sinks would commit batches twice. Changes that leave no rows go unnoticed:
commits without rows, and the forgetting of a sink.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from rmq_spark.errors import RecordError
from rmq_spark.wire.message import record_layout as layout

from ...common.recent_losses import LossKind
from ..bulk import bulk_tools
from ..bulk import lazy_numpy as np
from ..components import StoreComponents
from ..log.commit_log import CommitLog
from ..log.recovery import next_record_after
from ..queues.manifest import MANIFEST, StoreManifest
from ..records.fields import TRANSACTION_MASK
from ..records.integrity import RecordCheck
from ..results import LOG_START, PhysicalOffset

if TYPE_CHECKING:
    import numpy

    from rmq_spark.wire.chunk import RecordChunk

_PIECE_BYTES = 4 << 20
_PIECE_RECORDS = 8_192


class _Rows(NamedTuple):
    """Rows of a commit among contiguous records, by their numbers in the chunk."""

    position: PhysicalOffset
    chunk: RecordChunk
    rows: numpy.ndarray[tuple[int], numpy.dtype[numpy.intp]]


def rollback_rows(log: CommitLog, start: PhysicalOffset, mark: int) -> None:
    """Mark all rows of a commit past a log position as rolled back, without a flush."""
    for found in _rows_after(log, start, mark):
        _rollback_in(log, found)


def first_row(log: CommitLog, start: PhysicalOffset, mark: int) -> PhysicalOffset | None:
    """Return the position of a commit's first row that is not rolled back, or None."""
    for position, chunk, rows in _rows_after(log, start, mark):
        kept = rows[chunk.sys_flag[rows] & TRANSACTION_MASK != TRANSACTION_MASK]
        if len(kept):
            return position + int(chunk.starts[kept[0]])
    return None


def newest_row(log: CommitLog, start: PhysicalOffset) -> tuple[int, PhysicalOffset] | None:
    """Return the highest mark past a log position, and the first row with it, or None."""
    newest, newest_position = 0, start
    for position, chunk in _chunks_after(log, start):
        marks = np.where(
            chunk.sys_flag & TRANSACTION_MASK, 0, chunk.tail["prepared_transaction_offset"]
        )
        row = int(marks.argmax())
        if marks[row] > newest:
            newest, newest_position = int(marks[row]), position + int(chunk.starts[row])
    return (newest, newest_position) if newest else None


def _rows_after(log: CommitLog, start: PhysicalOffset, mark: int) -> Iterator[_Rows]:
    for position, chunk in _chunks_after(log, start):
        rows = np.flatnonzero(chunk.tail["prepared_transaction_offset"] == mark)
        if len(rows):
            yield _Rows(position, chunk, rows)


def _chunks_after(
    log: CommitLog, start: PhysicalOffset
) -> Iterator[tuple[PhysicalOffset, RecordChunk]]:
    check = RecordCheck(log.sealed_from)
    position = max(start, log.min_offset)
    while position < log.written_offset:
        chunk = _records_at(log, position, check)
        if chunk is None:  # no record: a blank or a hole
            found = next_record_after(log.files, position + 1, position, log.sealed_from)
            position = log.written_offset if found is None else found
            continue
        yield position, chunk
        position += len(chunk.data)


def _records_at(log: CommitLog, position: PhysicalOffset, check: RecordCheck) -> RecordChunk | None:
    """Return valid contiguous records from a position on, or None if there are none."""
    try:
        data, sizes = log.read_records(position, log.written_offset, _PIECE_BYTES, _PIECE_RECORDS)
        intact_count, _ = check.check_columns(data, sizes, position) if sizes else (0, ())
        if not intact_count:
            return None
        return bulk_tools.RecordChunk(
            bytearray(data[: sum(sizes[:intact_count])]), sizes[:intact_count]
        )
    except RecordError:
        return None


def _rollback_in(log: CommitLog, found: _Rows) -> None:
    position, chunk, rows = found
    flags = (chunk.sys_flag[rows] | TRANSACTION_MASK).astype(">i4").view("V4")
    cells = np.ndarray((len(chunk.data) - 3,), "V4", chunk.data, strides=(1,))
    cells[chunk.starts[rows] + layout.SYS_FLAG_AT] = flags
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        first, last = int(run[0]), int(run[-1])
        bulk_tools.write_checksums(chunk, first, last + 1)
        start, end = int(chunk.starts[first]), int(chunk.ends[last])
        log.files.write(position + start, bytes(chunk.data[start:end]))


# ---- The commits of staged batches at a start.


def check_batches(
    components: StoreComponents,
    manifest: StoreManifest,
    max_referenced_offset: PhysicalOffset,
    *,
    is_newest: bool,
) -> None:
    """Refuse a table without a record of the newest commit, or of its end.

    ``max_referenced_offset`` is the highest physical offset that queue entries lead to;
    ``is_newest`` is true if the manifest is the one saved last. Nothing past the first row of a
    commit is dispatched to queues before the table records that the commit has ended.
    """
    table, log = components.batch_table, components.log
    under_way = table.under_way
    dispatched_to = max(max_referenced_offset, manifest.safe_offset or LOG_START)
    if under_way is not None and dispatched_to > under_way.log_offset:
        first = first_row(log, under_way.log_offset, under_way.mark)
        if first is not None and first < dispatched_to:
            raise table.lost_entry_error(first)
    known = table.newest_mark
    if known is None:  # the table is new, or of an earlier release
        return
    start = PhysicalOffset(known - 1)
    if is_newest:
        table.check_newest(manifest.newest_mark or 0, MANIFEST)
        start = max(start, manifest.safe_offset or LOG_START)
    found = newest_row(log, start)
    if found is not None:
        mark, position = found
        table.check_newest(mark, f"the row at {position} of the commit log")


def rollback_open_batch(components: StoreComponents) -> None:
    """Roll back the rows of an open commit: no client got a success for it."""
    under_way = components.batch_table.under_way
    if under_way is not None:
        components.losses.report(
            LossKind.BATCH_ROLLED_BACK,
            f"the broker stopped while batch {under_way.batch_id} of sink {under_way.sink} was "
            "being committed: the batch is rolled back, and its sink can commit it again",
            level=logging.WARNING,
        )
        rollback_rows(components.log, under_way.log_offset, under_way.mark)
        components.log.files.flush()
        components.batch_table.rollback()
        components.reput.resume_dispatch()
