"""Queries that share a driver share their idle waits."""

from support.suite.clocks import Clock

from rmq_spark.spark.plan.micro_batch_planner import (
    AFTER_BATCH_WAIT_MS,
    SHARED_WAIT_MS,
    IdleWaitPolicy,
)


def test_idle_wait_is_shared_after_two_batches_in_a_row_of_other_sources():
    """A single such batch proves nothing: a changed watermark causes a batch without rows."""
    idling = IdleWaitPolicy(1_000, Clock())
    for _ in range(3):
        idling.record_batch(has_own_rows=True)
        idling.record_batch(has_own_rows=False)
    assert idling.hold_ms == 1_000
    idling.record_batch(has_own_rows=False)
    idling.record_wait()
    assert idling.hold_ms == SHARED_WAIT_MS
    idling.record_batch(has_own_rows=True)
    idling.record_wait()
    assert idling.hold_ms == SHARED_WAIT_MS


def test_shared_idle_wait_is_short_between_batches():
    """Otherwise each batch of a busy source would be late by the wait."""
    idling = IdleWaitPolicy(1_000, Clock())
    idling.record_batch(has_own_rows=False)
    idling.record_batch(has_own_rows=False)
    assert idling.hold_ms == AFTER_BATCH_WAIT_MS
    idling.record_wait()
    assert idling.hold_ms == SHARED_WAIT_MS
    idling.record_batch(has_own_rows=False)
    assert idling.hold_ms == AFTER_BATCH_WAIT_MS


def test_sole_query_waits_its_full_hold_time_after_a_batch():
    idling = IdleWaitPolicy(1_000, Clock())
    idling.record_batch(has_own_rows=True)
    assert idling.hold_ms == 1_000


def test_idle_wait_below_the_shared_wait_is_kept():
    idling = IdleWaitPolicy(20, Clock())
    idling.record_batch(has_own_rows=False)
    idling.record_batch(has_own_rows=False)
    idling.record_wait()
    assert idling.hold_ms == 20


def test_shared_query_polls_once_per_interval():
    clock = Clock()
    idling = IdleWaitPolicy(1_000, clock)
    assert idling.is_query_due
    idling.record_batch(has_own_rows=False)
    idling.record_batch(has_own_rows=False)
    idling.record_query()
    assert not idling.is_query_due
    clock.now += 1
    assert idling.is_query_due
    idling.record_query()
    assert not idling.is_query_due
