"""Recent losses: one entry for each kind, kept for an hour, with the number of losses."""

import logging

import pytest
from support.disks.faulty_disk import ManualClock

from rocketpoll.broker.common.recent_losses import LossKind, RecentLosses

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
START_MS = 1_700_000_000_000


@pytest.fixture
def clock():
    return ManualClock(START_MS)


@pytest.fixture
def losses(clock):
    return RecentLosses(clock)


def test_loss_is_logged_line_by_line_and_recorded_as_one_text(losses, caplog):
    losses.report(LossKind.DELETED_EARLY, "a file.", "The disk is full.", level=logging.WARNING)
    losses.report(LossKind.HALF_MESSAGE, "one is given up")
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "a file."),
        ("WARNING", "The disk is full."),
        ("ERROR", "one is given up"),
    ]
    assert [each.text for each in losses.recent()] == [
        "a file. The disk is full.",
        "one is given up",
    ]


def test_losses_of_a_kind_are_added_up_within_the_hour(losses, clock):
    losses.record(LossKind.SEND_REFUSED, "first", 5)
    clock.now_ms += 40 * MINUTE_MS
    losses.record(LossKind.SEND_REFUSED, "second", 2)
    [loss] = losses.recent()
    assert (loss.count, loss.text, loss.last_ms) == (7, "second", clock.now_ms)
    clock.now_ms += 40 * MINUTE_MS
    assert losses.recent()[0].count == 2
    clock.now_ms += HOUR_MS
    assert losses.recent() == ()
    losses.record(LossKind.SEND_REFUSED, "third")
    assert losses.recent()[0].count == 1


def test_failures_are_listed_before_warnings_and_the_newest_first(losses, clock):
    for kind in (LossKind.SINK_EVICTED, LossKind.LOG_LOST, LossKind.TIMER_MESSAGE):
        losses.record(kind, kind.title)
        clock.now_ms += 1
    assert [(each.kind, each.is_failure) for each in losses.recent()] == [
        ("timer message", True),
        ("log lost", True),
        ("sink evicted", False),
    ]


def test_recent_losses_use_bounded_memory_over_many_hours(losses, clock):
    for _ in range(500):
        losses.record(LossKind.LIMIT_REACHED, "full")
        clock.now_ms += MINUTE_MS
    assert losses.recent()[0].count == 60


def test_names_that_are_not_unicode_are_escaped_in_log_and_list(losses, caplog):
    losses.report(LossKind.LOG_DAMAGED, "/store/\udcff is damaged")
    assert losses.recent()[0].text == "/store/\\udcff is damaged"
    assert caplog.messages == ["/store/\\udcff is damaged"]
