"""A compiled SQL92 expression: a tree that says of a message's properties whether they match.

Its logic has three values: a missing property is NULL, and so is most of what is made of it. What cannot be
evaluated, such as a number compared with text that is none, is a ValueError from wherever it happens up to
the top; its message does not match. `value` asks in the order in which RocketMQ asks, since what has been
decided before the ValueError counts.

Nodes are made by `sql_parser`, which sees to it that their operands are of kinds that go with them. This
module knows no text and no limits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from rocketpoll.broker.filter.java_values import Value, compare, parse_double

Properties = Mapping[str, str]

_HOLDS: Mapping[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

CONTAINS = "CONTAINS"
STARTSWITH = "STARTSWITH"
ENDSWITH = "ENDSWITH"
MATCHES: Mapping[str, Callable[[str, str], bool]] = {
    CONTAINS: operator.contains,
    STARTSWITH: str.startswith,
    ENDSWITH: str.endswith,
}


class Expression:
    """One node."""

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The nodes right below it."""
        return ()

    @cached_property
    def depth(self) -> int:
        """How many nodes stand above each other, from this one down."""
        return 1 + max((each.depth for each in self.operands), default=0)

    @cached_property
    def nodes(self) -> int:
        """How many nodes there are, this one included."""
        return 1 + sum(each.nodes for each in self.operands)

    @cached_property
    def names(self) -> frozenset[str]:
        """The properties that it asks for."""
        return frozenset[str]().union(*(each.names for each in self.operands))

    def value(self, properties: Properties) -> Value:
        """What it comes to for a message with these properties, or a ValueError."""
        raise NotImplementedError


class Condition(Expression):
    """A node whose value is True, False or None."""


@dataclass(frozen=True)
class Literal(Expression):
    """A value that stands in the text."""

    constant: Value

    def value(self, properties: Properties) -> Value:  # noqa: ARG002  # as all nodes have it
        """Itself."""
        return self.constant


@dataclass(frozen=True)
class Property(Expression):
    """What the message has under a name."""

    name: str

    @cached_property
    def names(self) -> frozenset[str]:
        """Its own."""
        return frozenset([self.name])

    def value(self, properties: Properties) -> Value:
        """The text, or None."""
        return properties.get(self.name)


@dataclass(frozen=True)
class _Unary(Expression):
    operand: Expression

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The one."""
        return (self.operand,)


@dataclass(frozen=True)
class Negation(_Unary):
    """The minus sign."""

    def value(self, properties: Properties) -> Value:
        """Only numbers that stand in the text have a negative: properties are text."""
        value = self.operand.value(properties)
        return -value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Truth(_Unary, Condition):
    """A property where a condition should stand: text is never true."""

    def value(self, properties: Properties) -> bool | None:
        """False where it is there."""
        return None if self.operand.value(properties) is None else False


@dataclass(frozen=True)
class Not(_Unary, Condition):
    """The opposite."""

    def value(self, properties: Properties) -> bool | None:
        """That of NULL is NULL."""
        value = self.operand.value(properties)
        return None if value is None else not value


@dataclass(frozen=True)
class IsNull(_Unary, Condition):
    """Whether there is nothing: never NULL itself."""

    def value(self, properties: Properties) -> bool:
        """True or False."""
        return self.operand.value(properties) is None


@dataclass(frozen=True)
class And(Condition):
    """All of them."""

    conditions: tuple[Expression, ...]

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The conditions."""
        return self.conditions

    def value(self, properties: Properties) -> bool | None:
        """Decided by the first that is False."""
        result: bool | None = True
        for each in self.conditions:
            value = each.value(properties)
            if value is None:
                result = None
            elif not value:
                return False
        return result


@dataclass(frozen=True)
class Or(Condition):
    """One of them."""

    conditions: tuple[Expression, ...]

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The conditions."""
        return self.conditions

    def value(self, properties: Properties) -> bool | None:
        """Decided by the first that is True."""
        result: bool | None = False
        for each in self.conditions:
            value = each.value(properties)
            if value is None:
                result = None
            elif value:
                return True
        return result


@dataclass(frozen=True)
class Equal(Condition):
    """The same value, once both are of one type."""

    left: Expression
    right: Expression

    @property
    def operands(self) -> tuple[Expression, ...]:
        """Both sides."""
        return (self.left, self.right)

    def value(self, properties: Properties) -> bool | None:
        """As RocketMQ has it: nothing equals nothing, and nothing on the right alone is not equal."""
        left, right = self.left.value(properties), self.right.value(properties)
        if left is None:
            return True if right is None else None
        if right is None:
            return False
        return compare(left, right) == 0


@dataclass(frozen=True)
class Ordered(Condition):
    """One of < <= > >=."""

    left: Expression
    sign: str
    right: Expression

    @property
    def operands(self) -> tuple[Expression, ...]:
        """Both sides."""
        return (self.left, self.right)

    def value(self, properties: Properties) -> bool | None:
        """Of numbers only; of what is nothing, nothing."""
        return _ordered(self.left.value(properties), self.sign, self.right, properties)


@dataclass(frozen=True)
class Between(Condition):
    """From low to high, both included; negated, outside of that."""

    operand: Expression
    low: Expression
    high: Expression
    negated: bool = False

    @property
    def operands(self) -> tuple[Expression, ...]:
        """All three."""
        return (self.operand, self.low, self.high)

    def value(self, properties: Properties) -> bool | None:
        """As AND, or negated OR, of two comparisons; but its operand is asked once."""
        value = self.operand.value(properties)
        first = _ordered(value, "<" if self.negated else ">=", self.low, properties)
        if first is self.negated:
            return first
        second = _ordered(value, ">" if self.negated else "<=", self.high, properties)
        if second is self.negated:
            return second
        return None if first is None or second is None else second


@dataclass(frozen=True)
class In(Condition):
    """A property's text is one of these; negated, none of these."""

    operand: Property
    texts: frozenset[str]
    negated: bool = False

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The property."""
        return (self.operand,)

    def value(self, properties: Properties) -> bool | None:
        """None where the property is missing."""
        value = properties.get(self.operand.name)
        return None if value is None else (value in self.texts) is not self.negated


@dataclass(frozen=True)
class TextMatch(_Unary, Condition):
    """CONTAINS, STARTSWITH or ENDSWITH; negated, there is text for which that does not hold."""

    kind: str
    text: str
    negated: bool = False

    def value(self, properties: Properties) -> bool:
        """False, not NULL, where there is no text, or none to look for."""
        if not self.text:
            return False
        value = self.operand.value(properties)
        return isinstance(value, str) and MATCHES[self.kind](value, self.text) is not self.negated


def _ordered(left: Value, sign: str, right: Expression, properties: Properties) -> bool | None:
    if left is None:
        return None
    value = right.value(properties)
    if value is None:
        return None
    if isinstance(left, str) and isinstance(value, str):
        left, value = parse_double(left), parse_double(value)
    return _HOLDS[sign](compare(left, value), 0)


@dataclass(frozen=True)
class SqlExpression:
    """A whole expression, and what stood behind it in the text and was not looked at."""

    condition: Expression
    ignored: str = ""

    def evaluate(self, properties: Properties) -> bool:
        """Whether a message with these properties matches."""
        try:
            return self.condition.value(properties) is True
        except ValueError:
            return False
