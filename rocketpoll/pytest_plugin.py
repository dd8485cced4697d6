"""The pytest plugin: provides a broker for each session and a topic for each test.

pytest imports this module at every start, also in projects that do not use it or that have a
``broker`` package of their own. Therefore it imports neither the broker nor anything slow until a
fixture is used.

Example:
    @pytest.mark.rocketpoll_topic(queues=1)
    def test_order(rocketpoll_broker, rocketpoll_topic):
        with rocketpoll.Producer("shop", rocketpoll_broker.address) as producer:
            producer.send(rocketpoll.Message(rocketpoll_topic, b"one"))
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from rocketpoll.aio import Client
    from rocketpoll.broker.embedded import EmbeddedBroker

_NAME_CHARACTERS_MAX: Final = 100
_QUEUES: Final = 4
_numbers = count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, for runs with ``--strict-markers``, and set freezegun's exemption."""
    config.addinivalue_line(
        "markers",
        f"rocketpoll_topic(queues={_QUEUES}): how many queues the topic of rocketpoll_topic has",
    )
    if find_spec("freezegun") is not None:
        _exempt_from_freezegun()


def _exempt_from_freezegun() -> None:
    """Exempt rocketpoll from freezegun's frozen time.

    With a frozen clock no timeout would ever expire: a ``poll`` that finds nothing would never
    return. The names end with a dot because freezegun compares prefixes.
    """
    # the import of freezegun may warn, and pytest may turn warnings into errors
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        freezegun = import_module("freezegun")  # only if it is installed
    freezegun.configure(extend_ignore_list=["rmq_spark.", "rocketpoll."])


@pytest.fixture(scope="session")
def rocketpoll_settings() -> Mapping[str, Any]:
    """Return the arguments of `rocketpoll_broker`; override it, as by ``{"own_process": True}``."""
    return {}


@pytest.fixture(scope="session")
def rocketpoll_broker(rocketpoll_settings: Mapping[str, Any]) -> Iterator[EmbeddedBroker]:
    """Yield a broker for all tests of a session; each pytest-xdist worker has its own."""
    from rocketpoll import EmbeddedBroker  # noqa: PLC0415  # see the module

    with EmbeddedBroker(**rocketpoll_settings) as broker:
        yield broker


@pytest.fixture
def rocketpoll_topic(
    request: pytest.FixtureRequest, rocketpoll_broker: EmbeddedBroker
) -> Iterator[str]:
    """Yield the name of a topic that only this test uses, and delete the topic afterwards."""
    marker = request.node.get_closest_marker("rocketpoll_topic")
    queues = _queues() if marker is None else _queues(*marker.args, **marker.kwargs)
    topic = f"{_topic_name(request.node.name)}-{next(_numbers)}"
    rocketpoll_broker.create_topic(topic, queues)
    try:
        with rocketpoll_broker.leaving_no_faults():
            yield topic
    finally:
        rocketpoll_broker.delete_topic(topic)


@pytest.fixture
def rocketpoll_aio(rocketpoll_broker: EmbeddedBroker) -> Iterator[Client]:
    """Yield an asyncio client for the producers and consumers of one test, and close them all.

    It belongs to the first event loop that uses it, whether anyio's plugin, pytest-asyncio or the
    test itself runs that loop.
    """
    from rocketpoll.aio import Client  # noqa: PLC0415  # see the module

    with Client(rocketpoll_broker.address, tls=rocketpoll_broker.tls).kept() as client:
        yield client


def _queues(queues: int = _QUEUES) -> int:
    """Return the number of queues, the only argument of the marker."""
    return queues


def _topic_name(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]+", "-", name)[:_NAME_CHARACTERS_MAX].strip("-")
