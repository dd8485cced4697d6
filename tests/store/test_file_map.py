"""Memory maps of files show the content in memory."""

import gc
import os
from contextlib import suppress
from pathlib import Path

import pytest

from rocketpoll.broker.store.files.local_file import FileMap

SIZE = 1 << 20


@pytest.fixture
def path(disk_path):
    (disk_path / "file").write_bytes(os.urandom(SIZE))
    return disk_path / "file"


def mapped(path):
    descriptor = os.open(path, os.O_RDWR)
    found = FileMap(descriptor, SIZE)
    os.close(descriptor)
    return found


def maps_of(path):
    return sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())


def open_files():
    files = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread has closed the file
            files.add(entry.readlink())
    return files


def forget(path):
    """Drop a file from the page cache, except pages in use."""
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, SIZE, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def test_file_map_gives_a_resident_view_of_parts_in_memory(path):
    found = mapped(path)
    for position, size in ((0, SIZE), (1, SIZE - 1), (4095, 2), (SIZE - 1, 1), (4096, 4096)):
        assert (
            bytes(found.resident_view(position, size))
            == path.read_bytes()[position : position + size]
        )


def test_file_map_gives_no_resident_view_of_parts_on_disk(path):
    found = mapped(path)
    forget(path)
    if found.resident_view(SIZE // 2, 1) is not None:
        pytest.skip("this file system keeps all files in memory")
    assert found.resident_view(0, SIZE) is None
    descriptor = os.open(path, os.O_RDWR)
    os.posix_fadvise(descriptor, 0, SIZE, os.POSIX_FADV_RANDOM)
    os.pread(descriptor, 1, SIZE // 2)
    os.close(descriptor)
    assert found.resident_view(SIZE // 2, 4096) is not None
    assert found.resident_view(0, SIZE) is None
    last = max(at for at in range(0, SIZE, 4096) if found.resident_view(at, 1) is not None)
    assert found.resident_view(last, 4097) is None


def test_file_map_uses_no_descriptor_and_is_unmapped_with_its_last_slice(path):
    found = mapped(path)
    assert path not in open_files()
    part = found.resident_view(5, 10)
    del found
    gc.collect()
    assert maps_of(path) == 1
    assert bytes(part) == path.read_bytes()[5:15]
    del part
    assert maps_of(path) == 0


def test_file_map_of_a_directory_is_an_error(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="No such device"):
        FileMap(descriptor, SIZE)
    os.close(descriptor)
