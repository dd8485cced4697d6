"""Deferred wake-ups: a reading thread passes on all that it has read before it wakes the waiters.

    read ──▶ begin ──▶ response, response, ... ──▶ end ──▶ what was deferred
                          └── defer(wake)

A wake-up costs a system call and hands the interpreter to the thread that wakes. With one wake-up
for each response, the two threads would take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class _DeferredActions(threading.local):
    """The turn of each thread: what it has put off; None outside of one."""

    actions: list[Callable[[], object]] | None = None


_deferred = _DeferredActions()


def begin() -> None:
    """Begin a turn of this thread, which `end` has to follow."""
    _deferred.actions = []


def defer(action: Callable[[], object]) -> bool:
    """Have a function called at the end of this thread's turn; return False if it is in none."""
    if _deferred.actions is None:
        return False
    _deferred.actions.append(action)
    return True


def end() -> None:
    """End the turn of this thread, and call what was put off, which must not raise."""
    actions, _deferred.actions = _deferred.actions, None
    for action in actions or ():
        action()
