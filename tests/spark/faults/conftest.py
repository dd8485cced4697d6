"""A Spark driver for tests that do not kill it, and pairs of brokers. The report of a failed test
includes the driver's log."""

from contextlib import ExitStack

import pytest
from support.spark.broker_pairs import EVERY_PAIR, pairs
from support.spark.driver_processes import Driver

_SHOWN = 8_000


def pytest_itemcollected(item):
    """Mark the tests of this folder as deep: they kill drivers, wait for brokers, and count many
    rows."""
    item.add_marker("deep")


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """Start a driver, which runs one query at a time."""
    driver = Driver(tmp_path_factory.mktemp("driver"))
    yield driver
    driver.kill()


@pytest.fixture(scope="module", params=EVERY_PAIR)
def new_pair(request, tmp_path_factory):
    """Return a factory of broker pairs of each kind."""
    with pairs(request.param, tmp_path_factory.mktemp("pairs")) as new:
        yield new


@pytest.fixture
def pair(new_pair):
    """Run two brokers and a name server for one test."""
    with ExitStack() as stack:
        yield new_pair(stack)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Add the driver's log to the report of a failed test."""
    report = yield
    driver = getattr(item, "funcargs", {}).get("driver")
    if report.failed and driver is not None:
        report.sections.append(("the driver's log", driver.log()[-_SHOWN:]))
    return report
