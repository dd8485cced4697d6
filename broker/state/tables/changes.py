"""PendingChanges: changes of a table that are in force but not on the disk yet, and their undo.

Several may be pending for one name at a time, and may succeed or be refused in any order. A name
always has the value of its last pending change, else the last that was saved, or its value before
all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value")


class _PendingValue(Generic[Name, Value]):
    """All changes of one name that are not decided."""

    def __init__(self, settled: Value | None) -> None:
        self.committed = settled
        """The value that no refusal takes away; None if the name does not exist."""
        self.values: dict[Change[Name, Value], Value | None] = {}
        """The value that each change has given the name, the latest at the end."""

    @property
    def value(self) -> Value | None:
        return next(reversed(self.values.values())) if self.values else self.committed


class Change(Generic[Name, Value]):
    """All that one request changes, under one name or several, saved or refused as a whole."""

    def __init__(self, changes: PendingChanges[Name, Value]) -> None:
        self._changes = changes
        self._names: dict[Name, None] = {}

    def record(self, name: Name, before: Value | None, value: Value | None) -> None:
        """Record the new value of a name; None if the name was removed."""
        self._names[name] = None
        self._changes.record(self, name, before, value)

    def commit(self) -> None:
        """Keep the change, even if others are refused."""
        for name in self._names:
            self._changes.commit(self, name)

    def rollback(self) -> None:
        """Undo the change, but nothing that others have made of these names since."""
        for name in self._names:
            self._changes.rollback(self, name)


class PendingChanges(Generic[Name, Value]):
    """The undecided changes of one table."""

    def __init__(self, restore: Callable[[Name, Value | None], None]) -> None:
        """Begin with none; ``restore`` gives a name a former value, or removes it for None."""
        self._restore = restore
        self._names: dict[Name, _PendingValue[Name, Value]] = {}

    @contextmanager
    def begin(self) -> Iterator[Change[Name, Value]]:
        """Begin a change; if this block raises, its changes stay, because nobody decides them."""
        change = Change(self)
        try:
            yield change
        except BaseException:
            change.commit()
            raise

    def forget(self, name: Name) -> None:
        """Let no refusal bring a name back that is gone for good."""
        self._names.pop(name, None)

    def record(
        self, change: Change[Name, Value], name: Name, before: Value | None, value: Value | None
    ) -> None:
        """Record the value that a change gives a name, as the latest of its changes."""
        under_way = self._names.setdefault(name, _PendingValue(before))
        under_way.values.pop(change, None)
        under_way.values[change] = value

    def commit(self, change: Change[Name, Value], name: Name) -> None:
        """Settle the value that a change gives a name; earlier values are overwritten."""
        under_way = self._names.get(name)
        if under_way is None or change not in under_way.values:
            return
        under_way.committed = under_way.values[change]
        for earlier in tuple(under_way.values):
            del under_way.values[earlier]
            if earlier is change:
                break
        self._discard_if_decided(name, under_way)

    def rollback(self, change: Change[Name, Value], name: Name) -> None:
        """Give a name the value that it has without a change."""
        under_way = self._names.get(name)
        if under_way is None or change not in under_way.values:
            return
        del under_way.values[change]
        self._discard_if_decided(name, under_way)
        self._restore(name, under_way.value)

    def _discard_if_decided(self, name: Name, under_way: _PendingValue[Name, Value]) -> None:
        if not under_way.values:
            del self._names[name]
