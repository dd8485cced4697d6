"""With few open files, written data can be read, and flushed data is on the disk."""

import errno
import os
import random
import sys
import threading

import pytest
from support.disks.faulty_disk import Fault, FaultyDisk

from rocketpoll.broker.store.errors import StoreFailed, UnreadableFile
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.file_pool import FileGroup, FilePool, PooledFile

SIZE = 64


class WatchedDisk(LocalDisk):
    """Records the operations of each file handle, and the number of open handles."""

    def __init__(self):
        self.told = []
        self.handles = 0
        self.fails = {}

    def create(self, path, size):
        return WatchedFile(self, super().create(path, size), path.name)

    def open(self, path):
        if "open" in self.fails:
            raise OSError(self.fails["open"], os.strerror(self.fails["open"]), str(path))
        return WatchedFile(self, super().open(path), path.name)

    def flush_directory(self, path):
        self.told.append(("names", path.name))
        super().flush_directory(path)


class WatchedFile:
    def __init__(self, disk, file, name):
        self._disk, self._file, self._name = disk, file, name
        self._disk.handles += 1
        self._number = sum(what == "opened" and of == name for what, of, *_ in disk.told)
        disk.told.append(("opened", name, self._number))

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __del__(self):
        self._disk.handles -= 1
        self._disk.told.append(("closed", self._name, self._number))

    def write(self, data, position):
        self._disk.told.append(("write", self._name, self._number))
        self._file.write(data, position)

    def flush(self):
        self._disk.told.append(("flush", self._name, self._number))
        if "flush" in self._disk.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO), self._name)
        self._file.flush()


@pytest.fixture
def disk():
    return WatchedDisk()


def made(group, tmp_path, *names):
    return [group.create(tmp_path / name, SIZE) for name in names]


def reopened(group, tmp_path, *names):
    """Return files that exist on the disk."""
    for name in names:
        (tmp_path / name).write_bytes(name.encode().ljust(SIZE, b"\0"))
    return [PooledFile(group, tmp_path, name) for name in names]


def test_pooled_file_is_opened_on_first_use_and_stays_open(disk, tmp_path):
    group = FileGroup(FilePool(disk))
    (file,) = reopened(group, tmp_path, "a")
    assert disk.told == []
    for _ in range(3):
        assert bytes(file.read(0, 2)) == b"a\0"
    assert disk.told == [("opened", "a", 0)]


def test_file_pool_keeps_a_frequently_used_file_open(disk, tmp_path):
    pool = FilePool(disk, 3)
    often, *others = reopened(FileGroup(pool), tmp_path, "often", *map(str, range(30)))
    for other in others:
        often.read(0, 1)
        often.read(0, 1)
        other.read(0, 1)
        assert disk.handles == pool.open_count <= 3
    assert [call for call in disk.told if call[1] == "often"] == [("opened", "often", 0)]


def test_pooled_file_with_unflushed_writes_stays_open(disk, tmp_path):
    """Another descriptor might not report that earlier data could not be written."""
    pool = FilePool(disk, 3)
    group = FileGroup(pool)
    dirty, *others = reopened(group, tmp_path, "dirty", *"abcdef")
    dirty.write(b"x", 0)
    for other in others:
        other.read(0, 1)
    dirty.write(b"y", 1)
    group.flush()
    assert [call for call in disk.told if call[1] == "dirty"] == [
        ("opened", "dirty", 0),
        ("write", "dirty", 0),
        ("write", "dirty", 0),
        ("flush", "dirty", 0),
    ]
    for other in others:
        other.read(0, 1)
    assert ("closed", "dirty", 0) in disk.told
    assert bytes(dirty.read(0, 2)) == b"xy"


def test_full_file_pool_flushes_before_it_closes_a_file(disk, tmp_path):
    group = FileGroup(FilePool(disk, 3))
    for number, name in enumerate("abcdef"):
        group.create(tmp_path / name, SIZE).write(b"x", 0)
        assert disk.handles == min(number + 1, 3)
    for name in "abc":
        of_it = [call for call in disk.told if call[1] == name]
        assert of_it == [(what, name, 0) for what in ("opened", "write", "flush", "closed")]
    group.flush()
    assert [call[1] for call in disk.told if call[0] == "flush"] == list("abcdef")


def test_failed_early_flush_is_raised_by_the_next_write_or_flush(disk, tmp_path):
    pool = FilePool(disk, 2)
    group, other = FileGroup(pool), FileGroup(pool)
    a, b = made(group, tmp_path, *"ab")
    a.write(b"x", 0)
    b.write(b"x", 0)
    disk.fails["flush"] = True
    (c,) = reopened(other, tmp_path, "c")
    assert bytes(c.read(0, 1)) == b"c"  # it belongs to no reader, nor to the other group
    disk.fails.clear()
    c.write(b"d", 0)
    other.flush()
    for ask in (lambda: b.write(b"y", 0), lambda: made(group, tmp_path, "e"), group.flush):
        with pytest.raises(StoreFailed, match=r"flushing .*/a failed"):
            ask()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_file_pool_shrinks_if_descriptors_run_out(disk, tmp_path, error):
    pool = FilePool(disk, 100)
    files = reopened(FileGroup(pool), tmp_path, *"abcdef")
    for file in files[:5]:
        file.read(0, 1)
    opened = disk.open

    def open_with_three(path):
        if disk.handles >= 3:
            raise OSError(error, os.strerror(error), str(path))
        return opened(path)

    disk.open = open_with_three
    assert bytes(files[5].read(0, 1)) == b"f"
    assert disk.handles == 3
    disk.open = lambda path: open_with_three(path) if disk.handles < 0 else _raise(error, path)
    with pytest.raises(UnreadableFile, match=os.strerror(error)):
        files[0].read(0, 1)
    disk.open = opened
    assert bytes(files[0].read(0, 1)) == b"a"


def _raise(error, path):
    raise OSError(error, os.strerror(error), str(path))


def test_read_error_of_a_pooled_file_names_the_file_and_place(tmp_path):
    (file,) = reopened(FileGroup(FilePool(LocalDisk())), tmp_path, "a")
    os.truncate(tmp_path / "a", 10)
    with pytest.raises(
        UnreadableFile, match=rf"20 bytes at 5 of {tmp_path}/a cannot be read: .*ends at 10"
    ):
        file.read(5, 20)
    gone = PooledFile(FileGroup(FilePool(LocalDisk())), tmp_path, "gone")
    for ask in (lambda: gone.read(0, 1), lambda: gone.next_data(0)):
        with pytest.raises(UnreadableFile, match="No such file"):
            ask()


def test_concurrent_second_flush_returns_no_earlier_than_the_first(tmp_path):
    entered, gate = threading.Event(), threading.Event()

    class Gated(LocalDisk):
        def create(self, path, size):
            file = super().create(path, size)
            flush = file.flush
            file.flush = lambda: (entered.set(), gate.wait(10), flush())
            return file

    group = FileGroup(FilePool(Gated()))
    (file,) = made(group, tmp_path, "a")
    file.write(b"x", 0)
    done = []
    flushes = [threading.Thread(target=lambda: (group.flush(), done.append(1))) for _ in range(2)]
    flushes[0].start()
    assert entered.wait(10)
    flushes[1].start()
    flushes[1].join(0.05)
    assert done == []
    gate.set()
    for each in flushes:
        each.join(10)
    assert done == [1, 1]


def test_names_that_change_while_they_are_flushed_are_flushed_again(tmp_path):
    flushed = []

    class Disk(LocalDisk):
        def flush_directory(self, path):
            flushed.append(path)
            if len(flushed) == 1:
                group.mark_names_changed(path)

    group = FileGroup(FilePool(Disk()))
    group.mark_names_changed(tmp_path)
    for _ in range(3):
        group.flush()
    assert flushed == [tmp_path, tmp_path]


class GatedNames(LocalDisk):
    """Blocks the first flush of names until released."""

    def __init__(self):
        self.entered, self.gate = threading.Event(), threading.Event()
        self.flushes = 0

    def flush_directory(self, path):  # noqa: ARG002  # signature of the protocol
        self.flushes += 1
        if self.flushes == 1:
            self.entered.set()
            assert self.gate.wait(10)


def first_flush_of_names(directory):
    """Start a first flush of names in a thread; return the group and its disk."""
    disk = GatedNames()
    group = FileGroup(FilePool(disk))
    group.mark_names_changed(directory)
    flush = threading.Thread(target=group.flush)
    flush.start()
    assert disk.entered.wait(10)
    return group, flush, disk


def test_names_are_not_taken_for_flushed_while_another_thread_still_flushes_them(tmp_path):
    """Otherwise a write to a file could be acknowledged whose name a power loss removes."""
    group, first, disk = first_flush_of_names(tmp_path)
    group.flush_names(tmp_path)
    assert disk.flushes == 2  # it flushed the names itself instead of relying on the other thread
    disk.gate.set()
    first.join(10)


def test_late_directory_flush_does_not_cover_later_changes(
    tmp_path,
):
    group, first, disk = first_flush_of_names(tmp_path)
    group.flush_names(tmp_path)
    group.mark_names_changed(tmp_path)  # the same count as when the first flush began
    disk.gate.set()
    first.join(10)
    group.flush()
    assert disk.flushes == 3


def test_threads_that_share_few_descriptors_read_and_write_each_their_own_files(tmp_path):
    """A descriptor that is closed while another thread uses it could become another file."""
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    disk = FaultyDisk(LocalDisk())
    pool = FilePool(disk, 2)
    wrong, threads = [], []

    def work(number):
        dice = random.Random(number)
        group = FileGroup(pool)
        files = made(group, tmp_path, *(f"{number}-{at}" for at in range(4)))
        written = [bytearray(SIZE) for _ in files]
        for step in range(300):
            at, position = dice.randrange(4), dice.randrange(SIZE)
            if dice.random() < 0.5:
                data = bytes([number, step % 256])[: SIZE - position]
                files[at].write(data, position)
                written[at][position : position + len(data)] = data
            elif bytes(files[at].read(0, SIZE)) != written[at]:
                wrong.append((number, step))
            if dice.random() < 0.05:
                group.flush()

    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
        for thread in threads:
            thread.start()
    finally:
        for thread in threads:
            thread.join(60)
        sys.setswitchinterval(switch_interval)
    assert wrong == []
    assert pool.open_count <= 2


def test_flush_of_the_file_pool_fails_after_any_failed_disk_flush(tmp_path):
    """After a successful flush the data is on the disk; after a failed one, no flush succeeds."""
    for number in range(40):
        root = tmp_path / str(number)
        root.mkdir()
        disk = FaultyDisk(LocalDisk(), [Fault(number, kinds=frozenset({"flush"}))])
        group = FileGroup(FilePool(disk, 2))
        for name in "abcd":
            (root / name).write_bytes(bytes(SIZE))
        files = [PooledFile(group, root, name) for name in "abcd"]
        failed = [not _is_flushed(group, files, round_number) for round_number in range(5)]
        assert failed == sorted(failed)
        flushes = [each.number for each in disk.operations if each.kind == "flush"]
        assert any(failed) == (number in flushes)


def _is_flushed(group, files, position):
    try:
        for file in files:
            file.write(b"x", position)
        group.flush()
    except (OSError, StoreFailed):
        return False
    return True
