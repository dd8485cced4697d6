"""Detection of a file replaced at its path.

Brokers on disks that cannot tell are tested in `tests/test_broker_odd_disks.py`.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest

from rocketpoll.broker.store.files.local_file import is_same_file


@pytest.fixture
def opened(tmp_path):
    path = tmp_path / "file"
    path.touch()
    descriptor = os.open(path, os.O_RDONLY)
    yield path, descriptor
    os.close(descriptor)


def test_same_file_is_recognised_through_any_path(opened, tmp_path):
    path, descriptor = opened
    assert is_same_file(path, descriptor)
    (tmp_path / "link").symlink_to(path)
    assert is_same_file(tmp_path / "link", descriptor)


def test_is_same_file_is_false_after_replacement(opened):
    path, descriptor = opened
    path.rename(path.with_name("aside"))
    with pytest.raises(FileNotFoundError):
        is_same_file(path, descriptor)
    path.touch()
    assert not is_same_file(path, descriptor)


def test_unstable_inode_numbers_are_ignored_and_logged_once(opened, caplog):
    path, descriptor = opened
    numbers = count(1)

    class Numbered(type(path)):
        def stat(self, **_):
            return os.stat_result((0o100600, next(numbers), 4_711, 1, 0, 0, 0, 0, 0, 0))

    for _ in range(2):
        assert is_same_file(Numbered(path), descriptor)
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == [
        f"the file system of {path} reports a different number for a file each time"
    ]
    assert isinstance(path, Path)
