"""Turns: a thread that reads hands over all that it has read before it wakes those who wait for it.

    read ──▶ begin ──▶ answer, answer, ... ──▶ end ──▶ what was put off
                          └── put_off(wake)

A wake-up costs a system call, and gives the interpreter to the thread that is woken: one for each
answer would have the two work by turns. This module knows neither loops nor connections.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class _Turns(threading.local):
    """The turn of each thread: what it has put off; None outside of one."""

    put_off: list[Callable[[], object]] | None = None


_turns = _Turns()


def begin() -> None:
    """Begin a turn of this thread, which `end` has to follow."""
    _turns.put_off = []


def put_off(action: Callable[[], object]) -> bool:
    """Have a function called at the end of this thread's turn; return False if it is in none."""
    if _turns.put_off is None:
        return False
    _turns.put_off.append(action)
    return True


def end() -> None:
    """End the turn of this thread, and call what was put off, which must not raise."""
    actions, _turns.put_off = _turns.put_off, None
    for action in actions or ():
        action()
