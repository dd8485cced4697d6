"""Ends of queues that recovery has found."""

import pytest

from rocketpoll.broker.store.errors import EndUnknown
from rocketpoll.broker.store.queues.queue_table import RecoveredEnds, end_unknown_error


class Reput:
    carried = 0


@pytest.fixture
def reput():
    return Reput()


@pytest.fixture
def found(reput):
    return RecoveredEnds(lambda: reput.carried)


def test_lower_bound_is_zero_before_and_after_the_recovery(found, reput):
    assert found.lower_bound("T", 0) == 0
    found.start(100, {("T", 0): 7})
    reput.carried = 100
    found.finish()
    reput.carried = 50  # a topic is deleted: what came meanwhile is carried again
    assert found.lower_bound("T", 0) == 0


def test_lower_bound_is_infinite_until_the_log_is_dispatched(found, reput):
    found.start(100, {})
    for reput.carried in (0, 99):
        assert found.lower_bound("T", 0) > 1 << 62
        assert found.lower_bound("Any", 3) > 1 << 62


def test_lower_bound_is_the_recovered_end_after_dispatch(found, reput):
    found.start(100, {("T", 1): 7})
    reput.carried = 100
    assert found.lower_bound("T", 1) == 7
    assert found.lower_bound("T", 0) == 0


def test_end_unknown_error_names_the_queue_and_the_reason():
    assert isinstance(end_unknown_error("T", 3, None), EndUnknown)
    assert "the end of queue 3 of T is not known yet" in str(end_unknown_error("T", 3, None))
    assert str(end_unknown_error("T", 3, "the disk is full: /x")).endswith(": the disk is full: /x")
