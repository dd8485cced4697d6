"""Architecture rules: which packages import which, and the cost of imports."""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SIDES = ("rmq_spark", "broker", "rocketpoll")
MODULES = sorted(
    [*ROOT.glob("*.py"), *(path for side in SIDES for path in (ROOT / side).rglob("*.py"))]
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_imports_keep_to_the_contracts_in_setup_cfg():
    """The check runs in a process, because it configures logging."""
    script = (
        "import sys; from importlinter.cli import lint_imports; "
        "sys.exit(lint_imports(config_filename='setup.cfg', no_cache=True))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_import_contract_of_the_chunk_codec_names_all_other_wire_modules():
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / "setup.cfg", encoding="utf-8")
    wire = ROOT / "rmq_spark" / "wire"
    rest = {path.stem for path in wire.glob("*.py")} | {
        path.parent.name for path in wire.glob("*/__init__.py")
    }
    assert contracts["importlinter:contract:chunk-apart"]["source_modules"].split() == sorted(
        f"rmq_spark.wire.{name}" for name in rest - {"__init__", "chunk"}
    )


@pytest.fixture(scope="module")
def trees():
    """Return the syntax tree of each module; parsing 500 modules for each test would
    take seconds."""
    return {name_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}


def test_each_module_has_a_docstring(trees):
    said = {name: ast.get_docstring(tree) or "" for name, tree in trees.items()}
    assert [name for name, docstring in said.items() if len(docstring) <= 40] == []


_IGNORE_WITHOUT_REASON = re.compile(r"# (?:noqa|type: ignore)[^#]*$")


def test_each_ignore_of_ruff_or_mypy_gives_its_reason():
    rooms = (*SIDES, "tests", "benchmarks", "examples", "site", "tools")
    unexplained = [
        f"{name_of(path)}:{number}"
        for path in (each for room in rooms for each in (ROOT / room).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if _IGNORE_WITHOUT_REASON.search(line)
    ]
    assert unexplained == []


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("rmq_spark", ("numpy", "pyarrow", "pyspark", "msgpack", "orjson", "rocketpoll")),
        ("rmq_spark.client", ("numpy", "pyarrow", "pyspark", "rocketpoll")),
        (
            "rmq_spark.client.instance.instance",
            ("ssl", "rmq_spark.client.transport.tls.settings"),
        ),
        ("rmq_spark.client.api.broker_api", ("numpy", "pyarrow", "pyspark", "rocketpoll")),
        ("rmq_spark.wire.remoting.command", ("numpy", "pyarrow", "pyspark", "rocketpoll")),
        ("rmq_spark.wire.headers", ("numpy", "pyarrow", "pyspark", "rocketpoll")),
        ("rmq_spark.wire.message.record", ("numpy", "pyarrow", "pyspark", "rocketpoll")),
        ("rmq_spark.wire.chunk", ("pyspark", "rocketpoll")),
        ("rmq_spark.spark.writer", ("numpy", "pyarrow", "rocketpoll")),
        (
            "rmq_spark.spark.stream_reader",  # imported by a new process for each query
            (
                "http.client",
                "ssl",
                "rmq_spark.client.schema_registry",
                "rmq_spark.spark.exactly_once.committed_planner",
                "rmq_spark.wire.bodies.configs",
                "rmq_spark.wire.bodies.operators",
                "rmq_spark.wire.bodies.pop",
                "rmq_spark.wire.headers.operators",
            ),
        ),
        ("rmq_spark.cli.main", ("prometheus_client",)),
        (
            "rocketpoll.broker.__main__",
            (
                "numpy",
                "prometheus_client",
                "pyarrow",
                "pyspark",
                "rocketpoll.broker.filter.sql_parser",
            ),
        ),
    ],
)
def test_module_import_loads_no_heavy_library(module, heavy):
    script = f"import sys, {module}; print(*sorted(set({heavy!r}) & set(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert loaded.stdout.split() == []


def test_generic_named_tuples_are_not_used(trees):
    """Python 3.10 cannot create a generic named tuple, and would not import the module."""
    assert [
        f"{name}:{node.lineno} {node.name}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and {ast.unparse(base).partition("[")[0] for base in node.bases}
        >= {"NamedTuple", "Generic"}
    ] == []


_STARTS_THREADS = {
    "Thread", "Timer", "ThreadPoolExecutor", "ProcessPoolExecutor", "run_in_executor", "to_thread",
    "start_new_thread", "start_joinable_thread", "getaddrinfo", "getnameinfo",
}  # fmt: skip


def test_broker_starts_threads_in_one_module_only(trees):
    """`Thread.start` blocks forever if a thread gets no memory for its first steps.

    An event loop resolves host names in a thread, too.
    """
    starts = {
        f"{name}: {word}"
        for name, tree in trees.items()
        if name.startswith("broker/") and name != "broker/common/threads.py"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (word := getattr(node.func, "attr", getattr(node.func, "id", ""))) in _STARTS_THREADS
    }
    assert starts == {"broker/server/listener.py: getaddrinfo"}, (
        "use broker/common/threads.py: its Workers"
    )
