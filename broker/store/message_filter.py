"""What a subscription lets through: first by the code in the consume queue, then by the messages.

The store applies any filter of this shape; which there are is the broker's business. One comes along,
as tags are the store's own notion: their code stands in the consume queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from broker.store import chunks
from rmq_spark.wire.tags import tags_code

if TYPE_CHECKING:
    from rmq_spark.wire.chunk import RecordChunk


class MessageFilter(Protocol):
    """A subscription's two questions. The first is asked for many entries at once, or for one of a few."""

    @property
    def needs_messages(self) -> bool:
        """Whether codes alone do not decide, so that `by_messages` is to be asked as well."""

    def matches_code(self, code: int) -> bool:
        """Whether an entry may match, by its tags code alone."""

    def by_tags_code(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which entries may match, by their tags codes alone."""

    def by_messages(self, chunk: RecordChunk) -> npt.NDArray[np.bool_] | None:
        """Which of the messages whose codes may match do; None if all of them do."""


class TagFilter:
    """Messages with one of these tags."""

    def __init__(self, tags: Iterable[str], *, by_text: bool) -> None:
        """Codes can collide. Clients that compare the text themselves, as Java's do, need no second look."""
        self._tags = frozenset(tags)
        self._codes = frozenset(map(tags_code, self._tags))
        self._sorted_codes = np.array(sorted(self._codes), np.int64)
        self._by_text = by_text

    @property
    def needs_messages(self) -> bool:
        """Whether the texts are to be compared."""
        return self._by_text

    def matches_code(self, code: int) -> bool:
        """Whether this code is that of one of the tags."""
        return code in self._codes

    def by_tags_code(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which of these codes are those of the tags."""
        return np.isin(codes, self._sorted_codes)

    def by_messages(self, chunk: RecordChunk) -> npt.NDArray[np.bool_] | None:
        """Whose tag is one of these."""
        if not self._by_text:
            return None
        tags = chunks.COLUMNS["tags"].build(chunk).dictionary_encode()
        is_wanted = np.array([False, *(tag in self._tags for tag in tags.dictionary.to_pylist())])
        mask: npt.NDArray[np.bool_] = is_wanted[tags.indices.fill_null(-1).to_numpy() + 1]
        return mask
