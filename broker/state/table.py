"""Where the broker's tables come from and go to, as far as they need to know."""

from __future__ import annotations

from typing import Protocol, TypeVar

Body = TypeVar("Body")


class Table(Protocol[Body]):
    """One table that outlives the broker; the store's `JsonTable` is one."""

    def load(self, default: Body) -> Body:
        """The table as it was last saved, or the default if it never was."""

    def save(self, value: Body) -> None:
        """Replace the table; it is durable when this returns."""
