"""marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rmq_spark.wire import record_layout as layout

from ..bulk import lazy_numpy as np

if TYPE_CHECKING:
    from rmq_spark.wire.chunk import RecordChunk

NO_MARK = 0
"""The mark of records that are no rows of a commit."""
_PREPARED_AT = 4
"""From the number of reconsumptions on, which comes before the offset of a transaction."""


def mark_rows(chunk: RecordChunk, mark: int) -> None:
    """Write into each of some records, which are not sealed yet, which commit they are of."""
    at = chunk.body_at - layout.TAIL_BYTES + _PREPARED_AT
    cells = np.ndarray((len(chunk.data) - 7,), "V8", chunk.data, strides=(1,))
    cells[at] = np.array(mark, ">i8").view("V8")
