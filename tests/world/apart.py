"""A process that runs the tests of one file in order, while another process waits for each result.

A test's result is a line of JSON in a pipe: its id, its outcome, and the reason of a failure.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time

OF_WORLDS = {
    "test_worlds.py",
    "test_client_worlds.py",
    "test_spark_commits.py",
    "test_spark_notices.py",
    "test_spark_worlds.py",
    "test_threads.py",
    "test_watch.py",
}
"""Files that run whole worlds."""

PIPE = "ROCKETPOLL_WORLD_TELLS_INTO"
"""Environment variable that gives such a process the descriptor of its pipe."""
_OPTIONS = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
_TEXT_MAX = 20_000


def report(nodeid, outcome, text):
    """Report a test's result to the waiting process."""
    line = json.dumps([nodeid, outcome, text[-_TEXT_MAX:]])
    os.write(int(os.environ[PIPE]), line.encode() + b"\n")


class Apart:
    """The process for the tests of one file; the first requested test starts it."""

    def __init__(self, nodeids, root):
        self.nodeids = list(nodeids)
        """The tests without a result so far."""
        self._pipe, to_write = os.pipe()
        self._unread = b""
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # `end` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *_OPTIONS, *self.nodeids],
            cwd=root,
            env={**os.environ, PIPE: str(to_write)},
            pass_fds=[to_write],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        os.close(to_write)

    def result_of(self, nodeid, seconds):
        """Wait for a test; return its outcome and text."""
        until = time.monotonic() + seconds
        while True:
            line = self._next_line(until)
            if line is None:
                words = self._stderr_tail()
                self.end()
                return "failed", f"nothing is heard of it; the last words:\n{words}"
            told, outcome, text = json.loads(line)
            self.nodeids.remove(told)
            if told == nodeid:
                return outcome, text

    def end(self):
        """Kill the process if it still runs."""
        self._process.kill()
        self._process.wait()
        self.nodeids.clear()
        if not self._output.closed:
            self._output.close()
            os.close(self._pipe)

    def _next_line(self, until):
        """Return a line; None if the process has ended or the time is over."""
        while b"\n" not in self._unread:
            wait_seconds = max(0.0, until - time.monotonic())
            if not select.select([self._pipe], [], [], wait_seconds)[0]:
                return None
            read = os.read(self._pipe, 1 << 16)
            if not read:
                return None
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _stderr_tail(self):
        self._output.seek(0)
        return self._output.read().decode(errors="replace")[-_TEXT_MAX:]
