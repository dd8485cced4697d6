"""A signal's exception leaves a mutex free, whenever it comes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from rmq_spark.client.concurrency.locks import mutex, reentrant_mutex

SIGNALS = 100


class Signal(BaseException):
    """What a handler raises."""


@pytest.fixture
def raising():
    def handle(*_):
        raise Signal

    before = signal.signal(signal.SIGALRM, handle)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def is_free(lock):
    """Whether another thread can take it."""
    found = []
    thread = threading.Thread(target=lambda: found.append(lock.acquire(timeout=1)))
    thread.start()
    thread.join()
    return found == [True]


def take_for_ever(lock):
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
    while True:
        with lock:
            pass


@pytest.mark.usefixtures("raising")
@pytest.mark.parametrize("make", [mutex, reentrant_mutex])
def test_a_signal_that_raises_leaves_it_free(make):
    for _ in range(SIGNALS):
        lock = make()
        with pytest.raises(Signal):
            take_for_ever(lock)
        assert is_free(lock)


@pytest.mark.usefixtures("raising")
def test_a_signal_takes_it_from_no_other_thread():
    lock, is_held, go_on = mutex(), threading.Event(), threading.Event()

    def hold():
        with lock:
            is_held.set()
            go_on.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(10)
    with pytest.raises(Signal):
        take_for_ever(lock)
    assert not lock.acquire(blocking=False)
    go_on.set()
    thread.join()
    assert is_free(lock)


def test_a_condition_of_a_reentrant_one_waits_and_lets_go_of_all():
    lock = reentrant_mutex()
    condition = threading.Condition(lock)

    def notify():
        with lock:
            condition.notify()

    with lock, lock:
        thread = threading.Thread(target=notify)
        thread.start()
        assert condition.wait(10)
    thread.join()
    assert is_free(lock)


# As gevent does it, before anything else is imported: threads' locks are then written in Python.
PATCHED = """
import threading
threading._CRLock = None
from rmq_spark.client.concurrency.locks import condition_mutex, is_owned
changed = condition_mutex()
def change():
    with changed:
        changed.notify_all()
with changed:
    assert is_owned(changed)
    threading.Thread(target=change).start()
    assert changed.wait(10)
print("woken")
"""


def test_where_threads_are_patched_one_waits_with_the_locks_of_these():
    program = [sys.executable, "-c", PATCHED]
    done = subprocess.run(program, capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("woken\n", "")
