"""Which of two overlapping entries is wrong; `test_reader` covers reads of such entries."""

import pytest
from support.stores.small_store import components_of, message, open_store, write_entry

from rocketpoll.broker.store.errors import UnreadableFile
from rocketpoll.broker.store.queues.consume_queue import ENTRY_STRUCT
from rocketpoll.broker.store.queues.entry_check import WrongEntry
from rocketpoll.broker.store.read.entry_selection import GetLimits
from rocketpoll.broker.store.read.message_reader import WrongEntrySearch

LIMITS = GetLimits(count_max=1, bytes_max=1 << 18, scan_max=800)


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    for number in range(3):
        store.put_message(message(number))
    yield store
    store.shutdown()


@pytest.fixture
def queue(store):
    return components_of(store).queues.get("T", 0)


@pytest.fixture
def wrong_entries(store):
    return WrongEntrySearch(components_of(store).log)


def write(store, queue_offset, place, size):
    write_entry(store, queue_offset, ENTRY_STRUCT.pack(place, size, 0))


def test_wrong_one_of_overlapping_entries_is_found_by_its_record(store, queue, wrong_entries):
    overlap = WrongEntry(0, overlapped=2)
    assert wrong_entries.limits_before(overlap, queue, 0, LIMITS).scan_max == 2
    place, size, _ = ENTRY_STRUCT.unpack(queue.read(1, 1))
    write(store, 1, place, size + 1)
    assert wrong_entries.limits_before(overlap, queue, 0, LIMITS).scan_max == 1
    with pytest.raises(UnreadableFile, match="that of offset 1,"):
        wrong_entries.limits_before(WrongEntry(0, overlapped=1), queue, 1, LIMITS)


def test_get_before_a_wrong_entry_limits_its_scan(queue, wrong_entries):
    assert wrong_entries.limits_before(WrongEntry(0), queue, 0, LIMITS).scan_max == 1
    with pytest.raises(UnreadableFile, match="that of offset 2,"):
        wrong_entries.limits_before(WrongEntry(0), queue, 2, LIMITS)
    assert wrong_entries.limits_before(WrongEntry(0, 5), queue, 0, LIMITS).count_max == 5


def test_end_before_a_wrong_entry_needs_a_correct_overlapping_predecessor(
    store, queue, wrong_entries
):
    place, size, _ = ENTRY_STRUCT.unpack(queue.read(0, 1))
    assert wrong_entries.end_before(queue, 1, queue.read(1, 1)) == 0
    copy = ENTRY_STRUCT.pack(place, size, 0)
    assert wrong_entries.end_before(queue, 1, copy) == place + size
    assert wrong_entries.end_before(queue, 0, copy) == 0
    write(store, 0, place, size + 1)
    assert wrong_entries.end_before(queue, 1, copy) == 0
