"""Checks what changed, in less than a minute: ``make quick``, or ``python tools/quick.py``.

Changed files are new ones and those that differ from the merge base with `main`, or from a given
commit; ``--list`` prints them and the tests, and runs nothing. Their format, lint and types are
checked; then come the tests of the touched rooms that need no socket, no other process and no Spark
session. ``make check`` is what must pass before a commit.

A test is heavy if its function, or a helper or fixture that it uses, names one of these (`HEAVY`).
Changed tests run first, then those that import what changed; slow ones are left out.
"""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
SECONDS = 45  # for the tests, so that they and the checks before them end within a minute
HEAVY = {
    "socket", "subprocess", "multiprocessing", "fork", "EmbeddedBroker", "BrokerController",
    "SparkSession", "spark", "playwright", "nbclient", "rocketpoll_broker", "open_connection",
    "create_connection", "create_server", "start_server",
}  # fmt: skip
TYPED = {"broker": "rocketpoll/broker", "rmq_spark": "rmq_spark", "rocketpoll": "rocketpoll"}


def git(*arguments: str) -> list[str]:
    """Return the lines that git prints."""
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True).splitlines()


def changed_files(base: str) -> list[str]:
    """Return the Python files that differ from a commit, or are new, as paths from the root."""
    names = git("diff", "--name-only", base) + git("ls-files", "--others", "--exclude-standard")
    return sorted({name for name in names if name.endswith(".py") and (ROOT / name).is_file()})


# ---- what a file of tests needs


@cache
def tree_of(file: Path) -> ast.Module:
    """Return the parsed text of a file."""
    return ast.parse(file.read_text(encoding="utf-8"))


def words_in(tree: ast.AST) -> set[str]:
    """Return the names in a piece of code, and the strings that name a fixture."""
    words = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                words.add(name)
            case ast.Call(func=ast.Attribute(attr="usefixtures"), args=given):
                words |= {str(each.value) for each in given if isinstance(each, ast.Constant)}
    return words


def helper_of(node: ast.ImportFrom) -> Path | None:
    """Return the module in `tests` that an import refers to."""
    file = TESTS / f"{(node.module or '').replace('.', '/')}.py"
    return file if file.is_file() and not node.level else None


@cache
def heavy_names(file: Path) -> frozenset[str]:
    """Return the names in a module of `tests` that need something heavy."""
    body = tree_of(file).body
    imports = [(helper_of(node), node) for node in body if isinstance(node, ast.ImportFrom)]
    heavy = HEAVY | {
        alias.asname or alias.name
        for helper, node in imports
        if helper is not None
        for alias in node.names
        if alias.name in heavy_names(helper)
    }
    if file.name.startswith("test_"):
        above = (room / "conftest.py" for room in file.parents if TESTS in room.parents)
        heavy = heavy.union(*(heavy_names(each) for each in above if each.is_file()))
    found: set[str] = set()
    while more := {
        name
        for node in body
        for name in names_of(node)
        if name not in found and (words_in(node) - {name}) & (heavy | found)
    }:
        found |= more
    return frozenset(found)


def names_of(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a module defines."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign(targets=targets):
            return [each.id for each in targets if isinstance(each, ast.Name)]
    return []


# ---- which tests


def rooms_of(changed: list[str]) -> set[Path]:
    """Return the directories of tests for changed modules, and changed files of tests."""
    found = set()
    for name in changed:
        side, *rooms = Path(name).parts
        if side == "tests" and rooms[-1].startswith("test_"):
            found.add(ROOT / name)
        elif side in ("broker", "rmq_spark"):
            parts = rooms[:-1]
            while parts and not (TESTS / Path(*parts)).is_dir():
                parts.pop()
            if parts:
                found.add(TESTS / Path(*parts))
    return {path for path in found if not found.intersection(path.parents)}


def light_tests_of(file: Path) -> list[str]:
    """Return the node ids of the light tests of a file; the file itself if all are."""
    tests = [name for node in tree_of(file).body for name in names_of(node) if is_test(name)]
    light = [name for name in tests if name not in heavy_names(file)]
    path = str(file.relative_to(ROOT))
    return [path] if light == tests else [f"{path}::{name}" for name in light]


def is_test(name: str) -> bool:
    """Return whether pytest collects what has this name."""
    return name.startswith(("test_", "Test"))


def tests_of(changed: list[str]) -> list[str]:
    """Return the light tests of the touched rooms, those that import changed modules first."""
    modules = {Path(name).stem for name in changed}
    files = {
        file
        for room in rooms_of(changed)
        for file in ([room] if room.is_file() else room.rglob("test_*.py"))
    }

    def rank(file: Path) -> tuple[bool, bool, Path]:
        imported = {
            word
            for node in tree_of(file).body
            if isinstance(node, ast.ImportFrom)
            for word in (node.module or "").split(".")
        }
        is_changed = str(file.relative_to(ROOT)) in changed
        return (not is_changed, imported.isdisjoint(modules), file)

    return [test for file in sorted(files, key=rank) for test in light_tests_of(file)]


def main(arguments: list[str]) -> int:
    """Check what changed; return the exit code."""
    is_list = "--list" in arguments
    given = [each for each in arguments if each != "--list"]
    base = given or (git("merge-base", "HEAD", "main") if git("branch", "--list", "main") else [])
    changed = changed_files(base[0] if base else "HEAD")
    tests = tests_of(changed)
    if is_list:
        print(*changed, "", *tests, sep="\n")
        return 0
    print(f"{len(changed)} changed files, {len(tests)} tests or files of tests", flush=True)
    if not changed:
        return 0
    tools = Path(sys.executable).parent
    typed = [
        f"{TYPED[side]}/{rest}"
        for side, _, rest in (name.partition("/") for name in changed)
        if side in TYPED
    ]
    commands: list[list[str | Path]] = [
        [tools / "ruff", "format", "--check", *changed],
        [tools / "ruff", "check", *changed],
    ]
    if typed:
        commands.append([tools / "mypy", *typed])
    codes = [subprocess.run(each, cwd=ROOT, check=False).returncode for each in commands]
    return max(*codes, run(tests))


def run(tests: list[str]) -> int:
    """Run tests until one fails or the time is over; return the exit code."""
    if not tests:
        return 0
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", *tests]
    with subprocess.Popen(command, cwd=ROOT) as running:
        try:
            return running.wait(SECONDS)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)
            running.wait()
            print(f"{SECONDS} s are over, and no test has failed: make test runs the others")
            return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
