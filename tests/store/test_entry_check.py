"""Records match the entries that point at them; the check works one by one and in bulk."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.wire.message.record_layout import BLANK_SIZE
from rocketpoll.broker.store.queues.consume_queue import ENTRY_STRUCT
from rocketpoll.broker.store.queues.entry_check import (
    HEAD_BYTES,
    EntryCheck,
    WrongEntry,
    first_wrong,
    matches_entry,
    run_ends_match,
)

FIRST = (1 << 33) + 5
"""Large, like real positions and offsets."""


def record(size, queue_offset, position):
    return struct.pack(">i16xqq", size, queue_offset, position).ljust(size, b"x")


@st.composite
def runs(draw):
    """Draw pieces of a queue's records, with positions, sizes and possible offsets."""
    sizes = draw(st.lists(st.integers(HEAD_BYTES, 90), min_size=1, max_size=12))
    steps = draw(st.lists(st.integers(1, 3), min_size=len(sizes), max_size=len(sizes)))
    gaps = draw(st.lists(st.integers(0, 99), min_size=len(sizes), max_size=len(sizes)))
    offsets = (FIRST + np.cumsum(steps) - steps[0]).tolist()
    places = (FIRST + np.cumsum(gaps) + np.cumsum(sizes) - sizes).tolist()
    records = [record(*each) for each in zip(sizes, offsets, places, strict=True)]
    cut = draw(st.integers(0, len(sizes)))
    pieces = [piece for piece in (b"".join(records[:cut]), b"".join(records[cut:])) if piece]
    return pieces, places, sizes, range(FIRST, offsets[-1] + 1)


def both(pieces, places, sizes, offsets):
    """Return the wrong entries found one by one, and in bulk."""
    few = first_wrong(pieces, places, sizes, offsets)
    return few, first_wrong(pieces, np.array(places), np.array(sizes), offsets)


@given(runs())
def test_records_that_match_their_entries_pass_the_check(run):
    assert both(*run) == (None, None)


@given(runs(), st.data())
def test_queue_entry_with_a_wrong_place_is_found(run, data):
    pieces, places, sizes, offsets = run
    row = data.draw(st.integers(0, len(places) - 1))
    places[row] ^= 1 << data.draw(st.integers(0, 31))
    assert both(pieces, places, sizes, offsets) == (row, row)


@given(runs(), st.data())
def test_record_with_a_wrong_queue_offset_is_found(run, data):
    pieces, places, sizes, offsets = run
    row = data.draw(st.integers(0, len(places) - 1))
    wrong = data.draw(st.sampled_from([FIRST - 1, offsets.stop]))
    whole = bytearray(b"".join(pieces))
    at = sum(sizes[:row])
    struct.pack_into(">q", whole, at + 20, wrong)
    assert both([bytes(whole)], places, sizes, offsets) == (row, row)


@pytest.mark.parametrize("other", [(80, 7, 500), (81, 8, 500), (80, 7, 501)])
def test_matches_entry_compares_size_queue_offset_and_position(other):
    is_the_same = other == (80, 7, 500)
    assert matches_entry(b"??" + record(*other), 2, 500, 80, range(7, 8)) is is_the_same


def seen(entries, *, has_codes=True, expired_before=0, pieces=1):
    """Return whether a wrong entry is found, checking a few at a time or all together."""
    check = EntryCheck(expired_before, has_codes=has_codes)
    size = -(-len(entries) // pieces)
    try:
        for start in range(0, len(entries), size):
            check.check(
                b"".join(ENTRY_STRUCT.pack(*entry) for entry in entries[start : start + size])
            )
    except WrongEntry as wrong:
        return wrong.position
    return None


@pytest.mark.parametrize("count", [12, 90], ids=["few", "many"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_entries_that_cannot_be_right_are_seen_without_their_records(count, pieces):
    good = [(FIRST + 100 * number, 100, 7) for number in range(count)]
    good[3:5] = [(0, BLANK_SIZE, 0)] * 2
    assert seen(good, pieces=pieces) is None
    for at in (count // 2, count * 2 // 3):  # the second is the first of a piece
        position, size, code = good[at]
        for wrong in (
            (0, 0, 0),
            (position, 0, code),
            (position, size + 1, code),
            (position - 200, size, code),
            (position - 1, size, code),
            (position, size, code | 1 << 31),
            (position, size, code | 1 << 62),
        ):
            bad = [*good[:at], wrong, *good[at + 1 :]]
            assert seen(bad, pieces=pieces) is not None, (at, wrong)
    assert seen(good, pieces=pieces, expired_before=FIRST + 1) == FIRST
    timed = [(position, size, 1_700_000_000_000) for position, size, _ in good]
    assert seen(timed, has_codes=False, pieces=pieces) is None


@given(runs(), st.randoms())
def test_run_ends_match_checks_first_and_last_record_of_each_run(given_runs, dice):
    pieces, places, sizes, queue_offsets = given_runs
    counts = [len(each) for each in pieces]
    cut = next(n for n in range(len(sizes) + 1) if sum(sizes[:n]) == counts[0])
    slices = [each for each in (slice(0, cut), slice(cut, len(sizes))) if each.stop > each.start]
    given = slices, places, sizes, queue_offsets
    assert run_ends_match(pieces, *given)
    ends = sorted({end for each in slices for end in (each.start, each.stop - 1)})
    number = dice.choice(ends)
    for at, changed in ((3, sizes), (35, places)):  # the last bytes of size and position
        start = sum(sizes[:number]) - (counts[0] if number >= cut else 0)
        data = bytearray(pieces[number >= cut])
        data[start + at] ^= 1
        damaged = [*pieces]
        damaged[number >= cut] = bytes(data)
        assert not run_ends_match(damaged, *given), changed
    if len(slices) == 2:
        assert not run_ends_match(pieces[::-1], slices[::-1], *given[1:])


@pytest.mark.parametrize("second", [4, 5, 6, 9])
@pytest.mark.parametrize("pieces", [1, 2])
def test_offsets_ascend_within_a_run_and_from_one_to_the_next(pieces, second):
    records = [record(40, 5, 100), record(40, second, 140)]
    found = [b"".join(records)] if pieces == 1 else records
    runs = [slice(0, 2)] if pieces == 1 else [slice(0, 1), slice(1, 2)]
    given = [100, 140], [40, 40], range(5, 9)
    is_right = second == 6
    assert both(found, *given) == ((None, None) if is_right else (1, 1))
    assert run_ends_match(found, runs, *given) is is_right
