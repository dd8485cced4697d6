import threading

import pytest

from rmq_spark.client.concurrency.scheduler import PeriodicThread
from rmq_spark.client.errors import ClientShutDown

LONG_MS = 3_600_000


class Job:
    def __init__(self, error=None):
        self.done = threading.Semaphore(0)
        self._error = error

    def __call__(self):
        self.done.release()
        if self._error is not None:
            raise self._error

    def was_done(self):
        return self.done.acquire(timeout=10)


def test_it_is_done_again_and_again():
    job = Job()
    periodic = PeriodicThread("job", 1, job)
    periodic.start()
    assert all(job.was_done() for _ in range(3))
    periodic.stop()


def test_it_is_done_at_once_when_told_to():
    job = Job()
    periodic = PeriodicThread("job", LONG_MS, job, rest_ms=0)
    periodic.start()
    for _ in range(3):
        periodic.wake()
        assert job.was_done()
    periodic.stop()


def test_however_often_it_is_told_to_hurry_it_rests_in_between():
    job = Job()
    periodic = PeriodicThread("job", LONG_MS, job, rest_ms=LONG_MS)
    periodic.start()
    periodic.wake()
    assert job.was_done()
    periodic.wake()
    assert not job.done.acquire(blocking=False)
    periodic.stop()
    periodic._thread.join(10)
    assert not periodic._thread.is_alive()
    assert not job.done.acquire(blocking=False)


@pytest.mark.parametrize("error", [ClientShutDown(), ValueError("a mistake")])
def test_a_failure_is_logged_and_not_the_end(error, caplog):
    job = Job(error)
    periodic = PeriodicThread("job", LONG_MS, job, rest_ms=0)
    periodic.start()
    for _ in range(2):
        periodic.wake()
        assert job.was_done()
    periodic.stop()
    periodic._thread.join(10)
    assert "rocketpoll job" in caplog.text


def test_once_stopped_it_is_not_done_again():
    job = Job()
    periodic = PeriodicThread("job", LONG_MS, job)
    periodic.start()
    periodic.stop()
    periodic.wake()
    periodic._thread.join(10)
    assert not job.done.acquire(blocking=False)
