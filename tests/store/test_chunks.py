"""A broker that gets few messages never imports pyarrow."""

import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from support.stores.small_store import components_of, message, open_store

from rocketpoll.broker.store.bulk import bulk_tools, lazy_numpy

ROOT = Path(__file__).parents[2]

STORY = """
import sys
sys.path.insert(0, "tests")
from pathlib import Path
import rocketpoll.broker.store.message_store
loaded = "pyarrow" in sys.modules
from support.stores.small_store import message, messages_of, open_store, put_batch

root = Path({root!r})
store = open_store(root)
for number in range(3):
    store.put_message(message(number, tags="A", keys="k l", UNIQ_KEY=f"U{{number}}"))
put_batch(store, message("b1"), message("b2"))
store.reput()
bodies = [each.body for each in messages_of(store.get_message("T", 0, 0))]
assert bodies == [b"0", b"1", b"2", b"b1", b"b2"]
assert len(store.query_message("T", "k", 10, 0, 1 << 62)) == 3
assert len(store.query_message("T", "U1", 10, 0, 1 << 62)) == 1
{ending}
again = open_store(root)
assert again.queue_offsets("T", 0) == (0, 5)
assert again.get_message("T", 0, 4).message_count == 1
again.shutdown()
print(loaded, "pyarrow" in sys.modules)
"""


@pytest.mark.parametrize(
    "ending", ["store.shutdown()", "from support.stores.small_store import crash; crash(store)"]
)
def test_store_with_few_messages_never_imports_pyarrow(tmp_path, ending):
    script = STORY.format(root=str(tmp_path / "store"), ending=ending)
    run = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert run.stdout.split() == ["False", "False"]


def test_bulk_tools_load_each_name_on_demand():
    for name in bulk_tools.__all__:
        assert getattr(bulk_tools, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'hammer'"):
        bulk_tools.hammer  # noqa: B018  # the access itself is tested


def test_dispatch_of_few_and_of_many_messages_writes_the_same_files(tmp_path):
    """Dispatch uses arrays above a certain number of messages."""
    for name, at_a_time in (("few", 1), ("many", 1500)):
        store = open_store(
            tmp_path / name,
            mapped_file_size_commit_log=1 << 20,
            max_index_num=4096,
            wake_reput=lambda: None,
        )
        for number in range(1500):
            sent = message(
                number, queue_id=number % 3, tags=f"t{number % 5}", keys=f"k l{number % 7}"
            )
            store.put_message(sent)
            if number % at_a_time == at_a_time - 1:
                store.reput()
                components_of(store).reput.catch_up_index()
        store.shutdown()
    for derived in ("consumequeue", "index"):
        few, many = (
            {
                path.relative_to(root): path.read_bytes()
                for path in (root / derived).rglob("*")
                if path.is_file()
            }
            for root in (tmp_path / "few", tmp_path / "many")
        )
        assert few
        assert few == many


def test_bulk_tools_are_loaded_in_background():
    script = (
        "import sys\n"
        "from rocketpoll.broker.store.bulk import bulk_tools\n"
        "first = bulk_tools.are_loaded()\n"
        "bulk_tools.start_loading().result()\n"
        "print(first, bulk_tools.are_loaded(), 'pyarrow' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.split() == ["False", "True", "True"]


@pytest.mark.parametrize("lacking", ["a descriptor", "a thread"])
def test_bulk_tools_are_loaded_again_after_a_shortage(lacking):
    """The caller gets the error, and no caller waits for an attempt that has failed."""
    script = (
        "import builtins, errno, sys, threading\n"
        "from rocketpoll.broker.store.bulk import bulk_tools\n"
        "from rocketpoll.broker.store.errors import is_transient\n"
        "def fail(*_, **__):\n"
        "    if lacking == 'a thread': raise RuntimeError(\"can't start new thread\")\n"
        "    raise OSError(errno.EMFILE, 'Too many open files', 'a library')\n"
        "lacking = sys.argv[1]\n"
        "there = threading.Thread.start, bulk_tools.import_module\n"
        "if lacking == 'a thread': threading.Thread.start = fail\n"
        "else: bulk_tools.import_module = fail\n"
        "assert not bulk_tools.are_loaded()\n"
        "try:\n"
        "    bulk_tools.start_loading().result()\n"
        "except (OSError, RuntimeError) as error:\n"
        "    print('lack' if is_transient(error) else error)\n"
        "threading.Thread.start, bulk_tools.import_module = there\n"
        "bulk_tools.start_loading().result()\n"
        "print(bulk_tools.are_loaded())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, lacking],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stdout.split() == ["lack", "True"]


def test_process_exit_waits_for_a_library_import_in_progress():
    script = """
import atexit
attempts = []
atexit.register(lambda: print(attempts[0].done()))  # the last thing that it does
from rocketpoll.broker.store.bulk import bulk_tools
attempts.append(bulk_tools.start_loading())
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "True\n"


# ---- numpy is imported with the first array


FIRST_USE = """
import sys
from rocketpoll.broker.store.bulk import lazy_numpy as np
assert "numpy" not in sys.modules
assert np.array([1, 2]).sum() == 3
assert "array" in vars(np)
"""


def test_numpy_is_loaded_with_the_first_array():
    subprocess.run([sys.executable, "-c", FIRST_USE], check=True)


def test_lazy_numpy_exposes_numpy_only():
    lazy_numpy.load_numpy()
    assert lazy_numpy.int64 is numpy.int64
    assert not hasattr(lazy_numpy, "no_such_tool")
    assert not hasattr(lazy_numpy, "__path__")
