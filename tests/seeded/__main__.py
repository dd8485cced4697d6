"""``python -m seeded``: put bugs into a copy of the sources; the tests must notice each.

    python -m seeded            all bugs; prints a table of which test caught which
    python -m seeded NAME ...   these bugs

For each bug, the tests that it names run first, at their default counts. The whole default suite
runs only if all of these pass. At the end, the tests that failed run once more without any bug, and
must pass. A bug that no test notices has slipped, and fails the run: it is a hole in the tests. So
does a bug that no longer fits the sources.

Each copy of the sources has one bug at a time, and several copies are tested side by side. The
table is in the order in which the bugs were caught. `catalogue.py` describes the form of a bug.
"""

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from seeded.catalogue import ROOT, DoesNotFit, catalogue

SUITE_SECONDS = 3_600
TEST_SECONDS = 300
ENDING_SECONDS = 900
"""Limits the tests that a bug names; with some bugs, pytest itself hangs after them."""
GIT = shutil.which("git") or "git"
_PYTEST = ("-m", "pytest", "-q", "--tb=no", "--no-header", "-p", "no:cacheprovider")
_UP_TO_THE_FIRST = ("-x",)
_SIDE_BY_SIDE = ("--numprocesses", "2", "--dist", "loadfile")
_ALL_BUT_THESE = ("tests", "--ignore=tests/seeded")
"""The catalogue's own tests would report a second time that a bug does not fit."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


class Slipped(Exception):
    """No test caught a bug, for the given reason."""


def copy_of_sources(copy):
    """Copy the files that git tracks, so that bugs can be applied to the copy."""
    shutil.rmtree(copy, ignore_errors=True)
    tracked = subprocess.run(
        [GIT, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, tracked.stdout.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


def failing_tests(copy, tests, *how, seconds=SUITE_SECONDS):
    """Run tests in a copy; return those that fail."""
    command = [sys.executable, *_PYTEST, "--timeout", str(TEST_SECONDS), *how, *tests]
    environment = {
        **os.environ,
        "GIT_CEILING_DIRECTORIES": str(copy.parent),  # the copy is not part of this repository
        "PYTHONPATH": f"{copy}:{copy / 'tests'}",
    }
    try:
        ran = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        failed = _FAILED.findall((error.stdout or b"").decode())
        if failed:
            return failed
        raise Slipped(f"the tests took over {seconds} s") from error
    failed = _FAILED.findall(ran.stdout)
    if ran.returncode and not failed:
        raise Slipped(
            f"pytest ended with {ran.returncode}:\n{ran.stdout[-3_000:]}{ran.stderr[-3_000:]}"
        )
    return failed


@contextmanager
def applied(bug, copy):
    """Apply a bug to a copy, and restore the copy at the end."""
    sources = {file: (copy / file).read_text() for file in bug.files if (copy / file).is_file()}
    bug.apply(copy)
    try:
        yield
    finally:
        for file, source in sources.items():
            (copy / file).write_text(source)


def catching_test(bug, copy):
    """Return the first test that fails with a bug; it may fail without the bug, too."""
    with applied(bug, copy):
        failed = failing_tests(
            copy, bug.first, *_UP_TO_THE_FIRST, seconds=ENDING_SECONDS
        ) or failing_tests(copy, _ALL_BUT_THESE, *_UP_TO_THE_FIRST, *_SIDE_BY_SIDE)
    if not failed:
        raise Slipped("no test noticed it")
    return failed[0]


class Trials:
    """A run over bugs: which tests caught them, and which bugs slipped."""

    def __init__(self, copies):
        self._copies = queue.SimpleQueue()
        for copy in copies:
            self._copies.put(copy)
        self.caught = {}
        self.slipped = {}

    def run(self, bugs, workers):
        """Try all bugs, and print the lines of the table."""
        with ThreadPoolExecutor(workers) as pool:
            trials = {pool.submit(self._try_accept, bug): bug for bug in bugs}
            for trial in as_completed(trials):
                bug = trials[trial]
                found, seconds = trial.result()
                print(f"| {bug.name} | {bug.title} | {found} | {seconds:.0f} |", flush=True)

    def _try_accept(self, bug):
        began = time.perf_counter()
        copy = self._copies.get()
        try:
            found = self.caught[bug.name] = catching_test(bug, copy)
        except (Slipped, DoesNotFit) as error:
            found = "**NOTHING**"
            self.slipped[bug.name] = str(error)
        finally:
            self._copies.put(copy)
        return found, time.perf_counter() - began

    def run_without_bugs(self):
        """Count bugs as slipped if the test that caught them fails without them, too."""
        copy = self._copies.get()
        tests = sorted(set(self.caught.values()))
        failed = failing_tests(copy, tests, *_SIDE_BY_SIDE) if tests else []
        failed = failed and failing_tests(copy, failed)  # one by one, without load from the others
        for name, test in self.caught.items():
            if test in failed:
                self.slipped[name] = f"{test} fails without it, too"


def main():
    parser = argparse.ArgumentParser(
        prog="python -m seeded", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="names of bugs (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="how many bugs to try side by side")
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "seeded", help="directory for the copies"
    )
    given = parser.parse_args()
    bugs = catalogue()
    unknown = set(given.names) - {bug.name for bug in bugs}
    if unknown:
        parser.error(f"there is no bug {', '.join(sorted(unknown))}")
    bugs = [bug for bug in bugs if not given.names or bug.name in given.names]
    copies = [copy_of_sources(given.build / f"sources-{job}") for job in range(given.jobs)]
    trials = Trials(copies)
    print("| bug | what goes wrong | caught by | s |\n|---|---|---|---|")
    trials.run(bugs, given.jobs)
    trials.run_without_bugs()
    slipped = [f"{name}: {why}" for name, why in trials.slipped.items()]
    print(f"\n{len(bugs)} bugs, {len(slipped)} slipped", *slipped, sep="\n")
    return 1 if slipped else 0


if __name__ == "__main__":
    sys.exit(main())
