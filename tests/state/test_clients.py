"""Client ids."""

from rocketpoll.broker.state.members.client_channel_info import (
    CLIENT_ID_CHARACTERS_MAX,
    client_fault,
)


def test_client_id_must_be_present_and_short():
    assert client_fault("10.0.0.1@4711") is None
    assert client_fault("c" * CLIENT_ID_CHARACTERS_MAX) is None
    assert client_fault(" ") == "there is no clientID"
    assert "1025 characters, over 1024" in client_fault("c" * 1_025)
