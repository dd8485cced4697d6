"""KVConfigs: the name server's key-value configurations, by namespace and key.

They include the order of topics. The table is saved as kvConfig.json, in RocketMQ's form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias

from .table import Change, NamedTable, Table, TooMany, check_limit

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""The namespace of ordered topics, with values such as ``broker-a:4;broker-b:4`` by topic."""

VALUES_MAX: Final = 10_000
CHARACTERS_MAX: Final = 4_096
"""The maximum length of a value with its names, because all are written whenever one changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVConfigSerializeWrapper:
    """The content of the file kvConfig.json."""

    config_table: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


KVName: TypeAlias = tuple[str, str]
"""A namespace and a key."""


class KVConfigs(NamedTable[KVConfigSerializeWrapper, KVName, str]):
    """All key-value configurations. A change is durable after the next `save`."""

    def __init__(self, table: Table[KVConfigSerializeWrapper]) -> None:
        loaded = table.load(KVConfigSerializeWrapper()).config_table
        values = {
            (namespace, key): value
            for namespace, keys in loaded.items()
            for key, value in keys.items()
        }
        super().__init__(table, values, self.wrapper)

    def put(self, name: KVName, value: str, change: Change[KVName, str] | None = None) -> None:
        """Set one value, as part of a change that may still be refused."""
        if self.get(name) is None:
            check_limit("key-value configurations", len(self._values), VALUES_MAX)
        if sum(map(len, name)) + len(value) > CHARACTERS_MAX:
            raise TooMany(
                f"namespace, key and value have over {CHARACTERS_MAX} characters together"
            )
        self._change(name, value, change)

    def delete(self, name: KVName, change: Change[KVName, str] | None = None) -> None:
        """Remove one value, as part of a change that may still be refused."""
        self._change(name, None, change)

    def list(self, namespace: str) -> Mapping[str, str]:
        """Return all values of a namespace, by key; empty if the namespace does not exist."""
        return MappingProxyType(self.wrapper().config_table.get(namespace, {}))

    def wrapper(self) -> KVConfigSerializeWrapper:
        """Return all values as they are saved."""
        table: dict[str, dict[str, str]] = {}
        for (namespace, key), value in tuple(self._values.items()):
            table.setdefault(namespace, {})[key] = value
        return KVConfigSerializeWrapper(config_table=table)
