"""BatchTable: which batch each sink has committed last, and which commit is under way.

Kept as config/stagedBatches.json, where RocketMQ leaves it alone. Its saves decide: a batch is
committed when the table that says so is saved, and rows of the one that is under way are nobody's.

    before the copy     under way: the batch, and the place in the log behind which its rows go
    behind it           the batch is its sink's last, and nothing is under way
    or, if it failed    nothing is under way; its rows have been marked as rolled back

This module must not know what is in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from rmq_spark.wire.bodies.staged_batches import CommittedBatch
from rocketpoll.broker.store.disk import Disk
from rocketpoll.broker.store.errors import BatchRefused
from rocketpoll.broker.store.tables import JsonTable

BATCH_TABLE: Final = "stagedBatches.json"
SINKS_MAX: Final = 4_096
"""Each sink has one entry, and all are saved with each commit."""


@dataclass(frozen=True, kw_only=True)
class OpenBatch:
    """A commit that is under way."""

    sink: str
    batch_id: int
    log_offset: int
    """The end of the log when it began: its rows lie behind that."""

    @property
    def mark(self) -> int:
        """The offset of a prepared transaction in its rows, which other messages leave at 0."""
        return self.log_offset + 1


@dataclass(frozen=True, kw_only=True)
class StagedBatchesTable:
    """The content of the file."""

    sinks: Mapping[str, CommittedBatch] = field(default_factory=dict)
    under_way: OpenBatch | None = None


class BatchTable:
    """The table of one store. Saves wait for the disk."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        """Prepare without touching the disk."""
        self._table = JsonTable(disk, directory / BATCH_TABLE, StagedBatchesTable)
        self._known = StagedBatchesTable()

    def load(self) -> None:
        """Read the table.

        Raises:
            DamagedTable: Neither the file nor its backup can be read.
        """
        self._known = self._table.load(StagedBatchesTable())

    @property
    def under_way(self) -> OpenBatch | None:
        """The commit that is under way, or was when the broker ended."""
        return self._known.under_way

    def last(self, sink: str) -> CommittedBatch | None:
        """Return the last batch that a sink has committed, or None."""
        return self._known.sinks.get(sink)

    def check_owner(self, sink: str, owner: str) -> None:
        """Refuse a sink that is another query's, or one more than there may be.

        Raises:
            BatchRefused: With the reason.
        """
        last = self.last(sink)
        if last is None and len(self._known.sinks) >= SINKS_MAX:
            raise BatchRefused(f"there are {SINKS_MAX} sinks already, and {sink} would be one more")
        if last is not None and last.owner != owner:
            raise BatchRefused(
                f"sink {sink} belongs to {last.owner}, which has committed batch {last.batch_id}; "
                f"{owner} needs a name of its own"
            )

    def begin(self, batch: OpenBatch) -> None:
        """Note, before any row of it is in the log, that a commit is under way."""
        self._save(replace(self._known, under_way=batch))

    def finish(self, sink: str, batch: CommittedBatch) -> None:
        """Commit the batch that is under way."""
        sinks = {**self._known.sinks, sink: batch}
        self._save(StagedBatchesTable(sinks=sinks, under_way=None))

    def give_up(self) -> None:
        """Note that nothing is under way, as all rows of it are marked as rolled back."""
        self._save(replace(self._known, under_way=None))

    def _save(self, table: StagedBatchesTable) -> None:
        self._table.save(table)
        self._known = table
