import gc
import os
import threading

from rmq_spark.client.consumer.pull.pull_request import (
    OWNERSHIPS,
    OwnershipRegistry,
    QueueOwnership,
)


def test_a_queue_is_taken_over_when_no_listener_of_another_is_at_it():
    holding = QueueOwnership()
    assert holding.acquire("one")
    with holding.listener_lock:
        assert holding.acquire("one")
        assert not holding.acquire("two")
    assert holding.acquire("two")
    assert not holding.listener_lock.locked()


def test_who_unlocks_keeps_others_from_taking_the_queue():
    holding = QueueOwnership()
    holding.acquire("one")
    with holding.pin("one") as is_its_own:
        assert is_its_own
        assert not holding.acquire("two")
    assert holding.acquire("two")


def test_who_has_lost_a_queue_to_another_waits_for_nobody_and_unlocks_nothing():
    holding = QueueOwnership()
    holding.acquire("one")
    holding.acquire("two")
    with holding.listener_lock, holding.pin("one") as is_its_own:
        assert not is_its_own


def test_who_waits_to_unlock_a_queue_that_another_takes_meanwhile_unlocks_nothing():
    holding, said = QueueOwnership(), []
    holding.acquire("one")

    def unlock():
        with holding.pin("one") as is_its_own:
            said.append(is_its_own)

    with holding.listener_lock:
        waiting = threading.Thread(target=unlock)
        waiting.start()
        holding._owner = "two"  # as if it had been the quicker one
    waiting.join()
    assert said == [False]


def test_a_queue_is_known_for_as_long_as_anybody_needs_it():
    holdings = OwnershipRegistry()
    one = holdings.get("queue")
    assert holdings.get("queue") is one
    assert holdings.get("another") is not one
    del one
    gc.collect()
    assert len(holdings._ownerships) == 0


def test_in_a_child_process_no_listener_is_at_anything():
    holding = OWNERSHIPS.get("a queue of this test")
    with holding.listener_lock, OWNERSHIPS._lock:
        child = os.fork()
        if not child:
            os._exit(OWNERSHIPS.get("a queue of this test").listener_lock.locked())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
