"""Table: the interface for loading and saving the broker's tables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

Body = TypeVar("Body")


class Table(Protocol[Body]):
    """A table that outlives the broker; the store's `JsonTable` is one."""

    def load(self, default: Body) -> Body:
        """Return the table as it was last saved, or the default if it never was."""

    def save(self, value: Body) -> None:
        """Replace the table; it is durable when this returns."""


class TableSaver(Generic[Body]):
    """Saves a table if it has changed, in any thread, while the broker's thread may change it."""

    def __init__(
        self,
        table: Table[Body],
        wrapper: Callable[[], Body],
        on_saved: Callable[[Body], object] = lambda _: None,
    ) -> None:
        """Store the functions, both called in the thread that saves.

        ``wrapper`` copies the whole table, and ``on_saved`` gets what is on the disk now.
        """
        self._table = table
        self._wrapper = wrapper
        self._on_saved = on_saved
        self._lock = threading.Lock()
        self.is_dirty = False

    def save(self) -> None:
        """Make the changes since the last save durable, if there are any."""
        with self._lock:
            if not self.is_dirty:
                return
            self.is_dirty = (
                False  # before the copy is made: what changes from here on is saved the next time
            )
            try:
                saved = self._wrapper()
                self._table.save(saved)
            except BaseException:
                self.is_dirty = True
                raise
            self._on_saved(saved)
