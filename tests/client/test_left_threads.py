"""No client thread outlives the test that started it."""

import threading

import pytest
from support.clients.thread_leaks import none_left, threads_of_clients

from rmq_spark.client.concurrency.scheduler import ThreadScheduler
from rocketpoll import ClientInstance


def test_running_client_is_found_by_its_thread_names():
    instance = ClientInstance("127.0.0.1:1")
    with (
        pytest.raises(AssertionError, match=r"(?s)2 threads.*rocketpoll routes"),
        none_left(0.1),
    ):
        instance.start()
    with none_left():
        instance.shutdown()


def test_running_client_with_a_user_name_is_found():
    tasks, may_end = ThreadScheduler("Billing services"), threading.Event()
    with pytest.raises(AssertionError, match="Billing services-1"), none_left(0.1):
        tasks.schedule(may_end.wait)
    may_end.set()
    tasks.stop(0)


def test_threads_from_before_and_ending_threads_are_no_leak():
    may_end = threading.Event()
    tasks = ThreadScheduler("before")
    tasks.schedule(may_end.wait)
    with none_left():
        assert "before-1" in {thread.name for thread in threads_of_clients()}
        with ClientInstance("127.0.0.1:1"):
            pass
    may_end.set()
    tasks.stop(0)
