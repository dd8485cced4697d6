r"""fastjson's ``$ref``: where RocketMQ up to 5.4 writes one Java object twice, the second is a path.

    $.consumerDataSet[0].group\-name     from the body's root: names and positions; every character
                                         of a name that is no letter or digit has a backslash
    $.offsetTable.MessageQueue\ \[...    a value in a map with objects as keys, under the key's text
    $.offsetTable.null                   a key of that map; which one, fastjson does not say

A key is therefore found only where there is one to find. Java itself reads null there.
"""

from __future__ import annotations

import re
from typing import Any

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies.object_map import ObjectMap

REFERENCE_KEY = "$ref"

_STEP = re.compile(r"\.(?P<name>(?:\\.|[^.\[\\])+)|\[(?P<position>\d{1,9})\]", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_A_KEY = "null"


def resolve_references(root: Any, nodes_max: int) -> Any:
    """The value with each reference replaced by what it refers to.

    References within references can multiply a small text: more than ``nodes_max`` values is refused.
    """
    return _Resolver(root, nodes_max).resolve(root)


class _Resolver:
    def __init__(self, root: Any, nodes_max: int) -> None:
        self._root = root
        self._nodes_max = nodes_max
        self._nodes = 0
        self._under_way: list[str] = []

    def resolve(self, value: Any) -> Any:
        self._nodes += 1
        if self._nodes > self._nodes_max:
            raise BodyError(
                "JSON body",
                at=REFERENCE_KEY,
                needed=f"at most {self._nodes_max} values",
                found="more",
            )
        if isinstance(value, ObjectMap):
            return ObjectMap(tuple((self.resolve(k), self.resolve(v)) for k, v in value.pairs))
        if isinstance(value, list):
            return [self.resolve(item) for item in value]
        if not isinstance(value, dict):
            return value
        path = value.get(REFERENCE_KEY)
        if len(value) != 1 or not isinstance(path, str):
            return {key: self.resolve(item) for key, item in value.items()}
        if path in self._under_way:
            raise _unresolved(path, "an object that does not contain the reference")
        self._under_way.append(path)
        resolved = self.resolve(self._find(path))
        self._under_way.pop()
        return resolved

    def _find(self, path: str) -> Any:
        value = self._root
        at = 1
        while at < len(path) or not path.startswith("$"):
            step = _STEP.match(path, at) if path.startswith("$") else None
            if step is None:
                raise _unresolved(path, "a path of .names and [positions] from $")
            at = step.end()
            position = step["position"]
            if position is not None:
                value = _item(path, value, int(position))
            else:
                value = _member(path, value, _ESCAPED.sub(r"\1", step["name"]))
        return value


def _item(path: str, value: Any, position: int) -> Any:
    if not isinstance(value, list) or position >= len(value):
        raise _unresolved(path, f"a list with a position {position}")
    return value[position]


def _member(path: str, value: Any, name: str) -> Any:
    if isinstance(value, dict) and name in value:
        return value[name]
    if isinstance(value, ObjectMap):
        if name == _A_KEY and len(value.pairs) == 1:
            return value.pairs[0][0]
        for key, item in value.pairs:
            if _java_text(key) == name:
                return item
    raise _unresolved(path, "one object that is there")


def _java_text(key: Any) -> str | None:
    """What Java's ``toString`` makes of the only objects that RocketMQ uses as keys."""
    if not isinstance(key, dict):
        return None
    get = key.get
    return f"MessageQueue [topic={get('topic')}, brokerName={get('brokerName')}, queueId={get('queueId')}]"


def _unresolved(path: str, needed: str) -> BodyError:
    return BodyError("JSON body", at=REFERENCE_KEY, needed=needed, found=path)
