"""YAML fields: the fields of maps in a YAML file, and faults with their places.

PyYAML parses the file. Errors never show a value, because it may be a secret.
"""

from __future__ import annotations

import re
from typing import Final

import yaml

from rmq_spark.errors import nearest_name

_EMPTY: Final = ("", "~", "null")
_QUOTED: Final = re.compile(r"'(<[a-z ]+>|[^\w']{1,2})'|'.*?'")
"""A quotation in PyYAML's errors: a token, or text of the file, which must not be shown."""
_NOT_TEXT: Final = re.compile(
    r"~|null|true|false|yes|no|on|off|y|n|[-+]?(0[0-9_x]|[0-9][0-9_]*[_.:eE])[0-9a-fA-F_.:eE+-]*"
    r"|[-+][0-9]+|[-+]?\.(inf|nan|[0-9_]+)|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*|<<|=",
    re.IGNORECASE,
)
_TEXT_TAGS: Final = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:int")


class YamlError(ValueError):
    """A fault of a YAML file; the message begins with line and column."""

    def __init__(self, mark: yaml.Mark, message: str) -> None:
        super().__init__(f"{mark.line + 1}:{mark.column + 1}: {message}")


def parse_yaml(text: str) -> yaml.Node | None:
    """Parse a document; None if it is empty."""
    start = yaml.Mark("", 0, 0, 0, None, 0)
    # PyYAML's own errors quote the line, so none of them is kept as a cause
    try:
        return yaml.compose(text.removeprefix("\ufeff"), yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        problem = error.problem or "this is not YAML"
        problem = _QUOTED.sub(lambda quoted: quoted[0] if quoted[1] else "...", problem)
        if "alias" in f"{error.context} {problem}":
            problem = "a value that begins with *: put it into quotes"
        raise YamlError(error.problem_mark or start, problem) from None
    except yaml.reader.ReaderError as error:
        lines = text[: error.position].split("\n")
        mark = yaml.Mark("", 0, len(lines) - 1, len(lines[-1]), None, 0)
        raise YamlError(mark, "a character that YAML does not allow") from None
    except RecursionError:
        raise YamlError(start, "lists and maps are nested too deep") from None


def text_of(node: yaml.Node, what: str) -> str | None:
    """Return the text of a single value; None for an empty one."""
    if not isinstance(node, yaml.ScalarNode):
        raise YamlError(node.start_mark, f"{what} must be one value")
    text: str = node.value
    return None if node.style is None and text.lower() in _EMPTY else text


def is_ambiguous(node: yaml.Node) -> bool:
    """Return whether YAML reads a value as something else than its text."""
    is_plain = isinstance(node, yaml.ScalarNode) and node.style is None
    return node.tag not in _TEXT_TAGS or (is_plain and bool(_NOT_TEXT.fullmatch(node.value)))


class YamlFields:
    """The fields of one map, and which of them have been read."""

    def __init__(self, node: yaml.Node, what: str) -> None:
        """Read the keys of a map; ``what`` names it in errors."""
        self._what = what
        self.mark = node.start_mark
        self._entries: dict[str, yaml.Node] = {}
        self._unread: dict[str, yaml.Mark] = {}
        self._read: list[str] = []
        if not isinstance(node, yaml.MappingNode):
            raise YamlError(self.mark, f"{what} must consist of keys and values")
        for key, value in node.value:
            name = text_of(key, "a key") or ""
            if name in self._entries:
                raise YamlError(key.start_mark, f"{name} occurs twice")
            self._entries[name] = value
            self._unread[name] = key.start_mark

    def get(self, name: str) -> yaml.Node:
        """Return a field; an absent one is an empty value."""
        self._read.append(name)
        self._unread.pop(name, None)
        return self._entries.get(name) or yaml.ScalarNode("", "", self.mark)

    def items(self, name: str) -> list[yaml.Node]:
        """Return the items of a list; an absent one is empty."""
        node = self.get(name)
        if isinstance(node, yaml.SequenceNode):
            items: list[yaml.Node] = node.value
            return items
        if isinstance(node, yaml.ScalarNode) and text_of(node, name) is None:
            return []
        raise YamlError(node.start_mark, f"{name} must be a list")

    def check_all_known(self) -> None:
        """Refuse a field that was not read, because it is unknown."""
        for name, mark in self._unread.items():
            nearest = nearest_name(name, self._read)
            hint = f"; did you mean {nearest}?" if nearest else ""
            raise YamlError(mark, f"{self._what} has no {name}{hint}")
