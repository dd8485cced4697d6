"""FairScheduler: limits how long one turn of the loop may work before clients and timers run.

    run          work while this turn of the loop has time; the rest waits in a queue
    run_steps    do multi-step work in the same way; work that waits for a future is not queued
    when_done    continue when a future is done; if it already is, continue in a turn of its own,
                 because the next step needs most of a turn
    defer_write  write to a socket, or close it: some hundreds of calls in a turn

Queued work continues in the following turns, one item after the other and each for a short slice.
New work in steps gets one slice first. Between slices the sockets are read, so that a short request
waits for a slice and its last step, not for a turn.

    sockets are read: new requests ── a slice of the queue ── sockets are read: new requests ── ...

If new requests take much time themselves, the queue gets as much, up to its part of a turn. The
rest of a turn is for the last step of each part, which may begin when its time is nearly used up.
So a client with a large request never delays others for longer than a turn.

    sockets are read: new requests ── queue ── sockets are read: nothing begins ── a whole turn

A call that writes or closes returns quickly, but the loop and the system do most of its work
afterwards, where the scheduler cannot measure it. So such calls are counted instead of timed, and
have a queue of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from ..common.channel import BackgroundSteps

_log = logging.getLogger(__name__)

TURN_SECONDS: Final = 0.020
"""The maximum time that a client waits because of others, unless there are very many clients."""
NEW_WORK_SECONDS: Final = 0.010
"""The time of a turn for requests just read, and for work that other callers start."""
QUEUED_WORK_SECONDS: Final = 0.007
"""The maximum time of a turn for work queued by earlier turns."""
SLICE_SECONDS: Final = 0.002
"""The time after which a piece of work lets others continue; the queue's minimum in a turn."""
DEFERRED_WRITES_MAX: Final = 200
"""The maximum writes and closes of a turn: two or three milliseconds with the work that they cause.

More at a time save nothing: a turn without other work ends at once.
"""
_ACCOUNTED_SECONDS = 0.001
"""Work shorter than this skips the check for a new turn, which would cost more than the work."""

SlicedTask: TypeAlias = Callable[[float], bool]
"""Works until a time of the loop, but at least one step; returns whether all its work is done."""


class FairScheduler:
    """Divides the working time of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._time = loop.time
        self._call_soon = loop.call_soon
        self._call_soon_threadsafe = loop.call_soon_threadsafe
        self._remaining_seconds = self._granted_seconds = NEW_WORK_SECONDS
        """The seconds left for new work in this turn, and the seconds at its start."""
        self._until: float | None = None
        """The time at which the current work has to stop; None if none is running."""
        self._queue: deque[SlicedTask] = deque()
        self._exclusive_calls: deque[Callable[[], object]] = deque()
        """Calls that wait for a turn without any other work."""
        self._is_next_exclusive = False
        self._deferred_writes: deque[Callable[[], object]] = deque()
        self._is_turn_scheduled = False

    @property
    def is_idle(self) -> bool:
        """True if no work is queued for a later turn, apart from work that waits for a future."""
        return self._until is None and not (
            self._queue or self._exclusive_calls or self._deferred_writes
        )

    def run(
        self,
        task: SlicedTask,
        now: float | None = None,
        *,
        at_once: bool = False,
        seconds_max: float = NEW_WORK_SECONDS,
    ) -> bool:
        """Run a task now if this turn has time, and in later turns; return whether it is done.

        A task started within another one shares its time. ``now`` saves a read of the clock. With
        ``at_once`` a first step is done even if this turn has no time left. In this turn the task
        gets at most ``seconds_max``.
        """
        is_done = False
        if self._until is not None:
            is_done = task(self._until)
        elif self._remaining_seconds > 0 or at_once:
            started_at = self._time() if now is None else now
            self._until = started_at + min(self._remaining_seconds, seconds_max)
            try:
                is_done = task(self._until)
            finally:
                self._until = None
                self._remaining_seconds -= self._time() - started_at
                if self._remaining_seconds < NEW_WORK_SECONDS - _ACCOUNTED_SECONDS:
                    self._schedule_turn()
        if not is_done:
            self._queue.append(task)
            self._schedule_turn()
        return is_done

    def run_steps(self, steps: BackgroundSteps) -> None:
        """Run work in steps: a slice now if this turn has time, and others in later turns."""
        self.run(partial(self._run_steps_until, steps), seconds_max=SLICE_SECONDS)

    def defer_write(self, call: Callable[[], object]) -> None:
        """Queue a call that writes to a socket or closes it, to run soon, after earlier calls."""
        if not self._deferred_writes:
            self._call_soon(self._run_deferred_writes)
        self._deferred_writes.append(call)

    def when_done(self, awaited: Future[None], callback: Callable[[], object]) -> None:
        """Call a function in a later turn, once a future is done.

        If the future is done already, the function gets a turn without other work.
        """
        if awaited.done():
            self._exclusive_calls.append(callback)
            self._schedule_turn()
            return

        def schedule_callback(_: Future[None]) -> None:  # called from any thread
            with suppress(RuntimeError):  # the loop is closed: the result is not needed any more
                self._call_soon_threadsafe(callback)

        awaited.add_done_callback(schedule_callback)

    def _run_steps_until(self, steps: BackgroundSteps, until: float) -> bool:
        for awaited in steps:
            if awaited is not None:
                self.when_done(awaited, partial(self.run_steps, steps))
                return True
            if self._time() >= until:
                return False
        return True

    def _run_deferred_writes(self) -> None:
        for _ in range(min(len(self._deferred_writes), DEFERRED_WRITES_MAX)):
            call = self._deferred_writes.popleft()
            try:
                call()
            except Exception:  # noqa: BLE001  # an error in one must not keep the others waiting
                _log.exception("writing to a client, or disconnecting it, failed: %r", call)
        if self._deferred_writes:
            self._call_soon(self._run_deferred_writes)

    def _schedule_turn(self) -> None:
        if not self._is_turn_scheduled:
            self._call_soon(self._next_turn)
            self._is_turn_scheduled = True

    def _next_turn(self) -> None:
        """Start a new turn: continue the queued work, or run a call that needs a whole turn."""
        self._is_turn_scheduled = False
        is_whole, self._is_next_exclusive = self._is_next_exclusive, False
        new_work_seconds = self._granted_seconds - self._remaining_seconds
        self._remaining_seconds = NEW_WORK_SECONDS
        if is_whole:
            # new work gets its usual time after this call
            self._call_logged(self._exclusive_calls.popleft())
        elif self._queue:
            seconds = max(new_work_seconds, SLICE_SECONDS)
            if self._exclusive_calls or seconds > QUEUED_WORK_SECONDS:
                seconds = QUEUED_WORK_SECONDS
            self._remaining_seconds -= self._serve_queue(seconds)
        # after an exclusive turn, the next one is for the queue
        if self._exclusive_calls and not is_whole:
            self._is_next_exclusive = True
            self._remaining_seconds = 0
        self._granted_seconds = self._remaining_seconds
        if self._exclusive_calls or self._queue:
            self._schedule_turn()

    def _serve_queue(self, seconds: float) -> float:
        """Continue the queued work; return by how much it exceeded its maximum time."""
        started_at = now = self._time()
        for _ in range(len(self._queue)):
            go_on = self._queue.popleft()
            self._until = min(now + SLICE_SECONDS, started_at + seconds)
            if self._call_logged(partial(go_on, self._until)) is False:
                self._queue.append(go_on)
            now = self._time()
            if now >= started_at + seconds:
                break
        self._until = None
        return max(now - started_at - QUEUED_WORK_SECONDS, 0.0)

    def _call_logged(self, call: Callable[[], object]) -> object:
        """Return the result of a call; if it fails, log the exception and return None."""
        try:
            return call()
        except Exception:  # noqa: BLE001  # an error in one must not keep the others waiting
            _log.exception("queued work failed: %r", call)
            return None
