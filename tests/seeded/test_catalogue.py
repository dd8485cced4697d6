"""The catalogue of bugs is in order; `make seeded` runs them."""

from __future__ import annotations

import re
import shutil
from collections import Counter

import pytest
from seeded.catalogue import ROOT, Bug, DoesNotApply, catalogue, put_in

BUGS = catalogue()
LINES_MAX = 8
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git puts the bugs in")


def test_there_are_enough_of_them_and_enough_that_are_hard_to_see():
    assert len(BUGS) >= 40
    shown = Counter(bug.only for bug in BUGS)
    assert shown["timing"] + shown["order"] + shown["second crash"] >= 15
    assert shown.keys() == {None, "timing", "order", "power loss", "second crash", "kill", "damage"}


@needs_git
def test_each_fits_into_the_sources_as_they_are():
    assert [said for bug in BUGS if (said := _why_it_does_not_fit(bug))] == []


def _why_it_does_not_fit(bug):
    try:
        put_in(bug, ROOT, "--check")
    except DoesNotApply as error:
        return str(error)
    return None


def test_each_says_what_goes_wrong_and_which_tests_notice_it():
    assert [bug.name for bug in BUGS if not (bug.title.endswith(".") and bug.first)] == []
    first = {(bug.name, name) for bug in BUGS for name in bug.first}
    assert [(bug, name) for bug, name in first if not (ROOT / name).is_file()] == []


def test_each_is_noticed_first_by_tests_that_run_by_default():
    assert [bug.name for bug in BUGS if all(_is_deep(name) for name in bug.first)] == []


def _is_deep(name):
    """Whether all tests of a file are left out of the default suite."""
    is_marked = re.search(
        r"^pytestmark = (\[\s+)?pytest\.mark\.deep", (ROOT / name).read_text(), re.MULTILINE
    )
    return name.startswith(("tests/interop/", "tests/spark/faults/")) or is_marked is not None


def test_each_is_a_small_change_of_what_is_shipped():
    assert [bug.name for bug in BUGS if not _is_small(bug.diff.splitlines())] == []


def _is_small(lines):
    changed = [line[6:] for line in lines if line.startswith("+++ b/")]
    counts = [
        sum(line.startswith(sign) and not line.startswith(sign * 3) for line in lines)
        for sign in "+-"
    ]
    is_shipped = all(path.startswith(("broker/", "rmq_spark/")) for path in changed)
    return is_shipped and max(counts) <= LINES_MAX


@needs_git
def test_one_that_does_not_fit_is_named(tmp_path):
    path = tmp_path / "no-such-place.patch"
    path.write_text(
        "Title: It fits nowhere.\nFirst: tests/seeded/test_catalogue.py\n\n"
        "diff --git a/broker/__init__.py b/broker/__init__.py\n"
        "--- a/broker/__init__.py\n+++ b/broker/__init__.py\n"
        "@@ -1,1 +1,1 @@\n-nothing like this stands there\n+nor does this\n"
    )
    with pytest.raises(DoesNotApply, match=r"no-such-place\.patch"):
        put_in(Bug.read(path), ROOT, "--check")
