"""BrokerProcess: runs a broker in a process of its own, which ends with this process.

    its stdin    a pipe to which nobody writes: it closes when this process ends in any way, and
                 then the broker stops
    its stdout   one line when it serves
    its stderr   an unnamed file that keeps its output, in case it ends on its own

It has a session of its own, so that Ctrl-C reaches only the process that started it.
"""

from __future__ import annotations

import selectors
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from typing import IO, Final

from rmq_spark.errors import RocketPollError

UNTIL_INPUT_ENDS: Final = "--untilInputEnds"

_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_STDERR_TAIL_BYTES = 4_000


class BrokerProcess:
    """A broker in a child process; it can be started once and stopped once."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = [*command, UNTIL_INPUT_ENDS]
        self._was_killed = False

    def start(self) -> int:
        """Start the process; return the broker's port when it accepts connections.

        Raises:
            RocketPollError: The broker cannot run; the message contains its output. All resources
                are released.
        """
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # it stays open for long
        self._process = subprocess.Popen(  # noqa: S603  # our own broker
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
        )
        try:
            return self._read_port()
        except BaseException:
            self._process.kill()
            self._close()
            raise

    def stop(self) -> None:
        """Stop the broker cleanly, and return when its process has ended.

        Raises:
            RocketPollError: The broker had ended on its own, or could not save its state.
        """
        self.resume()
        _require_pipe(self._process.stdin).close()
        fault: str | None = None
        try:
            code = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            fault = f"it did not stop within {_STOP_SECONDS:.0f} s, and was killed"
        else:
            if code and not self._was_killed:
                fault = f"it ended with exit code {code}"
        words = self._stderr_tail()
        self._close()
        if fault is not None:
            raise RocketPollError(f"{fault}; {words}")

    def kill(self) -> None:
        """Kill the process at once with SIGKILL, and wait for its end."""
        self._was_killed = True
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """Suspend the process with SIGSTOP until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a process that was suspended by `pause`."""
        self._process.send_signal(signal.SIGCONT)

    def descriptors(self) -> Iterable[int]:
        """Return the descriptors that a forked child must close, or the broker would not stop."""
        stdin = _require_pipe(self._process.stdin)
        return () if stdin.closed else (stdin.fileno(),)

    def _read_port(self) -> int:
        with selectors.DefaultSelector() as selector:
            selector.register(_require_pipe(self._process.stdout), selectors.EVENT_READ)
            line = (
                _require_pipe(self._process.stdout).readline()
                if selector.select(_START_SECONDS)
                else b""
            )
        port = line.decode().rpartition(":")[2].strip()
        if not port.isdigit():
            if self._process.poll() is None and not line:
                self._process.kill()
            self._process.wait()
            raise RocketPollError(self._stderr_tail())
        return int(port)

    def _stderr_tail(self) -> str:
        self._stderr.seek(0, 2)
        self._stderr.seek(max(self._stderr.tell() - _STDERR_TAIL_BYTES, 0))
        words = self._stderr.read().decode(errors="replace").strip()
        return words or "it printed nothing"

    def _close(self) -> None:
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            _require_pipe(stream).close()


def _require_pipe(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise AssertionError("Popen was called with PIPE")
    return stream
