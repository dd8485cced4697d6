from source_parts import Clock

from rmq_spark.spark.brokers.fan_out import RetryTimer


def patience_of(clock, timeout_ms, **more):
    def sleep(seconds):
        clock.now += seconds

    return RetryTimer(timeout_ms, clock, sleep, **{"pause_seconds": 1.0, **more})


def pauses(patience, clock):
    """How long each pause is, until there are no more."""
    found, before = [], clock.now
    while patience.sleep_or_expire():
        found.append(clock.now - before)
        before = clock.now
    return found


def test_it_ends_with_its_time():
    clock = Clock()
    assert pauses(patience_of(clock, 2_500), clock) == [1.0, 1.0, 1.0]
    assert pauses(patience_of(clock, 0), clock) == [1.0]


def test_pauses_double_up_to_the_longest():
    clock = Clock()
    assert pauses(patience_of(clock, 9_000, pause_seconds_max=4.0), clock) == [1.0, 2.0, 4.0, 4.0]


def test_after_a_success_the_next_failure_is_a_first_one():
    clock = Clock()
    patience = patience_of(clock, 2_000, pause_seconds_max=8.0)
    assert pauses(patience, clock) == [1.0, 2.0]
    patience.reset()
    clock.now += 3_600
    assert pauses(patience, clock) == [1.0, 2.0]


def test_time_between_failures_counts_as_well():
    clock = Clock()
    patience = patience_of(clock, 2_000)
    assert patience.sleep_or_expire()
    clock.now += 5
    assert not patience.sleep_or_expire()
