"""RunningBroker: a broker of ours as a process of its own, with a store that goes with it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType

from rmq_spark.client import Producer

_BUILD = Path(__file__).parent.parent.parent / "build"
_STOP_SECONDS = 30


class RunningBroker:
    """One broker; ``address`` is where it listens."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> RunningBroker:
        _BUILD.mkdir(exist_ok=True)
        root = self._stack.enter_context(tempfile.TemporaryDirectory(dir=_BUILD))
        settings = ("listenPort=0", f"storePathRootDir={root}", "flushDiskType=ASYNC_FLUSH")
        self._process = subprocess.Popen(  # noqa: S603  # our own broker
            [sys.executable, "-m", "broker", *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._stack.callback(self._stop)
        if self._process.stdout is None:
            raise AssertionError("a pipe was asked for")
        self.address = self._process.stdout.readline().split()[-1]
        return self

    @cached_property
    def producer(self) -> Producer:
        """One producer for all cases, started when it is first needed."""
        return self._stack.enter_context(Producer("benchmarks", self.address))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _stop(self) -> None:
        self._process.terminate()
        self._process.wait(_STOP_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()
