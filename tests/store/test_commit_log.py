"""The commit log: positions, times, failures and full disks."""

import errno
import threading
from typing import NamedTuple

import numpy as np
import pytest
from support.disks.faulty_disk import Fault, FaultyDisk, ManualClock
from support.stores.small_store import LOG_FILE_BYTES, encoded, message
from support.suite.log_records import lines_of

from rmq_spark.wire.message.record import decode_blank, decode_record, decode_records
from rocketpoll.broker.store.append.record_encoding import draft_of
from rocketpoll.broker.store.errors import StoreFailed, TransientFailure
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.file_pool import FilePool
from rocketpoll.broker.store.log.commit_log import BLANK_BYTES, CommitLog, EncodedRecords
from rocketpoll.broker.store.records.store_timeline import STEPS_MAX


class Appended(NamedTuple):
    physical_offset: int
    end_offset: int
    store_timestamp: int


@pytest.fixture
def clock():
    return ManualClock(1000)


def log_on(tmp_path, clock, disk=None):
    return CommitLog(FilePool(disk or LocalDisk()), tmp_path / "commitlog", LOG_FILE_BYTES, clock)


def append(log, body, queue_offset=0):
    draft = draft_of(message(body))
    draft.prepare()
    return Appended(*log.append(draft, queue_offset))


def record_of(body):
    return encoded(message(body))


def test_appended_record_gets_its_place_offset_and_store_time(tmp_path, clock):
    log = log_on(tmp_path, clock)
    first = append(log, "one", 7)
    clock.now_ms = 1005
    second = append(log, "two", 8)
    assert first.physical_offset == 0
    assert second.physical_offset == first.end_offset == len(record_of("one"))
    read = decode_record(log.read(second.physical_offset, 200))
    assert (read.body, read.queue_offset, read.store_timestamp) == (b"two", 8, 1005)
    assert read.physical_offset == second.physical_offset


def times_of(log, clock, *times_ms):
    """Return the store timestamps of messages that arrive at these times."""
    found = []
    for time_ms in times_ms:
        clock.now_ms = time_ms
        found.append(append(log, "x").store_timestamp - START_MS)
    return found


START_MS = 1_700_000_000_000
MINUTE_MS, DAY_MS = 60_000, 86_400_000


@pytest.mark.parametrize(
    ("clocks", "stored"),
    [
        ([0, -990, 1], [0, 0, 1]),
        ([0, DAY_MS, DAY_MS - MINUTE_MS], [0, DAY_MS, DAY_MS]),
        ([0, DAY_MS, 5, 6], [0, DAY_MS, 5, 6]),
        ([0, DAY_MS, -5, 6], [0, DAY_MS, DAY_MS, 6]),
        ([0, MINUTE_MS, -DAY_MS, 2 * MINUTE_MS], [0, MINUTE_MS, MINUTE_MS, 2 * MINUTE_MS]),
        ([0, 2 * START_MS, -START_MS], [0, 2 * START_MS, 2 * START_MS]),
    ],
    ids=["a little", "a minute", "ahead", "by more than it was ahead", "without a gap", "1970"],
)
def test_store_timestamps_go_back_only_if_the_clock_can_have_been_ahead(
    tmp_path, clock, clocks, stored
):
    log = log_on(tmp_path, clock)
    assert times_of(log, clock, *(START_MS + each for each in clocks)) == stored


def test_oscillating_clock_makes_a_bounded_number_of_steps(tmp_path, clock):
    log = log_on(tmp_path, clock)
    to_and_fro = [START_MS + at + DAY_MS * (at % 2) for at in range(2 * STEPS_MAX + 4)]
    found = times_of(log, clock, *to_and_fro)
    assert len(log.timeline.steps) == STEPS_MAX
    assert found[2 * STEPS_MAX] == 2 * STEPS_MAX
    assert found[2 * STEPS_MAX + 2] == found[2 * STEPS_MAX + 1]


def test_clock_set_back_is_logged_when_store_time_stops_and_resumes(tmp_path, clock, caplog):
    log = log_on(tmp_path, clock)
    times_of(log, clock, START_MS, START_MS - DAY_MS, START_MS - DAY_MS + 1)
    assert log.clock_behind_ms == DAY_MS - 1
    times_of(log, clock, START_MS + 1)
    assert log.clock_behind_ms == 0
    first, second = caplog.messages
    assert first.startswith("the clock lags the last message by 86400 s")
    assert second == "the clock has caught up with the last message of the commit log"


def test_record_that_does_not_fit_goes_to_the_next_file_after_a_blank(tmp_path, clock):
    log = log_on(tmp_path, clock)
    body = "x" * 1900
    first, second, third = (append(log, body) for _ in range(3))
    assert (first.physical_offset, third.physical_offset) == (0, LOG_FILE_BYTES)
    left = LOG_FILE_BYTES - second.end_offset
    assert decode_blank(log.read(second.end_offset, left)) == left


def test_record_must_leave_space_for_a_blank(tmp_path, clock):
    log = log_on(tmp_path, clock)
    room = LOG_FILE_BYTES - BLANK_BYTES
    fits = "x" * (room - len(record_of("")))
    assert append(log, fits).end_offset == room
    assert log.room_in_file() == 0
    assert append(log, "next").physical_offset == LOG_FILE_BYTES
    with pytest.raises(ValueError, match="do not fit into a file"):
        append(log, fits + "x")


@pytest.mark.parametrize("left", range(BLANK_BYTES + 2))
def test_blank_at_the_end_of_a_log_file_always_has_space(tmp_path, clock, left):
    log = log_on(tmp_path, clock)
    first = append(log, "first")
    second = append(log, "x" * (LOG_FILE_BYTES - first.end_offset - len(record_of("")) - left))
    third = append(log, "third")
    for before, behind in ((first, second), (second, third)):
        gap = behind.physical_offset - before.end_offset
        assert gap in {0, LOG_FILE_BYTES - before.end_offset % LOG_FILE_BYTES}
        assert not gap or decode_blank(log.read(before.end_offset, gap)) == gap


def test_commit_log_reserves_places_for_many_records_at_once(tmp_path, clock):
    log = log_on(tmp_path, clock)
    append(log, "before")
    records = [record_of(f"body {number}") for number in range(5)]
    sizes = np.array([len(record) for record in records])
    data = np.frombuffer(bytearray(b"".join(records)), np.uint8)
    timestamps_at = np.cumsum(sizes) - sizes + 56
    sealed = []

    def seal():
        sealed.extend(each.queue_offset for each in decode_records(data.data))

    many = EncodedRecords(data, sizes, np.arange(40, 45), timestamps_at, seal)
    appended = Appended(*log.append_many([many]))
    assert sealed == [40, 41, 42, 43, 44]
    position = appended.physical_offset
    for number in range(5):
        read = decode_record(log.read(position, 500))
        assert (read.body, read.queue_offset) == (f"body {number}".encode(), 40 + number)
        assert (read.physical_offset, read.store_timestamp) == (position, 1000)
        position += len(records[number])
    assert position == appended.end_offset == log.written_offset


def test_commit_log_flush_covers_what_was_written_before_it(tmp_path, clock):
    log = log_on(tmp_path, clock)
    end = append(log, "one").end_offset
    assert log.flushed_offset == 0
    assert log.flush() == end == log.flushed_offset


@pytest.mark.parametrize("kind", ["flush", "write"])
def test_commit_log_refuses_appends_after_a_failed_flush_or_write_but_reads_on(
    tmp_path, clock, kind
):
    disk = FaultyDisk(LocalDisk())
    log = log_on(tmp_path, clock, disk)
    append(log, "one")
    torn = Fault(len(disk.operations), kinds={kind}, prefix=50 if kind == "write" else 0)
    disk.plan = (torn, Fault(0, persistent=True, kinds={kind}))
    if kind == "write":
        with pytest.raises(TransientFailure, match="Input/output error"):
            append(log, "two")
    with pytest.raises(StoreFailed, match="restart the broker"):
        log.flush() if kind == "flush" else append(log, "two")
    disk.plan = ()  # the disk works again, but is not trusted
    with pytest.raises(StoreFailed, match="restart the broker"):
        append(log, "three")
    with pytest.raises(StoreFailed, match="restart the broker"):
        log.flush()
    assert log.failure is not None
    assert log.flushed_offset == 0
    assert decode_record(log.read(0, 500)).body == b"one"


def test_full_disk_does_not_fail_the_commit_log(tmp_path, clock):
    disk = FaultyDisk(LocalDisk())
    log = log_on(tmp_path, clock, disk)
    end = append(log, "one").end_offset
    disk.plan = (Fault(0, persistent=True, kinds={"write"}, error=errno.ENOSPC, prefix=90),)
    for _ in range(2):
        with pytest.raises(TransientFailure):
            append(log, "two")
    assert log.written_offset == end
    disk.plan = ()
    assert append(log, "x").physical_offset == end
    assert log.failure is None


def test_full_disk_for_large_messages_is_logged_once(tmp_path, clock, caplog):
    disk = FaultyDisk(LocalDisk(), capacity=4_096)
    log = CommitLog(FilePool(disk), tmp_path / "commitlog", 1 << 20, clock)
    for _ in range(5):
        with pytest.raises(TransientFailure):
            append(log, "x" * 5_000)
        append(log, "small")
        assert "the disk is full" in log.write_degradation.text
    assert [line.split(":")[0] for line in lines_of(caplog, "rocketpoll.broker.store")] == [
        "the commit log is not written, retrying"
    ]
    disk.capacity = None
    append(log, "x" * 5_000)
    assert log.write_degradation.text is None
    assert lines_of(caplog, "rocketpoll.broker.store")[1:] == [
        "resolved: the commit log is not written"
    ]


def test_write_degradation_ends_after_a_successful_write(tmp_path, clock):
    disk = FaultyDisk(LocalDisk(), capacity=4_096)
    log = CommitLog(FilePool(disk), tmp_path / "commitlog", 1 << 20, clock)
    with pytest.raises(TransientFailure):
        append(log, "x" * 5_000)
    append(log, "small")
    assert "the disk is full" in log.write_degradation.text
    clock.now_ms += 10_000
    append(log, "small")
    assert log.write_degradation.text is None


def many_records(records, seal=lambda: None):
    """Return concatenated encoded records, ready to be appended."""
    sizes = np.array([len(record) for record in records])
    data = np.frombuffer(bytearray(b"".join(records)), np.uint8)
    return EncodedRecords(data, sizes, np.arange(len(sizes)), np.cumsum(sizes) - sizes + 56, seal)


def test_append_many_places_records_one_after_another(tmp_path, clock):
    log = log_on(tmp_path, clock)
    records = [record_of(f"body {number}") for number in range(5)]
    position, end, _ = log.append_many([many_records(records[:3]), many_records(records[3:])])
    found = list(decode_records(log.read(position, end - position)))
    assert [each.body for each in found] == [f"body {number}".encode() for number in range(5)]
    assert [each.physical_offset for each in found] == [
        position + sum(map(len, records[:number])) for number in range(5)
    ]
    assert log.written_offset == end


@pytest.mark.parametrize("last", ["write", "seal"])
def test_append_many_writes_all_parts_or_none(tmp_path, clock, last):
    def fail():
        raise MemoryError

    disk = FaultyDisk(LocalDisk())
    log = log_on(tmp_path, clock, disk)
    before = append(log, "before").end_offset
    parts = [many_records([record_of("same")]), many_records([record_of("size")])]
    if last == "write":
        disk.plan = [Fault(len(disk.operations) + 1, error=errno.ENOSPC)]
    else:
        parts[1] = parts[1]._replace(seal=fail)
    with pytest.raises((TransientFailure, MemoryError)):
        log.append_many(parts)
    assert log.written_offset == before
    assert not any(log.read(before, LOG_FILE_BYTES - before))
    assert append(log, "behind").physical_offset == before


def test_records_of_a_failed_append_on_a_full_disk_do_not_reappear(tmp_path, clock):
    disk = FaultyDisk(LocalDisk())
    log = log_on(tmp_path, clock, disk)
    records = [record_of("same"), record_of("size"), record_of("here")]
    two_records = sum(map(len, records[:2]))
    disk.plan = (
        Fault(0, persistent=True, kinds={"write"}, error=errno.ENOSPC, prefix=two_records),
    )
    with pytest.raises(TransientFailure):
        log.append_many([many_records(records)])
    assert not any(log.read(0, LOG_FILE_BYTES))
    disk.plan = ()
    end = append(log, "same").end_offset
    # the valid record that "size" left there is wiped
    assert bytes(log.read(end, 200)) == bytes(200)


class SlowDisk(LocalDisk):
    """A disk whose flushes wait until released."""

    def __init__(self):
        self.entered, self.gate = threading.Semaphore(0), threading.Semaphore(0)
        self.finished = []

    def create(self, path, size):
        file = super().create(path, size)
        flush = file.flush

        def slow_flush():
            self.entered.release()
            assert self.gate.acquire(timeout=10)
            flush()
            self.finished.append("disk")

        file.flush = slow_flush
        return file


def test_concurrent_flushes_both_wait_for_the_disk(tmp_path, clock):
    """The second flush has nothing to do, but must not return before the first has ended."""
    disk = SlowDisk()
    log = log_on(tmp_path, clock, disk)
    append(log, "one")
    first = threading.Thread(target=log.flush)
    first.start()
    assert disk.entered.acquire(timeout=10)
    second = threading.Thread(target=lambda: (log.flush(), disk.finished.append("second")))
    second.start()
    disk.gate.release(2)
    for thread in (first, second):
        thread.join(10)
    assert disk.finished == ["disk", "second"]
    assert log.flushed_offset == log.written_offset


def test_commit_log_without_unflushed_data_periodically_checks_its_file(tmp_path, clock):
    log = CommitLog(
        FilePool(LocalDisk()), tmp_path / "log", LOG_FILE_BYTES, clock, file_check_interval_ms=10
    )
    append(log, "looked for")
    (tmp_path / "log").rename(tmp_path / "aside")
    clock.now_ms += 9
    end = append(log, "not yet").end_offset
    clock.now_ms += 1
    for _ in range(2):
        with pytest.raises(TransientFailure, match="No such file or directory"):
            append(log, "gone")
    assert log.flush_degradation.text is not None
    assert log.written_offset == end
    (tmp_path / "aside").rename(tmp_path / "log")
    assert log.flush() == end
    assert log.flush_degradation.text is None
    assert append(log, "back").physical_offset == end


def test_probe_writable_wipes_what_a_torn_write_left(tmp_path, clock):
    """A kill may come before the next send, which would wipe it."""
    disk = FaultyDisk(LocalDisk())
    log = log_on(tmp_path, clock, disk)
    end = append(log, "first").end_offset
    torn = Fault(len(disk.operations), kinds={"write"}, error=errno.EROFS, prefix=LOG_FILE_BYTES)
    disk.plan = (torn, Fault(0, persistent=True, kinds={"write"}, error=errno.EROFS))
    with pytest.raises(TransientFailure):
        append(log, "refused")
    log.probe_writable()
    assert log.unwritable_reason is not None
    assert any(log.read(end, 100))
    disk.plan = ()
    log.probe_writable()
    assert log.unwritable_reason is None
    assert not any(log.read(end, LOG_FILE_BYTES - end))
