"""TextColumn: one property of thousands of messages: its distinct values, and conditions on them.

Simple conditions compare the property with a number, or search a text: most expressions consist of
these. A number becomes an integer with the order that Java gives to numbers, so that one comparison
by numpy serves all rows; which texts are numbers is determined once. Any other condition on the one
property is evaluated for each distinct value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .java_values import is_integer, parse_numbers
from .sql_expression import (
    TEXT_MATCHES,
    Comparison,
    Equal,
    Expression,
    In,
    Literal,
    Negation,
    Properties,
    Property,
    TextMatch,
)

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
    """For each value, and at the end for an absent one, a key that sorts as the numbers do."""

    keys: npt.NDArray[np.int64]
    states: States
    """NULL or FAILED where there is no number, and 0 elsewhere."""


class TextColumn:
    """The distinct values of a property, and the index of each row's value."""

    def __init__(self, column: pa.StringArray) -> None:
        encoded = column.dictionary_encode()
        self.values: list[str] = encoded.dictionary.to_pylist()
        self.row_values: npt.NDArray[np.int32] = encoded.indices.fill_null(
            len(self.values)
        ).to_numpy()
        """The index of each row's value; one beyond the last for rows without a value."""
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
            texts, negated = condition.texts, condition.negated
            return self._states_where((value in texts) is not negated for value in self.values)
        if (
            isinstance(condition, TextMatch)
            and isinstance(condition.operand, Property)
            and condition.text
        ):
            matches, text, negated = TEXT_MATCHES[condition.kind], condition.text, condition.negated
            found = (matches(value, text) is not negated for value in self.values)
            return self._states_where(found, if_absent=FALSE)
        states = [evaluate_state(condition, {name: value}) for value in self.values]
        return np.array([*states, evaluate_state(condition, {})], np.uint8)

    def _states_where(self, is_match: Iterable[bool], if_absent: int = NULL) -> States:
        states = np.empty(len(self.values) + 1, np.uint8)
        states[:-1] = np.fromiter(is_match, np.bool_, len(self.values))
        states[-1] = if_absent
        return states


def compare_columns(left: TextColumn, sign: str, right: TextColumn) -> States:
    """Compare two properties in each row: as numbers, or as texts for an equality."""
    if sign != "=":
        numbers, others = left.numbers(0.0), right.numbers(0.0)
        keys, missing = others.keys[right.row_values], others.states[right.row_values]
        row_numbers = NumericKeys(numbers.keys[left.row_values], numbers.states[left.row_values])
        states = _compare_keys(row_numbers, sign, keys)
        # NULL on one side takes precedence over a text that is no number on the other.
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
    """Return the text or number of an operand that is a constant, else None."""
    if isinstance(operand, Negation) and isinstance(operand.operand, Literal):
        value = operand.value({})
    else:
        value = operand.constant if isinstance(operand, Literal) else None
    return None if isinstance(value, bool) else value


def _sort_keys(numbers: list[Any], like: float) -> npt.NDArray[np.int64]:
    """Return sort keys: integers themselves; of doubles the bits, inverted where negative."""
    if isinstance(like, int):
        return np.array(numbers, np.int64)
    bits = np.array(numbers, np.float64).view(np.int64)
    turned: npt.NDArray[np.int64] = bits ^ ((bits >> _SIGN_BIT) & _ALL_BUT_SIGN)
    return turned
