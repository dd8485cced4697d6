r"""References: resolves fastjson's ``$ref``, the path that RocketMQ up to 5.4 writes for a repeat.

    $.consumerDataSet[0].group\-name     from the body's root: names and positions; every character
                                         of a name that is not a letter or digit has a backslash
    $.offsetTable.MessageQueue\ \[...    a value in a map with objects as keys, by the key's text
    $.offsetTable.null                   a key of that map; fastjson does not say which one

Therefore a key is resolved only if the map has just one. Java itself reads null there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from rmq_spark.errors import BodyError

# ---- ObjectMap: what Java writes where a map's keys are objects, and Python has no dict for.


@dataclass(frozen=True, slots=True)
class ObjectMap:
    """Pairs of keys and values in order; keys are JSON values, mostly dicts."""

    pairs: tuple[tuple[Any, Any], ...]


REFERENCE_KEY = "$ref"
NODES_MAX = 200_000  # a shared object counts in each of its places: reading it takes time in each

_STEP = re.compile(r"\.(?P<name>(?:\\.|[^.\[\\])+)|\[(?P<position>\d{1,9})\]", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_KEY_NAME = "null"
_PATH_CHARACTERS_MAX = (
    4096  # topic, broker and a few names, each character perhaps with its backslash
)


def resolve_references(root: Any, depth_max: int) -> Any:
    """Return the value with each reference replaced by its target, which is then shared.

    References within references can multiply a small text: more than `NODES_MAX` values in all, or
    more than ``depth_max`` levels of nesting and references, are refused.
    """
    return _Resolver(root, depth_max).resolve(root, 0)


class _Resolved(NamedTuple):
    value: Any
    nodes: int
    levels: int


class _Resolver:
    def __init__(self, root: Any, depth_max: int) -> None:
        self._root = root
        self._depth_max = depth_max
        self._deepest = 0
        self._nodes = 0
        self._known: dict[str, _Resolved | None] = {}  # by path; None while it is under way
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
        if depth > self._depth_max:
            raise BodyError(
                "JSON body",
                at=REFERENCE_KEY,
                needed=f"at most {self._depth_max} levels",
                found="more",
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
                value = _item(path, value, int(position))
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
                # The first of equal keys is the one that was written before.
                items = {_java_text(key): item for key, item in reversed(value.pairs)}
                self._by_java_text[id(value)] = items
            if name in items:
                return items[name]
        raise _reference_error(path, "one object that is there")


def _item(path: str, value: Any, position: int) -> Any:
    if not isinstance(value, list) or position >= len(value):
        raise _reference_error(path, f"a list with a position {position}")
    return value[position]


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
