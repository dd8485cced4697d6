"""Carrying goes on when what it lacked is there again, and any other failure is the store's."""

import pytest

from rocketpoll.broker.store.dispatch.reput import ReputSupervisor
from rocketpoll.broker.store.errors import StoreFailed


class Reput:
    """Carries all, a piece, or nothing for a reason."""

    def __init__(self):
        self.outcomes = []
        self.is_stopped = False

    def run(self, is_over):
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome and not is_over()


@pytest.fixture
def reput():
    return Reput()


@pytest.fixture
def failures():
    return []


@pytest.fixture
def carrying(reput, failures):
    return ReputSupervisor(reput, failures.append)


def test_it_says_whether_that_was_all(carrying, reput, failures):
    reput.outcomes = [True, True, False]
    assert carrying.run(lambda: False)
    assert not carrying.run(lambda: True)
    assert not carrying.run(lambda: False)
    assert (carrying.degradation.text, failures) == (None, [])


def test_what_lacks_hinders_it_until_it_is_there(carrying, reput, failures):
    reput.outcomes = [MemoryError(), True]
    assert not carrying.run(lambda: False)
    assert "not dispatched to their consume queues" in carrying.degradation.text
    assert carrying.run(lambda: False)
    assert (carrying.degradation.text, failures) == (None, [])


def test_what_hinders_to_the_end_is_not_said_to_be_over(carrying, reput, failures):
    reput.outcomes = [MemoryError(), True]
    carrying.run(lambda: False)
    reput.is_stopped = True
    carrying.run(lambda: False)
    assert "not dispatched to their consume queues" in carrying.degradation.text


@pytest.mark.parametrize("error", [StoreFailed("the disk"), ValueError("a mistake of ours")])
def test_any_other_failure_is_told_and_nothing_waits_for_it(carrying, reput, failures, error):
    reput.outcomes = [error]
    carrying.run(lambda: False)
    (failure,) = failures
    assert isinstance(failure, StoreFailed)
    assert str(error) in str(failure)
    assert carrying.degradation.text is None
