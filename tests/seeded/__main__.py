"""``python -m seeded``: bugs are put into a copy of the sources, and the tests must notice each.

    bugs/NAME.patch             what goes wrong, the tests that should notice it first,
                                and the bug itself
    python -m seeded            all of them; a table of which test caught which
    python -m seeded NAME ...   these

For each bug the tests that it names are run first, at their default counts; only if all of these
pass, the whole default suite. The test that fails has to pass when the bug is taken out again. A
bug that no test notices has slipped, and fails the run: it is a hole in the tests. So does one that
cannot be tried.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from seeded.catalogue import GIT, ROOT, DoesNotApply, catalogue, put_in, without_repository

SUITE_SECONDS = 3_600
TEST_SECONDS = 300
_PYTEST = ("-m", "pytest", "-x", "-q", "--tb=no", "--no-header", "-p", "no:cacheprovider")
_ALL_BUT_THESE = ("tests", "--ignore=tests/seeded")
"""The catalogue's own tests say of any sources with a bug that it cannot be put in once more."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)


class Slipped(Exception):
    """A bug was not caught, for this reason."""


def copy_of_sources(directory):
    """A copy of what git tracks, in which bugs can be put."""
    copy = directory / "sources"
    shutil.rmtree(copy, ignore_errors=True)
    tracked = subprocess.run(
        [GIT, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, tracked.stdout.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


def failing_test(copy, tests, jobs):
    """The first test that fails; None if all pass."""
    parallel = ("--numprocesses", str(jobs), "--dist", "loadfile") if jobs > 1 else ()
    command = [sys.executable, *_PYTEST, "--timeout", str(TEST_SECONDS), *parallel, *tests]
    environment = without_repository(copy) | {"PYTHONPATH": f"{copy}:{copy / 'tests'}"}
    try:
        ran = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SUITE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Slipped(f"the tests took over {SUITE_SECONDS} s") from error
    failed = _FAILED.search(ran.stdout)
    if failed is not None:
        return failed.group(1)
    if ran.returncode:
        raise Slipped(
            f"pytest ended with {ran.returncode}:\n{ran.stdout[-3_000:]}{ran.stderr[-3_000:]}"
        )
    return None


def catching_test(bug, copy, jobs):
    """Which test notices a bug, and nothing but the bug."""
    put_in(bug, copy)
    try:
        test = failing_test(copy, bug.first, 1) or failing_test(copy, _ALL_BUT_THESE, jobs)
    finally:
        put_in(bug, copy, "--reverse")
    if test is None:
        raise Slipped("no test has noticed it")
    if failing_test(copy, [test], 1) is not None:
        raise Slipped(f"{test} fails without it, too")
    return test


def main():
    parser = argparse.ArgumentParser(
        prog="python -m seeded", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="bugs; all if none is named")
    parser.add_argument(
        "--jobs", type=int, default=2, help="files of tests at a time, of the whole suite"
    )
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "seeded", help="where the copy is made"
    )
    given = parser.parse_args()
    bugs = catalogue()
    unknown = set(given.names) - {bug.name for bug in bugs}
    if unknown:
        parser.error(f"there is no bug {', '.join(sorted(unknown))}")
    bugs = [bug for bug in bugs if not given.names or bug.name in given.names]
    copy = copy_of_sources(given.build)
    slipped = []
    print("| bug | what goes wrong | caught by | s |\n|---|---|---|---|")
    for bug in bugs:
        began = time.perf_counter()
        try:
            found = catching_test(bug, copy, given.jobs)
        except (Slipped, DoesNotApply) as error:
            slipped.append(f"{bug.name}: {error}")
            found = "**NOTHING**"
        print(
            f"| {bug.name} | {bug.title} | {found} | {time.perf_counter() - began:.0f} |",
            flush=True,
        )
    print(f"\n{len(bugs)} bugs, {len(slipped)} slipped", *slipped, sep="\n")
    return 1 if slipped else 0


if __name__ == "__main__":
    sys.exit(main())
