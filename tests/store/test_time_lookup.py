"""Searches by store time.

`test_unreadable_pages` and `test_retention` cover unreadable pages and expired files.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.disks.faulty_disk import ManualClock
from support.stores.small_store import crash, message, open_store, read_all

from rmq_spark.wire.message.record import decode_record
from rocketpoll.broker.store.message_store import MessageStore


@given(
    st.lists(st.integers(0, 6), max_size=25).map(sorted),
    st.integers(-1, 7),
)
@settings(max_examples=50)
def test_time_search_equals_a_linear_scan(tmp_path_factory, times, wanted):
    """R30: equal times, before the first, past the last, across files."""
    clock = ManualClock(0)
    store = open_store(tmp_path_factory.mktemp("store"), clock=clock)
    for time in times:
        clock.now_ms = 1000 + time
        store.put_message(message("x"))
    at_or_after = [offset for offset, time in enumerate(times) if time >= wanted]
    at_or_before = [offset for offset, time in enumerate(times) if time <= wanted]
    lower = store.offset_by_time("T", 0, 1000 + wanted)
    upper = store.offset_by_time("T", 0, 1000 + wanted, upper=True)
    assert lower == (at_or_after[0] if at_or_after else len(times))
    assert upper == (at_or_before[-1] if at_or_before else 0)
    assert store.earliest_timestamp("T", 0) == (1000 + times[0] if times else -1)
    store.shutdown()


HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000
JUMPS_MS = [1_000, 2_000, 70_000, HOUR_MS, 48 * HOUR_MS, -1_000, -65_000, -HOUR_MS, -47 * HOUR_MS]


def fewest_wrong(times, wanted, *, upper):
    """Return the cut with the fewest messages on the wrong side, by checking every cut."""

    def is_before(time):
        return time <= wanted if upper else time < wanted

    def wrong(cut):
        return sum(not is_before(time) for time in times[:cut]) + sum(map(is_before, times[cut:]))

    return min(range(len(times) + 1), key=lambda cut: (wrong(cut), cut))


@given(
    jumps=st.lists(st.sampled_from(JUMPS_MS), min_size=1, max_size=30),
    ends=st.sets(st.integers(0, 29), max_size=3),
    check=st.sampled_from([0, 1 << 20]),
    killed=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_searches_by_time_and_key_are_right_whatever_the_clock_has_done(
    tmp_path_factory, jumps, ends, check, killed
):
    """The clock jumps both ways, also over restarts; a start may scan only the end of the log."""
    root, clock = tmp_path_factory.mktemp("store"), ManualClock(START_MS)
    sizes = {"check_whole_log_bytes": check, "max_index_num": 9}
    store = open_store(root, clock=clock, **sizes)
    times = {0: [], 1: []}
    for number, jump in enumerate(jumps):
        if number in ends:
            (crash if killed else MessageStore.shutdown)(store)
            store = open_store(root, clock=clock, **sizes)
        clock.now_ms += jump
        put = store.put_message(message(number, queue_id=number % 2, keys="k"))
        times[number % 2].append(put.store_timestamp)
    stored = sorted(times[0] + times[1])
    for queue_id, own in times.items():
        assert [each.store_timestamp for each in read_all(store, "T", queue_id)] == own
        for wanted in {*stored, stored[0] - 1, stored[-1] + 1}:
            lower = store.offset_by_time("T", queue_id, wanted)
            upper = store.offset_by_time("T", queue_id, wanted, upper=True)
            assert lower == fewest_wrong(own, wanted, upper=False)
            assert upper == max(fewest_wrong(own, wanted, upper=True) - 1, 0)
    for begin_ms in stored[::3]:
        end_ms = begin_ms + HOUR_MS
        found = store.query_message("T", "k", 99, begin_ms, end_ms)
        expected = [time for time in stored if begin_ms <= time <= end_ms]
        assert sorted(decode_record(each).store_timestamp for each in found) == expected
    store.shutdown()


def test_time_lookup_finds_messages_stored_after_a_clock_was_ahead(tmp_path):
    """One message was stored ten years ahead, also over restarts: the fewest messages
    are skipped."""
    clock = ManualClock(START_MS)
    store = open_store(tmp_path, clock=clock)
    for number in range(100):
        ahead_ms = 87_660 * HOUR_MS if number == 50 else 0
        clock.now_ms = START_MS + 1_000 * number + ahead_ms
        store.put_message(message(number, keys=f"k{number}"))
        clock.now_ms -= ahead_ms
        if number % 30 == 20:
            store.shutdown()
            store = open_store(tmp_path, clock=clock)
    for number in (10, 49, 54, 99):
        time = START_MS + 1_000 * number
        assert store.offset_by_time("T", 0, time) == number
        assert len(store.query_message("T", f"k{number}", 9, time - 1_000, time + 1_000)) == 1
    assert store.offset_by_time("T", 0, clock.now_ms + 1) == 100
    store.shutdown()
