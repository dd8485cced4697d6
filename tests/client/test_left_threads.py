"""What each test of the client is held to: no thread of a client outlives it."""

import threading

import pytest
from support.clients.thread_leaks import none_left, threads_of_clients

from rmq_spark.client.concurrency.scheduler import ThreadScheduler
from rocketpoll import ClientInstance


def test_a_client_that_nobody_ends_is_found_by_the_names_of_its_threads():
    instance = ClientInstance("127.0.0.1:1")
    with (
        pytest.raises(AssertionError, match=r"(?s)2 threads.*rocketpoll routes"),
        none_left(0.1),
    ):
        instance.start()
    with none_left():
        instance.shutdown()


def test_so_is_one_that_has_a_users_name():
    tasks, may_end = ThreadScheduler("Billing services"), threading.Event()
    with pytest.raises(AssertionError, match="Billing services-1"), none_left(0.1):
        tasks.schedule(may_end.wait)
    may_end.set()
    tasks.stop(0)


def test_what_was_there_before_and_what_ends_in_a_moment_is_not():
    may_end = threading.Event()
    tasks = ThreadScheduler("before")
    tasks.schedule(may_end.wait)
    with none_left():
        assert "before-1" in {thread.name for thread in threads_of_clients()}
        with ClientInstance("127.0.0.1:1"):
            pass
    may_end.set()
    tasks.stop(0)
