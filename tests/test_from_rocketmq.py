"""The page for readers of RocketMQ's code names only existing objects, files and tests."""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import re
import textwrap
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from support.rocketmq.pull_path_names import NAMES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "from-rocketmq.md"
VERDICTS = {"same", "other", "absent"}
NOTHING = "—"
LINK = re.compile(r"\[`([\w.]+)`\]\(\.\./([\w./]+\.py)\)")


class Row(NamedTuple):
    """A row of the page: one object of RocketMQ and its equivalent."""

    rocketmqs: tuple[str, ...]
    here: str
    shown_by: str
    verdict: str
    why: str


def rows_of(page):
    found = []
    for line in page.splitlines():
        if line.startswith("| `"):
            named, *others = (cell.strip() for cell in line.strip("|").split("|"))
            names = re.findall(r"`([^`]+)`", named)
            assert named == ", ".join(f"`{name}`" for name in names), line
            found.append(Row(tuple(names), *others))
    return found


ROWS = rows_of(PAGE.read_text(encoding="utf-8"))
THERE = [row for row in ROWS if row.verdict != "absent"]


def linked(cell):
    """Return the name and the path in a cell that is only a link."""
    link = LINK.fullmatch(cell)
    assert link, cell
    return link[1], ROOT / link[2]


def module_at(path):
    dotted = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return importlib.import_module(
        f"rocketpoll.{dotted}" if dotted.startswith("broker.") else dotted
    )


@cache
def fields_of(owner):
    """Return the fields of a class, declared or assigned to `self`, including those of
    its bases."""
    fields = set()
    for each in owner.__mro__:
        if not each.__module__.startswith(("rmq_spark.", "rocketpoll.")):
            continue
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(each)))):
            targets = getattr(node, "targets", [getattr(node, "target", None)])
            for target in targets:
                if isinstance(target, ast.Name) and isinstance(node, ast.AnnAssign):
                    fields.add(target.id)
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    fields.update({target.attr} if target.value.id == "self" else ())
    return frozenset(fields)


def is_in(module, name):
    first, _, last = name.partition(".")
    owner = getattr(module, first, None)
    if owner is None or not last:
        return owner is not None
    return hasattr(owner, last) or last in fields_of(owner)


@cache
def names_of_tests(path):
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_"
    }


def faults_of(row):
    """Return the faults in a row's links."""
    name, path = linked(row.here)
    test, shown_in = linked(row.shown_by)
    if not path.is_file() or not is_in(module_at(path), name):
        yield f"{name} is not in {path}"
    else:
        owner = getattr(module_at(path), name.partition(".")[0])
        defined = f"class {getattr(owner, '__name__', '')}"
        if inspect.isclass(owner) and defined not in path.read_text(encoding="utf-8"):
            yield f"{name} is only used in {path}"
    if not shown_in.is_file() or test not in names_of_tests(shown_in):
        yield f"{test} is not in {shown_in}"


@pytest.fixture
def without_collection():
    """Pause garbage collection: Python 3.11.2 fails to parse code while a destructor logs an error,
    because formatting its traceback parses code as well."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collection")
def test_names_and_tests_of_a_row_exist_in_the_linked_files():
    assert [fault for row in THERE for fault in faults_of(row)] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("PullRequestHoldService.suspend_pull_request", "PullRequestHoldService.hold_pull_request"),
        ("PullRequestHoldService.suspend_pull_request", "PullHoldService"),
        ("pull_request_hold_service.py", "places.py"),
        ("pull_request_hold_service.py", "pull_request_table.py"),
        ("test_deferred_pulls_are_limited", "test_deferred_pulls_are_unlimited"),
    ],
)
def test_from_rocketmq_row_that_became_untrue_is_found(old, new):
    [row] = [each for each in ROWS if "PullRequestHoldService#suspendPullRequest" in each.rocketmqs]
    assert list(faults_of(row)) == []
    changed = row._replace(here=row.here.replace(old, new), shown_by=row.shown_by.replace(old, new))
    assert changed != row
    assert list(faults_of(changed)) != []


def test_from_rocketmq_names_have_one_row_each():
    counted = Counter(name for row in ROWS for name in row.rocketmqs)
    assert [name for name, count in counted.items() if count > 1] == []
    assert len(ROWS) > 200


def test_from_rocketmq_row_has_a_verdict_and_a_reason():
    for row in ROWS:
        assert row.verdict in VERDICTS, row
        assert row.why or row.verdict == "same", row
        if row.verdict == "absent":
            assert (row.here, row.shown_by) == (NOTHING, NOTHING), row


def test_from_rocketmq_part_on_held_pulls_names_all_classes():
    text = PAGE.read_text(encoding="utf-8")
    part = text.partition("## Pulls that wait\n")[2].partition("\n## ")[0]
    classes = {
        node.name
        for path in (ROOT / "broker" / "longpolling").glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    assert len(classes) >= 7
    assert {name for name in classes if f"`{name}" not in part} == set()


def test_from_rocketmq_page_covers_rocketmqs_classes_and_members():
    told = {name for row in ROWS for name in row.rocketmqs}
    classes = told | {name.rpartition(".")[2] for name in told}  # two are called PullRequest
    lost = [owner for owner in NAMES if owner not in classes]
    lost += [
        f"{owner}#{member}"
        for owner, members in NAMES.items()
        for member in members.split()
        if not told & {f"{owner}#{member}", f"{owner}.{member}"}
    ]
    assert lost == []
