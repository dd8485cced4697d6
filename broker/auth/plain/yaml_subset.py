"""YAML subset: parses the part of YAML that plain_acl.yml files use, and refuses everything else.

    # a comment
    globalWhiteRemoteAddresses: [10.0.0.*, '*']       a list in brackets, on one line
    accounts:
      - accessKey: RocketMQ                           a list of maps, or of values
        secretKey: "12345678"

Whatever is read here is read in the same way by any YAML parser. Anchors, tags, block texts, maps
in braces, texts of several lines and several documents are errors, which name line and column.
Errors never show a value, because it may be a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, NoReturn, TypeAlias

_KEY: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*) *:(?= |$)")
_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_UNPRINTABLE: Final = re.compile(
    "[^\t\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|\u2028|\u2029|\ufeff"
)
_INDICATORS: Final = "-?:,[]{}#&*!|>'\"%@`"
_NOT_IN_BRACKETS: Final = frozenset("[]{}:#\"'?")
_ESCAPES: Final = {'"': '"', "\\": "\\", "/": "/", "n": "\n", "t": "\t", "r": "\r", "0": "\0"}
_HEX_ESCAPES: Final = {"x": 2, "u": 4, "U": 8}
_NOT_TEXT: Final = re.compile(
    r"~|null|true|false|yes|no|on|off|y|n|[-+]?(0[0-9_x]|[0-9][0-9_]*[_.:eE])[0-9a-fA-F_.:eE+-]*"
    r"|[-+][0-9]+|[-+]?\.(inf|nan|[0-9_]+)|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*|<<|=",
    re.IGNORECASE,
)
_DEPTH_MAX: Final = 20


class YamlError(ValueError):
    """A construct outside of the subset; the message begins with line and column."""

    def __init__(self, place: Place, message: str) -> None:
        super().__init__(f"{place.line}:{place.column}: {message}")


class Place(NamedTuple):
    """A place in a file; both numbers begin with 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class YamlScalar:
    """One value as text; an empty one is None."""

    place: Place
    text: str | None = field(repr=False)
    is_quoted: bool = False

    @property
    def is_ambiguous(self) -> bool:
        """True if YAML reads an unquoted value as something else than this text."""
        return (
            not self.is_quoted
            and self.text is not None
            and _NOT_TEXT.fullmatch(self.text) is not None
        )


@dataclass(frozen=True, slots=True)
class YamlList:
    """A list of values, lists and maps."""

    place: Place
    items: tuple[YamlNode, ...]


@dataclass(frozen=True, slots=True)
class YamlMap:
    """A map, with the place of each key."""

    place: Place
    entries: Mapping[str, YamlNode]
    key_places: Mapping[str, Place]


YamlNode: TypeAlias = "YamlScalar | YamlList | YamlMap"


def parse_yaml(text: str) -> YamlNode:
    """Parse a document; an empty one is an empty value.

    Raises:
        YamlError: It is invalid, or has something outside of the subset.
    """
    parser = _Parser(_lines(text.removeprefix("\ufeff")))
    if parser.line is None:
        return YamlScalar(Place(1, 1), None)
    node = parser.block(parser.line.indent, 0)
    if parser.line is not None:
        _fail(parser.line.place, "this line is indented unlike the lines above it")
    return node


class _Line(NamedTuple):
    """One line without its indentation; only comments and blanks are cut off so far."""

    number: int
    indent: int
    text: str

    @property
    def place(self) -> Place:
        return Place(self.number, self.indent + 1)

    @property
    def is_item(self) -> bool:
        return self.text == "-" or self.text.startswith("- ")

    def rest(self, at: int) -> _Line:
        """Return the text from a position of the line on, as a line of its own."""
        left = self.text[at:]
        stripped = left.lstrip(" ")
        return _Line(self.number, self.indent + at + len(left) - len(stripped), stripped)


def _lines(text: str) -> list[_Line]:
    found: list[_Line] = []
    for number, raw in enumerate(_LINE_END.split(text), 1):
        unprintable = _UNPRINTABLE.search(raw)
        if unprintable:
            _fail(Place(number, unprintable.start() + 1), "a character that YAML does not allow")
        stripped = raw.strip(" ")
        if not stripped or stripped.startswith("#"):
            continue
        indent = len(raw) - len(raw.lstrip(" "))
        if stripped.startswith("\t"):
            _fail(Place(number, indent + 1), "a tab: indent with spaces")
        if raw.startswith("---"):
            if found or not re.fullmatch(r"---( *| +#.*)", raw):
                _fail(Place(number, 1), "only one document is read, and --- stands alone in a line")
            continue
        if re.match(r"\.\.\.( |$)", raw):
            _fail(Place(number, 1), "only one document is read: remove ...")
        found.append(_Line(number, indent, stripped))
    return found


class _Parser:
    """Reads lines from the first to the last."""

    def __init__(self, lines: list[_Line]) -> None:
        self._lines = lines
        self._at = 0

    @property
    def line(self) -> _Line | None:
        """The next line; None at the end."""
        return self._lines[self._at] if self._at < len(self._lines) else None

    def block(self, indent: int, depth: int) -> YamlNode:
        """Read a list or a map whose lines have this indentation, or a single value."""
        line = self.line
        if line is None:
            raise AssertionError("a block begins with a line")
        if depth > _DEPTH_MAX:
            _fail(line.place, f"lists and maps are nested more than {_DEPTH_MAX} deep")
        if line.is_item:
            return self._list(indent, depth)
        if _KEY.match(line.text):
            return self._map(indent, depth)
        if depth:
            _fail(line.place, "needed a list, or a key and a colon; quote a text of several lines")
        self._at += 1
        return _value(line)

    def _list(self, indent: int, depth: int) -> YamlList:
        place, items = self._place(), []
        while (line := self.line) is not None and line.indent == indent and line.is_item:
            rest = line.rest(1)
            if not rest.text or rest.text.startswith("#"):
                self._at += 1
                items.append(self._nested(line, depth, may_be_beside=False))
            elif rest.is_item:
                _fail(rest.place, "a list directly in a list")
            elif _KEY.match(rest.text):
                self._lines[self._at] = rest
                items.append(self._map(rest.indent, depth + 1))
            else:
                self._at += 1
                items.append(_value(rest))
            self._check_indent(indent)
        return YamlList(place, tuple(items))

    def _map(self, indent: int, depth: int) -> YamlMap:
        place = self._place()
        entries: dict[str, YamlNode] = {}
        places: dict[str, Place] = {}
        while (line := self.line) is not None and line.indent == indent and not line.is_item:
            key = _KEY.match(line.text)
            if key is None:
                _fail(line.place, "needed a key of letters and digits, and a colon")
            if key[1] in entries:
                _fail(line.place, f"{key[1]} stands here a second time")
            if _NOT_TEXT.fullmatch(key[1]):
                _fail(line.place, f"{key[1]} is no text in YAML")
            places[key[1]] = line.place
            rest = line.rest(key.end())
            self._at += 1
            if not rest.text or rest.text.startswith("#"):
                entries[key[1]] = self._nested(line, depth, may_be_beside=True)
            else:
                entries[key[1]] = _value(rest)
            self._check_indent(indent)
        return YamlMap(place, entries, places)

    def _nested(self, parent: _Line, depth: int, *, may_be_beside: bool) -> YamlNode:
        """Read what belongs to a key or a dash at the end of its line."""
        line = self.line
        if line is not None and (
            line.indent > parent.indent
            or (may_be_beside and line.indent == parent.indent and line.is_item)
        ):
            return self.block(line.indent, depth + 1)
        return YamlScalar(Place(parent.number, parent.indent + len(parent.text) + 1), None)

    def _check_indent(self, indent: int) -> None:
        line = self.line
        if line is not None and line.indent > indent:
            _fail(line.place, "this line is indented deeper than what it could belong to")

    def _place(self) -> Place:
        line = self.line
        return Place(1, 1) if line is None else line.place


# ---- values in one line


def _value(line: _Line) -> YamlNode:
    """Return the value that a text consists of, up to a comment."""
    if line.text.startswith("["):
        return _brackets(line)
    if line.text[0] in "'\"":
        scalar, end = _quoted(line, 0)
        _check_end(line, end)
        return scalar
    text = re.split(r" +#", line.text, maxsplit=1)[0]
    return _plain(line, text)


def _plain(line: _Line, text: str, at: int = 0) -> YamlScalar:
    place = Place(line.number, line.indent + at + 1)
    if text[0] in _INDICATORS and not re.match(r"-[^ ]", text):
        _fail(place, f"a value that begins with {text[0]}: put it into quotes")
    colon = re.search(r":( |$)", text)
    if colon:
        _fail(Place(line.number, line.indent + at + colon.start() + 1), "a colon: quote the value")
    if "\t" in text:
        _fail(place, "a tab: put the value into quotes, or use spaces")
    return YamlScalar(place, None if text.lower() in ("~", "null") else text)


def _quoted(line: _Line, at: int) -> tuple[YamlScalar, int]:
    """Return a value in quotes, and where the text after it begins."""
    place, quote, text = Place(line.number, line.indent + at + 1), line.text[at], line.text
    found: list[str] = []
    at += 1
    while at < len(text):
        character = text[at]
        if character == quote:
            if quote == '"' or text[at + 1 : at + 2] != "'":
                return YamlScalar(place, "".join(found), is_quoted=True), at + 1
            at += 1  # two of them stand for one
        elif character == "\\" and quote == '"':
            character, at = _escaped(line, at + 1)
        found.append(character)
        at += 1
    raise YamlError(place, "the quote does not end in this line")


def _escaped(line: _Line, at: int) -> tuple[str, int]:
    """Return the character of an escape whose letter is here, and the place of its last one."""
    letter = line.text[at : at + 1]
    if letter in _ESCAPES:
        return _ESCAPES[letter], at
    digits = line.text[at + 1 : at + 1 + _HEX_ESCAPES.get(letter, 0)]
    is_whole = len(digits) == _HEX_ESCAPES.get(letter) and re.fullmatch(r"[0-9a-fA-F]+", digits)
    code = int(digits, 16) if is_whole else -1
    if not 0 <= code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        _fail(Place(line.number, line.indent + at), "an escape that is not supported")
    return chr(code), at + len(digits)


def _brackets(line: _Line) -> YamlList:
    """Return a list in brackets."""
    items: list[YamlScalar] = []
    text, at = line.text, 1
    while True:
        at += len(text[at:]) - len(text[at:].lstrip(" "))
        here = Place(line.number, line.indent + at + 1)
        if text[at : at + 1] == "]" and not items:
            break
        if text[at : at + 1] in ("'", '"'):
            item, at = _quoted(line, at)
        else:
            end = next((n for n in range(at, len(text)) if text[n] in ",]"), len(text))
            word = text[at:end].rstrip(" ")
            if not word:
                _fail(here, "needed a value, then a comma or ], in one line")
            strange = next((n for n, each in enumerate(word) if each in _NOT_IN_BRACKETS), None)
            if strange is not None:
                _fail(Place(line.number, here.column + strange), "put this value into quotes")
            item, at = _plain(line, word, at), end
        items.append(item)
        at += len(text[at:]) - len(text[at:].lstrip(" "))
        if text[at : at + 1] == "]":
            break
        if text[at : at + 1] != ",":
            _fail(Place(line.number, line.indent + at + 1), "needed a comma or ], in one line")
        at += 1
    _check_end(line, at + 1)
    return YamlList(line.place, tuple(items))


def _check_end(line: _Line, at: int) -> None:
    if not re.fullmatch(r" *| +#.*", line.text[at:]):
        _fail(Place(line.number, line.indent + at + 1), "needed the end of the line")


def _fail(place: Place, message: str) -> NoReturn:
    raise YamlError(place, message)
