"""MessageFilter: what a subscription lets through, first by tags code, then by the messages.

The store applies any filter of this shape; which there are is the broker's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from rmq_spark.wire.chunk import RecordChunk


class MessageFilter(Protocol):
    """The two questions of a subscription, of which the first is asked for one entry or many."""

    @property
    def needs_messages(self) -> bool:
        """True if codes alone do not decide, so that `by_messages` is to be asked as well."""

    @property
    def looks_max(self) -> int:
        """The maximum number of messages that `by_messages` looks at in one get, as others wait."""

    def matches_code(self, code: int) -> bool:
        """Return whether an entry may match, by its tags code alone."""

    def by_tags_code(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return a mask of the entries that may match, by their tags codes alone."""

    def by_messages(self, chunk: RecordChunk) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the messages that match, or None if all do; their codes may match."""

    def cost_of(self, chunk: RecordChunk) -> int:
        """Return the extra cost of `by_messages`, in bytes that could be read in its time."""
