"""Cancels coroutines at one await after another, at each in all possible ways.

    cancelled_everywhere(make, do, check)     make() ──▶ do(made), cancelled ──▶ check(made)

    WAITING     as soon as it waits, before the result is there
    COME        when the result is there, and before the coroutine has seen it
    FOR_GOOD    at this await and at each following one, also while it cleans up

The module drives a coroutine step by step until it ends without being cancelled: it finds what
timeouts at random moments find in a day. `Belongings` detects leaks.
"""

import asyncio
import enum
from pathlib import Path

from support.clients.asyncio_tests import PATIENCE_S, until
from support.clients.thread_leaks import threads_of_clients

AWAITS_MAX = 100
_DESCRIPTORS = Path("/proc/self/fd")


class Way(enum.Enum):
    """The moment at which a waiting coroutine is cancelled."""

    WAITING = enum.auto()
    COME = enum.auto()
    FOR_GOOD = enum.auto()


class _Driven:
    """A coroutine that cancels its own task at a given await."""

    def __init__(self, coroutine, number, way):
        self._coroutine, self._left, self._way = coroutine, number, way
        self.where = None

    @property
    def may_end_well(self):
        """Return whether a normal end is correct: either nothing was cancelled, or wait_for of
        Python up to 3.11 preferred the result."""
        return self.where is None or self.where.endswith(" wait_for")

    async def run(self):
        return await self

    def __await__(self):
        step, value = self._coroutine.send, None
        while True:
            try:
                awaited = step(value)
            except StopIteration as end:
                return end.value
            self._has_begun_to_wait_for(awaited)
            try:
                step, value = self._coroutine.send, (yield awaited)
            except BaseException as error:
                step, value = self._coroutine.throw, error

    def _has_begun_to_wait_for(self, awaited):
        self._left -= 1
        if self._left >= 0 or (self.where is not None and self._way is not Way.FOR_GOOD):
            return
        task = asyncio.current_task()
        self.where = self.where or _innermost(self._coroutine)
        if self._way is Way.COME and awaited is not None:
            # added before the task's own callback
            awaited.add_done_callback(lambda _: task.cancel())
        else:
            asyncio.get_running_loop().call_soon(task.cancel)


def _innermost(coroutine):
    """Return the line of our code at which a coroutine waits."""
    found = "at its beginning"
    while getattr(coroutine, "cr_frame", None) is not None:
        frame = coroutine.cr_frame
        found = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
        coroutine = coroutine.cr_await
    return found


async def cancelled_everywhere(make, do, check, *, least=1):
    """Cancel ``do`` at each await, in each way, and run ``check`` each time.

    All three are coroutine functions. ``least`` is the minimum number of awaits.
    """
    __tracebackhide__ = True
    for way in Way:
        for number in range(AWAITS_MAX):
            made = await make()
            driven = _Driven(do(made), number, way)
            task = asyncio.create_task(driven.run())
            await asyncio.wait([task], timeout=PATIENCE_S)
            assert task.done(), f"cancelled at {driven.where} ({way}), it goes on for ever"
            try:
                if not task.cancelled():
                    assert driven.may_end_well, task
                    task.result()
                await check(made)
            except Exception as error:
                place = f"cancelled at {driven.where} (await {number}, {way})"
                raise AssertionError(place) from error
            if driven.where is None:
                break
        assert least <= number < AWAITS_MAX - 1, (way, number)


class Belongings:
    """The existing tasks, client threads and sockets, and unreported errors.

    The broker in this process may start a housekeeping thread at any time.
    """

    def __init__(self):
        loop = asyncio.get_running_loop()
        self._unconfirmed_error = []
        loop.set_exception_handler(lambda _, context: self._unconfirmed_error.append(context))
        self._tasks = asyncio.all_tasks()
        self._threads = threads_of_clients().keys()
        self._sockets = _sockets()

    def new_tasks(self):
        return asyncio.all_tasks() - self._tasks

    def new_threads(self):
        return threads_of_clients().keys() - self._threads

    def new_sockets(self):
        return max(0, _sockets() - self._sockets)

    async def are_as_before(self):
        """Wait until everything created since then is gone."""
        __tracebackhide__ = True
        await until("the end of tasks", lambda: not self.new_tasks())
        await until("the end of threads", lambda: not self.new_threads())
        await until("the end of connections", lambda: not self.new_sockets())
        assert self._unconfirmed_error == []


def _sockets():
    """Return the number of open sockets; 0 if the system does not report it."""
    if not _DESCRIPTORS.exists():
        return 0
    return sum(_is_socket(each) for each in _DESCRIPTORS.iterdir())


def _is_socket(descriptor):
    try:
        return str(descriptor.readlink()).startswith("socket:")
    except FileNotFoundError:  # the descriptor of the listing itself
        return False
