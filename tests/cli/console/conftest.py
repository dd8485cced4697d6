"""One console for each file of tests, over a broker of each kind."""

import pytest
from support.programs.web_console import served


@pytest.fixture(scope="module")
def shared(addresses):
    """Run one console for each file of tests."""
    with served(addresses[0]) as browser:
        yield browser


@pytest.fixture
def console(shared):
    """Return a browser that has not signed in."""
    shared.cookie = None
    return shared
