"""Locks of files between processes."""

import errno
import fcntl
import os

import pytest

from rocketpoll.broker.store.files.file_lock import FileLock


def test_second_file_lock_in_one_process_is_refused_and_keeps_the_lock(tmp_path):
    held = FileLock(tmp_path / "lock")
    with pytest.raises(OSError, match=os.strerror(errno.EDEADLK)) as refused:
        FileLock(tmp_path / "lock")
    assert refused.value.filename == str(tmp_path / "lock")
    child = os.fork()
    if child == 0:  # a child does not inherit its parent's lock
        try:
            with (tmp_path / "lock").open("r+b") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except BlockingIOError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    held.release()


def test_forked_child_is_refused_to_write_to_the_store(tmp_path):
    held = FileLock(tmp_path / "lock")
    held.check_directory()
    child = os.fork()
    if child == 0:
        try:
            held.check_directory()
        except OSError as error:
            os._exit(0 if error.errno == errno.ESTALE else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    held.check_directory()
    held.release()


def test_two_lock_files_in_one_directory_are_independent(tmp_path):
    held = [FileLock(tmp_path / name) for name in "ab"]
    for lock in held:
        lock.release()


def test_lock_file_that_cannot_be_opened_is_not_reported_as_locked(tmp_path):
    (tmp_path / "lock").mkdir()
    with pytest.raises(IsADirectoryError, match="lock"):
        FileLock(tmp_path / "lock")


def test_directory_lock_covers_subdirectories_under_any_name(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for root in (one, two):
        root.mkdir()
    (one / "log").mkdir()
    (two / "log").symlink_to(one / "log")
    held = FileLock(one / "lock", [one / "log", one / "missing"])
    with pytest.raises(OSError, match=os.strerror(errno.EDEADLK)) as refused:
        FileLock(two / "lock", [two / "log"])
    assert refused.value.filename == str(two / "log")
    FileLock(two / "lock").release()  # the failed attempt has left no lock
    held.release()
    FileLock(two / "lock", [two / "log"]).release()
    FileLock(one / "lock", [one / "log"]).release()
