"""SqlExpression: a compiled SQL92 tree that matches the properties of messages.

The logic has three values: a missing property is NULL, and so are most results of it. An operation
that cannot be evaluated, such as comparing a number with non-numeric text, raises ValueError, and
the message does not match. `value` evaluates in RocketMQ's order, because a result that is decided
before the ValueError counts.

`sql_parser` builds the nodes, and ensures that their operands have suitable types.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from .java_values import Value, compare, parse_double

Properties = Mapping[str, str]

_NUMBER_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

CONTAINS = "CONTAINS"
STARTSWITH = "STARTSWITH"
ENDSWITH = "ENDSWITH"
TEXT_MATCHES: Mapping[str, Callable[[str, str], bool]] = {
    CONTAINS: operator.contains,
    STARTSWITH: str.startswith,
    ENDSWITH: str.endswith,
}


class Expression:
    """A node of the tree."""

    @cached_property
    def operands(self) -> tuple[Expression, ...]:
        """The child nodes, in fields of this node or in its tuples."""
        values = [getattr(self, name) for name in getattr(self, "__dataclass_fields__", ())]
        nested = (each if isinstance(each, tuple) else (each,) for each in values)
        return tuple(each for some in nested for each in some if isinstance(each, Expression))

    @cached_property
    def depth(self) -> int:
        """The height of the tree that begins at this node."""
        return 1 + max((each.depth for each in self.operands), default=0)

    @cached_property
    def nodes(self) -> int:
        """The number of nodes in the tree that begins at this node."""
        return 1 + sum(each.nodes for each in self.operands)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all properties that the expression reads."""
        return frozenset[str]().union(*(each.names for each in self.operands))

    def value(self, properties: Properties) -> Value:
        """Return the value for a message with these properties, or raise ValueError."""
        raise NotImplementedError


class Condition(Expression):
    """A node whose value is True, False or None."""


@dataclass(frozen=True)
class Literal(Expression):
    """A constant in the text."""

    constant: Value

    def value(self, properties: Properties) -> Value:  # noqa: ARG002  # all nodes have this form
        """Return the constant itself."""
        return self.constant


@dataclass(frozen=True)
class Property(Expression):
    """A property of the message, by name."""

    name: str

    @cached_property
    def names(self) -> frozenset[str]:
        """The set that contains only this property's name."""
        return frozenset([self.name])

    def value(self, properties: Properties) -> Value:
        """Return the text of the property, or None if the message has none."""
        return properties.get(self.name)


@dataclass(frozen=True)
class _Unary(Expression):
    operand: Expression


@dataclass(frozen=True)
class Negation(_Unary):
    """The negative of a number: the minus sign."""

    def value(self, properties: Properties) -> Value:
        """Return the negative of a number; None for a property, which is text."""
        value = self.operand.value(properties)
        return -value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class PropertyCondition(_Unary, Condition):
    """A property used as a condition: text is never true."""

    def value(self, properties: Properties) -> bool | None:
        """Return False if the message has the property, else None."""
        return None if self.operand.value(properties) is None else False


@dataclass(frozen=True)
class Not(_Unary, Condition):
    """The logical NOT of a condition."""

    def value(self, properties: Properties) -> bool | None:
        """Return the opposite of the operand; None for NULL."""
        value = self.operand.value(properties)
        return None if value is None else not value


@dataclass(frozen=True)
class IsNull(_Unary, Condition):
    """The test IS NULL, which is never NULL itself."""

    def value(self, properties: Properties) -> bool:
        """Return whether the operand is NULL."""
        return self.operand.value(properties) is None


@dataclass(frozen=True)
class _LogicalOperator(Condition):
    """Two or more conditions, one of which may decide the result alone."""

    conditions: tuple[Expression, ...]
    _decides: ClassVar[bool]

    def value(self, properties: Properties) -> bool | None:
        """Return the first deciding value; otherwise None if any condition is None."""
        result: bool | None = not self._decides
        for each in self.conditions:
            value = each.value(properties)
            if value is None:
                result = None
            elif bool(value) is self._decides:
                return self._decides
        return result


class And(_LogicalOperator):
    """The logical AND of two or more conditions: False if at least one is."""

    _decides = False


class Or(_LogicalOperator):
    """The logical OR of two or more conditions: True if at least one is."""

    _decides = True


@dataclass(frozen=True)
class Equal(Condition):
    """The equality of two values, compared as one type."""

    left: Expression
    right: Expression

    def value(self, properties: Properties) -> bool | None:
        """Compare as RocketMQ does: NULL equals NULL; a value does not equal NULL."""
        left, right = self.left.value(properties), self.right.value(properties)
        if left is None:
            return True if right is None else None
        if right is None:
            return False
        return compare(left, right) == 0


@dataclass(frozen=True)
class Comparison(Condition):
    """A comparison with <, <=, > or >=."""

    left: Expression
    sign: str
    right: Expression

    def value(self, properties: Properties) -> bool | None:
        """Compare two numbers; return None if either side is NULL."""
        return _compare_ordered(self.left.value(properties), self.sign, self.right, properties)


@dataclass(frozen=True)
class Between(Condition):
    """The test for a range, both ends included; if negated, for values outside of it."""

    operand: Expression
    low: Expression
    high: Expression
    is_negated: bool = False

    def value(self, properties: Properties) -> bool | None:
        """Evaluate as AND, or negated OR, of two comparisons; the operand is evaluated once."""
        value = self.operand.value(properties)
        first = _compare_ordered(value, "<" if self.is_negated else ">=", self.low, properties)
        if first is self.is_negated:
            return first
        second = _compare_ordered(value, ">" if self.is_negated else "<=", self.high, properties)
        if second is self.is_negated:
            return second
        return None if first is None or second is None else second


@dataclass(frozen=True)
class In(Condition):
    """The test for membership in a list of texts, or its negation."""

    operand: Property
    texts: frozenset[str]
    is_negated: bool = False

    def value(self, properties: Properties) -> bool | None:
        """Return None if the message lacks the property, otherwise whether its text matches."""
        value = properties.get(self.operand.name)
        return None if value is None else (value in self.texts) is not self.is_negated


@dataclass(frozen=True)
class TextMatch(_Unary, Condition):
    """CONTAINS, STARTSWITH or ENDSWITH; if negated, a missing text still does not match."""

    kind: str
    text: str
    is_negated: bool = False

    def value(self, properties: Properties) -> bool:
        """Return False, not NULL, if either text is missing."""
        if not self.text:
            return False
        value = self.operand.value(properties)
        return (
            isinstance(value, str)
            and TEXT_MATCHES[self.kind](value, self.text) is not self.is_negated
        )


def _compare_ordered(
    left: Value, sign: str, right: Expression, properties: Properties
) -> bool | None:
    if left is None:
        return None
    value = right.value(properties)
    if value is None:
        return None
    if isinstance(left, str) and isinstance(value, str):
        left, value = parse_double(left), parse_double(value)
    return _NUMBER_COMPARISONS[sign](compare(left, value), 0)


@dataclass(frozen=True)
class SqlExpression:
    """A whole expression, and the rest of its text, which is ignored."""

    condition: Expression
    ignored: str = ""

    def evaluate(self, properties: Properties) -> bool:
        """Return whether a message with these properties matches."""
        try:
            return self.condition.value(properties) is True
        except ValueError:
            return False
