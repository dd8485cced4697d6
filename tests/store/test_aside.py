"""Jobs that run in a background thread."""

import pytest

from rocketpoll.broker.store.steps import run_in_thread, start_in_thread


class Threads:
    """A thread whose jobs run when the test says so."""

    def __init__(self):
        self.jobs = []

    def __call__(self, job, tell):
        self.jobs.append((job, tell))

    def run(self):
        """Run the oldest job, and report its end."""
        job, tell = self.jobs.pop(0)
        try:
            job()
        except ValueError as error:
            tell(error)
        else:
            tell(None)


def outcome(steps):
    """Return the result of steps that have nothing left to wait for."""
    with pytest.raises(StopIteration) as end:
        next(steps)
    return end.value.value


def fail():
    raise ValueError("the disk refuses")


def test_start_in_thread_begins_before_the_first_step():
    threads = Threads()
    steps = start_in_thread(lambda: 7, threads)
    assert len(threads.jobs) == 1
    threads.run()
    assert next(steps).done()
    assert outcome(steps) == 7


def test_run_in_thread_begins_with_the_first_step():
    threads = Threads()
    steps = run_in_thread(lambda: 7, threads)
    assert threads.jobs == []
    end = next(steps)
    assert not end.done()
    threads.run()
    assert end.done()
    assert outcome(steps) == 7


def test_error_of_a_thread_job_is_raised_where_it_is_awaited():
    threads = Threads()
    first, second = start_in_thread(fail, threads), start_in_thread(lambda: "read", threads)
    next(first), next(second)
    threads.run()
    threads.run()
    with pytest.raises(ValueError, match="the disk refuses"):
        next(first)
    assert outcome(second) == "read"
