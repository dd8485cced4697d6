"""Deferred wake-ups: a reading thread passes on all responses before it wakes waiters.

    read ──▶ begin ──▶ response, response, ... ──▶ end ──▶ what was deferred
                          └── defer(wake)

A wake-up costs a system call and hands the interpreter to the thread that wakes. With one wake-up
for each response, the two threads would take turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class _DeferredActions(threading.local):
    """The deferred calls of each thread's turn; None outside of a turn."""

    actions: list[Callable[[], object]] | None = None


_deferred = _DeferredActions()


def begin() -> None:
    """Begin a turn of this thread; the caller must call `end`."""
    _deferred.actions = []


def defer(action: Callable[[], object]) -> bool:
    """Defer a call to the end of this thread's turn; return False outside of a turn."""
    if _deferred.actions is None:
        return False
    _deferred.actions.append(action)
    return True


def end() -> None:
    """End the turn of this thread, and make the deferred calls, which must not raise."""
    actions, _deferred.actions = _deferred.actions, None
    for action in actions or ():
        action()
