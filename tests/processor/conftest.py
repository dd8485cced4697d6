import pytest
from admin_room import AdminRoom


@pytest.fixture
def room(tmp_path):
    room = AdminRoom(tmp_path)
    yield room
    room.shutdown()
