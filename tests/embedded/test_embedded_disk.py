"""A disk with the times of a broker, that may be full or lose its power."""

from __future__ import annotations

import errno
import os
import time

import pytest

from rocketpoll.broker.embedded.faults.clock import ClockOffset
from rocketpoll.broker.embedded.faults.embedded_disk import EmbeddedDisk
from rocketpoll.broker.store.errors import FlushFailed


def test_files_from_before_a_move_are_older_than_the_system_says(tmp_path):
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


def test_a_file_can_be_given_the_time_that_it_had(tmp_path):
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


def test_a_full_disk_takes_nothing_that_needs_room_and_gives_all_that_is_there(disk, tmp_path):
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


def test_without_power_nothing_is_done_and_what_was_not_flushed_is_gone(disk, tmp_path):
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


def test_what_is_not_flushed_is_known_whoever_opens_the_file_and_whatever_its_name(disk, tmp_path):
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
