"""Files of the log: creation, adoption, deletion and odd sizes."""

import errno
import re
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from support.disks.faulty_disk import Fault, FaultyDisk

from rocketpoll.broker.store.errors import ForeignFile, MissingFile, UnreadableFile
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.file_pool import FileGroup, FilePool
from rocketpoll.broker.store.files.mapped_file_queue import MappedFileQueue

SIZE = 100


@pytest.fixture
def files(tmp_path):
    return MappedFileQueue(FileGroup(FilePool(LocalDisk())), tmp_path / "files", SIZE)


def names(files):
    return [mapped.file.path.name for mapped in files.files]


def reopened(files):
    again = MappedFileQueue(FileGroup(FilePool(LocalDisk())), files.directory, SIZE)
    again.load()
    return again


def test_mapped_files_are_created_at_the_first_write(files, tmp_path):
    files.load()
    assert files.first_offset == files.end_offset == 0
    assert bytes(files.read(0, 9)) == b""
    assert not (tmp_path / "files").exists()


def test_files_are_named_by_their_first_offset_and_have_their_full_size(files):
    files.write(0, b"one")
    files.write(100, b"two")
    assert names(files) == ["00000000000000000000", "00000000000000000100"]
    assert {mapped.file.path.stat().st_size for mapped in files.files} == {SIZE}
    assert (files.first_offset, files.end_offset) == (0, 200)


def test_read_of_mapped_files_ends_at_the_end_of_a_file(files):
    files.write(0, b"onemore")
    files.write(100, b"x")
    assert bytes(files.read(1, 6)) == b"nemore"
    assert len(files.read(1, SIZE)) == len(files.read(1, 10 * SIZE)) == SIZE - 1


def test_first_mapped_file_may_start_anywhere_and_later_ones_must_follow(files):
    files.write(750, b"x")
    assert names(files) == ["00000000000000000700"]
    with pytest.raises(ValueError, match="cannot create a file at 900: the files end at 800"):
        files.write(900, b"x")


def test_written_data_is_found_after_reopening_mapped_files(files):
    files.write(50, b"x" * 50)
    files.write(100, b"y")
    files.flush()
    again = reopened(files)
    assert bytes(again.read(98, 9)) == b"xx"
    assert bytes(again.read(100, 2)) == b"y\0"


def test_old_mapped_files_are_deleted_but_never_the_last(files):
    for offset in (0, 100, 200):
        files.write(offset, b"abc")
    assert files.delete_before(150) == 1
    assert names(files) == ["00000000000000000100", "00000000000000000200"]
    assert files.first_offset == 100
    assert bytes(files.read(0, 9)) == b""
    assert files.delete_before(10_000) == 1
    assert names(files) == ["00000000000000000200"]


def test_next_data_finds_data_past_holes(tmp_path):
    files = MappedFileQueue(FileGroup(FilePool(LocalDisk())), tmp_path / "files", 1 << 20)
    files.write(0, b"x")
    files.write((1 << 20) + 500_000, b"y")
    found = files.next_data(600_000)
    assert found is not None
    assert (1 << 20) <= found <= (1 << 20) + 500_000
    assert files.next_data((1 << 20) + 900_000) is None


class DiskThatFlushesWhileItWrites(LocalDisk):
    """Flushes between the start and the end of a write, as another thread may."""

    def __init__(self):
        self.during_write = lambda: None
        self.flush_future = []

    def create(self, path, size):
        file = super().create(path, size)
        write, flush = file.write, file.flush

        def write_with_a_flush_before_it(data, position):
            self.during_write()
            write(data, position)

        def noted_flush():
            self.flush_future.append(bytes(file.read(0, 5)))
            flush()

        file.write, file.flush = write_with_a_flush_before_it, noted_flush
        return file


def test_flush_running_during_a_write_does_not_mark_it_as_flushed(tmp_path):
    """Otherwise the next flush would do nothing, and the write be acknowledged without one."""
    disk = DiskThatFlushesWhileItWrites()
    files = MappedFileQueue(FileGroup(FilePool(disk)), tmp_path / "files", SIZE)
    disk.during_write = files.flush
    files.write(0, b"hello")
    assert disk.flush_future == [bytes(5)]
    files.flush()
    assert disk.flush_future == [bytes(5), b"hello"]


@pytest.mark.parametrize("offset", [0, 100, 200])
def test_empty_log_file_left_by_a_power_loss_gets_its_size(files, offset):
    """R13: any of the files."""
    for each in (0, 100, 200):
        files.write(each, b"abc")
    (files.directory / f"{offset:020d}").write_bytes(b"")
    again = reopened(files)
    assert len(names(again)) == 3
    assert bytes(again.read(offset, SIZE)) == bytes(SIZE)
    assert names(reopened(files)) == names(again)


def test_advised_truncate_command_for_a_missing_file_works_for_any_path(tmp_path):
    files = MappedFileQueue(FileGroup(FilePool(LocalDisk())), tmp_path / "my $data's", SIZE)
    for each in (0, 100, 200):
        files.write(each, b"abc")
    (files.directory / f"{100:020d}").unlink()
    with pytest.raises(MissingFile) as refused:
        reopened(files)
    advice = re.search("truncate .*", str(refused.value))[0]
    subprocess.run(["/bin/sh", "-c", advice], check=True)
    assert len(names(reopened(files))) == 3


@pytest.mark.parametrize(
    ("sizes", "is_advised"),
    [((50,), True), ((100, 50), True), ((50, 60), True), ((50, 50), False)],
)
def test_wrong_file_size_error_advises_truncate_only_for_a_single_file(tmp_path, sizes, is_advised):
    for number, size in enumerate(sizes):
        (tmp_path / f"{100 * number:020d}").write_bytes(bytes(size))
    files = MappedFileQueue(FileGroup(FilePool(LocalDisk())), tmp_path, 100)
    with pytest.raises(ForeignFile, match="start with the size that it was written with") as told:
        files.load()
    assert ("truncate" in str(told.value)) == is_advised


def test_remains_of_a_failed_file_creation_do_not_block_the_next(files):
    """The file was created, but could neither be sized nor deleted."""
    disk = FaultyDisk(LocalDisk())
    files = MappedFileQueue(FileGroup(FilePool(disk)), files.directory, SIZE)
    files.write(0, b"abc")
    disk.plan = [
        Fault(persistent=True, kinds=frozenset({"create"}), prefix=1),
        Fault(persistent=True, kinds=frozenset({"delete"})),
    ]
    with pytest.raises(OSError, match="Input/output error"):
        files.write(100, b"def")
    assert (files.directory / f"{100:020d}").exists()
    disk.plan = []
    files.write(100, b"def")
    assert bytes(files.read(100, 3)) == b"def"
    assert len(names(reopened(files))) == 2


@pytest.mark.parametrize("number", range(4))
def test_start_ended_while_sizing_files_leaves_no_gap(files, number):
    for each in (0, 100, 200):
        files.write(each, b"abc")
    (files.directory / f"{100:020d}").write_bytes(b"")
    disk = FaultyDisk(LocalDisk(), [Fault(number), Fault(number + 1)])
    with suppress(OSError):
        MappedFileQueue(FileGroup(FilePool(disk)), files.directory, SIZE).load()
    assert len(names(reopened(files))) == 3


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("is_empty", [False, True])
def test_files_are_adopted_up_to_the_first_that_has_lost_its_bytes_or_is_missing(
    files, lost, is_empty
):
    for each in (0, 100, 200):
        files.write(each, b"abc")
    sizes = dict.fromkeys(names(files), SIZE)
    if is_empty:
        sizes[f"{100 * lost:020d}"] = 0
    else:
        del sizes[f"{100 * lost:020d}"]
    again = MappedFileQueue(FileGroup(FilePool(LocalDisk())), files.directory, SIZE)
    left = again.adopt(sizes)
    first = 1 if lost == 0 and not is_empty else 0  # its former existence cannot be detected
    assert names(again) == [f"{100 * number:020d}" for number in range(first, max(lost, 3 * first))]
    assert names(again) + left == list(sizes)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("notes.txt", SIZE, "is not a file of this store: its name should be 20 digits"),
        ("00000000000000000007", SIZE, "should be the offset of its first byte, a multiple of"),
        ("0000000000000000010x", SIZE, "is not a file of this store"),
        ("00000000000000000100", 99, "has 99 bytes, but the store is set to files of 100"),
        (
            "00000000000000000300",
            SIZE,
            "lacks the file 00000000000000000100 before 00000000000000000300",
        ),
        ("00000000000000000100", None, "is a directory: a file of 100 bytes should be there"),
    ],
)
def test_foreign_file_in_the_log_directory_is_named_and_kept(files, name, size, message):
    files.write(0, b"abc")
    path = files.directory / name
    if size is None:
        path.mkdir()
    else:
        path.write_bytes(b"z" * size)
    with pytest.raises(ForeignFile, match=message):
        reopened(files)
    assert path.is_dir() if size is None else path.read_bytes() == b"z" * size


def test_files_created_during_deletions_are_kept(tmp_path):
    """The broker's thread appends while another thread deletes: in the worst case between any two
    steps."""
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    files = MappedFileQueue(FileGroup(FilePool(LocalDisk())), tmp_path / "files", SIZE)
    files.write(0, b"x")
    done = threading.Event()

    def delete():
        while not done.is_set():
            files.delete_before(SIZE)

    deleter = threading.Thread(target=delete)
    deleter.start()
    try:
        for number in range(1, 400):
            files.write(number * SIZE, b"x")
            assert files.end_offset == (number + 1) * SIZE
    finally:
        done.set()
        deleter.join()
        sys.setswitchinterval(switch_interval)
    assert bytes(files.read(399 * SIZE, 1)) == b"x"


@pytest.mark.parametrize("prefix", [0, 1], ids=["nothing was done", "it was done all the same"])
@pytest.mark.parametrize("number", range(8))
def test_failed_file_deletion_leaves_no_gap_and_is_repeated(tmp_path, number, prefix):
    disk = FaultyDisk(LocalDisk())
    files = MappedFileQueue(FileGroup(FilePool(disk)), tmp_path / "files", SIZE)
    for offset in range(0, 5 * SIZE, SIZE):
        files.write(offset, b"x")
    files.flush()
    disk.plan = [Fault(len(disk.operations) + number, error=errno.EMFILE, prefix=prefix)]
    with suppress(OSError):
        files.delete_before(3 * SIZE)
    assert set(names(files)) >= set(names(reopened(files)))  # raises if a file is missing
    disk.plan = ()
    files.delete_before(3 * SIZE)
    files.write(5 * SIZE, b"x")
    assert names(reopened(files)) == names(files) == [f"{at * SIZE:020d}" for at in (3, 4, 5)]


class GatedDisk(LocalDisk):
    """Blocks the flush of the first file until released."""

    def __init__(self):
        self.entered, self.gate = threading.Event(), threading.Event()

    def create(self, path, size):
        file = super().create(path, size)
        flush = file.flush

        def slow_flush():
            self.entered.set()
            assert self.gate.wait(10)
            flush()

        file.flush = slow_flush
        return file


class DiskThatIsOvertaken(LocalDisk):
    """Calls a function before a file is opened."""

    def __init__(self):
        self.before_open = lambda: None

    def open(self, path):
        self.before_open()
        return super().open(path)


def test_file_deleted_while_it_is_opened_reads_as_empty(tmp_path):
    """Retention runs in another thread than reads; a file that is lost otherwise is an error."""
    disk = DiskThatIsOvertaken()
    files = MappedFileQueue(FileGroup(FilePool(disk)), tmp_path / "files", SIZE)
    for offset in (0, SIZE, 2 * SIZE):
        files.write(offset, b"abc")
    files.close()
    files.load()
    disk.before_open = lambda: files.delete_before(SIZE)
    assert files.read(0, 3) == b""
    assert files.read(SIZE, 3) == b"abc"
    disk.before_open = files.files[-1].file.path.unlink
    with pytest.raises(UnreadableFile, match="0200"):
        files.read(2 * SIZE, 3)


def test_file_deleted_during_a_flush_is_no_error(tmp_path):
    """Retention runs in another thread than flushes, and must not close a file during a flush."""
    disk = GatedDisk()
    files = MappedFileQueue(FileGroup(FilePool(disk)), tmp_path / "files", SIZE)
    for offset in (0, SIZE, 2 * SIZE):
        files.write(offset, b"x")
    failures = []

    def flush():
        try:
            files.flush()
        except Exception as error:
            failures.append(error)

    flushing = threading.Thread(target=flush)
    deleting = threading.Thread(target=files.delete_before, args=(2 * SIZE,))
    flushing.start()
    assert disk.entered.wait(10)
    deleting.start()
    deleting.join(0.05)  # it blocks while the flush runs
    disk.gate.set()
    for thread in (flushing, deleting):
        thread.join(10)
    assert failures == []
    assert names(files) == [f"{2 * SIZE:020d}"]
    files.close()
