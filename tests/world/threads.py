"""Python's threads, locks and clocks, as they are in a simulated world: under its kernel,
in its time.

    with Threads(kernel):     threading.Lock, RLock, Thread, time.monotonic, time.sleep ...
                              are the world's

What the standard library builds on these (Condition, Event, queues, futures, pools of threads)
follows by itself, as does whatever program runs in the world: it need not know. A thread belongs to
the process of whoever starts it, and dies with it. Taking a lock is a point at which the seed may
let others go first.

Threads that are not of the world, such as pytest's, keep the real clock. Locks that were made
before, such as those of logging, stay real: nothing in the world may wait while it holds one.
"""

from __future__ import annotations

import _thread
import concurrent.futures.thread
import contextlib
import gc
import queue
import random
import re
import sys
import threading
import time
import weakref

from world.kernel import Actor, Killed

_REAL_LOCK = _thread.allocate_lock
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
    """Puts the world's primitives into Python's modules for as long as it lasts."""

    def __init__(self, kernel, preemption=0.0, line_preemption=0.0, in_files=""):
        """``preemption`` is how often, of all times that a lock is taken, others go first.

        ``line_preemption`` is the same for every line of the files whose paths match: as a system
        may take the processor from a thread anywhere, so may the world.
        """
        self._kernel = kernel
        self._preemption = preemption
        self._line_preemption = line_preemption
        self._in_files = re.compile(in_files)
        self._before = contextlib.ExitStack()
        self.wall_ahead = 0.0  # how far the time of day has been moved, in seconds

    def __enter__(self):
        kernel = self._kernel
        if (
            gc.isenabled()
        ):  # it would call what it finds at any time, in any thread, with the baton or without
            gc.disable()
            self._before.callback(gc.enable)

        def new_lock():
            return Lock(kernel, self._preemption)

        class Thread(_Thread):
            world = kernel
            trace = self._trace if self._line_preemption else None

        for module, name, value in (
            (threading, "_allocate_lock", new_lock),
            (threading, "Lock", new_lock),
            (threading, "RLock", threading._PyRLock),
            (threading, "Thread", Thread),
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
        """The time of day, which may have been moved."""
        return EPOCH_SECONDS + self._kernel.now + self.wall_ahead

    def _trace(self, frame, event, _):
        """Called for every function in a thread of the world;
        gives what is called for its lines."""
        return self._trace_line if self._in_files.search(frame.f_code.co_filename) else None

    def _trace_line(self, frame, event, _):
        kernel = self._kernel
        if event == "line" and kernel.current and kernel.dice.random() < self._line_preemption:
            kernel.step_back()
        return self._trace_line

    def _put(self, module, name, value):
        self._before.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, value)

    def _clock(self, name):
        kernel, real = self._kernel, _REAL[name]
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
            return ours(*seconds) if kernel.actor() is not None else real(*seconds)

        return clock


class Lock:
    """A lock of the world. Who waits for it is served in the order of the kernel."""

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
        if self._is_locked and not blocking:
            return False
        if self._is_locked and not self._wait(None if timeout < 0 else kernel.now + timeout):
            return False
        self._is_locked = True
        self._owner = kernel.current
        return True

    def release(self):
        current = self._kernel.current
        if current is not None and current.is_killed and self._owner is not current:
            return  # it unwinds out of a wait, and does not have it back
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
                if not kernel.park(until):
                    return not self._is_locked
            return True
        finally:
            self._waiting.pop(me, None)

    def _at_fork_reinit(self):
        self._is_locked = False

    __enter__ = acquire

    def __exit__(self, *_):
        self.release()


class _RealEvent:
    """What a thread and who starts it need to find each other; outside of the world's time."""

    def __init__(self):
        self._lock = _REAL_LOCK()
        self._lock.acquire()
        self._is_set = False

    def is_set(self):
        return self._is_set

    isSet = is_set  # noqa: N815

    def set(self):
        self._is_set = True
        self._lock.release()

    def wait(self, timeout=None):
        self._lock.acquire()
        self._lock.release()
        return True

    def _at_fork_reinit(self):
        pass


class _Thread(_REAL_THREAD):
    """A thread of the world: it takes turns with all others."""

    world = None
    trace = None

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self._started = _RealEvent()
        self._actor = None
        self._process = None

    def belongs_to(self, process):
        """Not to the process of whoever starts it, but to this one."""
        self._process = process

    def start(self):
        kernel = self.world
        if kernel.current is not None and kernel.current.is_killed:
            raise Killed  # a process that is dead begins nothing
        starter = kernel.actor()
        process = self._process or (starter.process if starter is not None else None)
        self._actor = Actor(self.name, process)
        kernel.admit(self._actor)
        super().start()

    def run(self):
        kernel = self.world
        try:
            kernel.adopt(self._actor)
            sys.settrace(self.trace)
            super().run()
        except Killed:
            pass
        except BaseException as error:  # nothing that runs in a world may end like this
            if not self._actor.is_killed:
                kernel.fail(error)
        sys.settrace(None)
        kernel.leave(self._actor)

    def is_alive(self):
        return self._actor is not None and not self._actor.is_done

    def join(self, timeout=None):
        if self._actor is None:
            raise RuntimeError("cannot join thread before it is started")
        kernel = self.world
        if kernel.actor() is None:
            super().join(timeout)
            return
        kernel.join(self._actor, None if timeout is None else kernel.now + max(timeout, 0))
