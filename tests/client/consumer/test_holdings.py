import gc
import os
import threading

from rmq_spark.client.consumer.queues.queue_ownership import HOLDINGS, Holding, Holdings


def test_a_queue_is_taken_over_when_no_listener_of_another_is_at_it():
    holding = Holding()
    assert holding.take("one")
    with holding.listening:
        assert holding.take("one")
        assert not holding.take("two")
    assert holding.take("two")
    assert not holding.listening.locked()


def test_who_unlocks_keeps_others_from_taking_the_queue():
    holding = Holding()
    holding.take("one")
    with holding.kept_by("one") as is_its_own:
        assert is_its_own
        assert not holding.take("two")
    assert holding.take("two")


def test_who_has_lost_a_queue_to_another_waits_for_nobody_and_unlocks_nothing():
    holding = Holding()
    holding.take("one")
    holding.take("two")
    with holding.listening, holding.kept_by("one") as is_its_own:
        assert not is_its_own


def test_who_waits_to_unlock_a_queue_that_another_takes_meanwhile_unlocks_nothing():
    holding, said = Holding(), []
    holding.take("one")

    def unlock():
        with holding.kept_by("one") as is_its_own:
            said.append(is_its_own)

    with holding.listening:
        waiting = threading.Thread(target=unlock)
        waiting.start()
        holding._holder = "two"  # as if it had been the quicker one
    waiting.join()
    assert said == [False]


def test_a_queue_is_known_for_as_long_as_anybody_needs_it():
    holdings = Holdings()
    one = holdings.of("queue")
    assert holdings.of("queue") is one
    assert holdings.of("another") is not one
    del one
    gc.collect()
    assert len(holdings._known) == 0


def test_in_a_child_process_no_listener_is_at_anything():
    holding = HOLDINGS.of("a queue of this test")
    with holding.listening, HOLDINGS._lock:
        child = os.fork()
        if not child:
            os._exit(HOLDINGS.of("a queue of this test").listening.locked())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
