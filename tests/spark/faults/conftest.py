"""A Spark driver for tests that do not kill it. What it has logged is shown with
a test that fails."""

import pytest
from spark_drivers import Driver

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Add the log."""
    report = yield
    driver = getattr(item, "funcargs", {}).get("driver")
    if report.failed and driver is not None:
        report.sections.append(("the driver's log", driver.log()[-_SHOWN:]))
    return report
