"""Wakeups of a turn are deferred to its end."""

import threading

from rmq_spark.client.concurrency import deferred_wakeups


def test_deferred_wakeups_run_in_order_at_the_end_of_a_turn():
    called = []
    deferred_wakeups.begin()
    assert deferred_wakeups.defer(lambda: called.append(1))
    assert deferred_wakeups.defer(lambda: called.append(2))
    assert called == []
    deferred_wakeups.end()
    assert called == [1, 2]
    deferred_wakeups.begin()
    deferred_wakeups.end()
    assert called == [1, 2]


def test_deferred_wakeups_defer_nothing_outside_of_a_turn_or_at_its_end():
    said = [deferred_wakeups.defer(lambda: None)]
    deferred_wakeups.begin()
    deferred_wakeups.defer(lambda: said.append(deferred_wakeups.defer(lambda: None)))
    deferred_wakeups.end()
    assert said == [False, False]


def test_deferred_wakeups_of_one_thread_do_not_defer_another_threads():
    said = []
    deferred_wakeups.begin()
    other = threading.Thread(target=lambda: said.append(deferred_wakeups.defer(lambda: None)))
    other.start()
    other.join(10)
    deferred_wakeups.end()
    assert said == [False]
