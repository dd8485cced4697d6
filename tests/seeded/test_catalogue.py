"""The catalogue of seeded bugs is consistent; `make seeded` runs the bugs."""

import re
from collections import Counter

import pytest
from seeded.catalogue import BUGS as DIRECTORY
from seeded.catalogue import MODULE, ROOT, DoesNotFit, catalogue, move_anchors, parse

BUGS = catalogue()
LINES_MAX = 8
SOURCE = """\
import os


class Counter:
    @property
    def count(self):
        return self._count

    def add(self, number):
        self._count += number
        self._times += 1
        return self._count

    def add_one(self):
        return self.add(1)
"""


def test_catalogue_has_enough_bugs_of_each_kind():
    assert len(BUGS) >= 200
    kinds = Counter(bug.only for bug in BUGS)
    hard_to_show = {"timing", "order", "damage", "kill", "power loss", "second crash"}
    assert kinds.keys() == {None, *hard_to_show}
    assert all(kinds[kind] >= 10 for kind in hard_to_show)


def test_seeded_bug_names_are_unique():
    assert [name for name, count in Counter(bug.name for bug in BUGS).items() if count > 1] == []


def test_seeded_bugs_fit_the_sources():
    assert [reason for bug in BUGS if (reason := _misfit(bug))] == []


def _misfit(bug):
    try:
        bug.check(ROOT)
    except DoesNotFit as error:
        return str(error)
    return None


def test_seeded_bugs_have_a_title_and_existing_first_tests():
    assert [bug.name for bug in BUGS if not (bug.title.endswith(".") and bug.first)] == []
    first = {(bug.name, test) for bug in BUGS for test in bug.first}
    assert [(bug, test) for bug, test in first if not (ROOT / test).is_file()] == []


def test_seeded_bugs_first_tests_run_by_default():
    assert [bug.name for bug in BUGS if all(_is_deep(test) for test in bug.first)] == []


def _is_deep(test):
    """Return whether the default suite leaves out all tests of a file."""
    is_marked = re.search(
        r"^pytestmark = (\[\s+)?pytest\.mark\.deep", (ROOT / test).read_text(), re.MULTILINE
    )
    return test.startswith(("tests/interop/", "tests/spark/faults/")) or is_marked is not None


def test_seeded_bugs_are_small_changes_of_shipped_code():
    assert [bug.name for bug in BUGS if not _is_small(bug)] == []


def _is_small(bug):
    changed = Counter(line[0] for edit in bug.edits for line in edit.code)
    is_shipped = all(file.startswith(("broker/", "rmq_spark/")) for file in bug.files)
    return is_shipped and 0 < max(changed["-"], changed["+"]) <= LINES_MAX


def _bug(qualname, *code, file="counter.py"):
    head = "bug: wrong-count", "title: The count is wrong.", "first: tests/test_counter.py"
    (bug,) = parse("\n".join([*head, f"file: {file}", f"in: {qualname}", *code]))
    return bug


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "counter.py").write_text(SOURCE)
    return tmp_path


def test_apply_replaces_the_old_text(tree):
    _bug("Counter.add", "         self._times += 1", "-        return self._count").apply(tree)
    assert (tree / "counter.py").read_text() == SOURCE.replace(
        "        self._times += 1\n        return self._count\n", "        self._times += 1\n"
    )


def test_apply_makes_several_edits_whose_sources_are_valid_only_together(tree):
    bug = _bug(
        *("Counter.add", "-        self._times += 1", "+        if number:"),
        *("file: counter.py", "in: Counter.add"),
        *("-        return self._count", "+            return self._count"),
    )
    bug.apply(tree)
    assert "        if number:\n            return" in (tree / "counter.py").read_text()


def test_apply_finds_text_that_other_functions_contain_too(tree):
    _bug("Counter.count", "-        return self._count", "+        return 0").apply(tree)
    assert (tree / "counter.py").read_text().index("return 0") < SOURCE.index("def add")


def test_apply_changes_code_of_a_module(tree):
    _bug(MODULE, "-import os", "+import sys").apply(tree)
    assert (tree / "counter.py").read_text() == SOURCE.replace("import os", "import sys")


@pytest.mark.parametrize(
    ("qualname", "line", "message"),
    [
        ("Counter.add", "-        nothing()", "wrong-count: .* contains this text 0 times"),
        ("Counter.add", "-self._times += 1", "contains this text 0 times"),
        ("Counter", "-        return self._count", "contains this text 2 times"),
        ("Counter.subtract", "-        return 1", "counter.py has no Counter.subtract"),
    ],
)
def test_check_names_the_bug_and_the_anchor_that_do_not_fit(tree, qualname, line, message):
    with pytest.raises(DoesNotFit, match=message):
        _bug(qualname, line).check(tree)


def test_check_refuses_edits_that_make_a_module_invalid(tree):
    bug = _bug("Counter.add", "-        self._times += 1", "+        self._times +=")
    with pytest.raises(DoesNotFit, match=r"wrong-count: its edits make counter\.py invalid"):
        bug.check(tree)


def test_check_names_a_missing_module(tree):
    with pytest.raises(DoesNotFit, match=r"wrong-count: there is no gone\.py"):
        _bug("Counter.add", "-        nothing()", file="gone.py").check(tree)


@pytest.mark.parametrize(
    ("moves", "anchor"),
    [
        ({"counter.py": "room/total.py"}, ("room/total.py", "Counter.add")),
        ({"counter.py:Counter": "total.py:Total"}, ("total.py", "Total.add")),
        ({"counter.py:Counter": "total.py:A", "counter.py:Counter.add": "b.py:f"}, ("b.py", "f")),
        ({"counter.py:Count": "total.py:Total"}, ("counter.py", "Counter.add")),
    ],
)
def test_move_anchors_applies_the_longest_key(tmp_path, moves, anchor):
    text = (
        "bug: wrong-count\ntitle: The count is wrong.\nfirst: tests/test_counter.py\n"
        "file: counter.py\nin: Counter.add\n-        self._times += 1\n"
    )
    (tmp_path / "room.txt").write_text(text)
    move_anchors({**moves, "tests/test_counter.py": "tests/test_total.py"}, tmp_path)
    file, qualname = anchor
    assert (tmp_path / "room.txt").read_text() == text.replace(
        "file: counter.py\nin: Counter.add", f"file: {file}\nin: {qualname}"
    ).replace("test_counter", "test_total")


def test_move_anchors_without_moves_keeps_the_files(tmp_path):
    for path in DIRECTORY.glob("*.txt"):
        (tmp_path / path.name).write_text(path.read_text())
    move_anchors({}, tmp_path)
    assert catalogue(tmp_path) == BUGS
