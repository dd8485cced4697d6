import pickle

import pytest

from rmq_spark import client
from rmq_spark.client import Message


def test_all_public_names_are_there_and_listed_once():
    assert sorted(client._MODULES) == sorted(client.__all__) == dir(client)
    for name in client.__all__:
        assert getattr(client, name) is not None


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        client.Nothing  # noqa: B018  # looking is what raises


def test_messages_travel_between_processes():
    message = Message("T", b"x", "tag", properties={"a": "b"})
    assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301  # our own
