"""Permits limit pending sends in number and bytes, in the order of requests."""

import threading

import pytest
from support.brokers.broker_kinds import wait_until

from rmq_spark.client.producer.async_sender import SendPermits


def test_send_permits_limit_sends_and_time_out():
    pending = SendPermits(2, 100)
    assert pending.acquire("a", 1, 0)
    assert pending.acquire("b", 1, 0)
    assert not pending.acquire("c", 1, 0.01)
    assert (pending.count, pending.bytes) == (2, 2)
    pending.release("a")
    assert pending.acquire("c", 1, 0)


def test_release_of_unknown_or_released_send_frees_nothing():
    pending = SendPermits(2, 100)
    assert pending.acquire("a", 1, 0)
    assert pending.acquire("b", 1, 0)
    for _ in range(2):
        pending.release("a")
    pending.release("c")
    assert (pending.count, pending.bytes) == (1, 1)


def test_send_permits_limit_bytes():
    pending = SendPermits(10, 100)
    assert pending.acquire("a", 60, 0)
    assert not pending.acquire("b", 41, 0.01)
    assert pending.acquire("b", 40, 0)
    assert not pending.acquire("c", 1, 0)


def test_send_larger_than_all_permits_goes_alone():
    pending = SendPermits(10, 100)
    assert pending.acquire("large", 1_000, 0)
    assert not pending.acquire("a", 1, 0.01)
    pending.release("large")
    assert pending.acquire("a", 1, 0)
    assert not pending.acquire("large", 1_000, 0.01)


@pytest.mark.parametrize("left", [[100], [50, 50]])
def test_released_permits_wake_all_waiters(left):
    pending = SendPermits(10, 100)
    for number, size in enumerate(left):
        pending.acquire(f"before {number}", size, 0)
    came = []
    waiting = [
        threading.Thread(target=lambda who=who: came.append(pending.acquire(who, 25, 10)))
        for who in range(4)
    ]
    for thread in waiting:
        thread.start()
    wait_until("all wait", lambda: len(pending._wait_queue) == 4)
    for number in range(len(left)):
        pending.release(f"before {number}")
    for thread in waiting:
        thread.join(10)
    assert came == [True] * 4
    assert (pending.count, pending.bytes) == (4, 100)


def test_released_send_permit_wakes_only_the_first_waiter(monkeypatch):
    woken, notify = [], threading.Condition.notify
    monkeypatch.setattr(
        threading.Condition,
        "notify",
        lambda condition, n=1: woken.append(len(condition._waiters)) or notify(condition, n),
    )
    pending = SendPermits(1, 100)
    pending.acquire("before", 1, 0)

    def come_and_go(who):
        pending.acquire(who, 1, 60)
        pending.release(who)

    waiting = [threading.Thread(target=come_and_go, args=(who,)) for who in range(20)]
    for number, thread in enumerate(waiting):
        thread.start()
        wait_until("it waits", lambda number=number: len(pending._wait_queue) == number + 1)
    del woken[:]
    pending.release("before")
    for thread in waiting:
        thread.join(10)
    assert woken
    assert max(woken) == 1


def test_large_send_is_not_overtaken_by_small_ones():
    pending, came = SendPermits(100, 10), []

    def begin(name, size):
        thread = threading.Thread(
            target=lambda: pending.acquire(name, size, 60) and came.append(name), daemon=True
        )
        waiting = len(pending._wait_queue)
        thread.start()
        wait_until(f"{name} waits", lambda: len(pending._wait_queue) == waiting + 1)
        return thread

    for number in range(10):
        pending.acquire(number, 1, 0)
    large, small = begin("large", 8), begin("small", 1)
    for number in range(7):
        pending.release(number)
    assert not pending.acquire("who does not wait", 1, 0), "there is room, and others were first"
    assert came == []
    pending.release(7)
    large.join(10)
    pending.release(8)
    small.join(10)
    assert came == ["large", "small"]
    assert (pending.count, pending.bytes, len(pending._wait_queue)) == (3, 10, 0)
