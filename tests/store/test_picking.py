"""Every implementation of entry selection for a get selects the same entries."""

from functools import partial
from itertools import pairwise, starmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stores.small_store import encoded, message

from rmq_spark.wire.chunk import RecordChunk
from rmq_spark.wire.message.record_layout import BLANK_SIZE
from rocketpoll.broker.store.queues.consume_queue import ENTRY_BYTES, ENTRY_STRUCT
from rocketpoll.broker.store.queues.entry_check import WrongEntry
from rocketpoll.broker.store.read.entry_selection import (
    EntrySelection,
    GetLimits,
    select_all,
    select_few,
)
from rocketpoll.broker.store.results import GetMessageStatus as Status

LOG_MIN_OFFSET = 10
"""Entries before this offset belong to deleted messages."""

entries = st.lists(
    st.tuples(
        st.integers(0, 40), st.sampled_from([100, 150, 200, BLANK_SIZE]), st.sampled_from([0, 1, 2])
    ),
    min_size=1,
    max_size=64,
)
counts = st.integers(1, 40)
sizes = st.integers(0, 10_000)


class CodeFilter:
    needs_messages = False
    evaluated_max = 10**6

    def matches_code(self, code):
        return code == 1

    def by_tags_code(self, codes):
        return codes == 1


class EveryMessage(CodeFilter):
    """A check that accepts every message, and counts them."""

    needs_messages = True

    def by_messages(self, chunk):
        assert len(chunk)

    def cost_of(self, _):
        return 0


def packed(found):
    return b"".join(starmap(ENTRY_STRUCT.pack, found))


def select_many(pieces, *given):
    return EntrySelection(*given).select(pieces)


def many(found, limits, wanted, cuts=()):
    """Return the entries selected from pieces, and the number of pieces used."""
    data = packed(found)
    bounds = sorted({0, len(found), *(cut for cut in cuts if cut < len(found))})
    taken = []

    def pieces():
        for start, end in pairwise(bounds):
            taken.append(end)
            yield data[start * ENTRY_BYTES : end * ENTRY_BYTES]

    return select_many(pieces(), limits, LOG_MIN_OFFSET, wanted, None), taken


def same(one, other):
    return (one.status, one.scanned, list(one.positions), list(one.sizes)) == (
        *(other.status, other.scanned),
        *(list(other.positions), list(other.sizes)),
    )


def is_there(entry):
    return entry[0] >= LOG_MIN_OFFSET and entry[1] != BLANK_SIZE


@given(entries, counts, sizes, st.booleans(), st.sets(st.integers(1, 63)))
def test_entry_selection_is_the_same_singly_in_bulk_and_in_pieces(
    found, count_max, bytes_max, filtered, cuts
):
    limits, wanted = GetLimits(count_max, bytes_max, 10**6), CodeFilter() if filtered else None
    whole, _ = many(found, limits, wanted)
    assert same(whole, many(found, limits, wanted, cuts)[0])
    few = select_few(packed(found), limits, LOG_MIN_OFFSET, wanted, are_all=True)
    if few is None:
        passed_over = found[: whole.scanned]
        assert not any(map(is_there, passed_over))
        are_gone = any(size != BLANK_SIZE for _, size, _ in passed_over)
        assert whole.status is (
            Status.MESSAGE_WAS_REMOVING if are_gone else Status.NO_MATCHED_MESSAGE
        )
        assert whole.scanned == len(found) or is_there(found[whole.scanned])
    else:
        assert same(whole, few)
    as_is = None if filtered else select_all(packed(found), limits, LOG_MIN_OFFSET)
    assert as_is is None or same(whole, as_is)


@given(entries, counts, sizes)
def test_undecided_first_entries_are_not_returned(found, count_max, bytes_max):
    limits = GetLimits(count_max, bytes_max, 10**6)
    first = select_few(packed(found), limits, LOG_MIN_OFFSET, None, are_all=False)
    more = select_few(packed(found), limits, LOG_MIN_OFFSET, None, are_all=True)
    assert first is None or same(first, more)
    if first is None and more is not None:
        assert more.scanned == len(found)
        assert len(more.positions) < count_max


def test_picking_reads_no_more_pieces_than_its_limits():
    found = [(10 + number, 100, 1) for number in range(60)]
    for limits, pieces in (
        (GetLimits(10, 10**6, 60), 1),
        (GetLimits(11, 10**6, 60), 2),
        (GetLimits(60, 999, 60), 1),
    ):
        assert len(many(found, limits, CodeFilter(), range(10, 60, 10))[1]) == pieces


def test_expensive_filter_is_evaluated_on_fewer_messages_per_get():
    size = len(encoded(message("x")))
    found = [(number * size, size, 1) for number in range(60)]
    asked = []

    class Dear(EveryMessage):
        evaluated_max = 25

        def by_messages(self, chunk):
            asked.append(len(chunk))
            return np.zeros(len(chunk), np.bool_)

    def records(positions, _):
        return RecordChunk(b"".join(encoded(message("x")) for _ in positions))

    picked = select_many([packed(found)], GetLimits(60, 10**7, 60), 0, Dear(), records)
    assert (picked.scanned, len(picked.positions), sum(asked)) == (25, 0, 25)


def test_slow_filter_reads_fewer_bytes_per_get():
    size = len(encoded(message("x")))
    found = [(number * size, size, 1) for number in range(5_000)]

    class Dear(EveryMessage):
        def by_messages(self, chunk):
            return np.zeros(len(chunk), np.bool_)

        def cost_of(self, _):
            return 4 << 20

    def records(positions, _):
        return RecordChunk(b"".join(encoded(message("x")) for _ in positions))

    picked = select_many([packed(found)], GetLimits(5_000, 10**7, 5_000), 0, Dear(), records)
    assert 0 < picked.scanned < 5_000
    assert not len(picked.positions)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("first", [0, 1, 37])
def test_entries_before_an_unreadable_record_are_selected(is_known, first):
    """The number of entries may be known, or not."""
    found = [(number, 100, 1) for number in range(first, 60)]

    def records(positions, sizes):
        if positions[-1] >= 37:
            number = int(np.searchsorted(positions, 37))
            raise WrongEntry(37, number if is_known else 0)
        return sizes

    pick = partial(
        select_many, [packed(found)], GetLimits(60, 10**7, 60), 0, EveryMessage(), records
    )
    if first == 37:
        with pytest.raises(WrongEntry):
            pick()
    else:
        picked = pick()
        assert (picked.scanned, list(picked.positions)) == (37 - first, [*range(first, 37)])


def test_property_filter_reads_a_few_messages_at_a_time_and_no_more_than_needed():
    """Each message has 100 KB: the first check covers two of them, although 60 entries
    are known."""
    looks = []
    found = [(10, 100_000, 1)] * 60

    def records(_, sizes):
        looks.append(sum(sizes))
        return sizes

    picked = select_many([packed(found)], GetLimits(3, 10**7, 60), 0, EveryMessage(), records)
    assert (picked.scanned, len(picked.positions)) == (3, 3)
    assert looks == [200_000, 200_000]
    looks.clear()

    class NoMessage(EveryMessage):
        def by_messages(self, chunk):
            return np.zeros(len(chunk), bool)

    found = [(10, 4_000_000, 1)] * 60
    picked = select_many([packed(found)], GetLimits(3, 10**7, 60), 0, NoMessage(), records)
    assert (picked.status, picked.scanned, len(looks)) == (Status.NO_MATCHED_MESSAGE, 2, 2)
