"""Only one process owns a store directory; RocketMQ's crashes are distinguished from ours."""

import dataclasses
import errno
import fcntl
import os
import random
import subprocess
import sys
from contextlib import contextmanager

import pytest
from support.disks.faulty_disk import Fault, FaultyDisk, RecordingDisk, power_loss_states
from support.stores.small_store import bodies, crash, message, open_store, read_all

from rmq_spark.wire.message.record import encode_record
from rocketpoll.broker.store.errors import StoreInUse
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.startup.directory_lock import OUR_SIGN, AbortFile, lock_directory

HOLDER = """
import sys
from pathlib import Path
from rocketpoll.broker.store.startup.directory_lock import lock_directory
from rocketpoll.broker.store.files.disk import LocalDisk
lock = lock_directory(LocalDisk(), Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""

# Equals Java's FileChannel.tryLock(0, 1, false) on Linux.
AS_JAVA_LOCKS = """
import fcntl, sys
file = open(sys.argv[1] + "/lock", "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("locked", flush=True)
sys.stdin.read()
"""


def lock(root):
    return lock_directory(LocalDisk(), root)


@contextmanager
def locked(root):
    """Hold the lock in this process."""
    held = lock(root)
    try:
        yield
    finally:
        held.release()


@contextmanager
def another_process(script, root):
    """Run another process that holds the lock until its stdin ends."""
    command = [sys.executable, "-c", script, str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"locked\n"
            yield process
        finally:
            process.kill()


def test_store_lock_refuses_second_process_with_advice(tmp_path):
    with another_process(HOLDER, tmp_path), pytest.raises(StoreInUse) as caught:
        lock(tmp_path)
    text = str(caught.value)
    assert f"{tmp_path} is in use by another process" in text
    assert f"fuser -v {tmp_path / 'lock'}" in text


def test_store_lock_holds_after_its_file_was_deleted(tmp_path):
    with another_process(HOLDER, tmp_path):
        (tmp_path / "lock").unlink()
        with pytest.raises(StoreInUse, match=f"another process, which has locked {tmp_path}: stop"):
            lock(tmp_path)
    with locked(tmp_path):
        pass


def test_forked_child_does_not_keep_the_store_lock(tmp_path):
    held = lock(tmp_path)
    read_end, write_end = os.pipe()
    is_there, says_so = os.pipe()
    child = os.fork()
    if child == 0:  # it outlives its parent's lock
        os.close(write_end)
        os.write(says_so, b".")
        os.read(read_end, 1)
        os._exit(0)
    os.read(is_there, 1)  # wait until the child runs, with or without the lock
    held.release()
    with another_process(HOLDER, tmp_path):
        pass
    os.close(write_end)
    assert os.waitpid(child, 0)[1] == 0
    for descriptor in (read_end, is_there, says_so):
        os.close(descriptor)


def test_directory_lock_of_a_killed_process_is_free(tmp_path):
    with another_process(HOLDER, tmp_path) as process:
        process.kill()
        process.wait()
        lock(tmp_path).release()


def test_directory_lock_of_an_ended_process_is_free(tmp_path):
    with another_process(HOLDER, tmp_path) as process:
        process.stdin.close()
        assert process.wait() == 0
        lock(tmp_path).release()


def test_store_lock_excludes_rocketmq_in_java_and_vice_versa(tmp_path):
    (tmp_path / "lock").write_bytes(b"lock")
    with another_process(AS_JAVA_LOCKS, tmp_path), pytest.raises(StoreInUse):
        lock(tmp_path)
    with locked(tmp_path):
        refused = subprocess.run(
            [sys.executable, "-c", AS_JAVA_LOCKS, str(tmp_path)],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert "BlockingIOError" in refused.stderr
    assert (tmp_path / "lock").read_bytes() == b"lock"


def test_second_lock_in_one_process_is_refused(tmp_path):
    with locked(tmp_path):
        with pytest.raises(StoreInUse, match="by this process already"):
            lock(tmp_path)
        (tmp_path / "link").symlink_to(tmp_path)
        with pytest.raises(StoreInUse, match="by this process already"):
            lock(tmp_path / "link")
        refused = subprocess.run(
            [sys.executable, "-c", HOLDER, str(tmp_path)],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert "StoreInUse" in refused.stderr


def test_released_store_lock_can_be_taken_again(tmp_path):
    held = lock(tmp_path)
    held.release()
    with locked(tmp_path):
        held.release()
        with pytest.raises(StoreInUse):
            lock(tmp_path)
    lock(tmp_path).release()


def test_two_directories_have_two_locks(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with locked(tmp_path / "a"), locked(tmp_path / "b"):
        pass


def test_missing_or_unlockable_directory_is_not_store_in_use(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError):
        lock(tmp_path / "missing")

    def no_locks_left(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "lockf", no_locks_left)
        with pytest.raises(OSError, match=os.strerror(errno.ENOLCK)):
            lock(tmp_path)
    lock(tmp_path).release()


# ---- abort file


def test_abort_file_is_removed_by_a_clean_stop(tmp_path):
    abort = AbortFile(LocalDisk(), tmp_path)
    assert not abort.exists()
    abort.create()
    assert (tmp_path / "abort").read_bytes().startswith(OUR_SIGN)
    abort.remove()
    assert not abort.exists()
    abort.remove()


def test_rocketmq_4_is_recognized_by_the_content_of_the_lock_file(tmp_path):
    """RocketMQ 4 does not change our abort file."""
    with locked(tmp_path):
        AbortFile(LocalDisk(), tmp_path).create()
    (tmp_path / "lock").write_bytes(b"lock")
    with locked(tmp_path):
        abort = AbortFile(LocalDisk(), tmp_path)
        assert abort.is_foreign()
        abort.create()
        assert not abort.is_foreign()
        as_java = [sys.executable, "-c", AS_JAVA_LOCKS, str(tmp_path)]
        other = subprocess.run(as_java, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        assert b"BlockingIOError" in other.stderr


def test_messages_of_rocketmq_4_after_our_crash_are_kept(tmp_path):
    """RocketMQ's records have no checksum, and the checkpoint is still ours."""
    store = open_store(tmp_path)
    store.put_message(message("ours"))
    store.save_checkpoint()
    (last,) = read_all(store, "T", 0)
    end = store.state().written_offset
    crash(store)
    theirs = dataclasses.replace(
        message("theirs"),
        queue_offset=1,
        physical_offset=end,
        store_timestamp=last.store_timestamp,
    )
    with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as log:
        os.pwrite(log.fileno(), encode_record(theirs), end)
    (tmp_path / "lock").write_bytes(b"lock")
    for _ in range(2):
        store = open_store(tmp_path)
        assert bodies(store) == ["ours", "theirs"]
        crash(store)


def test_abort_file_differs_at_each_start(tmp_path):
    signs = set()
    for _ in range(3):
        abort = AbortFile(LocalDisk(), tmp_path)
        abort.create()
        assert not abort.is_foreign()
        signs.add((tmp_path / "abort").read_bytes())
        assert abort.sign in signs
    assert len(signs) == 3


def test_abort_file_of_an_earlier_build_is_not_foreign(tmp_path):
    (tmp_path / "abort").write_bytes(OUR_SIGN)
    assert not AbortFile(LocalDisk(), tmp_path).is_foreign()


@pytest.mark.parametrize("theirs", [b"", b"4711"])
def test_abort_file_distinguishes_our_crash_from_rocketmqs(tmp_path, theirs):
    (tmp_path / "abort").write_bytes(theirs)  # RocketMQ 5 writes its process id
    abort = AbortFile(LocalDisk(), tmp_path)
    assert abort.exists()
    assert abort.is_foreign()
    abort.create()
    assert abort.exists()
    assert not abort.is_foreign()


def test_power_loss_neither_removes_nor_restores_the_abort_file(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    disk = RecordingDisk(LocalDisk(), root)
    abort = AbortFile(disk, root)
    abort.create()
    created = len(disk.operations)
    abort.remove()
    for point, there in (
        (1, {False}),
        (created - 2, {False, True}),
        (created, {True}),
        (created + 1, {False, True}),
        (None, {False}),
    ):
        assert signs(disk.log(point), tmp_path) == there
    crashed = RecordingDisk(LocalDisk(), root)
    AbortFile(crashed, root).create()
    assert signs(crashed.log(), tmp_path) == {True}


def signs(log, into):
    return {
        "abort" in LocalDisk().names(state)
        for state in power_loss_states(log, random.Random(1), 20, into)
    }


def test_power_loss_never_makes_our_abort_file_foreign(tmp_path):
    """A start after a crash keeps the file; RocketMQ's is empty."""
    root = tmp_path / "root"
    root.mkdir()
    AbortFile(LocalDisk(), root).create()
    disk = RecordingDisk(LocalDisk(), root)
    AbortFile(disk, root).create()
    for point in range(len(disk.operations) + 1):
        for state in power_loss_states(disk.log(point), random.Random(1), 20, tmp_path):
            assert not AbortFile(LocalDisk(), state).is_foreign()


@pytest.mark.parametrize("number", range(3))
def test_abort_file_that_cannot_be_created_is_an_error(tmp_path, number):
    abort = AbortFile(FaultyDisk(LocalDisk(), [Fault(number)]), tmp_path)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        abort.create()
