"""Staged batches at a start: whether their table is believed, and the end of one under way.

The table decides which batches are committed. The log says which have begun: their rows lie there,
each with a mark, behind the place at which the table had noted the commit. A table that does not
know of them is of an older copy, and would have their sinks commit batches twice. What leaves no
row cannot be noticed: commits without any, and sinks that were forgotten.

This module must not know how queues are carried or made again.
"""

from __future__ import annotations

import logging

from ..components import StoreComponents
from ..queues.manifest import MANIFEST, StoreManifest
from ..results import LOG_START, PhysicalOffset
from .rollback import first_row, newest_row, rollback_rows

_log = logging.getLogger(__name__)


def check_batches(
    components: StoreComponents,
    manifest: StoreManifest,
    max_referenced_offset: PhysicalOffset,
    *,
    is_newest: bool,
) -> None:
    """Refuse a table that does not know of the newest commit, or how it has ended.

    ``max_referenced_offset`` is up to where entries of queues lead; ``is_newest`` says whether the
    manifest is the one that was saved last. Nothing of the log from the rows of a commit on is
    carried to queues before the table knows how it ended.

    Raises:
        DamagedTable: The table is of an older copy, or its last entry is lost.
        UnreadableFile: The disk does not give what lies in the log.
    """
    table, log = components.batch_table, components.log
    under_way, carried_to = (
        table.under_way,
        max(max_referenced_offset, manifest.safe_offset or LOG_START),
    )
    if under_way is not None and carried_to > under_way.log_offset:
        first = first_row(log, under_way.log_offset, under_way.mark)
        if first is not None and first < carried_to:
            raise table.lost_entry_error(first)
    known = table.newest_mark
    if known is None:  # of an earlier release, or new
        return
    start = PhysicalOffset(known - 1)
    if is_newest:
        table.check_newest(manifest.newest_mark or 0, MANIFEST)
        start = max(start, manifest.safe_offset or LOG_START)
    found = newest_row(log, start)
    if found is not None:
        mark, place = found
        table.check_newest(mark, f"the row at {place} of the commit log")


def rollback_open_batch(components: StoreComponents) -> None:
    """Roll back what is in the log of a commit that was under way: nobody was told of it.

    Raises:
        OSError, UnreadableFile: The disk refuses. It may be done again.
    """
    under_way = components.batch_table.under_way
    if under_way is not None:
        _log.warning(
            "batch %d of sink %s was being committed when the broker ended: nothing of it is "
            "seen, and its sink may commit it again",
            under_way.batch_id,
            under_way.sink,
        )
        rollback_rows(components.log, under_way.log_offset, under_way.mark)
        components.log.files.flush()
        components.batch_table.rollback()
        components.reput.resume_dispatch()
