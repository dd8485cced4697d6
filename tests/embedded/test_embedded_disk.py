"""The embedded broker's disk: simulated times, a full disk, and power loss."""

import errno
import os
import time

import pytest

from rocketpoll.broker.embedded.faults.clock import ClockOffset
from rocketpoll.broker.embedded.faults.embedded_disk import EmbeddedDisk
from rocketpoll.broker.store.errors import FlushFailed


def test_file_times_before_a_clock_advance_are_shifted(tmp_path):
    ahead = ClockOffset()
    disk = EmbeddedDisk(ahead)
    old, new = tmp_path / "old", tmp_path / "new"
    disk.write_whole(old, b"")
    os.utime(old, (time.time() - 5, time.time() - 5))
    ahead.advance(3_600)
    disk.write_whole(new, b"")
    os.utime(new, (time.time() + 5, time.time() + 5))
    assert disk.modified_at(new) - disk.modified_at(old) > 3_600
    assert abs(disk.modified_at(new) * 1_000 - ahead.now_ms()) < 60_000


def test_file_time_can_be_set_back(tmp_path):
    ahead = ClockOffset()
    disk = EmbeddedDisk(ahead)
    disk.write_whole(tmp_path / "file", b"")
    ahead.advance(3_600)
    before = disk.modified_at(tmp_path / "file")
    disk.write_whole(tmp_path / "file", b"again")
    disk.set_modified_at(tmp_path / "file", before)
    assert abs(disk.modified_at(tmp_path / "file") - before) < 0.01


@pytest.fixture
def disk():
    return EmbeddedDisk(ClockOffset())


def test_full_embedded_disk_refuses_growth_and_allows_reads(disk, tmp_path):
    file = disk.create(tmp_path / "log", 100)
    file.write(b"one", 0)
    disk.is_full = True
    assert disk.usage(tmp_path).ratio == 1
    for needs_room in (
        lambda: file.write(b"two", 3),
        lambda: disk.create(tmp_path / "new", 100),
        lambda: disk.write_whole(tmp_path / "new", b""),
    ):
        with pytest.raises(OSError, match="No space left") as told:
            needs_room()
        assert told.value.errno == errno.ENOSPC
    file.flush()
    assert bytes(file.read(0, 4)) == b"one\0"
    disk.rename(tmp_path / "log", tmp_path / "old")
    disk.delete(tmp_path / "old")
    disk.is_full = False
    disk.create(tmp_path / "new", 100).write(b"two", 0)


def test_powerless_embedded_disk_does_nothing_and_drops_unflushed_data(disk, tmp_path):
    log, table = tmp_path / "log", tmp_path / "table"
    file = disk.create(log, 10_000)
    file.write(b"flushed", 0)
    file.flush()
    file.write(b"FL", 0)
    file.write(b"behind", 7)
    disk.write_whole(table, b"saved")
    disk.has_power = False
    for operation in (
        lambda: file.write(b"x", 0),
        file.flush,
        lambda: disk.open(log),
        lambda: disk.create(tmp_path / "new", 1),
        lambda: disk.write_whole(table, b"lost"),
        lambda: disk.rename(table, log),
        lambda: disk.delete(table),
        lambda: disk.make_directory(tmp_path / "new"),
        lambda: disk.flush_directory(tmp_path),
    ):
        with pytest.raises(OSError, match="lost its power"):
            operation()
    with pytest.raises(FlushFailed):
        file.flush()
    file.close()
    disk.discard_unflushed()
    disk.has_power = True
    assert log.read_bytes() == b"flushed".ljust(10_000, b"\0")
    assert table.read_bytes() == b"saved"


def test_unflushed_data_is_tracked_by_file_not_by_name(disk, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    disk.create(old, 100).write(b"one", 0)
    disk.rename(old, new)
    disk.open(new).write(b"two", 3)
    disk.discard_unflushed()
    assert new.read_bytes() == bytes(100)
    disk.open(new).write(b"three", 0)
    disk.delete(new)
    disk.discard_unflushed()
    assert not new.exists()
