"""Spark drivers as separate processes that tests block and kill: see
`spark/programs/held_driver`."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from support.programs.python_programs import line_within
from support.spark.sessions import PATIENT

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parents[2] / "spark" / "programs" / "held_driver.py"
PATIENCE_SECONDS = 300
_ANSWER_SECONDS = PATIENCE_SECONDS + 30  # a command may itself wait for PATIENCE_SECONDS
_POLL_SECONDS = 0.02

_SETTINGS = {
    **PATIENT,
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.stopTimeout": "2s",
    "spark.sql.streaming.minBatchesToRetain": "1000",
}


class Driver:
    """A driver process with its JVM and workers. The constructor returns before it has started; the
    first command waits."""

    def __init__(self, directory, master="local[2,4]", **settings):
        directory.mkdir(parents=True, exist_ok=True)
        self._log = directory / f"driver-{time.time_ns()}.log"
        texts = {
            **_SETTINGS,
            "spark.local.dir": str(directory / "local"),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            **settings,
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    str(PROGRAM),
                    master,
                    *(f"{name}={text}" for name, text in texts.items()),
                ],
                cwd=directory,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._is_ready = False

    def start(self, query, *, trigger=None):
        """Start a query."""
        __tracebackhide__ = True
        answer = self._ask("start", **query.command(), **({"trigger": trigger} if trigger else {}))
        assert "error" not in answer, answer["error"]

    def stop(self):
        """Stop the query; return the error that ended it before, or Spark's if it does not stop in
        time."""
        return self._ask("stop").get("error")

    def end(self, seconds=PATIENCE_SECONDS):
        """Wait until the query ends; return its error, or None if it ended normally, as with
        availableNow."""
        __tracebackhide__ = True
        answer = self._ask("end", seconds=seconds)
        assert answer.get("ended", True), f"the query still runs after {seconds} s"
        return answer.get("error")

    def kill(self):
        """Send SIGKILL to Python and the JVM; workers then end by themselves."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def pause(self, pid):
        """Send SIGSTOP to Python, the JVM and one of their workers."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGSTOP)

    def resume(self, pid):
        """Resume the stopped processes."""
        os.kill(pid, signal.SIGCONT)
        os.killpg(self._process.pid, signal.SIGCONT)

    def log(self):
        return self._log.read_text(errors="replace")

    def _ask(self, what, **more):
        if not self._is_ready:
            self._answer()
            self._is_ready = True
        self._process.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self):
        __tracebackhide__ = True
        line = line_within(self._process.stdout, _ANSWER_SECONDS)
        assert line is not None, f"the driver gives no answer: {self.log()[-8000:]}"
        assert line, f"the driver has ended: {self.log()[-4000:]}"
        return json.loads(line)


class Query:
    """The directory of one query, with its checkpoint, sink and holds; any number of drivers use
    it."""

    def __init__(self, directory, *, windows=None, into=None, **options):
        """With ``windows``, the query counts rows per time window, see `held_driver`; otherwise the
        sink has all rows.

        ``into`` has the options of a topic that rows are written to instead.
        """
        self.checkpoint = directory / "checkpoint"
        self.sink = directory / "sink"
        self.holds = directory / "holds"
        self.options = options
        self._told = {
            name: told for name, told in (("windows", windows), ("into", into)) if told is not None
        }
        self._batches_seen = 0
        for each in (self.sink, self.holds):
            each.mkdir(parents=True)

    def command(self):
        """Return the command that starts the query in a driver."""
        paths = {"checkpoint": self.checkpoint, "sink": self.sink, "holds": self.holds}
        options = {name: str(value) for name, value in self.options.items()}
        told = {"options": options, **self._told}
        return {**{name: str(path) for name, path in paths.items()}, **told}

    # ---- holding

    def hold(self, point):
        """Block every process that reaches this point."""
        (self.holds / f"{point}.reached").unlink(missing_ok=True)
        (self.holds / point).touch()

    def reached(self, point, seconds=PATIENCE_SECONDS):
        """Wait until a process is blocked at this point; return its id."""
        file = self.holds / f"{point}.reached"
        wait_until(file.exists, seconds, f"somebody at {point}")
        return int(file.read_text())

    def release(self, *points):
        """Unblock the processes at these points, or all."""
        for point in points or [path.name for path in self.holds.iterdir()]:
            (self.holds / point).unlink(missing_ok=True)

    # ---- results

    def rows(self):
        """Return all rows in the sink, as [topic, queue, offset, body] or [second, count]."""
        return [
            row for file in sorted(self.sink.glob("*.json")) for row in json.loads(file.read_text())
        ]

    def new_rows(self):
        """Return the rows of the batches that reached the sink since the last call.

        The cost depends on the new rows only. A batch that runs again is not new: it has the same
        rows, or `differing` reports it.
        """
        rows = []
        while (file := self.sink / f"{self._batches_seen:06d}.json").exists():
            rows += json.loads(file.read_text())
            self._batches_seen += 1
        return rows

    def differing(self):
        """Return the batches whose rows differed in a second run."""
        return sorted(path.name for path in self.sink.glob("*.differs"))

    def logged(self, log):
        """Return the numbers of the batches in ``offsets`` or ``commits``."""
        names = [path.name for path in (self.checkpoint / log).glob("*")]
        return sorted(int(name) for name in names if name.isdigit())


def wait_until(condition, seconds=PATIENCE_SECONDS, what="the condition"):
    """Poll until a condition holds."""
    __tracebackhide__ = True
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} was waited for, for {seconds} s"
        time.sleep(_POLL_SECONDS)
    return found
