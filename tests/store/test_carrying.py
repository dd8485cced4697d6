"""Dispatch resumes after a transient error; any other failure stops the store."""

import pytest

from rocketpoll.broker.store.dispatch.reput import ReputSupervisor
from rocketpoll.broker.store.errors import StoreFailed


class Reput:
    """A reput that dispatches everything, a part, or nothing, with a reason."""

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


def test_reput_worker_run_returns_whether_all_was_dispatched(carrying, reput, failures):
    reput.outcomes = [True, True, False]
    assert carrying.run(lambda: False)
    assert not carrying.run(lambda: True)
    assert not carrying.run(lambda: False)
    assert (carrying.degradation.text, failures) == (None, [])


def test_out_of_memory_degrades_reput_until_recovery(carrying, reput, failures):
    reput.outcomes = [MemoryError(), True]
    assert not carrying.run(lambda: False)
    assert "not dispatched to their consume queues" in carrying.degradation.text
    assert carrying.run(lambda: False)
    assert (carrying.degradation.text, failures) == (None, [])


def test_degradation_at_stop_is_not_reported_as_recovered(carrying, reput, failures):
    reput.outcomes = [MemoryError(), True]
    carrying.run(lambda: False)
    reput.is_stopped = True
    carrying.run(lambda: False)
    assert "not dispatched to their consume queues" in carrying.degradation.text


@pytest.mark.parametrize("error", [StoreFailed("the disk"), ValueError("a mistake of ours")])
def test_permanent_reput_error_is_reported_as_store_failure(carrying, reput, failures, error):
    reput.outcomes = [error]
    carrying.run(lambda: False)
    (failure,) = failures
    assert isinstance(failure, StoreFailed)
    assert str(error) in str(failure)
    assert carrying.degradation.text is None
