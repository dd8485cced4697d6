"""What the tests of the processors share."""

from __future__ import annotations

import pytest
from admin_room import AdminRoom
from brokers import open_parts


@pytest.fixture
def parts(tmp_path):
    """A broker's parts, with the topic T of four queues."""
    opened = open_parts(tmp_path)
    opened.make_topic("T")
    yield opened
    opened.store.shutdown()


@pytest.fixture
def room(tmp_path):
    """All that operators look at, asked as they would ask."""
    room = AdminRoom(tmp_path)
    yield room
    room.shutdown()
