"""Searches by time: what `test_unreadable_pages` and `test_retention` tell of bad pages and files
that go is not told here once more."""

from disks import ManualClock
from hypothesis import given, settings
from hypothesis import strategies as st
from stores import message, open_store


@given(
    st.lists(st.integers(0, 6), max_size=25).map(sorted),
    st.integers(-1, 7),
)
@settings(max_examples=50)
def test_a_search_by_time_finds_what_a_look_at_every_message_finds(tmp_path_factory, times, wanted):
    """R30: equal times, before the first, behind the last, over the edges of files."""
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
