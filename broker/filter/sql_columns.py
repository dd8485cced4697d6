"""SQL columns: evaluates an SQL92 expression for thousands of messages at once.

Only the properties that the expression names are read. A condition on one property is evaluated for
its distinct values; AND, OR and NOT look up the result in tables. Everything else, such as a
comparison of two conditions on different properties, is evaluated row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .java_values import is_integer, parse_numbers
from .sql_expression import (
    TEXT_MATCHES,
    And,
    Between,
    Comparison,
    Equal,
    Expression,
    In,
    Literal,
    Negation,
    Not,
    Or,
    Properties,
    Property,
    SqlExpression,
    TextMatch,
)

# ---- Texts of properties, a column at a time.

States = npt.NDArray[np.uint8]

# The states of a condition for one message; FAILED: it cannot be evaluated.
FALSE, TRUE, NULL, FAILED = range(4)

_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "=": np.equal,
}
_ALL_BUT_SIGN = np.int64((1 << 63) - 1)
_SIGN_BIT = 63


class NumericKeys(NamedTuple):
    """Integers in the order of the values, one for each; the last key is for an absent value."""

    keys: npt.NDArray[np.int64]
    states: States
    """NULL or FAILED where there is no number, and 0 elsewhere."""


class TextColumn:
    """The distinct values of a property, and the index of each row's value.

    Most expressions compare a property with a number, or search a text. Each number becomes an
    integer with the order that Java gives to numbers, so that one numpy comparison serves all rows;
    which texts are numbers is determined once. Any other condition on the property is evaluated for
    each distinct value.
    """

    def __init__(self, column: pa.StringArray) -> None:
        encoded = column.dictionary_encode()
        self.values: list[str] = encoded.dictionary.to_pylist()
        self.row_values: npt.NDArray[np.int32] = encoded.indices.fill_null(
            len(self.values)
        ).to_numpy()
        """The index of each row's value; one past the last for rows without a value."""
        self._numbers: dict[object, NumericKeys] = {}

    def states(self, condition: Expression, name: str) -> States:
        """Return the state of a condition on this property alone for each row."""
        by_value: States = self._evaluate_values(condition, name)[self.row_values]
        return by_value

    def numbers(self, like: float) -> NumericKeys:
        """Return the values as numbers of the type of ``like``."""
        kind = is_integer(like) if isinstance(like, int) else "double"
        if kind not in self._numbers:
            parsed = parse_numbers(self.values, like)
            states = np.zeros(len(parsed) + 1, np.uint8)
            states[-1] = NULL
            if None in parsed:
                states[:-1] = [FAILED if number is None else 0 for number in parsed]
                parsed = [0 if number is None else number for number in parsed]
            self._numbers[kind] = NumericKeys(_sort_keys([*parsed, 0], like), states)
        return self._numbers[kind]

    def _evaluate_values(self, condition: Expression, name: str) -> States:
        if isinstance(condition, (Equal, Comparison)) and isinstance(condition.left, Property):
            constant = _constant(condition.right)
            if isinstance(constant, str):
                return self._states_where(value == constant for value in self.values)
            if constant is not None:
                sign = condition.sign if isinstance(condition, Comparison) else "="
                return _compare_keys(
                    self.numbers(constant), sign, _sort_keys([constant], constant)[0]
                )
        if isinstance(condition, In):
            texts, is_negated = condition.texts, condition.is_negated
            return self._states_where((value in texts) is not is_negated for value in self.values)
        if (
            isinstance(condition, TextMatch)
            and isinstance(condition.operand, Property)
            and condition.text
        ):
            matches, text, is_negated = (
                TEXT_MATCHES[condition.kind],
                condition.text,
                condition.is_negated,
            )
            found = (matches(value, text) is not is_negated for value in self.values)
            return self._states_where(found, if_absent=FALSE)
        states = [evaluate_state(condition, {name: value}) for value in self.values]
        return np.array([*states, evaluate_state(condition, {})], np.uint8)

    def _states_where(self, is_match: Iterable[bool], if_absent: int = NULL) -> States:
        states = np.empty(len(self.values) + 1, np.uint8)
        states[:-1] = np.fromiter(is_match, np.bool_, len(self.values))
        states[-1] = if_absent
        return states


def compare_columns(left: TextColumn, sign: str, right: TextColumn) -> States:
    """Compare two properties in each row: as texts for an equality, otherwise as numbers."""
    if sign != "=":
        numbers, others = left.numbers(0.0), right.numbers(0.0)
        keys, missing = others.keys[right.row_values], others.states[right.row_values]
        row_numbers = NumericKeys(numbers.keys[left.row_values], numbers.states[left.row_values])
        states = _compare_keys(row_numbers, sign, keys)
        # NULL on one side takes precedence over a non-numeric text on the other.
        return np.where(
            (missing == NULL) | ((missing == FAILED) & (states != NULL)), missing, states
        )
    number_of = {value: number for number, value in enumerate(right.values)}
    on_the_right = np.array(
        [*(number_of.get(value, -1) for value in left.values), len(right.values)]
    )
    same = on_the_right[left.row_values] == right.row_values
    is_missing = left.row_values == len(left.values)
    return np.where(is_missing & ~same, NULL, same).astype(np.uint8)


def evaluate_state(condition: Expression, properties: Properties) -> int:
    """Return the state of a condition for one message."""
    try:
        value = condition.value(properties)
    except ValueError:
        return FAILED
    if value is None:
        return NULL
    return TRUE if value is True else FALSE


def _compare_keys(numbers: NumericKeys, sign: str, keys: npt.NDArray[np.int64]) -> States:
    holds = _COMPARISONS[sign](numbers.keys, keys)
    return np.where(numbers.states, numbers.states, holds).astype(np.uint8)


def _constant(operand: Expression) -> str | int | float | None:
    if isinstance(operand, Negation) and isinstance(operand.operand, Literal):
        value = operand.value({})
    else:
        value = operand.constant if isinstance(operand, Literal) else None
    return None if isinstance(value, bool) else value


def _sort_keys(numbers: list[Any], like: float) -> npt.NDArray[np.int64]:
    """Return sort keys: integers as they are, doubles as their bits, inverted if negative."""
    if isinstance(like, int):
        return np.array(numbers, np.int64)
    bits = np.array(numbers, np.float64).view(np.int64)
    turned: npt.NDArray[np.int64] = bits ^ ((bits >> _SIGN_BIT) & _ALL_BUT_SIGN)
    return turned


# The result of NOT, indexed by the operand's state.
_NOT = np.array([TRUE, FALSE, NULL, FAILED], np.uint8)

# Indexed by the left side's state, then the right side's; the left may decide alone.
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
    """Evaluates one expression for some messages; decodes each property once."""

    def __init__(self, columns: Columns, rows: int) -> None:
        self._columns = columns
        self._rows = rows
        self._texts: dict[str, TextColumn] = {}

    def states(self, condition: Expression) -> States:
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
        table, low, high = (_OR, "<", ">") if condition.is_negated else (_AND, ">=", "<=")
        return self._combine(
            table,
            Comparison(operand, low, condition.low),
            Comparison(operand, high, condition.high),
        )

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
