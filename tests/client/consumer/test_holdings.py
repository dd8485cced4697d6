"""A queue has one owner in a process; the owner changes only when no listener holds the queue."""

import gc
import os
import threading

from rmq_spark.client.consumer.pull.pull_task import (
    OWNERSHIPS,
    OwnershipRegistry,
    QueueOwnership,
)


def test_queue_ownership_changes_when_no_listener_holds_it():
    holding = QueueOwnership()
    assert holding.acquire("one")
    with holding.listener_lock:
        assert holding.acquire("one")
        assert not holding.acquire("two")
    assert holding.acquire("two")
    assert not holding.listener_lock.locked()


def test_pinned_queue_ownership_blocks_other_owners():
    holding = QueueOwnership()
    holding.acquire("one")
    with holding.pin("one") as is_its_own:
        assert is_its_own
        assert not holding.acquire("two")
    assert holding.acquire("two")


def test_pin_of_a_lost_queue_does_not_wait():
    holding = QueueOwnership()
    holding.acquire("one")
    holding.acquire("two")
    with holding.listener_lock, holding.pin("one") as is_its_own:
        assert not is_its_own


def test_pin_that_waits_sees_a_new_owner():
    holding, said = QueueOwnership(), []
    holding.acquire("one")

    def unlock():
        with holding.pin("one") as is_its_own:
            said.append(is_its_own)

    with holding.listener_lock:
        waiting = threading.Thread(target=unlock)
        waiting.start()
        holding.owner = "two"  # as if another thread had been faster
    waiting.join()
    assert said == [False]


def test_queue_ownership_is_collected_when_unused():
    holdings = OwnershipRegistry()
    one = holdings.get("queue")
    assert holdings.get("queue") is one
    assert holdings.get("another") is not one
    del one
    gc.collect()
    assert len(holdings._ownerships) == 0


def test_queue_ownership_is_free_in_a_forked_child():
    holding = OWNERSHIPS.get("a queue of this test")
    with holding.listener_lock, OWNERSHIPS._lock:
        child = os.fork()
        if not child:
            os._exit(OWNERSHIPS.get("a queue of this test").listener_lock.locked())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
