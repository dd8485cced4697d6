"""Retry timers: pauses, timeouts, and one log line for an outage."""

from support.suite.clocks import Clock

from rmq_spark.client import failure_log
from rmq_spark.client.concurrency.retry_timer import RetryTimer
from rmq_spark.client.failure_log import FailureLog


def timer_of(clock, timeout_ms, **more):
    def sleep(seconds):
        clock.now += seconds

    given = {"pause_seconds": 1.0, "clock": clock, "sleep": sleep}
    return RetryTimer("sending", timeout_ms, **given | more)


def pauses(timer, clock):
    """Return the length of each pause until the timer ends."""
    found, before = [], clock.now
    while timer.sleep_or_expire():
        found.append(clock.now - before)
        before = clock.now
    return found


def test_retry_timer_ends_at_its_timeout():
    clock = Clock()
    assert pauses(timer_of(clock, 2_500), clock) == [1.0, 1.0, 1.0]
    assert pauses(timer_of(clock, 0), clock) == [1.0]


def test_retry_timer_pauses_double_up_to_the_maximum():
    clock = Clock()
    assert pauses(timer_of(clock, 9_000, pause_seconds_max=4.0), clock) == [1.0, 2.0, 4.0, 4.0]


def test_retry_timer_starts_over_after_a_success():
    clock = Clock()
    timer = timer_of(clock, 2_000, pause_seconds_max=8.0)
    assert pauses(timer, clock) == [1.0, 2.0]
    timer.reset()
    clock.now += 3_600
    assert pauses(timer, clock) == [1.0, 2.0]


def test_retry_timer_timeout_includes_the_time_between_failures():
    clock = Clock()
    timer = timer_of(clock, 2_000)
    assert timer.sleep_or_expire()
    clock.now += 5
    assert not timer.sleep_or_expire()


def messages_of(caplog):
    return [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == failure_log.__name__
    ]


def test_retry_timer_logs_the_first_failure_and_the_recovery(caplog):
    clock = Clock()
    timer = timer_of(clock, 60_000)
    for _ in range(2):
        for cause in ("it is away", "it is busy"):
            assert timer.sleep_or_expire(cause)
        timer.reset()
        timer.reset()
    assert messages_of(caplog) == 2 * [
        ("WARNING", "sending failed, retrying: it is away"),
        ("WARNING", "sending recovered after 2.0 s"),
    ]


def test_retry_timer_logs_nothing_where_a_wait_is_usual(caplog):
    timer = timer_of(Clock(), 60_000)
    assert timer.sleep_or_expire()
    timer.reset()
    assert not messages_of(caplog)


def test_retry_timers_that_share_a_log_report_an_outage_once(caplog):
    clock, log = Clock(), FailureLog()
    for _ in range(2):
        timer_of(clock, 0, failure_log=log).sleep_or_expire("it is away")
    timer_of(clock, 0, failure_log=log).reset()
    assert messages_of(caplog) == [
        ("WARNING", "sending failed, retrying: it is away"),
        ("WARNING", "sending recovered after 2.0 s"),
    ]
