"""An unreadable page of the log affects its own messages only."""

import pytest
from support.disks.faulty_disk import FaultyDisk, ManualClock, Refusal
from support.stores.small_store import crash, message, messages_of, open_store, wants
from support.suite.selection import spread

from rmq_spark.wire.bodies.clients import SubscriptionData
from rmq_spark.wire.message.record import decode_record
from rocketpoll.broker.filter.subscription import message_filter
from rocketpoll.broker.store.errors import UnreadableFile
from rocketpoll.broker.store.queues.consume_queue import ENTRY_BYTES
from rocketpoll.broker.store.results import GetMessageStatus as Status

COUNT = 200
UP_TO_TOPIC_BYTES = 88 + 100 + 2
"""Bytes that a search reads of a record with a body of 100 bytes: its head and the topic."""
BAD = 16_384
FILES = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 2 * COUNT * ENTRY_BYTES,
}
BY_PROPERTY = SubscriptionData(topic="T", sub_string="n = 1", expression_type="SQL92")
WANTED = {"all": None, "by tag": wants("a"), "by property": message_filter(BY_PROPERTY)}


@pytest.fixture(params=["one queue", "two queues in turn"])
def filled(tmp_path, request):
    """Return a killed store, and the offsets of T's queue 0 whose messages are on the bad page."""
    store = open_store(tmp_path, **FILES)
    for _ in range(COUNT):
        store.put_message(message("x" * 100, tags="a", n="1"))
        if request.param != "one queue":
            store.put_message(message("y" * 100, queue_id=1))
    found = store.get_message("T", 0, 0, count_max=COUNT, bytes_max=1 << 20)
    crash(store)
    lost = [
        each.queue_offset
        for each, size in zip(messages_of(found), map(int, found.sizes), strict=True)
        if each.physical_offset < BAD + 4096 and each.physical_offset + size > BAD
    ]
    assert 5 < len(lost) < COUNT // 2
    return tmp_path, lost


def served(store, **limits):
    """Return the offsets that a consumer gets which follows all responses, and where it stops."""
    at, seen = 0, []
    while True:
        try:
            found = store.get_message("T", 0, at, **limits)
        except UnreadableFile:
            return seen, at
        if found.status is Status.OFFSET_OVERFLOW_ONE:
            return seen, at
        assert found.next_begin_offset > at
        seen += [each.queue_offset for each in messages_of(found)]
        at = found.next_begin_offset


@pytest.mark.parametrize("count_max", spread(2, [1, 32, COUNT]))
@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
def test_messages_outside_an_unreadable_page_are_served_at_any_count(filled, wanted, count_max):
    root, lost = filled
    disk = FaultyDisk()
    disk.unreadable.append(Refusal("commitlog", BAD))
    store = open_store(root, disk, **FILES)  # this start finds the hole
    refused_by_then = disk.refused
    limits = {"count_max": count_max, "bytes_max": 1 << 20, "message_filter": wanted}
    assert served(store, **limits) == ([each for each in range(COUNT) if each not in lost], COUNT)
    assert disk.refused == refused_by_then, "a page known to be bad is not read again"
    store.shutdown()


@pytest.mark.parametrize("count_max", spread(2, [1, 32, COUNT]))
@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
def test_page_turning_unreadable_stops_only_reads_that_reach_it(filled, wanted, count_max):
    root, lost = filled
    disk = FaultyDisk()
    store = open_store(root, disk, **FILES)
    disk.unreadable.append(Refusal("commitlog", BAD))
    limits = {"count_max": count_max, "bytes_max": 1 << 20, "message_filter": wanted}
    assert served(store, **limits) == (list(range(lost[0])), lost[0])
    disk.unreadable.clear()
    assert served(store, **limits) == (list(range(COUNT)), COUNT)
    store.shutdown()


def test_unreadable_page_of_a_large_log_is_skipped_after_the_advised_restart(filled):
    root, lost = filled
    disk = FaultyDisk()
    open_store(root, **FILES).shutdown()
    disk.unreadable.append(Refusal("commitlog", BAD))
    store = open_store(root, disk, check_whole_log_bytes=0, **FILES)
    with pytest.raises(UnreadableFile, match="start the broker once with checkWholeLogBytes above"):
        store.get_message("T", 0, lost[0])
    store.shutdown()
    for checked in (1 << 20, 0):
        store = open_store(root, disk, check_whole_log_bytes=checked, **FILES)
        assert served(store) == ([each for each in range(COUNT) if each not in lost], COUNT)
        store.shutdown()


def test_last_message_before_an_unreadable_page_is_found_by_its_place(filled):
    root, lost = filled
    store = open_store(root, **FILES)
    (last,) = messages_of(store.get_message("T", 0, lost[0] - 1, count_max=1))
    store.shutdown()
    disk = FaultyDisk()
    disk.unreadable.append(Refusal("commitlog", BAD))
    store = open_store(root, disk, **FILES)
    record = store.record_at(last.physical_offset)
    assert decode_record(record).queue_offset == last.queue_offset
    store.shutdown()


@pytest.fixture
def timed(tmp_path):
    """Return a store with messages one second apart, and their times; a page of its log becomes
    unreadable."""
    disk, clock = FaultyDisk(), ManualClock(0)
    store = open_store(tmp_path, disk, clock=clock, **FILES)
    times = range(10_000, 10_000 + 1_000 * COUNT, 1_000)
    for clock.now_ms in times:
        store.put_message(message("x" * 100))
    found = store.get_message("T", 0, 0, count_max=COUNT, bytes_max=1 << 20)
    yield store, disk, times, [each.physical_offset for each in messages_of(found)]
    store.shutdown()


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_time_search_fails_only_if_its_answer_lies_on_an_unreadable_page(timed, place):
    store, disk, times, places = timed
    page = {"first": 0, "middle": BAD, "last": places[-1] // 4096 * 4096}[place]
    disk.unreadable.append(Refusal("commitlog", page))
    lost = [
        at for at, at_byte in enumerate(places) if page - UP_TO_TOPIC_BYTES < at_byte < page + 4096
    ]
    before = times[lost[0] - 1] if lost[0] else 0
    behind = times[lost[-1] + 1] if lost[-1] + 1 < COUNT else times[-1] + 1

    def answer(timestamp, *, upper):
        try:
            return store.offset_by_time("T", 0, timestamp, upper=upper)
        except UnreadableFile:
            return None

    for timestamp in (-1, 0, 1, *range(9_000, times[-1] + 2_000, 500), 1 << 42):
        since = sum(each < timestamp for each in times)
        until = max(sum(each <= timestamp for each in times) - 1, 0)
        is_lost = before < timestamp <= min(behind, times[-1])
        assert answer(timestamp, upper=False) == (None if is_lost else since)
        is_lost = max(before, 1) <= timestamp < min(behind, times[-1])
        assert answer(timestamp, upper=True) == (None if is_lost else until)


def test_time_search_gives_up_over_many_unreadable_pages(timed):
    store, disk, times, places = timed
    disk.unreadable = [Refusal("commitlog", page) for page in range(0, places[-1], 4096)]
    with pytest.raises(UnreadableFile):
        store.offset_by_time("T", 0, times[50])
    assert store.offset_by_time("T", 0, times[-1] + 1) == COUNT
    assert disk.refused < 200


def test_earliest_timestamp_is_read_beside_unreadable_pages(timed):
    store, disk, times, _ = timed
    disk.unreadable.append(Refusal("commitlog", BAD))
    assert store.earliest_timestamp("T", 0) == times[0]
    disk.unreadable.append(Refusal("commitlog", 0))
    with pytest.raises(UnreadableFile):
        store.earliest_timestamp("T", 0)
