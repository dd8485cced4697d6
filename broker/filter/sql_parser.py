"""SQL parser: compiles an SQL92 text to an expression, or raises a FilterError.

The grammar is RocketMQ 5's:

    or         = and { OR and }
    and        = equality { AND equality }
    equality   = comparison { ("=" | "<>") comparison | IS [NOT] NULL }
    comparison = unary { (">" | ">=" | "<" | "<=") unary
                       | [NOT] BETWEEN unary AND unary
                       | [NOT] IN "(" text { "," text } ")"
                       | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text }
    unary      = ("+" | "-" | NOT) unary | TRUE | FALSE | NULL | number | text | name | "(" or ")"

The cost of an expression is limited here, before it is built: bytes of text, nodes of the tree, and
nesting, which limits the depth of all recursion.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import inf
from typing import NamedTuple, TypeVar

from rmq_spark.errors import Verbatim, excerpt
from rmq_spark.wire.remoting.java_numbers import parse_int64

from .errors import FilterError
from .filter_limits import DEFAULT_LIMITS, FilterLimits
from .java_values import compare
from .sql_expression import (
    CONTAINS,
    ENDSWITH,
    STARTSWITH,
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
    SqlExpression,
    TextMatch,
)

# ---- Tokens.

SUBJECT = "SQL92 expression"

TEXT = "text"
INTEGER = "integer"
FLOAT = "float"
NAME = "name"
END = "end"

KEYWORDS = frozenset(
    [
        "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS",
        "CONTAINS", "STARTSWITH", "ENDSWITH",
    ]
)  # fmt: skip

_IGNORED = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*[\n\r]|/\*.*?\*/)*", re.DOTALL)

# Of two alternatives that match, the longer is written first.
_WORD = re.compile(
    r"(?P<text>'[^']*(?:''[^']*)*')"
    r"|(?P<float>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<integer>0|[1-9][0-9]*[lL]?)"
    r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<sign><>|>=|<=|[=<>(),+-])"
)


class Token(NamedTuple):
    """A token; keywords and signs are their own kinds."""

    kind: str
    text: str
    at: int

    def describe(self) -> str:
        """Return the token as an error shows it."""
        return Verbatim("its end") if self.kind == END else self.text


class TokenStream:
    """The tokens of a text, with one token of lookahead.

    A text is only read as far as tokens are requested: RocketMQ ignores what follows a complete
    expression, even if that is not a token.

        NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH     in any case
        = <> > >= < <= ( , ) + -                                                  by themselves
        'it''s'   12   12L   1.5  .5  5.  1e9   name
        -- to the end of the line, which must be there     /* ... */              skipped
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._lookahead: Token | None = None

    def peek(self) -> Token:
        """Return the next token without consuming it."""
        if self._lookahead is None:
            self._lookahead = self._read()
        return self._lookahead

    def next_token(self) -> Token:
        """Consume and return the next token."""
        token = self.peek()
        self._lookahead = None
        return token

    def _read(self) -> Token:
        passed_over = _IGNORED.match(self._text, self._position)
        start = passed_over.end() if passed_over else self._position
        if start == len(self._text):
            return Token(END, "", start + 1)
        word = _WORD.match(self._text, start)
        if word is None:
            raise FilterError(
                SUBJECT, at=start + 1, needed="a word of SQL92", found=self._text[start:]
            )
        self._position = word.end()
        written = word[0]
        kind = word.lastgroup or ""
        if kind == "sign":
            kind = written
        elif kind == NAME and written.upper() in KEYWORDS:
            kind = written.upper()
        return Token(kind, written, start + 1)


_Node = TypeVar("_Node", bound=Expression)

_OR, _AND, _EQUALITY, _COMPARISON = 1, 2, 3, 4
_LEVELS = {
    "OR": _OR,
    "AND": _AND,
    **dict.fromkeys(("=", "<>", "IS"), _EQUALITY),
    **dict.fromkeys((">", ">=", "<", "<=", "NOT", "BETWEEN", "IN"), _COMPARISON),
    **dict.fromkeys((CONTAINS, STARTSWITH, ENDSWITH), _COMPARISON),
}
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
_CACHED_MAX = 128  # a client sends the same expression in each pull


@lru_cache(maxsize=_CACHED_MAX)
def compile_sql(text: str, limits: FilterLimits = DEFAULT_LIMITS) -> SqlExpression:
    """Compile the expression at the start of a text; like RocketMQ, ignore what follows it."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limits.expression_bytes_max:
        raise FilterError(
            SUBJECT,
            needed=f"at most {limits.expression_bytes_max} bytes of UTF-8",
            found=Verbatim(f"{size} bytes"),
        )
    return _SqlParser(text, limits).parse()


class _SqlParser:
    """A precedence climber: one method parses all levels, so only nesting deepens the stack."""

    def __init__(self, text: str, limits: FilterLimits) -> None:
        self._text = text
        self._tokens = TokenStream(text)
        self._limits = limits
        self._nodes = 0
        self._depth = 0

    def parse(self) -> SqlExpression:
        """Return the expression at the start of the text."""
        start = self._tokens.peek()
        condition = self._condition(self._expression(_OR), start)
        following = self._tokens.peek()
        return SqlExpression(
            condition, "" if following.kind == END else self._text[following.at - 1 :]
        )

    # ---- levels

    def _expression(self, level: int) -> Expression:
        start = self._tokens.peek()
        left = self._unary()
        # The operand of the last operator includes all operators that bind tighter.
        highest = _COMPARISON
        while level <= (found := _LEVELS.get(self._tokens.peek().kind, 0)) <= highest:
            if found == _COMPARISON:
                left = self._comparison(left)
            elif found == _EQUALITY:
                left = self._equality(left)
            else:
                left = self._logical(left, start, found)
            highest = found
        return left

    def _logical(self, first: Expression, start: Token, level: int) -> Condition:
        kind = self._tokens.peek().kind
        conditions = [self._condition(first, start)]
        while self._tokens.peek().kind == kind:
            self._tokens.next_token()
            start = self._tokens.peek()
            conditions.append(self._condition(self._nested(level + 1), start))
        return self._checked(
            And(tuple(conditions)) if level == _AND else Or(tuple(conditions)), start
        )

    def _equality(self, left: Expression) -> Condition:
        token = self._tokens.next_token()
        if token.kind == "IS":
            is_negated = self._accept("NOT")
            self._expect("NULL", "NULL" if is_negated else "NULL or NOT NULL")
            is_null = self._checked(IsNull(left), token)
            return self._checked(Not(is_null), token) if is_negated else is_null
        right = self._nested(_COMPARISON)
        for side in (left, right):
            if isinstance(side, Literal) and side.constant is None:
                raise _operand_error(token, f"IS NULL in place of {token.kind} NULL", side)
        if (
            _is_boolean(left)
            and isinstance(right, Literal)
            and not isinstance(right.constant, bool)
        ):
            raise _operand_error(
                token, f"TRUE, FALSE or a property after {_describe(left)} {token.kind}", right
            )
        equal = self._checked(Equal(left, right), token)
        return self._checked(Not(equal), token) if token.kind == "<>" else equal

    def _comparison(self, left: Expression) -> Condition:
        token = self._tokens.next_token()
        if token.kind in (">", ">=", "<", "<="):
            _require_number(left, token)
            right = _require_number(self._unary(), token)
            return self._checked(Comparison(left, token.kind, right), token)
        is_negated = token.kind == "NOT"
        if is_negated:
            token = self._tokens.next_token()
        if token.kind == "BETWEEN":
            return self._between(left, token, is_negated=is_negated)
        if token.kind == "IN":
            return self._in(left, token, is_negated=is_negated)
        if token.kind in (CONTAINS, STARTSWITH, ENDSWITH):
            text = self._expect_text(f"a string after {token.kind}")
            return self._checked(TextMatch(left, token.kind, text, is_negated), token)
        raise _token_error(token, "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")

    def _between(self, operand: Expression, token: Token, *, is_negated: bool) -> Condition:
        _require_number(operand, token)
        low = _require_number(self._unary(), token)
        self._expect("AND", "AND between the bounds of BETWEEN")
        high = _require_number(self._unary(), token)
        bounds = [each.constant for each in (low, high) if isinstance(each, Literal)]
        if len(bounds) == 2 and not is_negated and compare(bounds[1], bounds[0]) < 0:
            raise _operand_error(token, f"an upper bound of at least {_describe(low)}", high)
        return self._checked(Between(operand, low, high, is_negated), token)

    def _in(self, operand: Expression, token: Token, *, is_negated: bool) -> Condition:
        if not isinstance(operand, Property):
            raise _operand_error(token, "a property before IN", operand)
        self._expect("(", "( after IN")
        texts = [self._expect_text("a string in the list")]
        while self._accept(","):
            texts.append(self._expect_text("a string in the list"))
        self._expect(")", ", or ) in the list")
        return self._checked(In(operand, frozenset(texts), is_negated), token)

    # ---- operands

    def _unary(self) -> Expression:
        prefixes: list[Token] = []
        while self._tokens.peek().kind in ("+", "-", "NOT"):
            prefixes.append(self._tokens.next_token())
            self._enter(prefixes[-1])
        start = self._tokens.peek()
        operand = self._primary(self._tokens.next_token())
        for prefix in reversed(prefixes):
            self._depth -= 1
            if prefix.kind == "-":
                operand = self._checked(Negation(operand), prefix)
            elif prefix.kind == "NOT":
                operand = self._checked(Not(self._condition(operand, start)), prefix)
            start = prefix
        return operand

    def _primary(self, token: Token) -> Expression:
        if token.kind == NAME:
            return self._checked(Property(token.text), token)
        if token.kind == "(":
            self._enter(token)
            inner = self._expression(_OR)
            self._depth -= 1
            self._expect(")", "an operator or )")
            return inner
        if token.kind == TEXT:
            return self._checked(Literal(token.text[1:-1].replace("''", "'")), token)
        if token.kind == INTEGER:
            return self._checked(Literal(_integer(token)), token)
        if token.kind == FLOAT:
            return self._checked(Literal(_float(token)), token)
        if token.kind in _CONSTANTS:
            return self._checked(Literal(_CONSTANTS[token.kind]), token)
        raise _token_error(token, "a value, a property or (")

    def _condition(self, operand: Expression, start: Token) -> Expression:
        if isinstance(operand, Property):
            return self._checked(PropertyCondition(operand), start)
        if isinstance(operand, Condition) or _is_boolean(operand):
            return operand
        raise _operand_error(start, "a condition", operand)

    # ---- steps

    def _nested(self, level: int) -> Expression:
        self._enter(self._tokens.peek())
        inner = self._expression(level)
        self._depth -= 1
        return inner

    def _enter(self, token: Token) -> None:
        self._depth += 1
        if self._depth > self._limits.depth_max:
            raise self._too_deep(token)

    def _checked(self, node: _Node, token: Token) -> _Node:
        self._nodes += 1
        if self._nodes > self._limits.nodes_max:
            needed = f"at most {self._limits.nodes_max} values, properties and operators"
            raise FilterError(SUBJECT, at=token.at, needed=needed, found=Verbatim("more"))
        if node.depth > self._limits.depth_max:
            raise self._too_deep(token)
        return node

    def _too_deep(self, token: Token) -> FilterError:
        needed = f"at most {self._limits.depth_max} levels of nesting"
        return FilterError(SUBJECT, at=token.at, needed=needed, found=Verbatim("more"))

    def _accept(self, kind: str) -> bool:
        if self._tokens.peek().kind != kind:
            return False
        self._tokens.next_token()
        return True

    def _expect(self, kind: str, needed: str) -> Token:
        token = self._tokens.next_token()
        if token.kind != kind:
            raise _token_error(token, needed)
        return token

    def _expect_text(self, needed: str) -> str:
        return self._expect(TEXT, needed).text[1:-1].replace("''", "'")


def _integer(token: Token) -> int:
    digits = token.text.rstrip("lL")
    try:
        return parse_int64(digits)
    except ValueError:
        raise _token_error(token, f"an integer of at most {(1 << 63) - 1}") from None


def _float(token: Token) -> float:
    number = float(token.text)
    if not 0 < number < inf:  # RocketMQ takes 0.0 for an underflow
        raise _token_error(token, "a number that a double can hold, above 0.0 (0 is an integer)")
    return number


def _require_number(operand: Expression, token: Token) -> Expression:
    """Return an operand that may be a number, as far as is known before evaluation."""
    is_number = not isinstance(operand, Literal) or type(operand.constant) in (int, float)
    if isinstance(operand, Condition) or not is_number:
        raise _operand_error(token, f"numbers and properties around {token.kind}", operand)
    return operand


def _is_boolean(operand: Expression) -> bool:
    """Return whether an operand is one of the words TRUE, FALSE and NULL."""
    return isinstance(operand, Literal) and (
        operand.constant is None or isinstance(operand.constant, bool)
    )


def _token_error(token: Token, needed: str) -> FilterError:
    return FilterError(
        SUBJECT, at=token.at, needed=needed, found=Verbatim(excerpt(token.describe()))
    )


def _operand_error(token: Token, needed: str, found: Expression) -> FilterError:
    return FilterError(SUBJECT, at=token.at, needed=needed, found=Verbatim(_describe(found)))


def _describe(operand: Expression) -> str:
    if isinstance(operand, Literal):
        if operand.constant is None:
            return "NULL"
        is_boolean = isinstance(operand.constant, bool)
        return str(operand.constant).upper() if is_boolean else excerpt(operand.constant)
    if isinstance(operand, Property):
        return f"the property {operand.name}"
    return "a condition" if isinstance(operand, Condition) else "a number with a sign"
