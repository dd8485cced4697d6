"""A message is found by its time in few probes."""

from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.client.reading.read_bounds import TimeSearch


def run(times, timestamp_ms, start=0, hint=0):
    """Return the result of a search in message times (None for missing messages), and
    the probes."""
    search = TimeSearch(timestamp_ms, start, len(times), hint)
    probes = []
    while (probe := search.next_probe()) is not None:
        probes.append(probe)
        assert start <= probe < len(times)
        behind = [at for at in range(probe, len(times)) if times[at] is not None]
        if behind:
            search.record_result(behind[0], times[behind[0]])
        else:
            search.record_result(0, None)
    return search.low, len(probes)


def expected(times, timestamp_ms, start=0):
    """Return the first offset at or after the time."""
    late = [
        at for at, ms in enumerate(times) if at >= start and ms is not None and ms >= timestamp_ms
    ]
    return late[0] if late else len(times)


def test_time_search_with_a_good_hint_needs_two_probes():
    times = list(range(0, 2_000_000, 2))
    assert run(times, 500_000, hint=250_000) == (250_000, 2)
    assert run(times, 500_001, hint=250_000)[0] == 250_001


def test_time_search_of_an_empty_range_needs_no_probes():
    assert run([], 5) == (0, 0)
    assert run([1, 2, 3], 5, start=3) == (3, 0)


def test_time_search_over_missing_messages_returns_the_first_late_enough():
    times = [*range(1000)]
    times[490:510] = [None] * 20
    assert run(times, 100, hint=0)[0] == 100


def test_time_search_tries_the_next_offset_after_an_empty_answer():
    search = TimeSearch(5, 0, 4, hint=9)
    asked = []
    while (probe := search.next_probe()) is not None:
        asked.append(probe)
        search.record_result(0, 7 if probe == 3 else None)
    assert asked == [2, 3, 1, 0]
    assert search.low == 0


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40),
    st.integers(-1, 60),
    st.integers(0, 40),
    st.integers(-5, 50),
)
def test_time_search_leaves_out_no_message_late_enough(steps, timestamp_ms, start, hint):
    now, times = 0, []
    for step, is_there in steps:
        now += step
        times.append(now if is_there else None)
    start = min(start, len(times))
    found, _ = run(times, timestamp_ms, start, hint)
    right = expected(times, timestamp_ms, start)
    assert start <= found <= right
    # The messages between are gone, and none before the time is returned.
    assert all(times[at] is None for at in range(found, right))
