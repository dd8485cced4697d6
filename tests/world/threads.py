"""Python's threads, locks and clocks in a simulated world, under its kernel and in its time.

    with Threads(kernel):     threading.Lock, RLock, Thread, time.monotonic, time.sleep ...
                              are the world's

What the standard library builds on these (Condition, Event, queues, futures, thread pools) follows
by itself, and so does every program in the world. A thread belongs to the process of its starter,
and dies with it. Acquiring a lock is a point at which the seed may let others run first; so is each
statement of some files, if a story says so (`statements`).

Threads outside the world, such as pytest's, keep the real clock. Locks created before, such as
those of logging, stay real: nothing in the world may wait while it holds one.
"""

import _threading_local
import concurrent.futures.thread
import contextlib
import gc
import queue
import random
import threading
import time
import weakref
from math import log

from world.kernel import Actor, Killed
from world.statements import interrupted

_REAL_IDENT = threading.get_ident
_REAL_THREAD = threading.Thread
_REAL = {
    name: getattr(time, name)
    for name in (
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "sleep",
    )
}
EPOCH_SECONDS = 1_700_000_000


class Threads:
    """Replaces Python's primitives by the world's while it is active."""

    def __init__(self, kernel, preemption=0.0, line_preemption=0.0, in_files=""):
        """``preemption`` is the share of lock acquisitions at which others run first.
        ``line_preemption`` is the same for every statement of the modules whose paths match,
        because a system may interrupt a thread anywhere."""
        self._kernel = kernel
        self._preemption = preemption
        self._line_preemption = line_preemption
        self._in_files = in_files
        self._before = contextlib.ExitStack()
        self.wall_ahead = 0.0  # seconds by which the time of day is ahead

    def __enter__(self):
        kernel = self._kernel
        # a collector would run finalizers at any time, in any thread, with the baton or without
        if gc.isenabled():
            gc.disable()
            self._before.callback(gc.enable)

        def new_lock():
            return Lock(kernel, self._preemption)

        def new_reentrant_lock():
            return ReentrantLock(kernel, self._preemption)

        main = _REAL_IDENT()

        def get_ident():
            if not kernel.is_here():
                return _REAL_IDENT()
            current = kernel.current
            return main if current is None else current.strand.number

        class Thread(_Thread):
            world = kernel

        if self._line_preemption:
            self._before.enter_context(interrupted(self._in_files, self._at_statement))
            self._statements_left = self._statements_to_come()

        for module, name, value in (
            (threading, "_allocate_lock", new_lock),
            (threading, "Lock", new_lock),
            (threading, "RLock", new_reentrant_lock),
            (threading, "Thread", Thread),
            (threading, "get_ident", get_ident),
            (threading, "local", _threading_local.local),
            (threading, "_time", self._clock("monotonic")),
            (queue, "SimpleQueue", queue._PySimpleQueue),
            (queue, "time", self._clock("monotonic")),
            (concurrent.futures.thread, "_global_shutdown_lock", new_lock()),
            (concurrent.futures.thread, "_threads_queues", weakref.WeakKeyDictionary()),
            *((time, name, self._clock(name)) for name in _REAL),
        ):
            self._put(module, name, value)
        self._before.callback(random.setstate, random.getstate())
        random.seed(kernel.dice.random())
        return self

    def __exit__(self, *_):
        self._before.close()

    def wall_seconds(self):
        """Return the time of day, which a story may have moved."""
        return EPOCH_SECONDS + self._kernel.now + self.wall_ahead

    def _at_statement(self):
        """Called before each statement of the files whose threads may be interrupted."""
        self._statements_left -= 1
        if self._statements_left < 0 and self._kernel.current:
            self._statements_left = self._statements_to_come()
            self._kernel.step_back()

    def _statements_to_come(self):
        """Draw the number of statements until others run first."""
        odds = self._line_preemption
        return int(log(1.0 - self._kernel.dice.random()) / log(1.0 - odds))

    def _put(self, module, name, value):
        self._before.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, value)

    def _clock(self, name):
        kernel, real, here, get_ident = self._kernel, _REAL[name], _REAL_IDENT(), _REAL_IDENT
        ours = {
            "time": self.wall_seconds,
            "time_ns": lambda: int(self.wall_seconds() * 1_000_000) * 1_000,
            "monotonic": lambda: kernel.now,
            "monotonic_ns": lambda: int(kernel.now * 1_000_000_000),
            "perf_counter": lambda: kernel.now,
            "perf_counter_ns": lambda: int(kernel.now * 1_000_000_000),
            "sleep": kernel.sleep,
        }[name]

        def clock(*seconds):
            return ours(*seconds) if get_ident() == here else real(*seconds)

        return clock


class Lock:
    """A lock of the world. The kernel decides the order of its waiters."""

    def __init__(self, kernel, preemption):
        self._kernel = kernel
        self._preemption = preemption
        self._is_locked = False
        self._owner = None
        self._waiting = {}

    def acquire(self, blocking=True, timeout=-1):
        kernel = self._kernel
        if (
            self._preemption
            and blocking
            and kernel.current
            and kernel.dice.random() < self._preemption
        ):
            kernel.step_back()
        if self._is_locked and not (
            blocking and self._wait(None if timeout < 0 else kernel.now + timeout)
        ):
            return False
        self._is_locked = True
        self._owner = kernel.current
        return True

    def release(self, *_):
        current = self._kernel.current
        if current is not self._owner and current is not None and current.is_killed:
            return  # unwinding from the wait, without the lock
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        self._owner = None
        for actor in self._waiting:
            self._kernel.wake(actor)

    def locked(self):
        return self._is_locked

    def _wait(self, until):
        kernel = self._kernel
        me = kernel.current
        self._waiting[me] = None
        try:
            while self._is_locked:
                if not kernel.suspend(until):
                    return not self._is_locked
            return True
        finally:
            self._waiting.pop(me, None)

    def _at_fork_reinit(self):
        self._is_locked = False

    __enter__ = acquire
    __exit__ = release


class ReentrantLock(Lock):
    """A lock of the world that its owner may acquire again."""

    def __init__(self, kernel, preemption):
        super().__init__(kernel, preemption)
        self._count = 0

    def acquire(self, blocking=True, timeout=-1):
        if self._count and self._owner is self._kernel.current:
            self._count += 1
            return True
        if not Lock.acquire(self, blocking, timeout):
            return False
        self._count = 1
        return True

    def release(self, *_):
        current = self._kernel.current
        if not self._count or self._owner is not current:
            if current is not None and current.is_killed:
                return  # unwinding from the wait, without the lock
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            Lock.release(self)

    __enter__ = acquire
    __exit__ = release

    # ---- methods that Condition uses

    def _is_owned(self):
        return self._count > 0 and self._owner is self._kernel.current

    def _release_save(self):
        count, self._count = self._count, 1
        self.release()
        return count

    def _acquire_restore(self, count):
        Lock.acquire(self)
        self._count = count

    def _at_fork_reinit(self):
        super()._at_fork_reinit()
        self._count = 0


class _Thread(_REAL_THREAD):
    """A thread of the world: it takes turns with all others."""

    world = None

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self._actor = None
        self._process = None

    def belongs_to(self, process):
        """Assign the thread to this process, instead of its starter's."""
        self._process = process

    def start(self):
        kernel = self.world
        if kernel.current is not None and kernel.current.is_killed:
            raise Killed  # a dead process starts nothing
        starter = kernel.actor()
        process = self._process or (starter.process if starter is not None else None)
        self._actor = Actor(self.name, process)
        self._started.set()
        kernel.start(self._actor, self._work)

    def _work(self):
        """Run the thread's function, with itself as `threading.current_thread`."""
        self._ident = self._actor.strand.number
        threading._active[self._ident] = self
        try:
            self.run()
        finally:
            del threading._active[self._ident]

    def is_alive(self):
        return self._actor is not None and not self._actor.is_done

    def join(self, timeout=None):
        if self._actor is None:
            raise RuntimeError("cannot join thread before it is started")
        kernel = self.world
        kernel.join(self._actor, None if timeout is None else kernel.now + max(timeout, 0))
