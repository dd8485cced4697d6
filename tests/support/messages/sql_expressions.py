"""Random SQL92 expressions in many spellings, and a slow second implementation of their meaning.

All randomness comes from a `random.Random`; hypothesis passes one that it can shrink.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isnan
from random import Random
from typing import Any

from rocketpoll.broker.filter.sql_expression import (
    And,
    Between,
    Comparison,
    Condition,
    Equal,
    Expression,
    In,
    IsNull,
    Literal,
    Negation,
    Not,
    Or,
    Property,
    PropertyCondition,
    TextMatch,
)

NAMES = ("a", "b", "_c", "$d9", "AND_", "Price")
TEXTS = ("x", "it's", "", "5", "true", "xyz", "é\U0001f680", "''", "5.5", "-5")
INTEGERS = (0, 1, 5, 6, 2147483647, 2147483648, 9223372036854775807)
FLOATS = (5.5, 5.0, 0.1, 1e3, 1e300, 5e-324, 1.7976931348623157e308, 2147483648.5)

# Values of properties: numbers in all spellings, text that resembles numbers, and other text.
VALUES = (
    "5", "6", "1", "0", "-5", "+5", "007", "-0", "2147483647", "2147483648", "-2147483648",
    "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "5.5",
    "5.0", "-5.5", ".5", "5.", "1e3", "1E+3", "1e400", "-1e400", "1e-400", "-0.0", "0.0", "NaN",
    "-NaN", "nan", "Infinity", "+Infinity", "-Infinity", "inf", "infinity", "5f", "5D", "NaNf",
    "5ff", "0x1p3", "-0X1.8P+1f", "0x1", "0x1f", "0xp1", "0x1p99999999999", "-0x1p-99999999999",
    " 5", "5 ", "\t6\n", "\u00a05", "1_000", "5L", "5e", "e5", ".", "+", "-", "--5", "1,5",
    "\u0663", "\uff15", "\U0001d7d3", "\u0663.5", "0" * 50 + "5", "-" + "0" * 39 + "6",
    "9" * 60, "true", "TRUE", "tRuE", "true ", "false", "yes", "x", "xyz", "it's", "''", "X",
    "\u00e9\U0001f680",
)  # fmt: skip

Properties = Mapping[str, str]


def random_properties(random: Random) -> dict[str, str]:
    """Return random properties; one in three has the same value."""
    return {name: random.choice(VALUES) for name in NAMES if random.random() < 0.7}


# ---- trees


def random_condition(random: Random, levels: int = 4) -> Expression:
    """Return a random condition."""
    if levels == 0 or random.random() < 0.1:
        kind = random.randrange(6)
        if kind == 0:
            return PropertyCondition(Property(random.choice(NAMES)))
        if kind == 1:
            return Literal(random.choice((True, False, None)))
    kind = random.randrange(9)
    if levels > 0 and kind < 3:
        conditions = tuple(
            random_condition(random, levels - 1) for _ in range(random.randint(2, 3))
        )
        return (And, Or)[random.randrange(2)](conditions)
    if levels > 0 and kind == 3:
        return Not(random_condition(random, levels - 1))
    return _random_comparison(random, max(levels - 1, 0))


def _random_comparison(random: Random, levels: int) -> Condition:
    kind = random.randrange(6)
    name = Property(random.choice(NAMES))
    if kind == 0:
        return Comparison(_number(random), random.choice(("<", "<=", ">", ">=")), _number(random))
    if kind == 1:
        return _random_between(random)
    if kind == 2:
        texts = frozenset(random.choice((*TEXTS, *VALUES)) for _ in range(random.randint(1, 7)))
        return In(name, texts, random.random() < 0.5)
    if kind == 3:
        operand = _operand(random, levels) if random.random() < 0.3 else name
        kind_of_match = random.choice(("CONTAINS", "STARTSWITH", "ENDSWITH"))
        return TextMatch(operand, kind_of_match, random.choice(TEXTS), random.random() < 0.5)
    if kind == 4:
        operand = _operand(random, levels) if random.random() < 0.3 else name
        return IsNull(operand)
    left, right = _operand(random, levels), _operand(random, levels)
    return (
        Equal(left, right)
        if _can_be_equal(left, right)
        else Equal(name, Literal(random.choice(TEXTS)))
    )


def _random_between(random: Random) -> Between:
    is_negated = random.random() < 0.4
    low, high = _number(random), _number(random)
    if isinstance(low, Literal) and isinstance(high, Literal) and high.constant < low.constant:
        low, high = high, low
    return Between(_number(random), low, high, is_negated)


def _number(random: Random) -> Expression:
    """Return a random operand of < and >."""
    kind = random.randrange(10)
    if kind < 5:
        return Property(random.choice(NAMES))
    if kind < 7:
        return Literal(random.choice(INTEGERS))
    if kind < 8:
        return Literal(random.choice(FLOATS))
    if kind < 9:
        return Negation(Literal(random.choice((*INTEGERS, *FLOATS))))
    return Negation(_number(random))


def _operand(random: Random, levels: int) -> Expression:
    """Return a random operand of =."""
    kind = random.randrange(8)
    if kind == 0 and levels:
        inner = random_condition(random, levels - 1)
        return inner.operand if isinstance(inner, PropertyCondition) else inner
    if kind == 1:
        return Literal(random.choice((True, False)))
    if kind < 4:
        return Literal(random.choice(TEXTS))
    return _number(random)


def _can_be_equal(left: Expression, right: Expression) -> bool:
    constants = [each.constant for each in (left, right) if isinstance(each, Literal)]
    if None in constants:
        return False
    return not (
        len(constants) == 2
        and isinstance(constants[0], bool)
        and not isinstance(constants[1], bool)
    )


# ---- spelling

_OR, _AND, _EQUALITY, _COMPARISON, _UNARY, _PRIMARY = range(1, 7)


def written(expression: Expression, random: Random) -> str:
    """Return a random spelling of an expression."""
    return _written(expression, _OR, random)


def _written(node: Expression, level: int, random: Random) -> str:
    text, own_level = _spelt(node, random)
    if own_level < level or random.random() < 0.1:
        return f"({_gap(random, '')}{text}{_gap(random, '')})"
    return text


def _spelt(node: Expression, random: Random) -> tuple[str, int]:
    """Return the text of a node, and its precedence."""
    if isinstance(node, (And, Or)):
        word, level = ("AND", _AND) if isinstance(node, And) else ("OR", _OR)
        pieces = [_written(each, level + 1, random) for each in node.conditions]
        return _word(word, random).join(pieces), level
    if isinstance(node, Equal):
        return _equality(node, "=", random)
    if isinstance(node, IsNull):
        return f"{_written(node.operand, _EQUALITY, random)}{_word('IS', random)}NULL", _EQUALITY
    if isinstance(node, Not) and isinstance(node.operand, Equal) and random.random() < 0.7:
        return _equality(node.operand, "<>", random)
    if isinstance(node, Not) and isinstance(node.operand, IsNull) and random.random() < 0.7:
        operand = _written(node.operand.operand, _EQUALITY, random)
        return f"{operand}{_word('IS', random)}NOT{_gap(random)}NULL", _EQUALITY
    if isinstance(node, Not):
        return _word("NOT", random) + _written(node.operand, _UNARY, random), _UNARY
    if isinstance(node, Negation):
        return f"-{_gap(random, ' ')}{_written(node.operand, _UNARY, random)}", _UNARY
    if isinstance(node, PropertyCondition):
        return _written(node.operand, _PRIMARY, random), _PRIMARY
    if isinstance(node, (Literal, Property)):
        return _primary(node, random), _PRIMARY
    return _comparison(node, random), _COMPARISON


def _equality(node: Equal, sign: str, random: Random) -> tuple[str, int]:
    left, right = _written(node.left, _EQUALITY, random), _written(node.right, _COMPARISON, random)
    return f"{left}{_gap(random, '')}{sign}{_gap(random, '')}{right}", _EQUALITY


def _comparison(node: Expression, random: Random) -> str:
    __tracebackhide__ = True
    if isinstance(node, Comparison):
        left, right = _written(node.left, _UNARY, random), _written(node.right, _UNARY, random)
        return f"{left}{_gap(random, '')}{node.sign}{_gap(random, '')}{right}"
    negation = _word("NOT", random) if getattr(node, "is_negated", False) else ""
    if isinstance(node, Between):
        low, high = _written(node.low, _UNARY, random), _written(node.high, _UNARY, random)
        operand = _written(node.operand, _UNARY, random)
        return f"{operand}{negation}{_word('BETWEEN', random)}{low}{_word('AND', random)}{high}"
    if isinstance(node, In):
        texts = f"{_gap(random, '')},".join(map(_quoted, sorted(node.texts)))
        return f"{_written(node.operand, _UNARY, random)}{negation}{_word('IN', random)}({texts})"
    assert isinstance(node, TextMatch)
    operand = _written(node.operand, _COMPARISON, random)
    return f"{operand}{negation}{_word(node.kind, random)}{_quoted(node.text)}"


def _primary(node: Literal | Property, random: Random) -> str:
    if isinstance(node, Property):
        return "+" * (random.random() < 0.05) + node.name
    if isinstance(node.constant, str):
        return _quoted(node.constant)
    if isinstance(node.constant, float):
        return repr(node.constant)
    if node.constant is None or isinstance(node.constant, bool):
        word = "NULL" if node.constant is None else str(node.constant)
        return random.choice((word.upper(), word.lower()))
    return str(node.constant) + (random.choice(("", "", "L", "l")) if node.constant else "")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _word(word: str, random: Random) -> str:
    return _gap(random) + random.choice((word, word, word.lower(), word.title())) + _gap(random)


def _gap(random: Random, usual: str = " ") -> str:
    return random.choice(
        (usual, usual, usual, " ", "\t\n", " -- a comment ' \r\n", " /* it's ** / a comment **/")
    )


# ---- random tokens

SOUP = (
    *NAMES, *map(_quoted, TEXTS), *map(str, INTEGERS), *map(repr, FLOATS), "NOT", "AND", "OR",
    "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH", "=", "<>",
    ">", ">=", "<", "<=", "(", ")", ",", "+", "-", "IS NULL", "IS NOT NULL", "IN ('x', '5')",
    "BETWEEN 1 AND 5", "= 5", "> 5", "AND a",
)  # fmt: skip
_ODDITIES = (
    "!",
    "==",
    "'",
    "--",
    "/*",
    "*/",
    "5e",
    "007",
    "0L",
    "1.5L",
    ".",
    "\u00a0",
    "\u017f",
    "é",
    "#",
    "\x00",
)


def random_soup(random: Random) -> str:
    """Return random tokens, which seldom form an expression."""
    words = random.choices(SOUP, k=random.randint(1, 9))
    if random.random() < 0.15:
        words.insert(random.randint(0, len(words)), random.choice(_ODDITIES))
    return random.choice((" ", " ", "")).join(words)


# ---- second implementation

_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?"
    r"|0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?)"
)
_INTEGER = re.compile(r"[+-]?[0-9\u0660-\u0669\uff10-\uff19]+")


def second_opinion(node: Expression, properties: Properties) -> str:
    """Evaluate an expression: TRUE, FALSE, NULL or FAILED."""
    try:
        value = _opinion(node, properties)
    except ArithmeticError:
        return "FAILED"
    return {True: "TRUE", False: "FALSE", None: "NULL"}[value]


def _opinion(node: Expression, properties: Properties) -> Any:  # noqa: C901, PLR0912  # one case for each node
    match node:
        case Literal(constant):
            return constant
        case Property(name):
            return properties.get(name)
        case PropertyCondition(operand):
            return None if _opinion(operand, properties) is None else False
        case Not(operand):
            return {True: False, False: True, None: None}[_opinion(operand, properties)]
        case IsNull(operand):
            return _opinion(operand, properties) is None
        case Negation(operand):
            value = _opinion(operand, properties)
            return -value if type(value) in (int, float) else None
        case And((first, second)) | Or((first, second)):
            return _pair(_opinion(first, properties), second, isinstance(node, Or), properties)
        case And((*first, last)) | Or((*first, last)):
            return _pair(
                _opinion(type(node)(tuple(first)), properties),
                last,
                isinstance(node, Or),
                properties,
            )
        case Comparison(left, sign, right):
            return _ordered(left, sign, right, properties)
        case Between(operand, low, high, is_negated):
            signs = ("<", ">") if is_negated else (">=", "<=")
            first = _ordered(operand, signs[0], low, properties)
            return _pair(first, Comparison(operand, signs[1], high), is_negated, properties)
        case In(operand, texts, is_negated):
            value = _opinion(operand, properties)
            return None if value is None else (value in texts) != is_negated
        case TextMatch(operand, kind, text, is_negated):
            value = _opinion(operand, properties) if text else None
            if not isinstance(value, str):
                return False
            place = {
                "CONTAINS": slice(None),
                "STARTSWITH": slice(len(text)),
                "ENDSWITH": slice(-len(text), None),
            }
            return (text in value[place[kind]]) != is_negated
        case Equal(left, right):
            values = _opinion(left, properties), _opinion(right, properties)
            if values == (None, None):
                return True
            if values[0] is None:
                return None
            return values[1] is not None and _order(*values) == 0
    raise AssertionError(node)


def _pair(
    first: bool | None, second: Expression, decisive: bool, properties: Properties
) -> bool | None:
    """Evaluate AND or OR of two operands; the decisive value wins."""
    if first is decisive:
        return decisive
    value = _opinion(second, properties)
    if value is decisive:
        return decisive
    return None if first is None or value is None else value


def _ordered(left: Expression, sign: str, right: Expression, properties: Properties) -> bool | None:
    value = _opinion(left, properties)
    if value is None:
        return None
    other = _opinion(right, properties)
    if other is None:
        return None
    if isinstance(value, str) and isinstance(other, str):
        value, other = _double(value), _double(other)
    order = _order(value, other)
    return {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[sign]


def _order(left: Any, right: Any) -> int:
    kinds = (type(left), type(right))
    if kinds[0] is str and kinds[1] is not str:
        return _order(_as(right, left), right)
    if kinds[1] is str and kinds[0] is not str:
        if kinds[0] is bool:
            raise ArithmeticError
        return _order(left, _as(left, right))
    if kinds[0] is not kinds[1] and bool in kinds:
        return -1
    if float in kinds:
        left, right = _rank(float(left)), _rank(float(right))
    return (left > right) - (left < right)


def _rank(number: float) -> tuple[bool, float, bool]:
    """Return the sort key of Java's order: NaN is the greatest, and -0.0 is less than 0.0."""
    return (True, 0.0, False) if isnan(number) else (False, number, str(number)[0] != "-")


def _as(like: Any, text: str) -> Any:
    if isinstance(like, bool):
        return text in ("true", "TRUE", "tRuE", "True")
    if isinstance(like, float):
        return _double(text)
    bits = 32 if -(2**31) < like < 2**31 else 64
    if not _INTEGER.fullmatch(text) or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
        raise ArithmeticError
    return int(text)


def _double(text: str) -> float:
    text = text.strip("".join(map(chr, range(33))))
    if not _DOUBLE.fullmatch(text):
        raise ArithmeticError
    if "0x" in text.lower():
        exponent = int(re.split("[pP]", text)[1].rstrip("fFdD"))
        if abs(exponent) > 5000:
            return float(text[: text.lower().index("0")] + ("inf" if exponent > 0 else "0.0"))
        return float.fromhex(text.rstrip("fFdD") if "p" in text.lower() else text)
    return float(text if text.endswith(("NaN", "Infinity")) else text.rstrip("fFdD"))
