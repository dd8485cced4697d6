"""Store times of messages by offset."""

from support.disks.faulty_disk import FaultyDisk, ManualClock, Refusal
from support.stores.small_store import message, open_store

from rocketpoll.broker.processor.queues import NO_TIME, earliest_timestamp, store_timestamp


def test_store_timestamp_of_a_message_is_found_by_offset(room):
    start = room.clock()
    room.put("first", start + 10)
    room.put("second", start + 20)
    assert [store_timestamp(room.store, "T", 0, offset) for offset in (0, 1)] == [
        start + 10,
        start + 20,
    ]


def test_store_timestamp_without_message_is_none(room):
    room.put("only")
    assert [store_timestamp(room.store, "T", 0, offset) for offset in (-1, 1, 2)] == [NO_TIME] * 3
    assert store_timestamp(room.store, "T", 1, 0) == NO_TIME
    assert store_timestamp(room.store, "nowhere", 0, 0) == NO_TIME


def test_unreadable_message_has_no_store_timestamp(tmp_path):
    disk, clock = FaultyDisk(), ManualClock()
    store = open_store(tmp_path, disk, clock=clock, mapped_file_size_commit_log=1 << 20)
    start = clock.now_ms
    store.put_message(message("x" * 5_000))
    clock.now_ms += 20
    store.put_message(message("readable"))
    disk.unreadable.append(Refusal("commitlog", 0))
    assert [store_timestamp(store, "T", 0, at) for at in (0, 1)] == [NO_TIME, start + 20]
    assert earliest_timestamp(store, "T", 0) == NO_TIME
    disk.unreadable.clear()
    assert earliest_timestamp(store, "T", 0) == start
    store.shutdown()
