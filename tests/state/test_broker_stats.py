"""Counters over their windows, and totals."""

import pytest
from support.brokers.connections import finished

from rocketpoll.broker.state import broker_stats
from rocketpoll.broker.state.broker_stats import STATS_NAMES, BrokerStats, Durations, Rates

NOON = 1_700_000_000_000 // 86_400_000 * 86_400_000 + 43_200_000
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


class Clocked:
    """Statistics with a movable clock, sampled at intervals as the controller does."""

    def __init__(self):
        self.now_ms = NOON
        self.stats = BrokerStats("DefaultCluster", NOON)

    def pass_ms(self, duration_ms, each_sample=lambda: None, step_ms=10_000):
        for _ in range(duration_ms // step_ms):
            each_sample()
            self.now_ms += step_ms
            finished(self.stats.sample(self.now_ms))

    def sums(self, name, key):
        data = self.stats.data(name, key)
        return (data.stats_minute.sum, data.stats_hour.sum, data.stats_day.sum)


@pytest.fixture
def clocked():
    return Clocked()


def test_broker_stats_show_counts_after_the_next_sample(clocked):
    clocked.stats.record_put("T", 3, 300)
    assert clocked.stats.data("TOPIC_PUT_NUMS", "T") is None
    clocked.pass_ms(10 * SECOND)
    data = clocked.stats.data("TOPIC_PUT_NUMS", "T")
    assert (data.stats_minute.sum, data.stats_minute.tps, data.stats_minute.avgpt) == (3, 0.3, 3.0)
    size = clocked.stats.data("TOPIC_PUT_SIZE", "T").stats_minute
    assert (size.sum, size.tps, size.avgpt) == (300, 30.0, 300.0)


def test_steady_stream_has_one_rate_and_growing_sums_over_all_windows(clocked):
    clocked.pass_ms(DAY + 2 * HOUR, lambda: clocked.stats.record_put("T", 20, 2000))
    data = clocked.stats.data("TOPIC_PUT_NUMS", "T")
    assert [item.tps for item in (data.stats_minute, data.stats_hour, data.stats_day)] == [
        2.0,
        2.0,
        2.0,
    ]
    minute, hour, day = clocked.sums("TOPIC_PUT_NUMS", "T")
    assert minute == 2 * 60
    assert 2 * 3000 < hour <= 2 * 3600
    assert 2 * 23 * 3600 < day <= 2 * 24 * 3600


def test_statistics_windows_expire_and_free_their_memory(clocked):
    clocked.stats.record_put("T", 5, 50)
    clocked.pass_ms(10 * SECOND)
    assert clocked.sums("TOPIC_PUT_NUMS", "T") == (5, 5, 5)
    clocked.pass_ms(MINUTE)
    assert clocked.sums("TOPIC_PUT_NUMS", "T") == (0, 5, 5)
    clocked.pass_ms(HOUR)
    assert clocked.sums("TOPIC_PUT_NUMS", "T") == (0, 0, 5)
    clocked.pass_ms(DAY)
    assert clocked.stats.data("TOPIC_PUT_NUMS", "T") is None
    windows = (
        clocked.stats._minute,
        clocked.stats._hour,
        clocked.stats._day,
        clocked.stats._recent,
    )
    assert all(not bucket for window in windows for _, bucket in window._buckets)
    assert [len(window._buckets) for window in windows] == [6, 6, 24, 60]


def test_groups_are_counted_for_each_topic(clocked):
    clocked.stats.record_get("T", "G", 4, 40, 0)
    clocked.stats.record_get("U", "G", 6, 60, 0)
    clocked.stats.record_get("T", "H", 8, 80, 0)
    clocked.stats.record_send_back("T", "G")
    clocked.pass_ms(10 * SECOND)
    assert clocked.sums("GROUP_GET_NUMS", "T@G")[0] == 4
    assert clocked.sums("GROUP_GET_SIZE", "T@H")[0] == 80
    assert clocked.sums("SNDBCK_PUT_NUMS", "T@G")[0] == 1
    assert clocked.stats.data("GROUP_GET_NUMS", "U@H") is None
    assert clocked.stats.group_get_tps("G", ["T"]) == 0.4
    assert clocked.stats.group_get_tps("G", ["T", "U"]) == 1.0


def test_broker_wide_counters_are_kept_under_the_cluster_name(clocked):
    clocked.stats.record_put("T", 4, 40)
    clocked.stats.record_put("U", 5, 50)
    clocked.stats.record_get("T", "G", 2, 20, 0)
    clocked.pass_ms(10 * SECOND)
    assert clocked.sums("BROKER_PUT_NUMS", "DefaultCluster")[0] == 9
    assert clocked.sums("BROKER_GET_NUMS", "DefaultCluster")[0] == 2


@pytest.mark.parametrize("name", ["topic put", "TOPIC_PUT", "GROUP_GET_LATENCY", ""])
def test_unknown_counter_name_has_no_data(clocked, name):
    clocked.stats.record_put("T", 1, 1)
    clocked.pass_ms(10 * SECOND)
    assert name not in STATS_NAMES
    assert clocked.stats.data(name, "T") is None


def test_deleted_groups_counters_restart_at_zero(clocked):
    for group in ("G", "GG"):
        clocked.stats.record_get("T", group, 1, 1, 0)
        clocked.stats.record_send_back("T", group)
    clocked.pass_ms(10 * SECOND)
    finished(clocked.stats.discard_group("G"))
    assert clocked.stats.data("GROUP_GET_NUMS", "T@G") is None
    assert clocked.stats.data("SNDBCK_PUT_NUMS", "T@G") is None
    assert clocked.sums("GROUP_GET_NUMS", "T@GG")[0] == 1


def test_rates_cover_ten_seconds_a_minute_and_ten_minutes(clocked):
    clocked.pass_ms(10 * MINUTE, lambda: clocked.stats.record_put("T", 10, 100))
    clocked.stats.record_put("T", 600, 6000)
    clocked.stats.record_get("T", "G", 40, 400, 0)
    clocked.stats.record_get("T", "G", 0, 0, 0)
    clocked.pass_ms(10 * SECOND)
    rates = clocked.stats.rates()
    assert str(rates.puts) == "60.0 10.83 1.98"
    assert rates.transferred.ten_seconds == 4.0
    assert rates.found.ten_seconds == rates.missed.ten_seconds == 0.1
    assert rates.gets.ten_seconds == 0.2


def test_stats_rates_are_zero_before_the_first_sample(clocked):
    clocked.stats.record_put("T", 1, 1)
    assert clocked.stats.rates().puts == Rates(0.0, 0.0, 0.0)
    assert clocked.stats.topic_put_tps("T") == 0.0


@pytest.mark.parametrize("step_ms", [9_990, 10_010, 10_900])
def test_samples_that_come_a_little_early_or_late_keep_the_windows_apart(clocked, step_ms):
    clocked.pass_ms(HOUR, lambda: clocked.stats.record_put("T", 1, 1), step_ms)
    assert clocked.sums("TOPIC_PUT_NUMS", "T")[0] == 6
    assert [len(clocked.stats._hour._buckets), len(clocked.stats._day._buckets)] == [6, 1]


@pytest.mark.parametrize("jump_ms", [-DAY, 3650 * DAY])
def test_wall_clock_jump_does_not_change_counters(clocked, jump_ms):
    clocked.pass_ms(MINUTE, lambda: clocked.stats.record_put("T", 10, 100))
    clocked.now_ms += jump_ms
    clocked.pass_ms(30 * SECOND, lambda: clocked.stats.record_put("T", 10, 100))
    assert clocked.stats.topic_put_tps("T") == 1.0
    assert clocked.sums("TOPIC_PUT_NUMS", "T") == (60, 90, 90)


def test_statistics_close_a_day_each_morning(clocked):
    clocked.stats.record_put("T", 5, 50)
    clocked.stats.record_get("T", "G", 2, 20, 0)
    clocked.pass_ms(10 * SECOND)
    assert clocked.stats.put_totals == (0, 0)
    clocked.pass_ms(DAY)
    clocked.stats.record_put("T", 1, 10)
    clocked.pass_ms(10 * SECOND)
    assert clocked.stats.put_totals == (0, 5)
    clocked.pass_ms(DAY)
    assert clocked.stats.put_totals == (5, 6)
    assert clocked.stats.get_totals == (2, 2)


def test_stats_totals_count_successes_and_failures(clocked):
    stats = clocked.stats
    stats.record_put("T", 3, 300)
    stats.record_put_failure()
    stats.record_get("T", "G", 2, 200, elapsed_ms=4)
    assert (stats.put_messages, stats.put_bytes, stats.put_failures) == (3, 300, 1)
    assert (stats.got_messages, stats.get_latency_ms_max) == (2, 4)


def test_broker_stats_limit_keys(monkeypatch):
    monkeypatch.setattr(broker_stats, "KEYS_MAX", 15)
    stats = BrokerStats("C", 0)
    for round_number in range(1, 4):
        for number in range(20):
            stats.record_get("T", f"{round_number}g{number}", 1, 100, 0)
        assert len(stats._sums) == 15
        finished(stats.sample(10_000 * round_number))
    ((_, bucket),) = stats._day._buckets
    assert len(bucket) == 15
    # the broker's statistics contain all
    assert stats.data("BROKER_GET_NUMS", "C").stats_day.sum == 60
    assert stats.got_messages == 60


# ---- totals since the start


def totals(stats):
    return {key: (total.messages, total.bytes) for key, total in stats.totals()}


def test_stats_totals_never_decrease_during_a_sample_or_two(clocked):
    for number in range(1_000):
        clocked.stats.record_put(f"T{number}", 1, 1)
    slow = clocked.stats.sample(NOON + 10_000)
    for _ in range(2):
        next(slow)
        assert sum(messages for messages, _ in totals(clocked.stats).values()) == 1_000
    clocked.stats.record_put("T999", 1, 1)
    for _ in clocked.stats.sample(NOON + 20_000):
        assert sum(messages for messages, _ in totals(clocked.stats).values()) == 1_001
    finished(slow)
    assert totals(clocked.stats)["topic put", "T999"] == (2, 2)


def test_deleted_topic_resets_its_totals(clocked):
    for topic in ("T", "U"):
        clocked.stats.record_put(topic, 1, 1)
        clocked.stats.record_get(topic, "G", 1, 1, 0)
    clocked.pass_ms(10 * SECOND)
    finished(clocked.stats.discard_topic("T"))
    assert set(totals(clocked.stats)) == {("topic put", "U"), ("group get", "U@G")}
    finished(clocked.stats.discard_group("G"))
    assert set(totals(clocked.stats)) == {("topic put", "U")}


# ---- histograms of durations


@pytest.mark.parametrize(
    ("took_ms", "cell"),
    [
        (-1, "<=0ms"),
        (0, "<=0ms"),
        (1, "0~10ms"),
        (9, "0~10ms"),
        (10, "10~50ms"),
        (49, "10~50ms"),
        (50, "50~100ms"),
        (100, "100~200ms"),
        (200, "200~500ms"),
        (499, "200~500ms"),
        (500, "500ms~1s"),
        (1_000, "1~2s"),
        (2_000, "2~3s"),
        (3_999, "3~4s"),
        (4_000, "4~5s"),
        (9_999, "5~10s"),
        (10_000, "10s~"),
        (1 << 40, "10s~"),
    ],
)
def test_duration_falls_into_rocketmqs_cell(took_ms, cell):
    took = Durations()
    took.add(took_ms)
    assert {name for name, count in took.cells().items() if count} == {cell}
    assert sum(took.cells().values()) == 1


def test_durations_report_percentiles_and_maximum():
    took = Durations()
    took.add(0, 90)
    for took_ms in [2] * 9 + [40_000]:
        took.add(took_ms)
    assert took.max_ms == 40_000
    assert [took.within_ms(share) for share in (0.5, 0.99, 0.999)] == [0, 2, 40_000]


def test_duration_cells_cover_the_last_minute():
    took = Durations()
    took.add(30)
    assert took.cells()["10~50ms"] == 1
    took.end_minute()
    took.add(0)
    assert (took.cells()["10~50ms"], took.cells()["<=0ms"]) == (1, 0)
    took.end_minute()
    assert (took.cells()["10~50ms"], took.cells()["<=0ms"]) == (0, 1)
    took.end_minute()
    assert (sum(took.cells().values()), took.within_ms(0.99), took.max_ms) == (0, 0, 30)
