"""Processor profiles of a case: by thread and by library.

    .venv/bin/python -m benchmarks.broker --only "async send" --rounds 1 --profile
    .venv/bin/python -m benchmarks.spark --only "ingest" --rounds 1 --profile

Linux's `perf` samples all processors a thousand times a second, so other programs on the machine
are included. Debian has it in the package linux-perf; it needs root.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.broker.cases import Case
from benchmarks.broker.figures import Role
from benchmarks.report import aligned

_PER_SECOND: Final = 997
"""Samples per second; no round number, so that they do not keep step with timers."""

_BEGIN_SECONDS: Final = 0.5
_LEAST_SHARE: Final = 0.02
_IDLE: Final = ("swapper", "perf")
_COMPILED: Final = re.compile(r"perf-\d+\.map|\[JIT\].*|anon|\[unknown\]|//anon.*")
_LINE: Final = re.compile(r"[\s\d.]+%\s*\|\s*(\d+)\s*\|([^|]+)\|(.+)")
_COLUMNS: Final = ("case", "seconds", "share", "of thread", "in")
_LEFT: Final = {"case", "of thread", "in"}

Looks = Mapping[tuple[str, str], int]
"""How often a thread was sampled in a library, by the names of both."""


class PerfUnavailable(Exception):
    """perf is missing, or not permitted to sample."""


def check_perf() -> None:
    """Check that perf works, before anything is measured for long.

    Raises:
        PerfUnavailable: It does not.
    """
    looks_during(lambda: None)


def profile_of(
    cases: Sequence[Case], names: Mapping[Role, str], say: Callable[[str], object]
) -> str:
    """Run each case once more on each side; return a table of processor usage."""
    rows: list[Sequence[str]] = [_COLUMNS]
    for case in cases:
        for role in (role for role in case.roles if role in names):
            say(f"profile: {case.subject}: {role}")
            looks = looks_during(partial(case.measure, role))
            rows += [[f"{case.subject}: {names[role]}"], *_cells(looks)]
    return aligned(rows, _LEFT)


def looks_during(work: Callable[[], object]) -> Looks:
    """Run the work and return the samples taken meanwhile.

    Raises:
        PerfUnavailable: perf does not work here.
    """
    perf = shutil.which("perf")
    if perf is None:
        raise PerfUnavailable("there is no perf: install Debian's package linux-perf")
    with tempfile.TemporaryDirectory(prefix="perf-") as directory:
        data, log = Path(directory) / "data", Path(directory) / "log"
        command = [perf, "record", "-q", "-a", "-e", "cpu-clock", "-F", str(_PER_SECOND)]
        with log.open("wb") as errors:
            recorder = subprocess.Popen([*command, "-o", str(data)], stderr=errors)  # noqa: S603  # what we have put together ourselves
        try:
            time.sleep(_BEGIN_SECONDS)
            if recorder.poll() is not None:
                raise PerfUnavailable(f"perf ended: {log.read_text(encoding='utf-8')}")
            work()
        finally:
            recorder.send_signal(signal.SIGINT)
            recorder.wait()
        shown = subprocess.run(  # noqa: S603  # as above
            [perf, "report", "-i", str(data), "--stdio", "-q", "-n", "--sort", "comm,dso", "-t|"],
            capture_output=True,
            text=True,
            check=True,
        )
    return read_looks(shown.stdout)


def read_looks(shown: str) -> Looks:
    """Return the sample counts in a report of perf, except idle ones."""
    looks: Counter[tuple[str, str]] = Counter()
    for line in shown.splitlines():
        if (found := _LINE.match(line)) is None:
            continue
        thread, library = found[2].strip(), found[3].strip()
        if thread not in _IDLE:
            looks[thread, "compiled code" if _COMPILED.fullmatch(library) else library] += int(
                found[1]
            )
    return looks


def _cells(looks: Looks) -> Iterator[Sequence[str]]:
    """Yield the lines of one case, largest first, with small ones combined."""
    total = sum(looks.values())
    left = total
    for (thread, library), count in sorted(looks.items(), key=lambda item: -item[1]):
        if count >= _LEAST_SHARE * total:
            yield _cell(count, total, thread, library)
            left -= count
    yield _cell(left, total, "others", "")


def _cell(count: int, total: int, thread: str, library: str) -> Sequence[str]:
    share = f"{count / total:.0%}" if total else ""
    return "", f"{count / _PER_SECOND:.2f}", share, thread, library
