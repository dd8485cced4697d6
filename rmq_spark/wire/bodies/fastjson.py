r"""fastjson: reads and writes JSON as Java's fastjson does.

RocketMQ's bodies are JSON with three liberties, all of which real brokers and clients use:

    {0:"10.0.0.1:10911"}                    numbers as keys, without quotes
    {{"brokerName":"b","queueId":0}:{}}     objects as keys
    {"$ref":"$.offsetTable[0]"}             the path of an equal object earlier in the body;
                                            RocketMQ up to 5.4 writes it in place of a repeat

orjson parses strict JSON; this module parses the rest. Neither accepts more than `DEPTH_MAX` levels
of nesting, which no body comes near. Output is strict JSON or, if a key is an object, the second
form: every Java version reads these. Values are those of `json`; maps with objects as keys are an
`ObjectMap`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from rmq_spark.errors import BodyError
from rmq_spark.wire.remoting.framing import Buffer
from rmq_spark.wire.remoting.json_nesting import LEVELS_MAX, check_nesting

DEPTH_MAX = LEVELS_MAX
REFERENCE_KEY = "$ref"

_TOKEN = re.compile(
    r"""[ \t\r\n]*(?:
    (?P<string>")
    | (?P<number>-?\d{1,40}(?:\.\d+)?(?:[eE][+-]?\d{1,3})?)[LSBFD]?
    | (?P<word>true|false|null)
    | (?P<mark>[{}\[\]:,])
    )""",
    re.VERBOSE | re.DOTALL,
)
# Bounded, because `re` stores each round of a repeated group; long texts take several matches.
_STRING_PART = re.compile(r"""[^"\\]*(?:\\.[^"\\]*){0,500}""", re.DOTALL)
_BLANK = re.compile(r"[ \t\r\n]*")
_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class ObjectMap:
    """Pairs of keys and values in order; keys are JSON values, mostly dicts."""

    pairs: tuple[tuple[Any, Any], ...]


def loads(data: Buffer, lenient_bytes_max: int | None = None) -> Any:
    """Parse the text of a body.

    Text that is not strict JSON takes a hundred times as long; its length can be limited.
    """
    text = bytes(data)
    check_nesting(text, "JSON body", BodyError)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        _check_length(text, lenient_bytes_max)
        value = _JsonParser(text).parse()
    if REFERENCE_KEY.encode() in text:
        _check_length(text, lenient_bytes_max)
        return _Resolver(value).resolve(value, 0)
    return value


def _check_length(text: bytes, bytes_max: int | None) -> None:
    if bytes_max is not None and len(text) > bytes_max:
        raise BodyError(
            "JSON body", at="$", needed=f"strict JSON in over {bytes_max} bytes", found=text[:40]
        )


def dumps(value: Any) -> bytes:
    """Return a value as JSON text."""
    try:
        return _dump(value)
    except TypeError as error:
        raise BodyError("JSON body", at="a value", needed="JSON's types", found=value) from error


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, _object_map, orjson.OPT_PASSTHROUGH_DATACLASS)


def _object_map(value: Any) -> orjson.Fragment:
    if not isinstance(value, ObjectMap):
        raise TypeError
    pairs = [_dump(key) + b":" + _dump(item) for key, item in value.pairs]
    return orjson.Fragment(b"{" + b",".join(pairs) + b"}")


class _JsonParser:
    """Recursive-descent parser over tokens; bounds its depth, and thereby its stack."""

    def __init__(self, data: bytes) -> None:
        try:
            self._text = data.decode()
        except UnicodeDecodeError as error:
            raise BodyError(
                "JSON body", at=error.start, needed="UTF-8", found=data[error.start : error.end]
            ) from error
        self._at = 0
        self._kind = ""
        self._lexeme = ""

    def parse(self) -> Any:
        self._advance()
        value = self._value(0)
        end = _BLANK.match(self._text, self._at).end()  # type: ignore[union-attr]  # it may match nothing
        if end != len(self._text):
            raise self._error("the end", end)
        return value

    def _advance(self) -> None:
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            raise self._error("JSON", self._at)
        self._at = match.end()
        self._kind = match.lastgroup or ""
        self._lexeme = (
            self._quoted(match.start("string")) if self._kind == "string" else match[self._kind]
        )

    def _quoted(self, start: int) -> str:
        while (end := _STRING_PART.match(self._text, self._at).end()) > self._at:  # type: ignore[union-attr]  # it may match nothing
            self._at = end
        if not self._text.startswith('"', end):
            raise self._error("JSON", start)
        self._at = end + 1
        return self._text[start : self._at]

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._error(f"at most {DEPTH_MAX} levels", self._at)
        if self._kind == "string":
            return self._string()
        if self._kind == "number":
            return self._number()
        if self._kind == "word":
            return _WORDS[self._lexeme]
        if self._lexeme == "{":
            return self._object(depth)
        if self._lexeme == "[":
            return self._array(depth)
        raise self._error("a value", self._at - 1)

    def _object(self, depth: int) -> Any:
        pairs: list[tuple[Any, Any]] = []
        self._advance()
        while self._lexeme != "}":
            key = self._lexeme if self._kind == "number" else self._value(depth + 1)
            self._expect(":")
            self._advance()
            pairs.append((key, self._value(depth + 1)))
            self._advance()
            if self._lexeme == ",":
                self._advance()
            elif self._lexeme != "}":
                raise self._error("',' or '}'", self._at - len(self._lexeme))
        if any(not isinstance(key, str) for key, _ in pairs):
            return ObjectMap(tuple(pairs))
        return dict(pairs)

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        self._advance()
        while self._lexeme != "]":
            items.append(self._value(depth + 1))
            self._advance()
            if self._lexeme == ",":
                self._advance()
            elif self._lexeme != "]":
                raise self._error("',' or ']'", self._at - len(self._lexeme))
        return items

    def _expect(self, mark: str) -> None:
        self._advance()
        if self._lexeme != mark:
            raise self._error(repr(mark), self._at - len(self._lexeme))

    def _string(self) -> str:
        if "\\" not in self._lexeme:
            return self._lexeme[1:-1]
        try:
            text: str = orjson.loads(self._lexeme)
        except orjson.JSONDecodeError as error:
            raise self._error("JSON escapes in a string", self._at - len(self._lexeme)) from error
        return text

    def _number(self) -> int | float:
        try:
            return int(self._lexeme)
        except ValueError:
            return float(self._lexeme)

    def _error(self, needed: str, at: int) -> BodyError:
        return BodyError("JSON body", at=at, needed=needed, found=self._text[at : at + 40])


# ---- References.
#
#   $.consumerDataSet[0].group\-name     from the body's root: names and positions; every character
#                                        of a name that is not a letter or digit has a backslash
#   $.offsetTable.MessageQueue\ \[...    a value in a map with objects as keys, by the key's text
#   $.offsetTable.null                   a key of that map; fastjson does not say which one
#
# Therefore a key is resolved only if the map has just one. Java itself reads null there.

NODES_MAX = 200_000  # a shared object counts once for each place, because it is read there

_STEP = re.compile(r"\.(?P<name>(?:\\.|[^.\[\\])+)|\[(?P<position>\d{1,9})\]", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_KEY_NAME = "null"
_PATH_CHARACTERS_MAX = (
    4096  # topic, broker and a few names, each character perhaps with its backslash
)


class _Resolved(NamedTuple):
    value: Any
    nodes: int
    levels: int


class _Resolver:
    """Replaces each reference in a value by its target, which is then shared.

    References within references can multiply a small text: more than `NODES_MAX` values in all, or
    more than `DEPTH_MAX` levels of nesting and references, are refused.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._deepest = 0
        self._nodes = 0
        self._known: dict[str, _Resolved | None] = {}  # by path; None while it is resolved
        self._by_java_text: dict[int, dict[str | None, Any]] = {}  # by the id of an ObjectMap

    def resolve(self, value: Any, depth: int) -> Any:
        self._count(1, depth)
        inner = depth + 1
        if isinstance(value, ObjectMap):
            return ObjectMap(
                tuple((self.resolve(k, inner), self.resolve(v, inner)) for k, v in value.pairs)
            )
        if isinstance(value, list):
            return [self.resolve(item, inner) for item in value]
        if not isinstance(value, dict):
            return value
        path = value.get(REFERENCE_KEY)
        if len(value) != 1 or not isinstance(path, str):
            return {key: self.resolve(item, inner) for key, item in value.items()}
        return self._resolve_path(path, inner)

    def _resolve_path(self, path: str, depth: int) -> Any:
        if path in self._known:
            known = self._known[path]
            if known is None:
                raise _reference_error(path, "an object that does not contain the reference")
            self._count(known.nodes, depth + known.levels)
            return known.value
        self._known[path] = None
        nodes_before, deepest_before, self._deepest = self._nodes, self._deepest, depth
        value = self.resolve(self._find(path), depth)
        self._known[path] = _Resolved(value, self._nodes - nodes_before, self._deepest - depth)
        self._deepest = max(self._deepest, deepest_before)
        return value

    def _count(self, nodes: int, depth: int) -> None:
        self._nodes += nodes
        if self._nodes > NODES_MAX:
            raise BodyError(
                "JSON body", at=REFERENCE_KEY, needed=f"at most {NODES_MAX} values", found="more"
            )
        if depth > DEPTH_MAX:
            raise BodyError(
                "JSON body", at=REFERENCE_KEY, needed=f"at most {DEPTH_MAX} levels", found="more"
            )
        self._deepest = max(self._deepest, depth)

    def _find(self, path: str) -> Any:
        if len(path) > _PATH_CHARACTERS_MAX:
            raise _reference_error(path, f"a path of at most {_PATH_CHARACTERS_MAX} characters")
        value = self._root
        at = 1
        while at < len(path) or not path.startswith("$"):
            step = _STEP.match(path, at) if path.startswith("$") else None
            if step is None:
                raise _reference_error(path, "a path of .names and [positions] from $")
            at = step.end()
            position = step["position"]
            if position is not None:
                if not isinstance(value, list) or int(position) >= len(value):
                    raise _reference_error(path, f"a list with a position {int(position)}")
                value = value[int(position)]
            else:
                value = self._member(path, value, _ESCAPED.sub(r"\1", step["name"]))
        return value

    def _member(self, path: str, value: Any, name: str) -> Any:
        if isinstance(value, dict) and name in value:
            return value[name]
        if isinstance(value, ObjectMap):
            if name == _KEY_NAME and len(value.pairs) == 1:
                return value.pairs[0][0]
            items = self._by_java_text.get(id(value))
            if items is None:
                # Of equal keys the first counts: a reference leads to an earlier object.
                items = {_java_text(key): item for key, item in reversed(value.pairs)}
                self._by_java_text[id(value)] = items
            if name in items:
                return items[name]
        raise _reference_error(path, "the path of exactly one object")


def _java_text(key: Any) -> str | None:
    """Return Java's ``toString`` of a MessageQueue, the only kind of object used as a key."""
    if not isinstance(key, dict):
        return None
    get = key.get
    return (
        f"MessageQueue [topic={get('topic')}, brokerName={get('brokerName')}, "
        f"queueId={get('queueId')}]"
    )


def _reference_error(path: str, needed: str) -> BodyError:
    return BodyError("JSON body", at=REFERENCE_KEY, needed=needed, found=path)
