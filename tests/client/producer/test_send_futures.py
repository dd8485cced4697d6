"""Futures of sends: callbacks in their own thread, errors, limits and forks."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.brokers.broker_kinds import wait_until

from rmq_spark.client.producer import async_sender
from rmq_spark.client.producer.async_sender import CallbackExecutor, SendFuture


@pytest.fixture
def callbacks(monkeypatch):
    monkeypatch.setattr(async_sender, "IDLE_SECONDS", 0.05)
    return CallbackExecutor("callbacks", 3)


def test_send_future_callback_runs_in_a_callback_thread(callbacks):
    called = threading.Event()
    names = []

    def callback(future):
        names.append((threading.current_thread().name, future.result()))
        called.set()

    future = SendFuture(callbacks)
    future.add_done_callback(callback)
    future.set_result("stored")
    assert called.wait(10)
    assert names == [("callbacks", "stored")]


def test_blocked_callback_does_not_block_set_result_of_other_futures(callbacks):
    stuck, order = threading.Event(), []
    futures = [SendFuture(callbacks) for _ in range(3)]
    futures[0].add_done_callback(lambda _: stuck.wait(10))
    for future in futures[1:]:
        future.add_done_callback(lambda future: order.append(future.result()))
    for number, future in enumerate(futures):
        future.set_result(number)  # returns immediately
    assert order == []
    last = threading.Event()
    stuck.set()
    callbacks.submit(last.set)
    assert last.wait(10)
    assert order == [1, 2]


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()])
def test_error_in_send_callback_is_logged_and_next_one_runs(callbacks, caplog, error):
    def callback(_):
        raise error

    called = threading.Event()
    future = SendFuture(callbacks)
    future.add_done_callback(callback)
    future.add_done_callback(lambda _: called.set())
    future.set_result("stored")
    assert called.wait(10)
    assert "a callback of a send failed" in caplog.text


def test_callback_added_to_a_done_future_runs_at_once(callbacks):
    called = []
    future = SendFuture(callbacks)
    future.set_result("stored")
    future.add_done_callback(lambda _: called.append(threading.current_thread()))
    assert called == [threading.current_thread()]


def test_idle_callback_thread_ends_without_losing_callbacks(callbacks, monkeypatch):
    monkeypatch.setattr(async_sender, "IDLE_SECONDS", 0.0)
    called, lock = [], threading.Lock()

    def call(number):
        with lock:
            called.append(number)

    with ThreadPoolExecutor(4) as pool:
        for number in range(1_000):
            pool.submit(callbacks.submit, lambda number=number: call(number))
    last = threading.Event()
    callbacks.submit(last.set)
    assert last.wait(10)
    assert sorted(called) == list(range(1_000))


def test_callbacks_run_in_the_response_thread_if_no_thread_starts(callbacks, monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    called = []
    future = SendFuture(callbacks)
    future.add_done_callback(lambda _: called.append(threading.current_thread()))
    future.set_result("stored")
    assert called == [threading.current_thread()]


def test_awaiting_a_send_future_names_the_asyncio_producer(callbacks):
    future = SendFuture(callbacks)

    async def program():
        await future

    with pytest.raises(TypeError, match=r"use rocketpoll\.aio\.Producer .*asyncio\.wrap_future"):
        asyncio.run(program())


def test_send_future_can_be_wrapped_for_asyncio(callbacks):
    async def program():
        future = SendFuture(callbacks)
        wrapped = asyncio.wrap_future(future)
        future.set_result("stored")
        return await wrapped

    assert asyncio.run(program()) == "stored"


def test_queued_callback_limit_blocks_senders_but_not_callbacks(callbacks):
    stuck, found = threading.Event(), []

    def sends(_):
        stuck.wait(10)
        found.append(callbacks.wait_for_room(0))

    futures = [SendFuture(callbacks) for _ in range(5)]
    for number, future in enumerate(futures):
        future.add_done_callback(sends)
        assert callbacks.wait_for_room(0), number
        future.set_result("stored")
        if not number:
            wait_until("it runs", lambda: not callbacks.pending_count)
        if callbacks.pending_count == 3:
            break
    assert not callbacks.wait_for_room(0.01)
    stuck.set()
    assert callbacks.wait_for_room(10)
    wait_until("all have run", lambda: found == [True] * 4)


def test_fork_discards_callbacks_of_the_parent_and_ends_the_thread():
    callbacks, ran, may_go_on = CallbackExecutor("forking callbacks", 10), [], threading.Event()
    callbacks.submit(lambda: (may_go_on.wait(10), callbacks.after_fork(), ran.append("the one")))
    callbacks.submit(lambda: ran.append("another"))
    (thread,) = [each for each in threading.enumerate() if each.name == "forking callbacks"]
    may_go_on.set()
    thread.join(10)
    assert not thread.is_alive()
    assert ran == ["the one"]
