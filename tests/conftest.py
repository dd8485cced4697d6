"""Settings for every test.

Hypothesis has no deadline, because CI machines are sometimes slow. Programs that tests start get
Python's default handler of Ctrl-C back, because shells make background programs ignore it. Spark
drivers start quickly: see `support.spark.class_data_archive`. Files are kept in memory if there is
enough: see `support.suite.temporary_files`. Of the parallel processes, one runs all files that need
Spark: see `support.suite.spark_scheduling`; each imports only the files that it runs: see
`support.suite.late_collection`.
"""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings
from support.spark.class_data_archive import quick_start
from support.suite.late_collection import CrashReports, LateCollection, is_late
from support.suite.log_records import note_earlier_threads
from support.suite.selection import DEEP, WIDE, is_all_deep, is_left_out, may_be_deep
from support.suite.spark_scheduling import OneSpark, WholeFiles, needs_spark
from support.suite.temporary_files import choose_scratch

settings.register_profile(
    "rocketpoll", deadline=None, print_blob=True, max_examples=100 if WIDE else 30
)
settings.load_profile("rocketpoll")
_LONGEST = {"test_exactly_once.py", "test_docs.py", "test_notebooks.py"}
_LONG = {"world", "interop", "test_site_in_browser.py"}
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("SPARK_SUBMIT_OPTS", quick_start())
choose_scratch()


def pytest_addoption(parser):
    parser.addoption(
        "--late-collection",
        action="store_true",
        help="processes that run test files in parallel import each file when its turn comes",
    )


def pytest_configure(config):
    if is_late(config):
        config.pluginmanager.register(LateCollection(_turn))
    elif config.getoption("late_collection") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CrashReports())


def pytest_collection_modifyitems(config, items):
    """Deselect tests that only ``make deep``, ``make wide`` or ``make peers`` runs.

    Test names with an object's address differ between processes, and could not be distributed.
    """
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"give its parameters ids: {item.nodeid}")
        if item.get_closest_marker("deep") and not may_be_deep(item.path):
            raise pytest.UsageError(f"say deep in its file, or `make deep` passes over {item.path}")
    left_out = [item for item in items if is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        others = set(left_out)
        items[:] = [item for item in items if item not in others]
    items.sort(key=_turn)


def pytest_runtest_setup():
    note_earlier_threads()


def pytest_ignore_collect(collection_path, config):
    """Skip files without selected tests: for ``make deep`` those without deep tests, otherwise
    those with nothing else.

    Each parallel process would import them.
    """
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    if config.option.markexpr == "deep":
        return None if may_be_deep(collection_path) else True
    is_everything = {Path(each).name for each in config.args} == {"tests"}
    return True if is_everything and not DEEP and is_all_deep(collection_path) else None


def pytest_collection():
    """Disable garbage collection while tests are imported, because nearly all objects stay."""
    gc.disable()


def pytest_collection_finish():
    """Freeze tests and imported modules, so that later garbage collections skip them.

    They are half a million permanent objects, and tests of the store collect often.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def _turn(item):
    """Return the rank of a test's file: long files first, short ones last. Long are the simulated
    worlds, Java programs, Spark, and the examples of pages and notebooks."""
    if item.path.name in _LONGEST:
        return 0
    return 2 if _LONG.isdisjoint(item.path.parts) and not needs_spark(item.path) else 1


@pytest.hookimpl(optionalhook=True)  # the hook exists only with pytest-xdist
def pytest_xdist_make_scheduler(config, log):
    """Run the few files that need Spark in one process; `make deep` has too many for that."""
    return (WholeFiles if DEEP else OneSpark)(config, log)


@pytest.fixture(params=["asyncio", "uvloop"])
def on_each_loop(request, monkeypatch):
    """Run a test's coroutines on each event loop that a broker may use."""
    # imported late: most tests need no broker
    from support.brokers.in_process import LOOPS, StoryLoops  # noqa: PLC0415  # imported late

    if request.param not in LOOPS:
        pytest.skip("uvloop is not here")
    monkeypatch.setattr(StoryLoops, "new", LOOPS[request.param])
