"""A broker for the asyncio client's tests, and an empty topic for each test."""

import itertools

import pytest

from rocketpoll import EmbeddedBroker

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def topic(broker):
    name = f"topic-{next(_numbers)}"
    broker.create_topic(name, 2)
    return name


@pytest.fixture
def group():
    return f"group-{next(_numbers)}"
