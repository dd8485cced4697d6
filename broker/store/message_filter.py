"""What a subscription lets through: first by the code in the consume queue, then by the messages.

The store applies any filter of this shape; which there are is the broker's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from rmq_spark.wire.chunk import RecordChunk


class MessageFilter(Protocol):
    """A subscription's two questions. The first is asked for many entries at once, or for one of a few."""

    @property
    def needs_messages(self) -> bool:
        """Whether codes alone do not decide, so that `by_messages` is to be asked as well."""

    @property
    def looks_max(self) -> int:
        """How many messages `by_messages` may be asked about by one get: that keeps others waiting."""

    def matches_code(self, code: int) -> bool:
        """Whether an entry may match, by its tags code alone."""

    def by_tags_code(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which entries may match, by their tags codes alone."""

    def by_messages(self, chunk: RecordChunk) -> npt.NDArray[np.bool_] | None:
        """Which of the messages whose codes may match do; None if all of them do."""

    def cost_of(self, chunk: RecordChunk) -> int:
        """How much longer `by_messages` takes than to read the messages; in bytes that could be read."""
