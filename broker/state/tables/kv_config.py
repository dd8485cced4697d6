"""KVConfigs: the name server's key-value configurations, by namespace and key.

One of them is the order of topics. They are kept as kvConfig.json, in RocketMQ's form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeAlias

from .table import Change, PendingChanges, SavedTable, Table, TooMany, check_limit

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
"""The namespace of ordered topics, with values such as ``broker-a:4;broker-b:4`` by topic."""

VALUES_MAX: Final = 10_000
CHARACTERS_MAX: Final = 4_096
"""The maximum length of a value with its names, as all are written whenever one changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVConfigSerializeWrapper:
    """The content of the file kvConfig.json."""

    config_table: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


KVName: TypeAlias = tuple[str, str]
"""A namespace and a key."""


class KVConfigs(SavedTable[KVConfigSerializeWrapper]):
    """All key-value configurations. A change is durable after the next `save`."""

    def __init__(self, table: Table[KVConfigSerializeWrapper]) -> None:
        super().__init__(table, self.wrapper)
        loaded = table.load(KVConfigSerializeWrapper())
        self._namespaces = {name: dict(values) for name, values in loaded.config_table.items()}
        self.changes = PendingChanges[KVName, str](self._restore)
        """The changes under way, which undo a `put` or `delete` that is refused."""

    def put(
        self, namespace: str, key: str, value: str, change: Change[KVName, str] | None = None
    ) -> None:
        """Set one value, as part of a change that may still be refused.

        Raises:
            TooMany: There is no room for the value.
        """
        before = self.get(namespace, key)
        if before is None:
            there_are = sum(map(len, self._namespaces.values()))
            check_limit("key-value configurations", there_are, VALUES_MAX)
        if len(namespace) + len(key) + len(value) > CHARACTERS_MAX:
            raise TooMany(
                f"namespace, key and value have over {CHARACTERS_MAX} characters together"
            )
        self._set(namespace, key, value)
        if change is not None:
            change.record((namespace, key), before, value)

    def get(self, namespace: str, key: str) -> str | None:
        """Return one value, or None if it is not set."""
        return self._namespaces.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str, change: Change[KVName, str] | None = None) -> None:
        """Remove one value, and with its last one the namespace, as part of such a change."""
        before = self.get(namespace, key)
        self._set(namespace, key, None)
        if change is not None:
            change.record((namespace, key), before, None)

    def _restore(self, name: KVName, value: str | None) -> None:
        self._set(*name, value)

    def _set(self, namespace: str, key: str, value: str | None) -> None:
        if self.get(namespace, key) == value:
            return
        self.is_dirty = True
        if value is not None:
            self._namespaces.setdefault(namespace, {})[key] = value
            return
        values = self._namespaces[namespace]
        del values[key]
        if not values:
            del self._namespaces[namespace]

    def list(self, namespace: str) -> Mapping[str, str]:
        """Return all values of a namespace, by key; empty if the namespace does not exist."""
        return MappingProxyType(self._namespaces.get(namespace, {}))

    def wrapper(self) -> KVConfigSerializeWrapper:
        """Return all values as they are saved."""
        return KVConfigSerializeWrapper(
            config_table={name: dict(values) for name, values in tuple(self._namespaces.items())}
        )
