"""A Spark driver for tests that do not kill it."""

import pytest
from spark_drivers import Driver


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """It runs one query at a time."""
    driver = Driver(tmp_path_factory.mktemp("driver"))
    yield driver
    driver.kill()
