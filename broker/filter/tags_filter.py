"""TagsFilter: the filter of a TAG subscription, by tags codes, and by tag texts if requested.

Different tags can have equal codes. Java's clients compare the text themselves, so RocketMQ's
broker compares codes alone, and may send a message too many.

It implements the store's `MessageFilter` and the hold service's `HoldFilter`.
"""

from __future__ import annotations

import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rmq_spark.wire.message.properties import TAGS

if TYPE_CHECKING:  # importing these takes a tenth of a second, which only many messages justify
    import numpy as np
    import numpy.typing as npt

    from rmq_spark.wire.chunk import RecordChunk

_INT32_BITS = 0xFFFFFFFF
_INT32_SIGN = 0x80000000
_CODE_BYTES = 32
_TAG_BYTES = 96


class TagsFilter:
    """The filter of messages by tags codes and, if ``tags`` are given, by their text."""

    evaluated_max = 1 << 31

    def __init__(self, codes: frozenset[int], tags: frozenset[str] | None = None) -> None:
        self.codes = codes
        self.tags = tags

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the codes and tags, in bytes."""
        tags = self.tags or ()
        sets = sys.getsizeof(self.codes) + sys.getsizeof(tags)
        return sets + _CODE_BYTES * len(self.codes) + _TAG_BYTES * len(tags) + sum(map(len, tags))

    @property
    def needs_messages(self) -> bool:
        """True if the code alone does not decide that a message matches."""
        return self.tags is not None

    @cached_property
    def _code_array(self) -> npt.NDArray[np.int32]:
        import numpy as np  # noqa: PLC0415  # takes a tenth of a second to import

        return np.array(sorted(self.codes), np.int32)

    def by_tags_code(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return a mask of the entries with one of the codes.

        Like RocketMQ, this reads only the lower half of the entries' field.
        """
        import numpy as np  # noqa: PLC0415  # takes a tenth of a second to import

        return np.isin(codes.astype(np.int32), self._code_array)

    def by_messages(self, chunk: RecordChunk) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the messages with one of the tags, or None if the codes suffice."""
        if self.tags is None:
            return None
        import pyarrow as pa  # noqa: PLC0415  # takes a tenth of a second to import
        import pyarrow.compute as pc  # noqa: PLC0415  # takes a tenth of a second to import

        wanted = pa.array(sorted(self.tags), pa.string())
        matches = pc.is_in(chunk.properties.values(TAGS), value_set=wanted)
        mask: npt.NDArray[np.bool_] = matches.to_numpy(zero_copy_only=False)
        return mask

    def cost_of(self, chunk: RecordChunk) -> int:  # noqa: ARG002  # required by `MessageFilter`
        """Return 0: finding one property takes no longer than reading the messages."""
        return 0

    def matches_code(self, code: int) -> bool:
        """Return whether a message with this code may match."""
        low = code & _INT32_BITS
        return low - ((low & _INT32_SIGN) << 1) in self.codes
