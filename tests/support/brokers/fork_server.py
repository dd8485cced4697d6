"""Broker processes that start without half a second of imports: they are forked from the nursery, a
process that has imported everything.

    test ------ arguments, environment; stdout and stderr -----> nursery ---- fork ----> broker
         <----- the broker's process id, and how it ended -----

A forked broker runs ``python -m rocketpoll.broker`` from its first line to its last, with its own
descriptors, signals and memory, and can be killed like any other. Some settings take effect only
when a program is loaded, such as preloaded libraries or Python's variables: `can_be_forked` returns
False for these.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
_SETTLED_BEFORE = ("LD_", "PYTHON", "MALLOC_")
_MESSAGE_BYTES = 1 << 16


def can_be_forked() -> bool:
    """Return whether the environment variables that matter at program start equal the nursery's."""
    return _settled_before(os.environ) == _nursery().settled_before


def start(arguments, stderr) -> ForkedBroker:
    """Start a broker with these arguments and its stderr in a file."""
    return _nursery().start(arguments, stderr)


class ForkedBroker:
    """A broker's process, with the interface of `subprocess.Popen`."""

    def __init__(self, nursery, pid, stdout):
        self._nursery = nursery
        self.pid = pid
        self.stdout = stdout
        self.returncode = None

    def poll(self):
        self._nursery.hear(0.0)
        return self._ended()

    def wait(self, timeout):
        """Wait for the process to end; return its exit code."""
        deadline = time.monotonic() + timeout
        while self._ended() is None:
            left = deadline - time.monotonic()
            if left <= 0.0:
                raise subprocess.TimeoutExpired("a broker", timeout)
            self._nursery.hear(min(left, 0.1))
        return self.returncode

    def send_signal(self, number):
        """Send a signal if the process is still running."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        """Kill the process if it is still running."""
        self.send_signal(signal.SIGKILL)

    def _ended(self):
        if self.returncode is None:
            self.returncode = self._nursery.end_of(self.pid)
        return self.returncode


class _Nursery:
    """The nursery of this process; any thread may use it."""

    def __init__(self):
        self.settled_before = _settled_before(os.environ)
        self._mutex = threading.Lock()
        self._ends = {}
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(its.fileno())], cwd=ROOT, pass_fds=[its.fileno()]
            )
        atexit.register(self._end)

    def start(self, arguments, stderr):
        readable, writable = os.pipe()
        begin = json.dumps({"arguments": arguments, "environment": dict(os.environ)}).encode()
        with self._mutex:
            socket.send_fds(self._socket, [begin], [writable, stderr.fileno()])
            os.close(writable)
            while "born" not in (said := self._next()):
                self._note(said)
            self._ends.pop(said["born"], None)  # of an earlier broker with this process id
        return ForkedBroker(self, said["born"], os.fdopen(readable, encoding="utf-8"))

    def hear(self, seconds):
        """Read reports of ended brokers for at most this many seconds."""
        with self._mutex:
            if _readable([self._socket], seconds):
                self._note(self._next())

    def end_of(self, pid):
        """Return a broker's exit code; None if it has not ended."""
        return self._ends.get(pid)

    def _end(self):
        self._socket.close()
        self._process.wait()

    def _next(self):
        said = self._socket.recv(_MESSAGE_BYTES)
        if not said:
            raise AssertionError("the process that forks brokers has ended")
        return json.loads(said)

    def _note(self, said):
        # Only now is the process id free for reuse, and nobody signals it any more.
        self._ends[said["pid"]] = said["code"]
        self._socket.send(json.dumps({"bury": said["pid"]}).encode())


@cache
def _nursery():
    return _Nursery()


def _settled_before(environment):
    return {name: each for name, each in environment.items() if name.startswith(_SETTLED_BEFORE)}


def _raise_brokers(test) -> list[str] | None:
    """Fork brokers on request; return the arguments in each child, and None when the tests have
    ended.

    A dead process is reaped after its test has been notified.
    """
    import rocketpoll.broker.__main__  # noqa: PLC0415  # for those that are forked
    import rocketpoll.broker.server.event_loop  # noqa: PLC0415  # for those that are forked

    rocketpoll.broker.server.event_loop.new_event_loop().close()
    # otherwise runpy warns that it is already imported
    del sys.modules["rocketpoll.broker.__main__"]
    wakes, wake = socket.socketpair()
    for end in (wakes, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    alive = set()
    while True:
        readable = _readable([test, wakes])
        if wakes in readable:
            wakes.recv(_MESSAGE_BYTES)
            alive -= {pid for pid in alive if _tell_end(test, pid)}
        if test not in readable:
            continue
        said, descriptors, _, _ = socket.recv_fds(test, _MESSAGE_BYTES, 2)
        if not said:
            return None
        request = json.loads(said)
        if "bury" in request:
            os.waitpid(request["bury"], 0)
            continue
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # nohup and similar tools ignore it in the process that runs the tests.
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            for end in (test, wakes, wake):
                end.close()
            _become(request["environment"], *descriptors)
            return request["arguments"]
        for descriptor in descriptors:
            os.close(descriptor)
        alive.add(pid)
        test.send(json.dumps({"born": pid}).encode())


def _readable(sockets, seconds=None):
    """Wait until one of these sockets is readable; `select.select` cannot take large
    descriptors."""
    poll = select.poll()
    by_number = {each.fileno(): each for each in sockets}
    for number in by_number:
        poll.register(number, select.POLLIN)
    milliseconds = None if seconds is None else seconds * 1_000
    return [by_number[number] for number, _ in poll.poll(milliseconds)]


def _tell_end(test, pid):
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return False
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    test.send(json.dumps({"pid": pid, "code": code}).encode())
    return True


def _become(environment, stdout, stderr):
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    for descriptor, number in ((stdout, 1), (stderr, 2)):
        os.dup2(descriptor, number)
        os.close(descriptor)


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    arguments = _raise_brokers(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        sys.argv[1:] = arguments
        runpy.run_module("rocketpoll.broker", run_name="__main__", alter_sys=True)
