"""Settings for every test.

Hypothesis knows no deadline, as machines that run CI are slow now and then. A shell has what it
starts in the background ignore Ctrl-C, and so would all programs that tests start: they are as in
the foreground. Spark drivers start quickly: see `support.spark.class_data_archive`. Files are in
memory where it has room: see `support.suite.temporary_files`. Of the processes that run files
beside each other, one has all those that need a Spark: see `support.suite.spark_scheduling`.
"""

import gc
import os
import signal

import pytest
from hypothesis import settings
from support.spark.class_data_archive import quick_start
from support.suite.selection import DEEP, WIDE, is_left_out, may_be_deep
from support.suite.spark_scheduling import OneSpark, needs_spark
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


def pytest_collection_modifyitems(config, items):
    """Leave out what only ``make deep``, ``make wide`` or ``make peers`` runs, unless they run.

    A name with an object's address is another in each process: tests could not be shared out.
    """
    for item in items:
        if " at 0x" in item.nodeid:
            raise pytest.UsageError(f"give its parameters ids: {item.nodeid}")
        if item.get_closest_marker("deep") and not may_be_deep(item.path):
            raise pytest.UsageError(f"say deep in its file, or `make deep` passes over {item.path}")
    left_out = [item for item in items if is_left_out(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not is_left_out(item)]
    items.sort(key=_turn)


def pytest_ignore_collect(collection_path, config):
    """Pass over files without a test for ``make deep``, where no others run."""
    is_of_tests = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if config.option.markexpr == "deep" and is_of_tests and not may_be_deep(collection_path):
        return True
    return None


def pytest_collection():
    """Look for no garbage while tests are imported: nearly all of it stays."""
    gc.disable()


def pytest_collection_finish():
    """Have later collections of garbage pass over the tests and what they have imported.

    Those are half a million objects that stay to the end, and stores of tests collect often.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def _turn(item):
    """Return when a test's file has its turn: the longest first, the short ones last.

    Who runs files beside each other has small ones left for the end. Long are those of simulated
    worlds, of Java's programs and of Spark, and those that run what pages and notebooks show.
    """
    if item.path.name in _LONGEST:
        return 0
    return 2 if _LONG.isdisjoint(item.path.parts) and not needs_spark(item.path) else 1


@pytest.hookimpl(optionalhook=True)  # there is no such hook where all tests run in one process
def pytest_xdist_make_scheduler(config, log):
    """Run the files that need a Spark one by one where they are few; `make deep` has too many."""
    return None if DEEP else OneSpark(config, log)


@pytest.fixture(params=["asyncio", "uvloop"])
def on_each_loop(request, monkeypatch):
    """Have the stories of a test told on each loop that a broker may run on."""
    # most tests need no broker
    from support.brokers.in_process import LOOPS, StoryLoops  # noqa: PLC0415

    if request.param not in LOOPS:
        pytest.skip("uvloop is not here")
    monkeypatch.setattr(StoryLoops, "new", LOOPS[request.param])
