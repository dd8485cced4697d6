"""Fixtures of the processors' tests."""

import pytest
from support.brokers.admin_processors import AdminRoom
from support.brokers.processors import open_parts


@pytest.fixture
def room(tmp_path):
    """Return a broker's processors and tables."""
    room = AdminRoom(tmp_path)
    yield room
    room.shutdown()


@pytest.fixture
def parts(tmp_path):
    """Return a broker's parts, with topic T of four queues."""
    opened = open_parts(tmp_path)
    opened.make_topic("T")
    yield opened
    opened.store.shutdown()
