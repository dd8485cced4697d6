"""`make quick` selects the tests of what changed, without sockets, processes or Spark."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
_SPEC = importlib.util.spec_from_file_location("quick", ROOT / "tools" / "quick.py")
quick = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(quick)


@pytest.mark.parametrize(
    ("changed", "rooms"),
    [
        ("broker/store/log/commit_log.py", "tests/store"),
        ("broker/controller.py", None),
        ("rmq_spark/client/consumer/rebalance/strategies.py", "tests/client/consumer/rebalance"),
        ("rmq_spark/spark/plan/rate_limit.py", "tests/spark"),
        ("tests/wire/test_names.py", "tests/wire/test_names.py"),
        ("tests/support/stores/small_store.py", None),
    ],
)
def test_quick_selects_the_tests_of_the_nearest_package(changed, rooms):
    found = quick.rooms_of([changed])
    assert found == (set() if rooms is None else {ROOT / rooms})


def test_quick_runs_changed_tests_first_and_then_those_that_import_what_changed():
    changed = ["broker/state/members/queue_locks.py", "tests/state/test_table.py"]
    first, second, *others = quick.tests_of(changed)
    assert (first, second) == ("tests/state/test_table.py", "tests/state/test_queue_locks.py")
    assert set(others) == {
        f"tests/state/{path.name}" for path in (ROOT / "tests" / "state").glob("test_*.py")
    } - {first, second}


@pytest.mark.parametrize(
    ("needs", "is_light"),
    [
        ("def test_it():\n    assert True", True),
        ("def test_it(spark):\n    assert spark", False),
        ("import socket\ndef test_it():\n    socket.socketpair()", False),
        ("import socket\ndef other(): socket\ndef test_it():\n    assert True", True),
        ("import socket\ndef other(): socket\ndef test_it():\n    other()", False),
        ("from support.brokers.in_process import BrokerThread\ndef test_it(): BrokerThread", False),
        ("from support.stores.small_store import message\ndef test_it(): message", True),
    ],
)
def test_quick_leaves_out_tests_whose_helpers_need_sockets_processes_or_spark(
    tmp_path, monkeypatch, needs, is_light
):
    file = tmp_path / "test_some.py"
    file.write_text(needs)
    monkeypatch.setattr(quick, "ROOT", tmp_path)
    assert quick.light_tests_of(file) == (["test_some.py"] if is_light else [])


def test_quick_leaves_out_tests_of_heavy_fixtures():
    tests = quick.light_tests_of(ROOT / "tests" / "spark" / "test_source_columns.py")
    assert tests == []
