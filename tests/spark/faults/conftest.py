"""A Spark driver for tests that do not kill it, and two brokers. What the driver has logged is
shown with a test that fails."""

from contextlib import ExitStack

import pytest
from support.spark.broker_pairs import EVERY_PAIR, pairs
from support.spark.driver_processes import Driver

_SHOWN = 8_000


def pytest_itemcollected(item):
    """The tests of this folder kill drivers, wait for brokers that are away,
    and count rows for long."""
    item.add_marker("deep")


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """It runs one query at a time."""
    driver = Driver(tmp_path_factory.mktemp("driver"))
    yield driver
    driver.kill()


@pytest.fixture(scope="module", params=EVERY_PAIR)
def new_pair(request, tmp_path_factory):
    """Each kind of two brokers in turn."""
    with pairs(request.param, tmp_path_factory.mktemp("pairs")) as new:
        yield new


@pytest.fixture
def pair(new_pair):
    """Two brokers behind a name server, for one test."""
    with ExitStack() as stack:
        yield new_pair(stack)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Add the log."""
    report = yield
    driver = getattr(item, "funcargs", {}).get("driver")
    if report.failed and driver is not None:
        report.sections.append(("the driver's log", driver.log()[-_SHOWN:]))
    return report
