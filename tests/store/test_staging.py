"""Staging: files of staged chunks survive restarts, and are removed in time."""

import errno
import shutil
import threading
from zlib import crc32

import pytest
from support.disks.faulty_disk import Fault, FaultyDisk
from support.suite.log_records import lines_of

from rmq_spark.wire.bodies.staged_batches import StagedAttempt
from rocketpoll.broker.common.recent_losses import RecentLosses
from rocketpoll.broker.store.errors import BatchRefused, TransientFailure
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.staging.staging_area import (
    RETENTION_SECONDS,
    StagedName,
    StagingArea,
    StagingFull,
)

A = StagedName("s", 3, "a", 0)


class ReadingDisk(FaultyDisk):
    """Records the reads of small files."""

    def __init__(self, disk):
        super().__init__(disk)
        self.read_paths = []

    def read(self, path):
        self.read_paths.append(path)
        return self._disk.read(path)


class Time:
    now = 1_700_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def time():
    return Time()


def opened(tmp_path, time, bytes_max=1_000):
    staging = StagingArea(
        LocalDisk(), tmp_path / "staging", bytes_max, time, RecentLosses(lambda: 0)
    )
    staging.load()
    return staging


def names(tmp_path):
    return sorted(path.name for path in (tmp_path / "staging").rglob("*") if path.is_file())


def test_staged_chunk_is_read_back_after_restart(tmp_path, time):
    opened(tmp_path, time).put(A, 2, b"records")
    staging = opened(tmp_path, time)
    assert staging.read(A) == b"records"
    assert staging.size == 16 + 7
    attempt = StagedAttempt(attempt="a", chunks=1, rows=2, crc=crc32(b"records"))
    assert staging.check_attempts("s", 3, [attempt]) == [A]


def test_restaged_chunk_replaces_the_first(tmp_path, time):
    staging = opened(tmp_path, time, 30)
    staging.put(A, 2, b"records")
    staging.put(A, 1, b"other")
    assert staging.read(A) == b"other"
    with pytest.raises(TransientFailure, match="maxStagedBytes"):
        staging.put(A._replace(number=1), 1, b"more")
    staging.forget("s", last=3)
    staging.put(A._replace(number=1), 1, b"more")


def test_full_staging_area_is_logged_once_until_all_refused_chunks_fit(tmp_path, time, caplog):
    """Other sinks may fit smaller chunks, and continue; the shortage is not over then."""
    staging = opened(tmp_path, time, 100)
    staging.put(A, 1, b"a" * 44)
    for number in range(1, 9):
        with pytest.raises(StagingFull, match="maxStagedBytes"):
            staging.put(A._replace(number=number), 1, b"b" * 34)
        staging.put(A._replace(sink="t", batch_id=number), 1, b"c" * 4)
        staging.forget("t")
    (begun,) = lines_of(caplog, "rocketpoll.broker.store")
    assert begun.startswith(
        "rows are not staged, retrying: 60 bytes are staged, and 50 more would be over"
    )
    staging.forget("s", last=3)
    _, over = lines_of(caplog, "rocketpoll.broker.store")
    assert over == "resolved: rows are not staged"
    with pytest.raises(StagingFull):  # larger than all space; the error says so
        staging.put(A, 1, b"a" * 200)
    assert len(lines_of(caplog, "rocketpoll.broker.store")) == 2


@pytest.mark.parametrize("kind", ["create", "write"])
def test_failed_staging_write_takes_no_space(tmp_path, time, kind):
    """Attempts have unique names, so no other operation would free the space."""
    disk = FaultyDisk(LocalDisk())
    staging = StagingArea(disk, tmp_path / "staging", 100, time, RecentLosses(lambda: 0))
    disk.plan = [Fault(persistent=True, kinds=frozenset({kind}), error=errno.ENOSPC)]
    for number in range(9):
        with pytest.raises(OSError, match="No space"):
            staging.put(A._replace(attempt=f"a{number}"), 2, b"records")
    assert staging.size == 0
    assert names(tmp_path) == []
    disk.plan = []
    staging.put(A, 2, b"records" * 10)


def test_failed_staging_write_that_cannot_be_deleted_counts_until_its_batch_ends(tmp_path, time):
    disk = FaultyDisk(LocalDisk())
    staging = StagingArea(disk, tmp_path / "staging", 100, time, RecentLosses(lambda: 0))
    disk.plan = [Fault(persistent=True, kinds=frozenset({"write", "delete"}))]
    with pytest.raises(OSError, match="Input/output"):
        staging.put(A, 2, b"records")
    assert staging.size == 23
    disk.plan = []
    staging.forget("s", last=3)
    assert staging.size == 0
    assert names(tmp_path) == []


def test_staged_file_removed_by_hand_frees_its_space(tmp_path, time):
    staging = opened(tmp_path, time)
    staging.put(A, 1, b"r")
    (tmp_path / "staging" / "s" / "3-0-a").unlink()
    staging.discard_expired()
    assert staging.size == 0


def test_removed_staging_directory_is_created_again(tmp_path, time):
    staging = opened(tmp_path, time)
    staging.put(A, 1, b"r")
    shutil.rmtree(tmp_path / "staging" / "s")
    second = A._replace(number=1)
    with pytest.raises(FileNotFoundError):
        staging.put(second, 1, b"r")
    staging.put(second, 1, b"r")
    assert staging.read(second) == b"r"


def test_staged_batches_are_forgotten_up_to_a_number(tmp_path, time):
    staging = opened(tmp_path, time)
    for batch_id in (1, 2, 3):
        staging.put(A._replace(batch_id=batch_id), 1, b"r")
    staging.put(A._replace(sink="t"), 1, b"r")
    staging.forget("s", first=2, last=2)
    assert names(tmp_path) == ["1-0-a", "3-0-a", "3-0-a"]
    staging.forget("s", last=3)
    assert names(tmp_path) == ["3-0-a"]


def test_staged_chunks_of_dead_runs_are_deleted_after_retention(tmp_path, time, caplog):
    caplog.set_level("INFO")
    staging = opened(tmp_path, time)
    staging.put(A, 1, b"r")
    staged_at = (tmp_path / "staging" / "s" / "3-0-a").stat().st_mtime
    time.now = staged_at + RETENTION_SECONDS - 700
    staging.discard_expired()
    assert names(tmp_path) == ["3-0-a"]
    time.now += 701
    staging.discard_expired()
    assert names(tmp_path) == []
    assert staging.size == 0
    assert staging.expired_bytes > 0
    assert "deleted 1 chunk (" in caplog.text
    assert not (tmp_path / "staging" / "s").exists()
    staging.put(A, 1, b"r")
    assert names(tmp_path) == ["3-0-a"]


class Interrupted(str):
    """A sink name whose first comparison lets another thread run."""

    __hash__ = str.__hash__
    meanwhile = None

    def __eq__(self, other):
        thread, self.meanwhile = self.meanwhile, None
        if thread is not None:
            thread.start()
            thread.join(0.2)  # without a lock it would have ended
        return super().__eq__(other)


@pytest.mark.parametrize("look", [StagingArea.forget, StagingArea.has_any])
def test_chunk_staged_during_a_scan_is_kept(tmp_path, time, look):
    staging = opened(tmp_path, time)
    staging.put(A, 1, b"r")
    later = A._replace(number=1)
    thread = threading.Thread(target=staging.put, args=(later, 1, b"r"))
    sink = Interrupted("t")
    sink.meanwhile = thread
    look(staging, sink)
    thread.join()
    assert names(tmp_path) == ["3-0-a", "3-1-a"]
    assert staging.size == 2 * 17


def test_commit_reads_no_staged_rows_before_copying_them(tmp_path, time):
    disk = ReadingDisk(LocalDisk())
    staging = StagingArea(disk, tmp_path / "staging", 1_000, time, RecentLosses(lambda: 0))
    parts = [b"some", b"more", b"records"]
    for number, part in enumerate(parts):
        staging.put(A._replace(number=number), 2, part)
    attempt = StagedAttempt(attempt="a", chunks=3, rows=6, crc=crc32(b"".join(parts)))
    assert len(staging.check_attempts("s", 3, [attempt])) == 3
    assert disk.read_paths == []
    assert {each.kind for each in disk.operations} == {"make_directory", "create", "write"}


def test_truncated_staged_file_is_refused_at_the_attempt_check(tmp_path, time):
    staging = opened(tmp_path, time)
    staging.put(A, 2, b"records")
    path = tmp_path / "staging" / "s" / "3-0-a"
    path.write_bytes(path.read_bytes()[:-1])
    attempt = StagedAttempt(attempt="a", chunks=1, rows=2, crc=crc32(b"records"))
    with pytest.raises(BatchRefused, match="it has 22 bytes, and had 23"):
        staging.check_attempts("s", 3, [attempt])


@pytest.mark.parametrize("sink", ["", "..", ".x", "a/b", "x" * 201, "ä"])
def test_sink_name_must_be_a_valid_file_name(sink):
    with pytest.raises(BatchRefused, match="cannot be called"):
        A._replace(sink=sink).check()


@pytest.mark.parametrize(
    "wrong",
    [{"attempt": "a-b"}, {"attempt": ""}, {"batch_id": -1}, {"number": -1}],
    ids=["attempt with a dash", "empty attempt", "batch", "chunk"],
)
def test_staged_chunk_with_an_invalid_attempt_or_number_is_refused(wrong):
    with pytest.raises(BatchRefused, match=r"(batch ids|chunks) start at 0"):
        A._replace(**wrong).check()


def test_unknown_files_in_the_staging_directory_are_left_alone(tmp_path, time):
    directory = tmp_path / "staging" / "s"
    directory.mkdir(parents=True)
    (directory / "notes.txt").write_text("mine")
    staging = opened(tmp_path, time)
    assert staging.size == 0
    staging.forget("s", last=9)
    assert names(tmp_path) == ["notes.txt"]
