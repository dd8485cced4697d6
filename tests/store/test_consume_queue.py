"""Consume queues: entries, gaps and searches."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.disks.faulty_disk import FaultyDisk
from support.stores.small_store import QUEUE_FILE_ENTRIES

from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.file_pool import FileGroup, FilePool
from rocketpoll.broker.store.queues.consume_queue import (
    BLANK_SIZE,
    ENTRY_BYTES,
    ENTRY_STRUCT,
    ConsumeQueue,
)

FILE_BYTES = QUEUE_FILE_ENTRIES * ENTRY_BYTES


def queue_in(directory):
    queue = ConsumeQueue(FileGroup(FilePool(LocalDisk())), directory, FILE_BYTES)
    queue.load()
    return queue


@pytest.fixture
def queue(tmp_path):
    return queue_in(tmp_path / "T" / "0")


def entries(first, count, size=100):
    numbers = range(first, first + count)
    return b"".join(ENTRY_STRUCT.pack(number * 1000, size, number % 3) for number in numbers)


def physical_offsets(queue, start, count):
    return queue.entries(start, count)["physical_offset"].tolist()


def test_consume_queue_entry_has_rocketmqs_20_byte_format(queue, tmp_path):
    queue.append(0, ENTRY_STRUCT.pack(0x0102030405060708, 0x11121314, -1))
    data = (tmp_path / "T" / "0" / ("0" * 20)).read_bytes()
    assert data[:20].hex() == "0102030405060708" + "11121314" + "ffffffffffffffff"
    assert data[20:] == bytes(FILE_BYTES - 20)


def test_entries_run_over_files_and_a_read_ends_with_its_file(queue):
    queue.append(0, entries(0, 20))
    assert (queue.min_offset, queue.max_offset) == (0, 20)
    assert physical_offsets(queue, 5, 100) == [5000, 6000, 7000]
    assert physical_offsets(queue, 8, 100) == [number * 1000 for number in range(8, 16)]
    assert physical_offsets(queue, 19, 5) == [19000]
    assert len(queue.entries(20, 5)) == 0
    assert queue.next_file_offset(5) == 8


def test_consume_queue_append_never_flushes(tmp_path):
    disk = FaultyDisk(LocalDisk())
    queue = ConsumeQueue(FileGroup(FilePool(disk)), tmp_path / "T" / "0", FILE_BYTES)
    queue.append(0, entries(0, 5 * QUEUE_FILE_ENTRIES))
    assert sum(operation.kind == "create" for operation in disk.operations) == 5
    assert not [operation for operation in disk.operations if "flush" in operation.kind]


def test_existing_queue_entries_are_not_rewritten(queue):
    queue.append(0, entries(0, 5))
    queue.append(3, entries(100, 4))
    assert physical_offsets(queue, 0, 10) == [0, 1000, 2000, 3000, 4000, 102000, 103000]
    queue.append(2, entries(500, 3))
    assert queue.max_offset == 7


def test_consume_queue_refuses_a_gap_unless_it_is_skipped(queue):
    queue.append(0, entries(0, 5))
    with pytest.raises(ValueError, match="entries from 7 on leave a gap after 5"):
        queue.append(7, entries(7, 2))
    queue.skip_to(7, 4_096)
    queue.append(7, entries(7, 2))
    assert queue.entries(5, 3)["physical_offset"].tolist() == [4_096, 4_096, 7_000]


def test_consume_queue_may_start_anywhere_after_blanks(queue, tmp_path):
    queue.skip_to(11)
    queue.append(11, entries(11, 2))
    assert (queue.min_offset, queue.max_offset) == (11, 13)
    assert [path.name for path in (tmp_path / "T" / "0").iterdir()] == [f"{FILE_BYTES:020d}"]
    assert queue.entries(8, 3)["size"].tolist() == [BLANK_SIZE] * 3
    again = queue_in(tmp_path / "T" / "0")
    assert (again.min_offset, again.max_offset) == (11, 13)


def test_offsets_that_the_log_has_lost_are_blank_and_keep_their_numbers(queue):
    queue.append(0, entries(0, 3))
    queue.skip_to(5)
    queue.append(5, entries(5, 2))
    assert queue.max_offset == 7
    assert queue.entries(0, 7)["size"].tolist() == [100, 100, 100, BLANK_SIZE, BLANK_SIZE, 100, 100]


@given(st.integers(0, 30), st.integers(0, 3))
@settings(max_examples=30)
def test_reopened_consume_queue_ends_at_its_last_entry(tmp_path_factory, count, start):
    directory = tmp_path_factory.mktemp("queue") / "0"
    queue = queue_in(directory)
    if count:
        queue.skip_to(start)
        queue.append(start, entries(start, count))
    queue._files.flush()
    queue.close()
    again = queue_in(directory)
    expected = (start, start + count) if count else (0, 0)
    assert (again.min_offset, again.max_offset) == expected


@pytest.mark.parametrize("kept", range(21))
def test_adopted_consume_queue_truncates_later_entries(queue, tmp_path, kept):
    queue.append(0, entries(0, 20))
    again = ConsumeQueue(FileGroup(FilePool(LocalDisk())), tmp_path / "T" / "0", FILE_BYTES)
    assert again.adopt(LocalDisk().list_directories([tmp_path / "T" / "0"])[0]) == []
    assert again.restore(min(2, kept), kept)
    assert (again.min_offset, again.max_offset) == (min(2, kept), kept)
    again.wipe_after_end()
    again.append(kept, entries(100, 1))
    assert physical_offsets(again, kept, 5) == [100_000]
    found = queue_in(tmp_path / "T" / "0")
    assert found.max_offset == kept + 1


@pytest.mark.parametrize(
    ("span", "can"),
    [
        ((8, 20), True),
        ((20, 20), True),
        ((24, 24), True),
        ((7, 20), False),
        ((8, 25), False),
        ((0, 0), False),
    ],
)
def test_consume_queue_span_without_its_files_cannot_be_restored(queue, tmp_path, span, can):
    queue.append(0, entries(0, 20))
    (tmp_path / "T" / "0" / ("0" * 20)).unlink()
    again = ConsumeQueue(FileGroup(FilePool(LocalDisk())), tmp_path / "T" / "0", FILE_BYTES)
    again.adopt(LocalDisk().list_directories([tmp_path / "T" / "0"])[0])
    assert again.restore(*span) is can


def test_last_entry_of_a_consume_queue_skips_blank_entries(queue):
    assert queue.last_entry() is None
    queue.append(0, entries(0, 20))
    assert queue.last_entry() == (19, 19_000, 100)
    queue.skip_to(40)
    assert queue.last_entry() == (19, 19_000, 100)
    queue.expire_before(20_000)
    assert queue.last_entry() is None


@pytest.mark.parametrize("start", [0, 3, 100])
def test_cleared_consume_queue_starts_at_any_offset(queue, tmp_path, start):
    queue.append(0, entries(0, 20))
    queue.clear()
    assert (queue.min_offset, queue.max_offset) == (0, 0)
    queue.skip_to(start)
    queue.append(start, entries(50, 2))
    for each in (queue, queue_in(tmp_path / "T" / "0")):
        assert (each.min_offset, each.max_offset) == (start, start + 2)
        assert physical_offsets(each, start, 9) == [50_000, 51_000]


def test_entries_before_the_start_of_the_log_are_not_offered(queue, tmp_path):
    queue.append(0, entries(0, 20))
    queue.expire_before(9500)
    assert (queue.min_offset, queue.max_offset) == (10, 20)
    assert len(list((tmp_path / "T" / "0").iterdir())) == 3
    assert queue.has_files_before(queue.min_offset)
    queue.delete_before(queue.min_offset)
    assert not queue.has_files_before(queue.min_offset)
    assert len(list((tmp_path / "T" / "0").iterdir())) == 2
    queue.expire_before(10**9)
    assert (queue.min_offset, queue.max_offset) == (20, 20)


@given(
    st.lists(st.integers(0, 20), min_size=0, max_size=30).map(sorted),
    st.integers(-1, 21),
    st.sets(st.integers(0, 29)),
)
@settings(max_examples=60)
def test_consume_queue_search_equals_a_linear_scan(tmp_path_factory, keys, wanted, lost):
    queue = queue_in(tmp_path_factory.mktemp("queue") / "0")
    present = [
        number for number in range(len(keys)) if number not in lost or number in (0, len(keys) - 1)
    ]
    for number in present:
        queue.skip_to(number)
        queue.append(number, ENTRY_STRUCT.pack(number * 1000, 100, keys[number]))
    key_of = lambda entry: int(entry["tags_code"])  # noqa: E731  # shorter than a function
    not_below = [number for number in present if keys[number] >= wanted]
    beyond = [number for number in present if keys[number] > wanted]
    found = queue.search(wanted, key_of)
    assert _next_present(found, present) == (not_below[0] if not_below else None)
    found = queue.search(wanted, key_of, side="right")
    assert _next_present(found, present) == (beyond[0] if beyond else None)


def _next_present(offset, present):
    return next((number for number in present if number >= offset), None)
