"""Failures of thread starts: a limit of the system, or a short lack of memory.

    BIRTHS.fail("FlushService", "stillborn", times=1)    the next thread of this name

    refused      the system starts no thread: RuntimeError, as Python raises it
    memory       there is no memory to start it: MemoryError
    stillborn    it starts, and has no memory for its first steps: it never reports running
    late         it starts when `may_begin` is set, and not before

Programs that tests start run this before their own code; a name is a prefix of threads' names.
"""

import sys
import threading
from functools import partial

KINDS = ("refused", "memory", "stillborn")


class Births:
    """Controls the thread starts of this process."""

    def __init__(self):
        self.names = []
        """Names of all requested threads, in order."""
        self._prefix, self._kind, self._times = None, None, 0
        self.may_begin, self.late_has_ended = threading.Event(), threading.Event()
        """`may_begin` starts the late thread; `late_has_ended` reports its end."""
        # Python 3.13 renamed it.
        self._starter = next(
            name
            for name in ("_start_joinable_thread", "_start_new_thread")
            if hasattr(threading, name)
        )
        self._start = getattr(threading, self._starter)

    def fail(self, prefix, kind, times):
        """Make the next starts of threads with this name prefix fail."""
        setattr(threading, self._starter, self._begin)
        self._prefix, self._kind, self._times = prefix, kind, times

    def heal(self):
        """Let all later starts succeed."""
        self._times = 0

    def _wait_and_run(self, function):
        self.may_begin.wait()
        function()
        self.late_has_ended.set()

    def _begin(self, function, *args, **keywords):
        thread = function.__self__
        self.names.append(thread.name)
        if self._times > 0 and thread.name.startswith(self._prefix):
            self._times -= 1
            if self._kind == "refused":
                raise RuntimeError("can't start new thread")
            if self._kind == "memory":
                raise MemoryError
            if self._kind == "late":
                function = partial(self._wait_and_run, function)
            else:
                function = _end_at_once
        return self._start(function, *args, **keywords)


def _end_at_once():
    pass


BIRTHS = Births()


def fail_by_arguments():
    """Configure a failure from three command line arguments, which are removed; report starts to
    stderr.

    Timeouts of waits for threads are shortened.
    """
    from rocketpoll.broker.common import threads  # noqa: PLC0415  # not for other programs
    from rocketpoll.broker.runtime import housekeeping  # noqa: PLC0415  # not for other programs
    from rocketpoll.broker.store.files import disk  # noqa: PLC0415  # not for other programs
    from rocketpoll.broker.store.maintenance import checkpointer  # noqa: PLC0415  # not for other programs

    threads.THREAD_START_TIMEOUT_SECONDS = checkpointer.THREAD_START_TIMEOUT_SECONDS = 0.3
    housekeeping._THREAD_CHECK_MS = 100
    disk._DIRECTORIES_PER_TASK = 2  # several threads even for a few directories
    prefix, kind, times = sys.argv[1:4]
    del sys.argv[1:4]
    BIRTHS.fail(prefix, kind, int(times))


def report():
    """Print the thread starts for the test."""
    names = sorted({name.rstrip("_0123456789") for name in BIRTHS.names})
    sys.stderr.write(" ".join(["births:", *names]) + "\n")
