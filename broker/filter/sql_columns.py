"""SQL columns: evaluates an SQL92 expression for thousands of messages at once.

Only the properties that it names are read. Conditions on one property are evaluated for its
distinct values, see `sql_texts`; AND, OR and NOT of their results are looked up in tables.
Everything else, such as a comparison of two conditions on different properties, is evaluated row by
row.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .sql_expression import (
    And,
    Between,
    Comparison,
    Equal,
    Expression,
    Not,
    Or,
    Property,
    SqlExpression,
)
from .sql_texts import (
    FAILED,
    FALSE,
    NULL,
    TRUE,
    States,
    TextColumn,
    compare_columns,
    evaluate_state,
)

# The result of NOT, indexed by the operand's state.
_NOT = np.array([TRUE, FALSE, NULL, FAILED], np.uint8)

# Indexed by the left side's state, then the right one's; the left may decide alone.
_AND = np.array(
    [
        [FALSE, FALSE, FALSE, FALSE],
        [FALSE, TRUE, NULL, FAILED],
        [FALSE, NULL, NULL, FAILED],
        [FAILED, FAILED, FAILED, FAILED],
    ],
    np.uint8,
)
_OR = np.array(
    [
        [FALSE, TRUE, NULL, FAILED],
        [TRUE, TRUE, TRUE, TRUE],
        [NULL, TRUE, NULL, FAILED],
        [FAILED, FAILED, FAILED, FAILED],
    ],
    np.uint8,
)


class Columns(Protocol):
    """The properties of many messages, as `rmq_spark.wire.chunk` provides them."""

    def values(self, name: str) -> pa.StringArray:
        """Return the values of one property, null for messages without it."""


def matching_rows(expression: SqlExpression, columns: Columns, rows: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the messages that match an expression."""
    matches: npt.NDArray[np.bool_] = (
        _ColumnEvaluator(columns, rows).states(expression.condition) == TRUE
    )
    return matches


class _ColumnEvaluator:
    """One expression and some messages; each property is decoded once."""

    def __init__(self, columns: Columns, rows: int) -> None:
        self._columns = columns
        self._rows = rows
        self._texts: dict[str, TextColumn] = {}

    def states(self, condition: Expression) -> States:
        """Return the state of a condition for each message."""
        if isinstance(condition, Not):
            return _NOT[self.states(condition.operand)]
        if isinstance(condition, (And, Or)):
            return self._combine(_AND if isinstance(condition, And) else _OR, *condition.conditions)
        if isinstance(condition, Between) and isinstance(condition.operand, Property):
            return self._between(condition.operand, condition)
        if not condition.names:
            return np.full(self._rows, evaluate_state(condition, {}), np.uint8)
        if len(condition.names) == 1:
            (name,) = condition.names
            return self._text_column(name).states(condition, name)
        if isinstance(condition, (Equal, Comparison)):
            left, right = condition.left, condition.right
            if isinstance(left, Property) and isinstance(right, Property):
                sign = condition.sign if isinstance(condition, Comparison) else "="
                return compare_columns(
                    self._text_column(left.name), sign, self._text_column(right.name)
                )
        return self._evaluate_rows(condition)

    def _combine(self, table: States, first: Expression, *others: Expression) -> States:
        result = self.states(first)
        for each in others:
            result = table[result, self.states(each)]
        return result

    def _between(self, operand: Property, condition: Between) -> States:
        if condition.negated:
            below, above = (
                Comparison(operand, "<", condition.low),
                Comparison(operand, ">", condition.high),
            )
            return self._combine(_OR, below, above)
        above, below = (
            Comparison(operand, ">=", condition.low),
            Comparison(operand, "<=", condition.high),
        )
        return self._combine(_AND, above, below)

    def _text_column(self, name: str) -> TextColumn:
        if name not in self._texts:
            self._texts[name] = TextColumn(self._columns.values(name))
        return self._texts[name]

    def _evaluate_rows(self, condition: Expression) -> States:
        names = sorted(condition.names)
        columns = [[*self._text_column(name).values, None] for name in names]
        states = np.empty(self._rows, np.uint8)
        for row, numbers in enumerate(
            zip(*(self._text_column(name).row_values for name in names), strict=True)
        ):
            texts = zip(names, columns, numbers, strict=True)
            properties = {
                name: text for name, values, number in texts if (text := values[number]) is not None
            }
            states[row] = evaluate_state(condition, properties)
        return states
