"""A measured process: started, observed, and ended by its own id.

Its resource usage is read from Linux's /proc.
"""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

ANSWER_SECONDS_MAX = 120
STOP_SECONDS_MAX = 30
_LAST_WORDS = 4_000
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_KIB = 1_024


class ProcessEnded(Exception):
    """A required process has ended or does not answer; the message has its last log lines."""


class Process:
    """A child process. Its output goes to its log, except what has a pipe of its own."""

    def __init__(self, command: Sequence[str], log: Path, directory: Path, **pipes: Any) -> None:
        self._log = log
        with log.open("ab") as file:
            self.popen = subprocess.Popen(  # noqa: S603  # what we have put together ourselves
                command,
                **{
                    "stdin": subprocess.DEVNULL,
                    "stdout": file,
                    "stderr": file,
                    "cwd": directory,
                    **pipes,
                },
            )

    @property
    def cpu_seconds(self) -> float:
        """The processor time used so far, in seconds, by all threads."""
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND

    @property
    def rss_bytes(self) -> int:
        """The resident memory in bytes."""
        (line,) = (line for line in self._proc("status").splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * _KIB

    @property
    def anonymous_bytes(self) -> int:
        """The resident memory in bytes that no file backs: what the process has allocated."""
        lines = self._proc("smaps_rollup").splitlines()
        (line,) = (line for line in lines if line.startswith("Anonymous:"))
        return int(line.split()[1]) * _KIB

    def _proc(self, name: str) -> str:
        self.check_is_running()
        return Path(f"/proc/{self.popen.pid}/{name}").read_text(encoding="utf-8", errors="replace")

    def write_line(self, text: str) -> None:
        """Write a line to its standard input, which must be a pipe of text."""
        self.check_is_running()
        if self.popen.stdin is None:
            raise RuntimeError(f"{self._log.stem} has no pipe to read from")
        self.popen.stdin.write(text + "\n")
        self.popen.stdin.flush()

    def read_line(self, seconds_max: float = ANSWER_SECONDS_MAX) -> str:
        """Return the next line of its standard output, or raise after ``seconds_max``.

        The process has to write one line at a time and then wait.
        """
        if self.popen.stdout is None:
            raise RuntimeError(f"{self._log.stem} has no pipe to write to")
        with selectors.DefaultSelector() as answers:
            answers.register(self.popen.stdout, selectors.EVENT_READ)
            readable = answers.select(seconds_max)
        if not readable:
            raise self.failure(f"says nothing for {seconds_max:g} s")
        line: str = self.popen.stdout.readline()
        if not line:
            raise self.failure(f"has ended with {self.popen.wait(STOP_SECONDS_MAX)}")
        return line

    def check_is_running(self) -> None:
        """Raise ProcessEnded with the reason if the process has ended."""
        if self.popen.poll() is not None:
            raise self.failure(f"has ended with {self.popen.returncode}")

    def failure(self, what: str) -> ProcessEnded:
        """Return the error to raise, with the last lines of the log."""
        said = self._log.read_text(encoding="utf-8", errors="replace")[-_LAST_WORDS:]
        return ProcessEnded(f"{self._log.stem} {what}; it said:\n{said}")

    def stop(self) -> None:
        """Terminate the process, and kill it if it does not end in time."""
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self.popen.terminate()
        try:
            self.popen.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


def stop_all(processes: Iterable[Process]) -> None:
    """Stop each process, even if stopping another fails."""
    for each in processes:
        each.stop()
