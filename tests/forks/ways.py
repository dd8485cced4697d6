"""Ways to fork, and the state of a child right after the fork.

main              the thread that has made everything
thread            another thread, which is then the only one of the child
listener          a listener of a push consumer
callback          the callback of a future
rebalance         a listener of changed queues, during a rebalance
signal            a signal handler, during a call; the child ends within the handler
signal, goes on   the same; in the child the call continues
fork              `multiprocessing` with its start methods ...
spawn
forkserver
"""

import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

COPIES = ("main", "thread", "listener", "callback", "rebalance", "signal", "signal, goes on")
PROCESSES = ("fork", "spawn", "forkserver")

CHILD_SECONDS = 40
"""Maximum seconds of a child's life: then it prints its stacks, and ends."""

NESTED = 2
"""Maximum depth: a child of a child does not fork."""


class EndOfChild(BaseException):
    """Raised to end a child through all frames inherited from its parent; no code catches it."""


def inet_sockets():
    """Return the internet sockets of this process: descriptors and both addresses."""
    found = []
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as sock:
                if sock.family in (socket.AF_INET, socket.AF_INET6):
                    found.append(f"{entry.name}: {sock.getsockname()}")
        except OSError:  # the descriptor of the listing, or of another thread
            continue
    return found


def watch_child(notes):
    """Record what a child inherits from its parent, and limit its time."""
    hang = notes.path.with_name(f"hang-{os.getpid()}")
    # chained: then it is killed
    faulthandler.register(signal.SIGALRM, file=hang.open("w"), chain=True)
    signal.alarm(CHILD_SECONDS)
    notes.note("born", sockets=inet_sockets(), threads=threading.active_count())


def end(how):
    """End a child, from any frame."""
    signal.alarm(0)
    sys.stdout.flush()
    sys.stderr.flush()
    if how == "os._exit":
        os._exit(9)
    if how == "sys.exit":
        sys.exit(7)
    if how == "an exception":
        raise EndOfChild
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(CHILD_SECONDS)


ENDS = {"os._exit": 9, "sys.exit": 7, "an exception": 1, "SIGTERM": -signal.SIGTERM}
"""Ways to end, and the exit code of a child that was forked by the main thread, or is a `Process`.

Any other thread's end is the end of its process, with 0.
"""


def wait_for(pid, seconds):
    """Return the exit code of a child; None if it took too long and was killed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None
