from source_parts import Clock

from rmq_spark.spark.plan.micro_batch_planner import BEHIND_A_BATCH_MS, BESIDE_OTHERS_MS, Idling


def test_a_source_is_alone_until_two_batches_in_a_row_were_others():
    """One tells nothing: a watermark that has moved makes a batch without rows."""
    idling = Idling(1_000, Clock())
    for _ in range(3):
        idling.batch_ended(is_ours=True)
        idling.batch_ended(is_ours=False)
    assert idling.hold_ms == 1_000
    idling.batch_ended(is_ours=False)
    idling.waited()
    assert idling.hold_ms == BESIDE_OTHERS_MS
    idling.batch_ended(is_ours=True)
    idling.waited()
    assert idling.hold_ms == BESIDE_OTHERS_MS


def test_beside_others_it_waits_for_nothing_between_two_batches():
    """Each batch of a busy neighbour would be as much later."""
    idling = Idling(1_000, Clock())
    idling.batch_ended(is_ours=False)
    idling.batch_ended(is_ours=False)
    assert idling.hold_ms == BEHIND_A_BATCH_MS
    idling.waited()
    assert idling.hold_ms == BESIDE_OTHERS_MS
    idling.batch_ended(is_ours=False)
    assert idling.hold_ms == BEHIND_A_BATCH_MS


def test_alone_it_waits_as_long_behind_a_batch_as_ever():
    idling = Idling(1_000, Clock())
    idling.batch_ended(is_ours=True)
    assert idling.hold_ms == 1_000


def test_a_wait_that_is_short_already_stays_so():
    idling = Idling(20, Clock())
    idling.batch_ended(is_ours=False)
    idling.batch_ended(is_ours=False)
    idling.waited()
    assert idling.hold_ms == 20


def test_beside_others_it_looks_as_often_as_brokers_hold_its_pulls():
    clock = Clock()
    idling = Idling(1_000, clock)
    assert idling.is_time_to_look
    idling.batch_ended(is_ours=False)
    idling.batch_ended(is_ours=False)
    idling.looked()
    assert not idling.is_time_to_look
    clock.now += 1
    assert idling.is_time_to_look
    idling.looked()
    assert not idling.is_time_to_look
