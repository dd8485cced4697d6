"""The demo's rate adapts to what the machine sends and reads."""

import pytest

from rmq_spark.cli.demo.command import AdaptiveRate


def test_adaptive_rate_stays_at_the_requested_rate():
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
    assert not pace.adjust(2.9, 2_900, 0)  # a batch may take so long
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
def test_adaptive_rate_has_a_lower_bound(rate, lowest):
    pace = AdaptiveRate(rate, 0.0)
    for second in range(10, 300, 10):
        pace.adjust(second, rate * 100 * second, 0)
    assert pace.rate == lowest
