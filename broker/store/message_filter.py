"""What a subscription lets through: first by the code in the consume queue, then by the messages.

The store applies any filter of this shape; which there are is the broker's business. One comes along,
as tags are the store's own notion: their code stands in the consume queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.wire.chunk import COLUMNS, RecordChunk
from rmq_spark.wire.tags import tags_code


class MessageFilter(Protocol):
    """A subscription's two questions."""

    def by_tags_code(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which entries may match, by their tags codes alone."""

    def by_messages(self, chunk: RecordChunk) -> npt.NDArray[np.bool_] | None:
        """Which of the messages whose codes may match do; None if the codes have decided."""


class TagFilter:
    """Messages with one of these tags."""

    def __init__(self, tags: Iterable[str], *, by_text: bool) -> None:
        """Codes can collide. Clients that compare the text themselves, as Java's do, need no second look."""
        self._tags = pa.array(sorted(set(tags)), pa.string())
        self._codes = np.array(sorted({tags_code(tag) for tag in self._tags.to_pylist()}), np.int64)
        self._by_text = by_text

    def by_tags_code(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which of these codes are those of the tags."""
        return np.isin(codes, self._codes)

    def by_messages(self, chunk: RecordChunk) -> npt.NDArray[np.bool_] | None:
        """Whose tag is one of these."""
        if not self._by_text:
            return None
        matches = pc.is_in(COLUMNS["tags"].build(chunk), value_set=self._tags)
        mask: npt.NDArray[np.bool_] = matches.to_numpy(zero_copy_only=False)
        return mask
