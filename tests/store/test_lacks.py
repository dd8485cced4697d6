"""The store waits for disk space, descriptors or memory to become available again, and reports
shortages."""

import errno
import itertools
import os

import pytest
from support.disks.faulty_disk import ERRNOS, FaultyDisk
from support.stores.small_store import bodies, crash, message, open_store
from support.suite.log_records import lines_of

from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.errors import (
    Degradation,
    Degradations,
    FlushFailed,
    StoreFailed,
    UnreadableFile,
    is_transient,
)
from rocketpoll.broker.store.files.disk import LocalDisk

SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
SMALL = {"max_hash_slot_num": 16, "max_index_num": 8}


def put(store, text, topic="T", queue_id=0, patience_seconds=20):
    """Put a message; return its error, or None if it was accepted."""
    result = store.put_message(message(text, topic, queue_id, keys="k"))
    result = store.wait_until_stored(result, patience_seconds)
    return result.status.name, result.remark


@pytest.mark.parametrize("error", ERRNOS, ids=errno.errorcode.get)
def test_transient_disk_error_refuses_messages_until_recovery(tmp_path, error):
    """A shortage begins at any operation of sends, checkpoints and reads over many small files."""
    for spared in itertools.count(0, 5):
        root = tmp_path / str(spared)
        root.mkdir()
        disk = FaultyDisk()
        store = open_store(root, disk, open_files_max=3, **SYNC, **SMALL)
        sent = [f"{number} " + "x" * 900 for number in range(6)]
        for number, text in enumerate(sent):
            assert put(store, text, queue_id=number % 2)[0] == "PUT_OK"
        disk.lack(error, spared)
        maybe = []
        for number in range(12):
            text = f"maybe {number} " + "x" * 700
            status, remark = put(store, text, "T" if number % 2 else "New", patience_seconds=0.05)
            maybe.append((text, status))
            if status == "SERVICE_NOT_AVAILABLE":
                assert os.strerror(error) in remark
                assert str(root) in remark
            if number % 4 == 3:
                store.save_checkpoint()
            assert store.state().failure is None
        has_lacked = disk.is_lacking
        disk.lack(None)
        store.flush_future(store.state().written_offset).result(10)
        after = "after " + "x" * 900
        assert put(store, after)[0] == "PUT_OK"
        assert store.save_checkpoint()
        state = store.state()
        assert (state.failure, state.degradation) == (None, None)
        found = bodies(store) + bodies(store, "T", 1) + bodies(store, "New")
        taken = {text for text, status in maybe if status != "SERVICE_NOT_AVAILABLE"}
        assert set(found) == {*sent, *taken, after}
        assert len(found) == len(set(found))
        assert len(store.query_message("T", "k", 64, 0, 1 << 62)) > 6
        store.shutdown()
        again = open_store(root, **SYNC, **SMALL)
        assert not again.state().recovered_from_crash
        assert bodies(again) + bodies(again, "T", 1) + bodies(again, "New") == found
        again.shutdown()
        if not has_lacked:
            break
    assert spared > 9


def test_messages_wait_while_the_directory_of_a_new_file_cannot_be_flushed(tmp_path):
    """Flushing a directory opens it; a lack of descriptors for that loses nothing."""
    disk = FaultyDisk()
    store = open_store(tmp_path, disk, **SYNC)
    disk.lack(errno.ENFILE, spared=1)
    waiting = store.put_message(message("first"))
    stored = store.flush_future(waiting.end_offset)
    assert store.wait_until_stored(waiting, 0.3).status.name == "FLUSH_DISK_TIMEOUT"
    status, remark = put(store, "refused")
    assert status == "SERVICE_NOT_AVAILABLE"
    assert remark.startswith(
        "the commit log is not flushed: too many files and connections are open"
    )
    assert "Too many open files in system" in store.state().degradation
    disk.lack(None)
    stored.result(10)
    assert put(store, "second")[0] == "PUT_OK"
    assert bodies(store) == ["first", "second"]
    store.shutdown()


@pytest.mark.parametrize("error", ERRNOS, ids=errno.errorcode.get)
def test_failed_flush_is_never_transient(tmp_path, monkeypatch, error):
    store = open_store(tmp_path, **SYNC)
    assert put(store, "safe")[0] == "PUT_OK"

    def fail(_):
        raise OSError(error, os.strerror(error))

    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, fail)
    assert put(store, "lost")[0] == "SERVICE_NOT_AVAILABLE"
    monkeypatch.undo()
    assert os.strerror(error) in store.state().failure
    assert put(store, "after")[0] == "SERVICE_NOT_AVAILABLE"
    assert bodies(store) == ["safe"]
    crash(store)


@pytest.mark.parametrize("flush", ["flush_directory", "write_whole"])
def test_flushes_of_names_and_of_small_files_say_that_they_have_failed(
    tmp_path, monkeypatch, flush
):
    def fail(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    path = tmp_path / "small" if flush == "write_whole" else tmp_path
    with pytest.raises(FlushFailed, match=f"No space left on device: '{path}'") as raised:
        getattr(LocalDisk(), flush)(path, *([b"x"] if flush == "write_whole" else []))
    assert not is_transient(raised.value)


def test_store_stopped_on_a_full_disk_is_recovered_without_loss(tmp_path):
    disk = FaultyDisk()
    store = open_store(tmp_path, disk, **SYNC)
    assert put(store, "a")[0] == "PUT_OK"
    disk.lack(errno.ENOSPC)
    store.shutdown()
    again = open_store(tmp_path, **SYNC)
    assert again.state().recovered_from_crash
    assert bodies(again) == ["a"]
    again.shutdown()


# ---- starts


def filled(root, *, killed):
    """Return a store with messages, one of them delayed, and how it ended."""
    store = open_store(root, **SYNC, **SMALL)
    for number in range(6):
        assert put(store, f"{number} " + "x" * 900, queue_id=number % 2)[0] == "PUT_OK"
    store.save_checkpoint()
    assert put(store, "last")[0] == "PUT_OK"
    found = bodies(store), bodies(store, "T", 1)
    crash(store) if killed else store.shutdown()
    return found


@pytest.mark.parametrize("killed", [False, True])
def test_log_files_may_be_deleted_while_a_start_waits_for_space(tmp_path, killed):
    filled(tmp_path, killed=killed)
    disk = FaultyDisk()
    disk.lack(errno.ENOSPC)
    store = open_store(tmp_path, disk, disk_space_clean_forcibly_ratio=0.0, **SYNC, **SMALL)
    assert store.clean() > 0
    disk.lack(None)
    store.reput()
    assert store.finish_opening()
    assert [text[0] for text in bodies(store)] == ["4", "l"]
    store.shutdown()


@pytest.mark.parametrize("killed", [False, True])
def test_killed_start_on_a_full_disk_changes_no_message(tmp_path, killed):
    expected = filled(tmp_path, killed=killed)
    for spared in range(12):
        disk = FaultyDisk()
        disk.lack(errno.ENOSPC, spared)
        store = open_store(tmp_path, disk, **SYNC, **SMALL)
        crash(store)
    again = open_store(tmp_path, **SYNC, **SMALL)
    assert (bodies(again), bodies(again, "T", 1)) == expected
    again.shutdown()


# ---- log lines


def test_degradation_is_logged_at_start_and_end(caplog):
    hindrance = Degradation("nothing is done")
    hindrance.end()
    for _ in range(2):
        for path in ("a", "b"):
            hindrance.begin(OSError(errno.ENOSPC, "No space", path))
            assert (
                hindrance.text
                == f"nothing is done: the disk is full: [Errno {errno.ENOSPC}] No space: '{path}'"
            )
        hindrance.begin(UnreadableFile("a page is bad"))
        hindrance.end()
        hindrance.end()
        assert hindrance.text is None
    assert [line.partition(":")[0] for line in lines_of(caplog, "rocketpoll.broker.store")] == [
        "nothing is done, retrying",
        "resolved",
    ] * 2


def test_degradations_of_one_kind_are_logged_separately(caplog):
    hindrances = Degradations[int]()
    hindrances.end(1)
    for _ in range(2):
        hindrances.begin(1, "one waits", UnreadableFile("a page is bad"))
        hindrances.begin(2, "two waits", UnreadableFile("a page is bad"))
    for _ in range(2):
        hindrances.end(1)
    assert [line.partition(":")[0] for line in lines_of(caplog, "rocketpoll.broker.store")] == [
        "one waits, retrying",
        "two waits, retrying",
        "resolved",
    ]


@pytest.mark.parametrize("error", [ValueError("x"), StoreFailed("x"), OSError(errno.EIO, "x")])
def test_permanent_errors_are_not_transient(error):
    assert not is_transient(error)
