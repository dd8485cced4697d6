"""Reads: statuses, limits, filters, and wrong or damaged entries."""

import dataclasses
import errno
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.disks.faulty_disk import FaultIn, FaultyDisk, ManualClock
from support.stores.small_store import (
    QUEUE_FILE_ENTRIES,
    bodies,
    components_of,
    encoded,
    message,
    messages_of,
    open_store,
    put_batch,
    read_all,
    served_and_refused,
    wants,
    write_entry,
)
from support.suite.selection import spread

from rmq_spark.wire.bodies.clients import SubscriptionData
from rocketpoll.broker.filter.subscription import message_filter
from rocketpoll.broker.store.errors import UnreadableFile
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.queues.consume_queue import ENTRY_BYTES, ENTRY_STRUCT
from rocketpoll.broker.store.queues.queue_table import RecoveredEnds
from rocketpoll.broker.store.read.message_reader import (
    MessageReader,
    are_in_range,
    first_unreadable,
)
from rocketpoll.broker.store.results import GetMessageStatus as Status


@pytest.fixture
def clock():
    return ManualClock(1000)


@pytest.fixture
def store(tmp_path, clock):
    store = open_store(tmp_path, clock=clock)
    yield store
    store.shutdown()


def fill(store, count, **more):
    for number in range(count):
        store.put_message(message(f"body {number}", **more))


def outcome(result):
    return result.status, result.next_begin_offset, result.min_offset, result.max_offset


def test_get_message_of_an_unknown_queue_finds_no_message_in_queue(store):
    assert outcome(store.get_message("T", 0, 5)) == (Status.NO_MESSAGE_IN_QUEUE, 0, 0, 0)


def test_get_message_from_an_empty_queue(store):
    components_of(store).queues.get_or_create("T", 0)
    assert outcome(store.get_message("T", 0, 5)) == (Status.NO_MESSAGE_IN_QUEUE, 0, 0, 0)


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (0, Status.FOUND, 3),
        (2, Status.FOUND, 3),
        (3, Status.OFFSET_OVERFLOW_ONE, 3),
        (4, Status.OFFSET_OVERFLOW_BADLY, 3),
        (1 << 40, Status.OFFSET_OVERFLOW_BADLY, 3),
        (-1, Status.OFFSET_TOO_SMALL, 0),
    ],
)
def test_get_message_status_for_offsets_inside_and_beyond_the_queue(
    store, offset, status, next_offset
):
    """R24: an offset past the end leads to the end, never to the start."""
    fill(store, 3)
    assert outcome(store.get_message("T", 0, offset)) == (status, next_offset, 0, 3)


def test_expired_offset_is_moved_to_the_first_kept_one(store, clock):
    fill(store, 60)
    expire(store, clock)
    low, high = store.queue_offsets("T", 0)
    assert 0 < low < high == 61
    assert outcome(store.get_message("T", 0, 0)) == (Status.OFFSET_TOO_SMALL, low, low, 61)
    assert messages_of(store.get_message("T", 0, low))[0].body == f"body {low}".encode()


def expire(store, clock):
    """Expire all files but the last, by the clock and a new message."""
    clock.now_ms = 4_000_000_000_000
    store.put_message(message("newest"))
    store.cleaner.config = dataclasses.replace(
        store.cleaner.config, file_reserved_time_hours=0, delete_when_hours=tuple(range(24))
    )
    assert store.clean() > 0


def test_get_message_from_a_missing_queue_file_skips_to_the_next_file(store):
    fill(store, 20)
    queue = components_of(store).queues.get("T", 0)
    queue._files.delete_before(QUEUE_FILE_ENTRIES * ENTRY_BYTES)
    result = store.get_message("T", 0, 3)
    assert outcome(result) == (Status.OFFSET_FOUND_NULL, QUEUE_FILE_ENTRIES, 0, 20)


def test_message_missing_in_the_log_is_skipped(store):
    fill(store, 120)
    first_kept = components_of(store).log.files.files[2].from_offset
    components_of(store).log.files.delete_before(first_kept)  # the queues are not updated yet
    result = store.get_message("T", 0, 0)
    assert result.status is Status.MESSAGE_WAS_REMOVING
    assert result.min_offset == result.next_begin_offset > store.queue_offsets("T", 0).first
    offset, seen = result.next_begin_offset, []
    while offset < 120:
        result = store.get_message("T", 0, offset)
        offset = result.next_begin_offset
        seen += messages_of(result)
    assert seen[0].physical_offset == first_kept
    assert seen[-1].body == b"body 119"


@pytest.mark.parametrize("wanted", [None, "tag"])
def test_gap_in_a_queue_is_skipped_without_hiding_messages(store, wanted):
    """A rolled-back commit, or damage, leaves offsets without a message."""
    fill(store, 3)
    queue = components_of(store).queues.get("T", 0)
    queue.skip_to(queue.max_offset + 4)
    message_filter = wanted and wants(wanted)
    for offset in range(3, 7):
        result = store.get_message("T", 0, offset, message_filter=message_filter)
        assert outcome(result) == (Status.NO_MATCHED_MESSAGE, 7, 0, 7)


def test_messages_round_trip_through_the_store(store):
    sent = [
        message(f"{n}", queue_id=n % 3, tags=f"t{n % 2}", keys=f"k{n}", colour="red")
        for n in range(20)
    ]
    for each in sent:
        store.put_message(each)
    for queue_id in range(3):
        found = read_all(store, "T", queue_id)
        assert [each.body for each in found] == [
            each.body for each in sent if each.queue_id == queue_id
        ]
        assert [each.queue_offset for each in found] == list(range(len(found)))
        assert all(each.properties["colour"] == "red" for each in found)


@pytest.mark.parametrize(
    ("count_max", "bytes_max", "found"), [(3, 10**6, 3), (9, 250, 2), (9, 1, 1), (1, 1, 1)]
)
def test_get_message_obeys_its_limits_but_returns_at_least_one_message(
    store, count_max, bytes_max, found
):
    fill(store, 8)
    size = int(store.get_message("T", 0, 0, count_max=1).sizes[0])
    assert 2 * size <= 250 < 3 * size
    result = store.get_message("T", 0, 0, count_max=count_max, bytes_max=bytes_max)
    assert (result.message_count, result.next_begin_offset) == (found, found)
    assert result.record_bytes == found * size == sum(result.sizes)


@pytest.mark.parametrize("visible", [0, 2])
def test_get_message_past_the_visible_end_keeps_the_requested_offset(tmp_path, visible):
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk, mapped_file_size_consume_queue=2 * ENTRY_BYTES)
    put_batch(store, *(message(number) for number in range(2)))
    disk.plan = [FaultIn(directory="consumequeue", persistent=True, error=errno.ENOSPC)]
    queue_id = 0 if visible else 1
    put_batch(store, *(message(number, queue_id=queue_id) for number in range(3)))
    end = visible + 3
    assert "disk is full" in store.state().degradation
    for offset in range(visible + 1, end):
        found = store.get_message("T", queue_id, offset)
        assert (found.status, found.next_begin_offset, found.max_offset) == (
            Status.OFFSET_OVERFLOW_ONE,
            offset,
            visible,
        )
    for offset in (end, end + 1):
        assert store.get_message("T", queue_id, offset).next_begin_offset == visible
    disk.plan = ()
    store.reput()
    assert len(bodies(store, queue_id=queue_id)) == end
    store.shutdown()


def test_get_message_with_filter_advances_past_unmatched_messages(store):
    """R26: a consumer never gets the same offset again."""
    fill(store, QUEUE_FILE_ENTRIES + 2, tags="A")
    wanted = wants("B")
    result = store.get_message("T", 0, 0, message_filter=wanted)
    assert outcome(result)[:2] == (Status.NO_MATCHED_MESSAGE, QUEUE_FILE_ENTRIES)
    result = store.get_message("T", 0, result.next_begin_offset, message_filter=wanted)
    assert result.next_begin_offset == QUEUE_FILE_ENTRIES + 2
    assert store.get_message("T", 0, 0, scan_max=3, message_filter=wanted).next_begin_offset == 3


@given(
    st.lists(st.sampled_from(["AaAa", "BBBB", "C", None]), max_size=40),
    st.sets(st.sampled_from(["AaAa", "BBBB", "C"]), min_size=1),
    st.integers(1, 5),
    st.booleans(),
)
@settings(max_examples=40)
def test_tag_filtered_get_returns_the_same_messages_as_a_linear_filter(
    tmp_path_factory, tags, wanted, count_max, by_text
):
    store = open_store(tmp_path_factory.mktemp("store"))
    for number, tag in enumerate(tags):
        store.put_message(message(number, tags=tag))
    found, offset = [], 0
    while offset < len(tags):
        result = store.get_message(
            "T", 0, offset, count_max=count_max, message_filter=wants(*wanted, by_text=by_text)
        )
        assert result.next_begin_offset > offset
        assert result.message_count <= count_max
        found += [int(each.body) for each in messages_of(result)]
        offset = result.next_begin_offset
    # Two of the tags have the same code: without a comparison of the text both match.
    seen = wanted if by_text or not wanted & {"AaAa", "BBBB"} else wanted | {"AaAa", "BBBB"}
    assert found == [number for number, tag in enumerate(tags) if tag in seen]
    store.shutdown()


def test_scattered_messages_are_gathered_into_one_piece(tmp_path):
    store = open_store(
        tmp_path, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=1 << 20
    )
    for number in range(1500):
        store.put_message(message(number, queue_id=number % 2))
    result = store.get_message("T", 1, 0, count_max=1000, bytes_max=1 << 20, scan_max=1000)
    assert len(result.buffers) == 1
    assert [int(each.body) for each in messages_of(result)] == list(range(1, 1500, 2))
    few = store.get_message("T", 1, 0, count_max=5)
    assert len(few.buffers) == 1
    assert [int(each.body) for each in messages_of(few)] == [1, 3, 5, 7, 9]
    store.shutdown()


def test_get_message_reads_interleaved_batches_in_order(tmp_path):
    store = open_store(
        tmp_path, mapped_file_size_commit_log=1 << 20, mapped_file_size_consume_queue=1 << 20
    )
    for number in range(8):
        batch = [message(100 * number + n, queue_id=number % 2) for n in range(100)]
        put_batch(store, *batch)
    expected = [100 * number + n for number in range(0, 8, 2) for n in range(100)]
    for first, buffers in ((90, 2), (20, 1), (99, 2), (100, 1), (368, 1)):
        result = store.get_message("T", 0, first, count_max=32)
        assert len(result.buffers) == buffers
        assert [int(each.body) for each in messages_of(result)] == expected[first : first + 32]
        assert [each.queue_offset for each in messages_of(result)] == list(range(first, first + 32))
    store.shutdown()


def test_record_at_finds_a_record_by_its_exact_position(store):
    fill(store, 3)
    place = store.get_message("T", 0, 1, count_max=1)
    record = messages_of(place)[0]
    assert bytes(store.record_at(record.physical_offset)) == bytes(place.buffers[0])
    for wrong in (-1, record.physical_offset + 1, 10**9):
        assert store.record_at(wrong) is None


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 0, 0, 7, 60_000, 70_000]), st.integers(36, 90)),
        min_size=1,
        max_size=30,
    )
)
def test_get_of_few_and_many_messages_equals_and_reads_nothing_distant(gaps_and_sizes):
    data = bytearray(bytes(range(251)) * 9_000)
    file_size = 1_000_000
    reads = []

    def read(place, size):
        reads.append(size)
        return data[place : min(place + size, place - place % file_size + file_size)]

    log = SimpleNamespace(
        files=SimpleNamespace(file_size=file_size, read=read),
        min_offset=0,
        written_offset=len(data),
    )
    places, sizes, at = [], [], 0
    for gap, size in gaps_and_sizes:
        at += gap
        if at % file_size + size > file_size:
            at += file_size - at % file_size
        struct.pack_into(">i16xqq", data, at, size, 7 + len(places), at)
        places.append(at)
        sizes.append(size)
        at += size
    found_ends = RecoveredEnds(lambda: 0)
    reput = SimpleNamespace(holes=())
    parts = SimpleNamespace(
        log=log, queues=None, dispatcher=None, recovered_ends=found_ends, reput=reput
    )
    reader = MessageReader(parts, lambda: None, lambda _: 0)
    offsets = range(7, 7 + len(places))
    expected = b"".join(
        data[place : place + size] for place, size in zip(places, sizes, strict=True)
    )
    assert b"".join(reader._read_records(0, offsets, places, sizes)) == expected
    assert b"".join(reader._read_records(0, offsets, np.array(places), np.array(sizes))) == expected
    assert sum(reads) <= 2 * sum(sizes) + 2 * 65_536 * len(sizes)


FLIPPED = [*range(96)]
"""The bits of position and size of an entry."""


@pytest.mark.parametrize(
    "wanted",
    [
        None,
        wants("a"),
        message_filter(SubscriptionData(topic="T", sub_string="n = 1", expression_type="SQL92")),
    ],
    ids=["all", "by tag", "by property"],
)
@pytest.mark.parametrize(("count", "between"), [(1, 0), (5, 0), (5, 1), (90, 0), (90, 1)])
def test_queue_entry_with_a_flipped_bit_leads_to_no_other_message(tmp_path, count, between, wanted):
    """The messages may be adjacent in the log, or not."""
    store = open_store(tmp_path, mapped_file_size_consume_queue=200 * ENTRY_BYTES)
    for number in range(count):
        store.put_message(message(f"body {number:03}", TAGS="a", n="1"))
        for _ in range(between):
            store.put_message(message("of another queue", queue_id=1))
    expected = [f"body {number:03}".encode() for number in range(count)]
    queue, row = components_of(store).queues.get("T", 0), count // 2
    entry = bytes(queue.read(row, 1))

    def get():
        return store.get_message(
            "T", 0, 0, count_max=count, bytes_max=1 << 20, message_filter=wanted
        )

    told = 0
    for bit in FLIPPED:
        flipped = bytearray(entry)
        flipped[bit // 8] ^= 1 << bit % 8
        write_entry(store, row, flipped)
        try:
            found = [each.body for each in messages_of(get())]
        except UnreadableFile as error:
            told += 1
            assert str(tmp_path) in str(error) or "commit log" in str(error)
        else:
            assert found == expected[: len(found)], f"bit {bit}"
            # the entries before it are served; the next get reports it
            told += len(found) < len(expected)
    assert told > 10
    write_entry(store, row, entry)
    assert [each.body for each in messages_of(get())] == expected
    store.shutdown()


def noise(record):
    return b"\xa7" * len(record)


def other_magic(record):
    return record[:4] + b"\xa7" + record[5:]


def other_size(record):
    return record[:3] + bytes([record[3] ^ 4]) + record[4:]


def other_properties_length(record):
    """Change a field that no comparison with an entry detects."""
    at = record.index(b"\x01T\x00") + 3
    return record[:at] + bytes([record[at] ^ 4]) + record[at + 1 :]


@pytest.mark.parametrize("count_max", [1, 7, 60])
@pytest.mark.parametrize("damage", [noise, other_magic, other_size, other_properties_length])
@pytest.mark.parametrize("matching", ["n = 1", "n = 2"])
def test_record_damaged_in_an_open_store_stops_a_property_filter_at_its_offset(
    tmp_path, count_max, damage, matching
):
    """Messages before it count as served, whether they match or not."""
    store = open_store(
        tmp_path,
        mapped_file_size_consume_queue=200 * ENTRY_BYTES,
        mapped_file_size_commit_log=1 << 16,
    )
    for number in range(60):
        end = store.put_message(message(f"body {number:03}", n="1"))
    assert len(read_all(store, "T", 0)) == 60
    size = end.end_offset // 60
    log = tmp_path / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    for number in (10, 40):
        record = slice(number * size, (number + 1) * size)
        data[record] = damage(bytes(data[record]))
    with log.open("r+b") as file:
        file.write(data)
    wanted = message_filter(
        SubscriptionData(topic="T", sub_string=matching, expression_type="SQL92")
    )
    served, refused = served_and_refused(store, "T", 0, count_max=count_max, message_filter=wanted)
    assert refused == [10, 40]
    assert served == (
        [each for each in range(60) if each not in refused] if matching == "n = 1" else []
    )
    store.shutdown()


def test_offsets_only_read_skips_records_of_verified_entries(tmp_path):
    store = open_store(tmp_path)
    fill(store, 5)
    queue, asked, read = components_of(store).queues.get("T", 0), [], []
    reader = store._reader
    read_log, reader._read_log = reader._read_log, lambda *of: read.append(of) or read_log(*of)

    def get(answer):
        return store.get_message(
            "T",
            0,
            1,
            wants_offsets_only=lambda places, sizes: asked.append((places, sizes)) or answer,
        )

    plain = store.get_message("T", 0, 1)
    read.clear()
    found = get(answer=True)
    assert (found.buffers, read) == ((), [])
    assert asked == [(plain.physical_offsets, plain.sizes)]
    assert (found.physical_offsets, found.sizes, found.record_bytes) == (
        plain.physical_offsets,
        plain.sizes,
        plain.record_bytes,
    )
    assert outcome(found) == outcome(plain)
    assert get(answer=False) == plain
    queue.unverified_before = 2
    assert get(answer=True) == plain
    assert len(asked) == 2
    store.shutdown()


def test_corrupt_entry_with_huge_size_is_not_returned_as_a_position(tmp_path):
    """A reader would allocate memory for the whole size."""
    store = open_store(tmp_path)
    fill(store, 2)
    queue = components_of(store).queues.get("T", 0)
    place, _, code = ENTRY_STRUCT.unpack(bytes(queue.read(1, 1)))
    write_entry(store, 1, ENTRY_STRUCT.pack(place, 1 << 30, code))
    told = []

    def do_places(places, sizes):
        told.extend(sizes)
        return True

    with pytest.raises(UnreadableFile):
        store.get_message("T", 0, 1, wants_offsets_only=do_places)
    assert not told
    store.shutdown()


BAD = 50
WRONG_ENTRIES = {
    "the one before": lambda before, _, __: before,
    "the next one": lambda _, __, behind: behind,
    "zeros": lambda *_: (0, 0, 0),
    "a larger size": lambda _, entry, __: (entry[0], entry[1] + 1, entry[2]),
    "a little further": lambda _, entry, __: (entry[0] + 1, entry[1], entry[2]),
    "no size": lambda _, entry, __: (entry[0], 0, entry[2]),
    "behind the log": lambda _, entry, __: (1 << 40, *entry[1:]),
    "near the end of numbers": lambda _, entry, __: ((1 << 63) - 50, *entry[1:]),
    "before all": lambda _, entry, __: (-(1 << 63), *entry[1:]),
}


@pytest.mark.parametrize("count_max", spread(2, [1, 2, 7, 64, 90]))
@pytest.mark.parametrize("damage", WRONG_ENTRIES.values(), ids=WRONG_ENTRIES)
@pytest.mark.parametrize("wanted", spread(2, [None, "n = 1", "a"]))
def test_wrong_queue_entry_is_refused_alone_for_every_way_of_pulling(
    tmp_path, count_max, damage, wanted
):
    store = open_store(tmp_path, mapped_file_size_consume_queue=400 * ENTRY_BYTES)
    for number in range(200):
        store.put_message(message(f"body {number:03}", tags="ab"[number % 2], n="1"))
    file = tmp_path / "consumequeue" / "T" / "0" / f"{0:020}"
    data = bytearray(file.read_bytes())
    entries = [ENTRY_STRUCT.unpack_from(data, at * ENTRY_BYTES) for at in (BAD - 1, BAD, BAD + 1)]
    ENTRY_STRUCT.pack_into(data, BAD * ENTRY_BYTES, *damage(*entries))
    with file.open("r+b") as opened:
        opened.write(data)
    message_filters = {None: None, "n = 1": by_property("n = 1")}
    wanted_filter = message_filters[wanted] if wanted in message_filters else wants(wanted)
    served, refused = served_and_refused(
        store, "T", 0, count_max=count_max, message_filter=wanted_filter
    )
    of_tag = {"a": [0], "b": [1], "c": []}.get(wanted, [0, 1])
    if (
        refused or wanted is not None
    ):  # otherwise it was between consecutive records, and was not needed
        assert refused == [BAD]
    assert served == [
        number for number in range(200) if number % 2 in of_tag and number not in refused
    ]
    store.shutdown()


def by_property(expression):
    return message_filter(
        SubscriptionData(topic="T", sub_string=expression, expression_type="SQL92")
    )


# ---- record checks: positions and sizes within bounds, and finding an unreadable record


@pytest.mark.parametrize("kind", [list, np.array])
def test_are_in_range_includes_the_lower_and_excludes_the_upper_bound(kind):
    assert are_in_range(kind([3, 9]), 3, 10)
    assert not are_in_range(kind([2, 9]), 3, 10)
    assert not are_in_range(kind([3, 10]), 3, 10)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_first_unreadable_record_is_found(number):
    records = [bytearray(encoded(message(f"{each}"))) for each in range(4)]
    records[number][4:8] = b"none"
    sizes = np.array([len(each) for each in records])
    assert first_unreadable(b"".join(records), sizes) == number
