"""A producer starts, stops and forks."""

import threading

import pytest

from rmq_spark.client.errors import ClientShutDown, MessageRejected
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.producer.producer import Producer


class Sends:
    """Counts its starts and stops."""

    def __init__(self):
        self.starts = self.stops = 0

    def start(self):
        self.starts += 1

    def stop(self):
        self.stops += 1

    def after_fork(self):
        pass


def producer(instance, sends, kind=Producer):
    """Return a producer with these asynchronous sends."""
    made = kind("P", instance=instance)
    made._async_sender = sends
    return made


@pytest.fixture
def instance():
    with ClientInstance("127.0.0.1:1") as instance:
        yield instance


@pytest.fixture
def sends():
    return Sends()


def test_producer_lifecycle_starts_and_stops_repeatedly(instance, sends):
    life = producer(instance, sends)
    for lives in (1, 2):
        with pytest.raises(ClientShutDown, match="Start it"):
            life._check_running()
        life.start()
        life.start()
        life._check_running()
        assert life.is_running
        assert instance._producers == {"P": None}
        life.shutdown()
        life.shutdown()
        assert not life.is_running
        assert instance._producers == {}
        assert sends.starts == sends.stops == lives


def test_failed_producer_start_leaves_the_instance_unchanged(sends):
    instance = ClientInstance("127.0.0.1:1")
    first = producer(instance, Sends())
    first.start()
    second = producer(instance, sends)
    with pytest.raises(MessageRejected):
        second.start()
    assert sends.starts == 0
    first.shutdown()
    assert instance.is_shut_down  # with its last producer


def test_producer_stops_running_with_its_instance(sends):
    instance = ClientInstance("127.0.0.1:1")
    life = producer(instance, sends)
    life.start()
    instance.shutdown()
    assert not life.is_running


class OtherEndsFirst(Producer):
    """Another thread shuts the producer down between a check of its state and the next step."""

    _runs = False
    other = None

    @property
    def _is_running(self):
        runs = self._runs
        if runs and self.other is None:
            self.other = threading.Thread(target=self.shutdown)
            self.other.start()
            self.other.join(0.5)  # if it does not block, as it should
        return runs

    @_is_running.setter
    def _is_running(self, runs):
        self._runs = runs


def test_simultaneous_producer_shutdowns_release_the_instance_once(instance, sends):
    life = producer(instance, sends, OtherEndsFirst)
    life.start()
    life.shutdown()
    life.other.join()
    with instance:
        pass  # not ended, so it can be started
    assert sends.stops == 1
