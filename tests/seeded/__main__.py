"""``python -m seeded``: bugs are put into a copy of the sources, and the tests must notice each.

    bugs/NAME.patch             what goes wrong, the tests that should notice it first,
                                and the bug itself
    python -m seeded            all of them; a table of which test caught which
    python -m seeded NAME ...   these

For each bug the tests that it names are run first, at their default counts; only if all of these
pass, the whole default suite. When all bugs have been tried, the tests that failed are run once
more, without any bug, and have to pass. A bug that no test notices has slipped, and fails the run:
it is a hole in the tests. So does one that cannot be tried.

Bugs are tried several at a time, each in a copy of its own; the table is in the order in which they
were caught.
"""

from __future__ import annotations

import argparse
import queue
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from seeded.catalogue import GIT, ROOT, DoesNotApply, catalogue, put_in, without_repository

SUITE_SECONDS = 3_600
TEST_SECONDS = 300
ENDING_SECONDS = 900
"""For the tests that a bug names; with some bugs, pytest itself does not end behind them."""
_PYTEST = ("-m", "pytest", "-q", "--tb=no", "--no-header", "-p", "no:cacheprovider")
_UP_TO_THE_FIRST = ("-x",)
_SIDE_BY_SIDE = ("--numprocesses", "2", "--dist", "loadfile")
_ALL_BUT_THESE = ("tests", "--ignore=tests/seeded")
"""The catalogue's own tests say of any sources with a bug that it cannot be put in once more."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


class Slipped(Exception):
    """A bug was not caught, for this reason."""


def copy_of_sources(copy):
    """A copy of what git tracks, in which bugs can be put."""
    shutil.rmtree(copy, ignore_errors=True)
    tracked = subprocess.run(
        [GIT, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, tracked.stdout.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


def failing_tests(copy, tests, *how, seconds=SUITE_SECONDS):
    """Those of the tests that fail."""
    command = [sys.executable, *_PYTEST, "--timeout", str(TEST_SECONDS), *how, *tests]
    environment = without_repository(copy) | {"PYTHONPATH": f"{copy}:{copy / 'tests'}"}
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


def catching_test(bug, copy):
    """The test that notices a bug; that it passes without, remains to be seen."""
    put_in(bug, copy)
    try:
        failed = failing_tests(
            copy, bug.first, *_UP_TO_THE_FIRST, seconds=ENDING_SECONDS
        ) or failing_tests(copy, _ALL_BUT_THESE, *_UP_TO_THE_FIRST, *_SIDE_BY_SIDE)
    finally:
        put_in(bug, copy, "--reverse")
    if not failed:
        raise Slipped("no test has noticed it")
    return failed[0]


class Trials:
    """Bugs that are tried, several at a time: what caught them, and what slipped."""

    def __init__(self, copies):
        self._copies = queue.SimpleQueue()
        for copy in copies:
            self._copies.put(copy)
        self.caught = {}
        self.slipped = {}

    def run(self, bugs, workers):
        """Try all, and print the table's lines."""
        with ThreadPoolExecutor(workers) as pool:
            trials = {pool.submit(self._try, bug): bug for bug in bugs}
            for trial in as_completed(trials):
                bug = trials[trial]
                found, seconds = trial.result()
                print(f"| {bug.name} | {bug.title} | {found} | {seconds:.0f} |", flush=True)

    def _try(self, bug):
        began = time.perf_counter()
        copy = self._copies.get()
        try:
            found = self.caught[bug.name] = catching_test(bug, copy)
        except (Slipped, DoesNotApply) as error:
            found = "**NOTHING**"
            self.slipped[bug.name] = str(error)
        finally:
            self._copies.put(copy)
        return found, time.perf_counter() - began

    def look_without_bugs(self):
        """Whoever was caught by a test that fails anyway was not."""
        copy = self._copies.get()
        tests = sorted(set(self.caught.values()))
        failed = failing_tests(copy, tests, *_SIDE_BY_SIDE) if tests else []
        failed = failed and failing_tests(copy, failed)  # alone: the others may have been too much
        for name, test in self.caught.items():
            if test in failed:
                self.slipped[name] = f"{test} fails without it, too"


def main():
    parser = argparse.ArgumentParser(
        prog="python -m seeded", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="bugs; all if none is named")
    parser.add_argument("--jobs", type=int, default=2, help="bugs that are tried at a time")
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "seeded", help="where the copies are made"
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
    trials.look_without_bugs()
    slipped = [f"{name}: {why}" for name, why in trials.slipped.items()]
    print(f"\n{len(bugs)} bugs, {len(slipped)} slipped", *slipped, sep="\n")
    return 1 if slipped else 0


if __name__ == "__main__":
    sys.exit(main())
