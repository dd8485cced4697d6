"""A fork waits until no thread is inside OpenSSL, so that the child can use OpenSSL immediately."""

import os
import threading

import pytest

from rmq_spark.client.concurrency import fork_hooks
from rmq_spark.client.concurrency.fork_hooks import fork_lock

PATIENCE_S = 10

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def forked(action):
    """Return whether a child process finishes an action before an alarm."""
    child = os.fork()
    if child == 0:
        os._exit(0 if action() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_fork_waits_for_calls_into_openssl_and_the_child_finds_locks_free():
    lock, others = fork_lock(), [fork_lock() for _ in range(3)]
    within, ended = threading.Event(), []

    def call():
        with lock:
            within.set()
            threading.Event().wait(0.2)  # like a call into OpenSSL: it releases the GIL
            ended.append(True)

    thread = threading.Thread(target=call)
    thread.start()
    assert within.wait(PATIENCE_S)
    assert forked(lambda: ended and all(each.acquire(timeout=1) for each in (lock, *others)))
    thread.join()
    assert all(each.acquire(timeout=1) for each in (lock, *others))


def test_fork_while_the_fork_lock_is_held_waits_a_bounded_time(monkeypatch):
    monkeypatch.setattr(fork_hooks, "_WAIT_SECONDS", 0.05)
    lock = fork_lock()
    with lock:  # as in a signal handler that forks
        assert forked(lambda: not lock.acquire(timeout=0.01) and fork_lock().acquire(timeout=1))
    assert lock.acquire(timeout=1)


def test_collected_fork_locks_are_forgotten():
    before = len(fork_hooks._locks)
    kept = [fork_lock() for _ in range(5)]
    assert len(fork_hooks._locks) == before + 5
    del kept
    assert len(fork_hooks._locks) == before
