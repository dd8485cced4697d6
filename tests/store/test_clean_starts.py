"""A start after a clean stop reads nothing of a large log, with or without message keys."""

import pytest
from support.disks.faulty_disk import FaultyDisk
from support.stores.small_store import crash, message, open_store, read_all

COUNT = 600
SIZES = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 200 * 20}


class WatchedDisk(FaultyDisk):
    """Records start and end of each read of the log."""

    def __init__(self):
        super().__init__()
        self.read_parts = []
        self.read_of_queues = 0

    def check_read(self, path, position, size):
        if "consumequeue" in path.parts:
            self.read_of_queues += size
        if path.parent.name == "commitlog":
            start = int(path.name) + position
            self.read_parts.append((start, start + size))


def filled(root, **named):
    """Return the log size of a stopped store."""
    store = open_store(root, **SIZES)
    for number in range(COUNT):
        end = store.put_message(message(f"{number} ".ljust(500, "x"), **named))
    store.shutdown()
    return end.end_offset


def started(root, log_end, **limits):
    """Start a store; return it, and how many bytes before a log position it has read. Past the end
    of a log each start checks that the rest of the file is zeros."""
    disk = WatchedDisk()
    store = open_store(root, disk, **SIZES, **limits)
    assert store.finish_opening()
    return store, sum(max(min(end, log_end) - start, 0) for start, end in disk.read_parts)


@pytest.mark.parametrize("named", [{}, {"keys": "k"}], ids=["without keys", "with keys"])
def test_clean_start_does_not_read_a_large_log(tmp_path, named):
    size = filled(tmp_path, **named)
    store, read = started(tmp_path, size, check_whole_log_bytes=size - 1)
    assert read == 0
    assert len(read_all(store, "T", 0)) == COUNT
    store.shutdown()


def test_clean_start_reads_no_queue_files(tmp_path):
    """Otherwise a start would read from the disk for each queue: tens of seconds for thousands."""
    store = open_store(tmp_path, **SIZES)
    for number in range(96):
        end = store.put_message(message("a" * 200, f"T{number // 8}", number % 8))
    store.shutdown()
    disk = WatchedDisk()
    store = open_store(tmp_path, disk, **SIZES, check_whole_log_bytes=end.end_offset - 1)
    assert store.finish_opening()
    assert disk.read_of_queues == 0
    assert [len(read_all(store, "T11", number)) for number in range(8)] == [1] * 8
    store.shutdown()


def test_start_reads_a_small_log_and_all_since_the_checkpoint(tmp_path):
    size = filled(tmp_path)
    store, read = started(tmp_path, size, check_whole_log_bytes=size)
    assert read >= size
    store.shutdown()
    store, _ = started(tmp_path, size, check_whole_log_bytes=0)
    for number in range(COUNT):
        store.put_message(message(number))
    end = store.state().written_offset
    crash(store)
    store, read = started(tmp_path, size, check_whole_log_bytes=0)
    assert read == 0
    assert len(read_all(store, "T", 0)) == 2 * COUNT
    store.shutdown()
    assert started(tmp_path, end, check_whole_log_bytes=end)[1] >= end


@pytest.mark.parametrize("missing", [0, -1], ids=["the first file", "the last file"])
def test_start_without_a_log_file_counts_the_bytes_that_it_has_not_found(tmp_path, missing):
    filled(tmp_path)
    store = open_store(tmp_path, **SIZES)
    known = store.state()
    assert known.lost_bytes == 0
    store.shutdown()
    sorted((tmp_path / "commitlog").iterdir())[missing].unlink()
    store = open_store(tmp_path, **SIZES)
    found = store.state()
    begin, end = found.min_offset - known.min_offset, known.written_offset - found.written_offset
    assert found.lost_bytes == begin + end > 0
    store.shutdown()
