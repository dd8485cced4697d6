"""The text of the demo's screen and of its summary."""

import pytest

from rmq_spark.cli.demo.command import AdaptiveRate
from rmq_spark.cli.demo.display import DemoBatch, DemoFigures, batch_line, screen_lines, summary


def batch(at, rows=1_000, **more):
    return DemoBatch(
        **{"seconds": 0.5, "latency_p50": 0.3, "latency_p95": 0.4, **more}, rows=rows, ended_at=at
    )


def test_demo_screen_before_the_first_batch_shows_sent_only():
    lines = screen_lines(DemoFigures(30, 100.0, sent=5_000), 103.0)
    assert lines[0].split() == ["time", "3", "s", "of", "30"]
    assert lines[1].split() == ["sent", "5,000"]
    assert lines[-1].split()[:2] == ["behind", "5,000"]


def test_demo_screen_shows_rate_backlog_and_latency():
    batches = [batch(101.0), batch(102.0, 2_000), batch(103.0, 4_000, latency_p95=1.25)]
    text = "\n".join(screen_lines(DemoFigures(30, 100.0, 8_000, batches), 104.0))
    assert "7,000   3,000 rows/s ▂▄█" in text
    assert "1,000   messages, sent and not read yet" in text
    assert "300 ms   p50, 1.25 s p95, from send to here ███" in text
    assert "the last: 4,000 rows in 0.50 s" in text


def test_demo_figures_are_reset_after_warm_up():
    figures = DemoFigures(30, sent=9, batches=[batch(99.0)])
    figures.reset(100.0)
    assert (figures.started_at, figures.sent, figures.read) == (100.0, 0, 0)


def test_demo_summary_says_whether_all_messages_were_read():
    figures = DemoFigures(30, 100.0, 3_000, [batch(101.0), batch(102.0, 2_000)])
    lines = summary(figures)
    assert lines[0] == "sent 3,000 messages, read 3,000 rows in 2 batches: every one of them once"
    assert lines[1] == (
        "rows per second 1,500; medians: latency p50 300 ms, p95 400 ms, batch 0.50 s"
    )
    figures.sent = 3_001
    assert "NOT the same number" in summary(figures)[0]
    assert summary(DemoFigures(1, sent=7)) == ["sent 7 messages; no batch has ended"]


def test_demo_batch_is_shown_in_one_line():
    assert (
        batch_line(batch(1.0), 3) == "batch 3: 1,000 rows in 0.50 s, latency p50 300 ms, p95 400 ms"
    )


# ---- the demo's rate adapts to the speed of the machine


def test_demo_rate_stays_at_the_requested_rate():
    pace = AdaptiveRate(1_000, 0.0)
    for second in range(1, 60):
        assert not pace.adjust(second, 1_000 * second, max(1_000 * second - 2_500, 0))
    assert pace.rate == pace.requested == 1_000


def test_demo_rate_is_lowered_to_what_the_machine_sends():
    pace = AdaptiveRate(1_000, 0.0)
    assert not pace.adjust(3.0, 2_400, 2_400)
    assert pace.adjust(6.0, 3_600, 3_600)
    assert pace.rate == 400
    assert not pace.adjust(9.0, 4_800, 4_800)


def test_growing_backlog_lowers_the_demo_rate_below_the_read_rate():
    pace = AdaptiveRate(1_000, 0.0)
    assert not pace.adjust(2.9, 2_900, 0)  # a batch may take that long
    assert not pace.adjust(3.0, 3_000, 1_500)
    assert pace.adjust(6.0, 6_000, 2_700)
    assert pace.rate == 280  # seven tenths of 400 a second
    assert pace.requested == 1_000


def test_shrinking_backlog_keeps_the_demo_rate():
    pace = AdaptiveRate(1_000, 0.0)
    assert pace.adjust(4.0, 8_000, 1_000)
    assert not pace.adjust(8.0, 9_000, 2_500)
    assert not pace.adjust(12.0, 9_700, 5_000)
    assert pace.rate == 250


@pytest.mark.parametrize(("rate", "lowest"), [(50_000, 200), (300, 200), (100, 100), (1, 1)])
def test_demo_rate_has_a_lower_bound(rate, lowest):
    pace = AdaptiveRate(rate, 0.0)
    for second in range(10, 300, 10):
        pace.adjust(second, rate * 100 * second, 0)
    assert pace.rate == lowest
