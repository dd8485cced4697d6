"""Threads: starting them, and calling a function for several items at a time.

    parallel_map(topics, ask, threads_max=16, name="routes")     the caller, and up to 15 threads

The calling thread and its helpers each take the next item that is left.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final, TypeVar

from rmq_spark.client.errors import ThreadNotStarted

_Item = TypeVar("_Item", bound=Hashable)
_Found = TypeVar("_Found")

SIGNAL_CHECK_SECONDS: Final = 1.0
"""Longest wait, because a signal just before a wait is handled only when the wait ends."""


def start_thread(thread: threading.Thread) -> None:
    """Start a thread, or raise `ThreadNotStarted`."""
    if sys.is_finalizing():
        raise ThreadNotStarted("can't start new thread at interpreter shutdown")
    try:
        thread.start()
    except RuntimeError as error:
        raise ThreadNotStarted(str(error)) from error


def wait_for(
    condition: threading.Condition, predicate: Callable[[], bool], deadline: float
) -> bool:
    """Wait for a notification after which a predicate holds; return False at the deadline.

    ``deadline`` is a time of `time.monotonic`. A signal is handled within `SIGNAL_CHECK_SECONDS`.
    """
    while not predicate():
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        condition.wait(min(remaining, SIGNAL_CHECK_SECONDS))
    return True


def parallel_map(
    items: Iterable[_Item],
    action: Callable[[_Item], _Found],
    *,
    threads_max: int,
    name: str,
    stop_on: tuple[type[Exception], ...] = (),
) -> dict[_Item, _Found | Exception]:
    """Call a function for each item; return each result, or its error, in the items' order.

    At most ``threads_max`` calls run at a time. If a signal handler raises in the caller, no
    further call begins. The threads have a ``name``; if none can be started, the caller makes all
    calls. After an error of the kinds in ``stop_on`` no further call begins, and the items that are
    left have that error as their outcome.
    """
    wanted = tuple(dict.fromkeys(items))
    pending = deque(wanted)
    found: dict[_Item, _Found | Exception] = {}
    ended: list[Exception] = []

    def work() -> None:
        while pending:
            try:
                item = pending.popleft()
            except IndexError:  # another thread has taken the last item
                return
            try:
                found[item] = action(item)
            except Exception as error:  # noqa: BLE001  # the error is the outcome
                found[item] = error
                if isinstance(error, stop_on):
                    ended.append(error)
                    pending.clear()

    helpers: list[threading.Thread] = []
    try:
        for _ in range(min(threads_max, len(wanted)) - 1):
            helper = threading.Thread(target=work, name=f"rocketpoll {name}", daemon=True)
            try:
                start_thread(helper)
            except ThreadNotStarted:
                break
            helpers.append(helper)
        work()
        for helper in helpers:
            while helper.is_alive():
                helper.join(SIGNAL_CHECK_SECONDS)
    finally:
        pending.clear()
    skipped = dict.fromkeys(wanted, ended[0]) if ended else {}
    return {item: found[item] if item in found else skipped[item] for item in wanted}


def raise_first(outcomes: Iterable[object]) -> None:
    """Raise the first error among several outcomes, if there is one."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
