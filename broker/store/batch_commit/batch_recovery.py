"""Recovery of staged batches: whether the table is current, and how an open commit ends.

The table decides which batches are committed. The log shows which commits have begun: it has their
rows, each with a mark, past the offset that the table had noted. A table that does not know of them
is an older copy, with which sinks would commit batches twice. Some commits leave no rows and go
unnoticed: those without rows, and those of forgotten sinks.
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
    """Refuse a table that does not know of the newest commit, or how it ended.

    ``max_referenced_offset`` is the highest physical offset that queue entries lead to;
    ``is_newest`` tells whether the manifest is the one that was saved last. Nothing past the first
    row of a commit is dispatched to queues before the table knows how the commit ended.

    Raises:
        DamagedTable: The table is of an older copy, or its last entry is lost.
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
    """Roll back the rows of a commit that was under way: nobody was told that it succeeded."""
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
