"""SqlFilter: the filter of an SQL92 subscription, which reads messages, not queue entries.

It implements the store's `MessageFilter` and the hold service's `HoldFilter`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmq_spark.wire.message.properties import decode_properties

from .sql_expression import SqlExpression

if TYPE_CHECKING:  # importing these takes a tenth of a second, which only many messages justify
    import numpy as np
    import numpy.typing as npt

    from rmq_spark.wire.chunk import RecordChunk

_BULK_MESSAGES_MIN = 48  # fewer are faster one by one; pulls of Java's clients have fewer
_NODES_EVALUATED_MAX = 32_000
"""Nodes evaluated in one get, for all messages together: some 5 ms, or 15 ms for the most expensive
kinds."""
_NODE_BYTES = 512
_CHARACTER_BYTES = 20  # measured in the text of an IN with many short values
_PROPERTIES_WEIGHT = 4
_NAMES_PER_WEIGHT = 2
"""Properties are scanned once to find their bounds, and once for each name, but faster."""


class SqlFilter:
    """The filter of messages whose properties match an expression."""

    needs_messages = True
    """True, because the tags code alone never decides that a message matches."""

    def __init__(self, expression: SqlExpression, characters: int = 0) -> None:
        """Store an expression; ``characters``, the length of its text, accounts for its memory."""
        self.expression = expression
        self.size_bytes = _NODE_BYTES * expression.condition.nodes + _CHARACTER_BYTES * characters
        """The approximate memory of the expression, in bytes."""
        self.evaluated_max = _NODES_EVALUATED_MAX // expression.condition.nodes
        self._weight = _PROPERTIES_WEIGHT + len(expression.condition.names) // _NAMES_PER_WEIGHT

    def by_tags_code(self, codes: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return a mask of all entries, because any may match."""
        import numpy as np  # noqa: PLC0415  # takes a tenth of a second to import

        return np.ones(len(codes), np.bool_)

    def by_messages(self, chunk: RecordChunk) -> npt.NDArray[np.bool_]:
        """Return a mask of the messages that match."""
        if len(chunk) < _BULK_MESSAGES_MIN:
            return self._match_each(chunk)
        from .sql_columns import matching_rows  # noqa: PLC0415  # imports numpy and pyarrow

        return matching_rows(self.expression, chunk.properties, len(chunk))

    def _match_each(self, chunk: RecordChunk) -> npt.NDArray[np.bool_]:
        import numpy as np  # noqa: PLC0415  # takes a tenth of a second to import

        evaluate, data = self.expression.evaluate, memoryview(chunk.buffer)
        starts = chunk.properties_at.tolist()
        ends = (chunk.properties_at + chunk.properties_length).tolist()
        texts = (
            str(data[start:end], "utf-8", "replace")
            for start, end in zip(starts, ends, strict=True)
        )
        return np.fromiter(
            (evaluate(decode_properties(text)) for text in texts), np.bool_, len(chunk)
        )

    def cost_of(self, chunk: RecordChunk) -> int:
        """Return the cost of checking all properties, in bytes that could be read instead."""
        return self._weight * int(chunk.properties_length.sum())

    def matches_code(self, code: int) -> bool:  # noqa: ARG002  # required by `HoldFilter`
        """Return True, because any message may match."""
        return True
