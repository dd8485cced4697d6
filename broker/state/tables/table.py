"""Tables: interfaces to load and save the broker's tables, and changes that can be undone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from rmq_spark.errors import RocketPollError

# ---- Limits.


class TooMany(RocketPollError, ValueError, page="troubleshooting.md#refused-by-a-broker"):
    """A limit is reached; nothing was created, and existing objects are unaffected.

    Topics that a broker creates for itself, such as a group's retry topic, are never refused,
    because the number of groups limits them.
    """


def int32_fault(what: str, value: int | None) -> str | None:
    """Return why a number does not fit into a Java int, or None: Java may open the same tables."""
    if value is None or -(1 << 31) <= value < 1 << 31:
        return None
    return f"{what} must be an integer of 32 bits, not {value}"


def check_limit(what: str, count: int, limit: int, setting: str = "", *, more: int = 1) -> None:
    """Refuse ``more`` objects above a limit, which is fixed unless ``setting`` names it."""
    if more > 0 and count + more > limit:
        why = f" ({setting}={limit})" if setting else ""
        ways = f"Delete what nobody uses, or raise {setting}" if setting else "Delete some first"
        raise TooMany(f"there are {count} {what} already, the maximum{why}. {ways}")


Body = TypeVar("Body")
_SavedBody_contra = TypeVar("_SavedBody_contra", contravariant=True)
Name = TypeVar("Name", bound=Hashable)
Value = TypeVar("Value")


class Savable(Protocol[_SavedBody_contra]):
    """A place where a `SavedTable` is saved."""

    def save(self, value: _SavedBody_contra) -> None:
        """Replace the table durably."""


class Table(Savable[Body], Protocol[Body]):
    """A table that persists across restarts, such as the store's `JsonTable`."""

    def load(self, default: Body) -> Body:
        """Return the table as last saved, or the default if it was never saved."""


class ClearableTable(Table[Body], Protocol[Body]):
    """A table that can be deleted as well."""

    def clear(self) -> None:
        """Delete the table; a power loss may undo that."""


class SavedTable(Generic[Body]):
    """A table that other threads can save while the broker's thread changes it."""

    def __init__(
        self,
        table: Savable[Body],
        copy: Callable[[], Body],
        on_saved: Callable[[Body], object] = lambda _: None,
    ) -> None:
        """Store the functions, which the thread that saves calls.

        ``copy`` copies the whole table, and ``on_saved`` gets the saved copy.
        """
        self._table = table
        self._copy = copy
        self._on_saved = on_saved
        self._lock = threading.Lock()
        self.is_dirty = False
        """True if the table has changed since the last save."""

    def save(self) -> None:
        """Make the changes since the last save durable, if there are any."""
        with self._lock:
            if not self.is_dirty:
                return
            # Before the copy: what changes from here on is saved the next time.
            self.is_dirty = False
            try:
                saved = self._copy()
                self._table.save(saved)
            except BaseException:
                self.is_dirty = True
                raise
            self._on_saved(saved)

    def save_changes(self) -> None:
        """Make the changes since the last save durable, in the cheapest way."""
        self.save()


class NamedTable(SavedTable[Body], Generic[Body, Name, Value]):
    """A table of values by name. A change that is refused is undone."""

    def __init__(
        self,
        table: Table[Body],
        values: dict[Name, Value],
        copy: Callable[[], Body],
        on_saved: Callable[[Body], object] = lambda _: None,
    ) -> None:
        """Begin with the loaded values; ``copy`` and ``on_saved`` are as for `SavedTable`."""
        super().__init__(table, copy, on_saved)
        self._values = values
        self.changes = PendingChanges[Name, Value](self._set)
        self.version = 0
        """A number that grows with each change."""

    def get(self, name: Name) -> Value | None:
        """Return the value of a name, or None if it has none."""
        return self._values.get(name)

    def _set(self, name: Name, value: Value | None) -> None:
        if self._values.get(name) == value:
            return
        if value is None:
            del self._values[name]
        else:
            self._values[name] = value
        self._mark_changed()

    def _change(self, name: Name, value: Value | None, change: Change[Name, Value] | None) -> None:
        """Set a value as part of a change that may still be refused; None removes it."""
        before = self._values.get(name)
        self._set(name, value)
        if change is not None:
            change.record(name, before, self._values.get(name))

    def _mark_changed(self) -> None:
        self.is_dirty = True
        self.version += 1


# ---- Changes that are in effect but not saved yet.


class _PendingValue(Generic[Name, Value]):
    def __init__(self, committed: Value | None) -> None:
        self.committed = committed
        """The value without any pending change; None if the name does not exist."""
        self.values: dict[Change[Name, Value], Value | None] = {}
        """The value that each change has given the name, the latest at the end."""

    @property
    def value(self) -> Value | None:
        return next(reversed(self.values.values())) if self.values else self.committed


class Change(Generic[Name, Value]):
    """The changes of one request, to one or several names, saved or refused as a whole."""

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
        """Undo the change, except where later changes have set the same names."""
        for name in self._names:
            self._changes.rollback(self, name)


class PendingChanges(Generic[Name, Value]):
    """The pending changes of one table.

    Several changes may be pending for one name, and may succeed or be refused in any order. A name
    always has the value of its last pending change. Without one, it has the value saved last, or
    the value before all changes.
    """

    def __init__(self, restore: Callable[[Name, Value | None], None]) -> None:
        """Create it empty; ``restore`` sets a name to an earlier value, or removes it for None."""
        self._restore = restore
        self._names: dict[Name, _PendingValue[Name, Value]] = {}

    @contextmanager
    def begin(self) -> Iterator[Change[Name, Value]]:
        """Begin a change; if the block raises, what it has changed until then is committed."""
        change = Change(self)
        try:
            yield change
        except BaseException:
            change.commit()
            raise

    def discard(self, name: Name) -> None:
        """Drop the earlier values of a deleted name, so that no failed change restores it."""
        self._names.pop(name, None)

    def record(
        self, change: Change[Name, Value], name: Name, before: Value | None, value: Value | None
    ) -> None:
        """Record the value that a change gives a name, as the latest of its values."""
        pending = self._names.setdefault(name, _PendingValue(before))
        pending.values.pop(change, None)
        pending.values[change] = value

    def commit(self, change: Change[Name, Value], name: Name) -> None:
        """Settle the value that a change gives a name; earlier values are overwritten."""
        pending = self._names.get(name)
        if pending is None or change not in pending.values:
            return
        pending.committed = pending.values[change]
        for earlier in tuple(pending.values):
            del pending.values[earlier]
            if earlier is change:
                break
        self._discard_if_decided(name, pending)

    def rollback(self, change: Change[Name, Value], name: Name) -> None:
        """Undo a change of a name, and set the name to its value without that change."""
        pending = self._names.get(name)
        if pending is None or change not in pending.values:
            return
        del pending.values[change]
        self._discard_if_decided(name, pending)
        self._restore(name, pending.value)

    def _discard_if_decided(self, name: Name, pending: _PendingValue[Name, Value]) -> None:
        if not pending.values:
            del self._names[name]
