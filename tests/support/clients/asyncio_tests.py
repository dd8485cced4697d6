"""Tests of asyncio programs as plain functions: each runs in its own event loop."""

import asyncio
import concurrent.futures
import socket
import threading
import time
import traceback

from support.suite.coroutine_tests import run_by

from rocketpoll import ConsumeFromWhere, LitePullSettings

PATIENCE_S = 60
FIRST = LitePullSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
BY_HAND = LitePullSettings(
    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, auto_commit=False
)


told_in_a_loop = run_by(
    lambda story: asyncio.run(asyncio.wait_for(story(), 2 * PATIENCE_S)), given=0
)
"""Runs a test that is a coroutine function; one that hangs fails.

`until` gives up earlier, and says for what it waited.
"""


async def until(what, is_so):
    """Wait until a condition holds."""
    __tracebackhide__ = True
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.005)


async def steps(count):
    """Run this number of turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def taken(consumer, count):
    """Return the next bodies from an async iterator."""
    found = []
    while len(found) < count:
        found.append((await anext(consumer)).body.decode())
    return found


def names_of_threads(word):
    """Return the names of threads that contain this text."""
    return [thread.name for thread in threading.enumerate() if word in thread.name]


class NoWaiting:
    """Within the block, this thread may not block on a thread, a name lookup or the clock."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self.faults = []

    def __enter__(self):
        mine = threading.get_ident()

        def guarded(real, waits=lambda *_, **__: True):
            def call(*args, **kwargs):
                if threading.get_ident() == mine and waits(*args, **kwargs):
                    callers = [each.name for each in traceback.extract_stack()[-9:-1]]
                    if not {"start", "submit"} & set(callers):  # starting a thread waits for it
                        self.faults.append(callers)
                return real(*args, **kwargs)

            return call

        def is_not_done(future, *_, **__):
            return not future.done()

        for owner, name, *waits in (
            (threading.Condition, "wait"),
            (threading.Event, "wait"),
            (threading.Thread, "join"),
            (concurrent.futures.Future, "result", is_not_done),
            (socket, "getaddrinfo"),
            (socket.socket, "connect"),
            (socket.socket, "sendall"),
            (time, "sleep"),
        ):
            real = getattr(owner, name)
            self._monkeypatch.setattr(owner, name, guarded(real, *waits))
        return self

    def __exit__(self, *_):
        self._monkeypatch.undo()
