"""TokenStream: splits an SQL92 expression into its tokens, one at a time.

A text is only read as far as tokens are requested: RocketMQ ignores what follows a complete
expression, even if that is not a token.

    NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH     in any case
    = <> > >= < <= ( , ) + -                                                  by themselves
    'it''s'   12   12L   1.5  .5  5.  1e9   name
    -- to the end of the line, which must be there     /* ... */              skipped
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import FilterError

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
    """A token: its kind (keywords and signs are their own kinds), its spelling, its position."""

    kind: str
    text: str
    at: int

    def describe(self) -> str:
        """Return the word as an error shows it."""
        return "the end" if self.kind == END else self.text


class TokenStream:
    """The tokens of a text, with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._lookahead: Token | None = None

    def peek(self) -> Token:
        """Return the next word without taking it."""
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
