"""`LocalDisk` and `LocalFile` turn a real file system's failures into errors, never
into signals."""

import errno
import os
from itertools import count
from pathlib import Path

import pytest

from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.local_file import COPIED_BYTES_MAX, LocalFile, is_same_file

MIB = 1 << 20


@pytest.fixture
def file(disk_path):
    file = LocalFile(disk_path / "log", MIB)
    file.write(os.urandom(MIB), 0)
    return file


@pytest.mark.parametrize("size", [0, 1, COPIED_BYTES_MAX, COPIED_BYTES_MAX + 1, MIB - 11])
def test_local_file_reads_small_and_large_ranges(file, disk_path, size):
    assert bytes(file.read(11, size)) == (disk_path / "log").read_bytes()[11:][:size]


def test_large_read_of_a_mapped_file_is_not_copied_and_outlives_the_file(file, disk_path):
    content = (disk_path / "log").read_bytes()
    slice_of_a_map = file.read(0, MIB)
    assert isinstance(slice_of_a_map, memoryview)
    file.close()
    (disk_path / "log").unlink()
    assert bytes(slice_of_a_map) == content


def test_local_file_reads_pages_not_in_cache(file, disk_path):
    content = (disk_path / "log").read_bytes()
    file.flush()
    with (disk_path / "log").open("rb") as other:
        os.posix_fadvise(other.fileno(), 0, MIB, os.POSIX_FADV_DONTNEED)
    assert bytes(file.read(0, MIB)) == content


@pytest.mark.parametrize("end", [0, 100, MIB - 5000, MIB - 1])
@pytest.mark.parametrize("size", [5000, MIB])
def test_read_of_a_truncated_file_raises_an_error_and_no_signal(file, disk_path, end, size):
    file.read(0, MIB)  # creates the map
    os.truncate(disk_path / "log", end)
    with pytest.raises(OSError, match=f"the file ends at .*{disk_path / 'log'}") as refused:
        file.read(MIB - size, size)
    assert refused.value.errno == errno.EIO


def test_next_data_skips_holes_and_raises_errors(tmp_path):
    file = LocalFile(tmp_path / "log", MIB)
    assert file.next_data(0) is None
    file.write(b"x", MIB // 2)
    assert file.next_data(0) == MIB // 2
    assert file.next_data(MIB // 2 + 8192) is None
    file.close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        file.next_data(0)


def what_is_said(ask):
    try:
        ask()
    except OSError as error:
        return str(error)
    return ""


def test_disk_errors_name_their_file(tmp_path):
    disk = LocalDisk()
    path = tmp_path / "log"
    file = disk.create(path, 8)
    broken = disk.open(path)
    os.close(broken._descriptor)  # without its knowledge
    asked = [
        lambda: file.read(0, 9),
        lambda: broken.read(0, 1),
        lambda: broken.write(b"x", 0),
        broken.flush,
        lambda: broken.next_data(0),
        broken.check_in_place,
        lambda: disk.create(path, 8),
        lambda: disk.create(tmp_path / "missing" / "log", 8),
        lambda: disk.open(tmp_path / "missing" / "log"),
        lambda: disk.read(tmp_path / "missing" / "log"),
        lambda: disk.write_whole(tmp_path / "missing" / "log", b""),
        lambda: disk.rename(tmp_path / "missing" / "log", path),
        lambda: disk.delete(tmp_path / "missing" / "log" / "a"),
        lambda: disk.make_directory(path),
        lambda: disk.flush_directory(path),
        lambda: disk.names(path),
        lambda: disk.modified_at(tmp_path / "missing" / "log"),
        lambda: disk.usage(tmp_path / "missing" / "log"),
        lambda: disk.lock(tmp_path / "missing" / "log"),
    ]
    said = [what_is_said(ask) for ask in asked]
    broken._descriptor = -1
    # Deleting a missing file and listing a missing directory are no errors.
    assert said.count("") == 2
    assert all(str(tmp_path) in each for each in said if each)


def test_file_is_in_place_while_its_path_leads_to_it(tmp_path):
    path, aside = tmp_path / "log", tmp_path / "aside"
    file = LocalFile(path, 8)
    file.check_in_place()
    path.rename(aside)
    with pytest.raises(FileNotFoundError, match=str(path)):
        file.check_in_place()
    LocalFile(path, 8)
    with pytest.raises(OSError, match=f"replaced while it was open: '{path}'"):
        file.check_in_place()
    aside.rename(path)
    file.check_in_place()


def test_changes_in_a_replaced_locked_directory_are_refused(tmp_path):
    root, aside, disk = tmp_path / "store", tmp_path / "aside", LocalDisk()
    root.mkdir()
    lock = disk.lock(root / "lock")
    changes = [
        lambda: disk.create(root / "log", 8),
        lambda: disk.open(root / "lock"),
        lambda: disk.write_whole(root / "table", b"1"),
        lambda: disk.rename(root / "lock", root / "other"),
        lambda: disk.delete(root / "lock"),
        lambda: disk.make_directory(root / "queue" / "0"),
        lambda: disk.flush_directory(root),
    ]
    root.rename(aside)
    for put_there in (lambda: None, root.mkdir, (root / "lock").touch):
        put_there()
        for change in changes:
            with pytest.raises(OSError, match=f"moved away, deleted or replaced.*'{root}'"):
                change()
        assert disk.usage(root).total == disk.usage(tmp_path).total
    assert [path.name for path in root.iterdir()] == ["lock"]
    disk.write_whole(tmp_path / "elsewhere", b"1")
    lock.release()
    for change in changes:
        change()


def test_disk_usage_equals_statvfs(tmp_path):
    usage = LocalDisk().usage(tmp_path)
    stats = os.statvfs(tmp_path)
    assert usage.total == stats.f_blocks * stats.f_frsize
    assert 0 < usage.ratio < 1
    assert usage.used + usage.free <= usage.total


def test_next_data_error_names_the_file(tmp_path, monkeypatch):
    """A bad block before the data must not count as a hole up to the end."""
    file = LocalFile(tmp_path / "a", 8192)

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    assert file.next_data(0) is None
    monkeypatch.setattr(os, "lseek", fail)
    with pytest.raises(OSError, match=f"Input/output error: '{tmp_path}/a'"):
        file.next_data(0)


# ---- detection of a file replaced at its path


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
        f"the file system of {path} changes the inode numbers of files"
    ]
    assert isinstance(path, Path)
