"""Changes of a table that are in force and not on the disk yet, and what comes of them when it refuses one.

Several may be under way for one name at a time, and may succeed or be refused in any order. A name always has
the value of the last change that is under way, else the last that was saved, or what it was before all. It is
not known here how tables are saved.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value")


class _UnderWay(Generic[Name, Value]):
    """All changes of one name that are not decided."""

    def __init__(self, settled: Value | None) -> None:
        self.settled = settled
        """What no refusal takes away; None: there is nothing of that name."""
        self.values: dict[Change[Name, Value], Value | None] = {}
        """What each change has made of it, the last at the end."""

    @property
    def value(self) -> Value | None:
        return next(reversed(self.values.values())) if self.values else self.settled


class Change(Generic[Name, Value]):
    """All that one request changes, under one name or several; it is saved or refused as a whole."""

    def __init__(self, changes: Changes[Name, Value]) -> None:
        self._changes = changes
        self._names: dict[Name, None] = {}

    def note(self, name: Name, before: Value | None, value: Value | None) -> None:
        """Take note of what was made of a name; None: there is nothing of that name."""
        self._names[name] = None
        self._changes.note(self, name, before, value)

    def saved(self) -> None:
        """Have the change stay, also if others are refused."""
        for name in self._names:
            self._changes.saved(self, name)

    def refused(self) -> None:
        """Take the change back, and nothing of what others have made of these names since."""
        for name in self._names:
            self._changes.refused(self, name)


class Changes(Generic[Name, Value]):
    """Those of one table."""

    def __init__(self, restore: Callable[[Name, Value | None], None]) -> None:
        """``restore`` gives a name this value again; None: it removes what is there."""
        self._restore = restore
        self._names: dict[Name, _UnderWay[Name, Value]] = {}

    @contextmanager
    def begin(self) -> Iterator[Change[Name, Value]]:
        """Begin a change; what an error in this block has left of it stays, as nobody will decide it."""
        change = Change(self)
        try:
            yield change
        except BaseException:
            change.saved()
            raise

    def forget(self, name: Name) -> None:
        """Have no refusal bring a name back that is gone for good."""
        self._names.pop(name, None)

    def note(
        self, change: Change[Name, Value], name: Name, before: Value | None, value: Value | None
    ) -> None:
        """Take note of what a change has made of a name; it is the last of them then."""
        under_way = self._names.setdefault(name, _UnderWay(before))
        under_way.values.pop(change, None)
        under_way.values[change] = value

    def saved(self, change: Change[Name, Value], name: Name) -> None:
        """Settle what a change has made of a name; those before it were overwritten."""
        under_way = self._names.get(name)
        if under_way is None or change not in under_way.values:
            return
        under_way.settled = under_way.values[change]
        for earlier in tuple(under_way.values):
            del under_way.values[earlier]
            if earlier is change:
                break
        self._drop_if_settled(name, under_way)

    def refused(self, change: Change[Name, Value], name: Name) -> None:
        """Give a name the value that it has without a change."""
        under_way = self._names.get(name)
        if under_way is None or change not in under_way.values:
            return
        del under_way.values[change]
        self._drop_if_settled(name, under_way)
        self._restore(name, under_way.value)

    def _drop_if_settled(self, name: Name, under_way: _UnderWay[Name, Value]) -> None:
        if not under_way.values:
            del self._names[name]
