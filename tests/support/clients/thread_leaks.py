"""Threads that run client code, and a check that none of them is left.

with none_left():     fails and names the threads that start in the block and do not end soon after
"""

import sys
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

import rmq_spark.client

PATIENCE_SECONDS = 15.0
"""Seconds. Exceeds every timeout of connections and responses."""

_LOOK_SECONDS = 0.02
_CLIENT = str(Path(rmq_spark.client.__file__).parent)
_OF_THE_PROCESS = ("rocketpoll calls", "rocketpoll ends")
"""Threads that all clients of `rocketpoll.aio` in a process share."""


def threads_of_clients():
    """Return the stacks of other threads that run client code."""
    frames = sys._current_frames()
    found = {}
    for thread in threading.enumerate():
        frame = frames.get(thread.ident)
        if thread is threading.current_thread() or thread.name.startswith(_OF_THE_PROCESS):
            continue
        if frame is not None and _is_in_client(frame):
            found[thread] = "".join(traceback.format_stack(frame))
    return found


def _is_in_client(frame):
    while frame is not None:
        if frame.f_code.co_filename.startswith(_CLIENT):
            return True
        frame = frame.f_back
    return False


@contextmanager
def none_left(patience_seconds=PATIENCE_SECONDS):
    """Check that all client threads started within the block have ended."""
    before = threads_of_clients().keys()
    yield
    until = time.monotonic() + patience_seconds
    while left := {each: at for each, at in threads_of_clients().items() if each not in before}:
        if time.monotonic() > until:
            stacks = "\n".join(f"{thread.name}:\n{stack}" for thread, stack in left.items())
            raise AssertionError(f"{len(left)} threads of clients are left:\n{stacks}")
        time.sleep(_LOOK_SECONDS)
