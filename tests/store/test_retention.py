"""Retention: which files expire, when, and what a full disk deletes."""

import errno
import os
import random
from datetime import datetime, timezone

import pytest
from support.disks.faulty_disk import (
    Fault,
    FaultyDisk,
    ManualClock,
    RecordingDisk,
    Refusal,
    materialise,
    power_loss_states,
    usage_of_large_disk,
)
from support.stores.small_store import (
    LOG_FILE_BYTES,
    bodies,
    crash,
    log_files,
    message,
    messages_of,
    open_store,
)

from rocketpoll.broker.store.files.disk import DiskUsage, LocalDisk
from rocketpoll.broker.store.results import PutMessageStatus
from rocketpoll.broker.store.startup.directory_lock import OUR_SIGN

NOON = 1_700_000_000_000 // 86_400_000 * 86_400_000 + 43_200_000
HOUR = 3_600_000


def local_hour(now_ms):
    return datetime.fromtimestamp(now_ms / 1000, timezone.utc).astimezone().hour


@pytest.fixture
def clock():
    return ManualClock(NOON)


class Disk(FaultyDisk):
    """A disk with a settable usage."""

    ratio = 0.5
    after_delete = None

    def _run(self, call):
        done = super()._run(call)
        if call.kind == "delete" and self.after_delete is not None:
            self.after_delete()
        return done

    def usage(self, path):  # noqa: ARG002  # signature of the protocol
        return usage_of_large_disk(self.ratio)


@pytest.fixture
def disk():
    return Disk(LocalDisk())


def store_on(tmp_path, disk, clock, **settings):
    store = open_store(
        tmp_path,
        disk,
        clock,
        file_reserved_time_hours=72,
        delete_when_hours=(local_hour(NOON),),
        **settings,
    )
    for number in range(200):
        store.put_message(message(f"body {number}"))
    for file in log_files(store):
        os.utime(file, (NOON / 1000, NOON / 1000))
    return store


def store_at(store, clock, now_ms):
    """Store one more message at this time."""
    clock.now_ms = now_ms
    store.put_message(message("x"))


def test_expired_files_are_deleted_at_delete_when_but_never_the_last(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    count = len(log_files(store))
    assert 3 < count < 10
    store_at(store, clock, NOON + 71 * HOUR)
    assert store.clean() == 0
    store_at(store, clock, NOON + 73 * HOUR)
    assert store.clean() == 0  # not in this hour
    store_at(store, clock, NOON + 96 * HOUR)
    assert store.clean() == count - 1
    low, high = store.queue_offsets("T", 0)
    assert 0 < low < high == 203
    assert bodies(store)[0] == f"body {low}"
    store.shutdown()


def test_retention_of_a_filling_disk_does_not_wait_for_its_hour(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    store_at(store, clock, NOON + 73 * HOUR)
    disk.ratio = 0.75
    assert store.clean() > 0
    store.shutdown()


TEN_YEARS = 3_650 * 24 * HOUR


def test_retention_deletes_nothing_when_the_clock_is_years_ahead(tmp_path, disk, clock):
    """R31: neither while the broker runs, nor if it starts then."""
    store = store_on(tmp_path, disk, clock)
    clock.now_ms = NOON + TEN_YEARS
    for ratio in (0.5, 0.75):
        disk.ratio = ratio
        assert store.clean() == 0
    store.shutdown()
    again = open_store(tmp_path, disk, clock, delete_when_hours=(local_hour(clock.now_ms),))
    assert again.clean() == 0
    assert bodies(again)[0] == "body 0"
    again.shutdown()


def test_retention_is_not_misled_by_a_message_stored_years_ahead(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    store_at(store, clock, NOON + TEN_YEARS)
    clock.now_ms = NOON + 48 * HOUR
    assert store.clean() == 0
    store_at(store, clock, NOON + 96 * HOUR)
    assert store.clean() > 0
    store.shutdown()


def written_at(store, number, now_ms):
    os.utime(log_files(store)[number], (now_ms / 1000, now_ms / 1000))


def test_file_with_future_time_is_deleted_with_those_past_it(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    count = len(log_files(store))
    for number in (0, 2):
        written_at(store, number, NOON + TEN_YEARS)
    store_at(store, clock, NOON + 48 * HOUR)
    assert store.clean() == 0
    store_at(store, clock, NOON + 96 * HOUR)
    assert store.clean() == count - 1
    store.shutdown()


def test_expired_file_is_deleted_though_a_later_one_is_older(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    written_at(store, 1, NOON + 48 * HOUR)
    written_at(store, 2, NOON - TEN_YEARS)
    store_at(store, clock, NOON + 96 * HOUR)
    assert store.clean() == 1
    store.shutdown()


def test_clock_set_back_expires_no_file_but_disk_pressure_does(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    clock.now_ms = NOON - TEN_YEARS
    assert store.clean() == 0
    disk.ratio = 0.85
    assert store.clean() > 0
    store.shutdown()


def test_disk_above_the_warning_ratio_refuses_messages_until_space_is_free(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    disk.ratio = 0.9
    store.clean()
    refused = store.put_message(message("no"))
    assert refused.status.name == "SERVICE_NOT_AVAILABLE"
    assert "the disk is 90% full" in refused.remark
    assert bodies(store)[-1] == "body 199"
    disk.ratio = 0.89
    store.clean()
    assert store.put_message(message("yes")).queue_offset == 200
    store.shutdown()


def test_message_being_read_stays_readable_after_deletion(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    result = store.get_message("T", 0, 0)
    disk.ratio = 0.85
    assert store.clean() > 0
    assert not (tmp_path / "commitlog" / ("0" * 20)).exists()
    assert messages_of(result)[0].body == b"body 0"
    store.shutdown()


def test_restart_after_retention_finds_all_remaining_messages(tmp_path, disk, clock):
    """R27: the first offset of a queue is readable, before and after a restart."""
    store = store_on(tmp_path, disk, clock)
    disk.ratio = 0.85
    store.clean()
    offsets, left = store.queue_offsets("T", 0), bodies(store)
    store.shutdown()
    for is_crash in (False, True):
        if is_crash:
            (tmp_path / "abort").write_bytes(OUR_SIGN)
            (tmp_path / "checkpoint").unlink()
        again = open_store(tmp_path, clock=clock)
        assert again.queue_offsets("T", 0) == offsets
        assert bodies(again) == left
        again.shutdown()


def test_power_loss_during_retention_leaves_a_store_that_opens(tmp_path, clock):
    """The log must not come back with an old file whose successor is missing."""
    root, scratch = tmp_path / "store", tmp_path / "states"
    root.mkdir()
    scratch.mkdir()
    disk = RecordingDisk(Disk(LocalDisk()), root)
    store = store_on(root, disk, clock)
    store.save_checkpoint()
    disk._disk.ratio = 0.87
    before = len(disk.operations)
    assert store.clean() > 2
    left = bodies(store)
    for point in range(before, len(disk.operations)):
        for state in power_loss_states(disk.log(point), random.Random(point), 16, scratch):
            again = open_store(state, clock=clock)
            assert bodies(again)[-len(left) :] == left
            again.shutdown()
    store.shutdown()


@pytest.mark.deep
def test_crash_during_file_deletion_never_reuses_a_queue_offset(tmp_path, clock):
    root = tmp_path / "told"
    root.mkdir()
    disk = RecordingDisk(Disk(LocalDisk()), root)
    store = store_on(root, disk, clock)
    store.put_message(message("the last of a quiet queue", queue_id=1))
    for number in range(200):
        store.put_message(message(f"more {number}"))
    store.reput()
    ends = [store.queue_offsets("T", queue_id).next for queue_id in (0, 1)]
    begun = len(disk.operations)
    disk._disk.ratio = 0.87
    assert store.clean() > 3
    for number in range(begun, len(disk.operations) + 1, 3):
        state = tmp_path / f"killed-{number}"
        state.mkdir()
        materialise(disk.log(number).model().seen(), state)
        again = open_store(state, clock=clock)
        assert [again.queue_offsets("T", queue_id).next for queue_id in (0, 1)] == ends
        again.shutdown()
    store.shutdown()


@pytest.mark.deep
def test_start_after_a_kill_during_deletion_rebuilds_nothing_checkpointed(tmp_path, clock):
    root = tmp_path / "told"
    root.mkdir()
    disk = RecordingDisk(Disk(LocalDisk()), root)
    store = store_on(root, disk, clock, max_index_num=16)
    for number in range(100):
        store.put_message(message(f"keyed {number}", keys="k"))
    store.save_checkpoint()
    begun = len(disk.operations)
    disk._disk.ratio = 0.87
    assert store.clean() > 3
    for number in range(begun, len(disk.operations) + 1):
        state = tmp_path / f"killed-{number}"
        state.mkdir()
        materialise(disk.log(number).model().seen(), state)
        killed = FaultyDisk(LocalDisk())
        again = open_store(state, killed, clock, max_index_num=16)
        made = [each for each in killed.operations if each.kind in {"create", "write"}]
        assert not [each.path for each in made if {"consumequeue", "index"} & set(each.path.parts)]
        crash(again)
    store.shutdown()


def test_time_search_during_deletion_uses_the_remaining_files(tmp_path, clock):
    """The queues are updated last: until then they have entries of deleted messages."""
    disk = Disk(LocalDisk())
    store = store_on(tmp_path, disk, clock)
    store_at(store, clock, NOON + HOUR)
    store.put_message(message("of another queue", queue_id=1))
    found = []

    def look():
        first, at = store.offset_by_time("T", 0, 1), store.queue_offsets("T", 0).first
        while (result := store.get_message("T", 0, at)).status.name == "MESSAGE_WAS_REMOVING":
            at = result.next_begin_offset
        assert messages_of(result)[0].queue_offset == first
        assert store.offset_by_time("T", 0, NOON + 1) == 200
        assert store.offset_by_time("T", 0, NOON, upper=True) == 199
        assert store.earliest_timestamp("T", 0) == NOON
        found.append(first)

    disk.after_delete = look
    disk.ratio = 0.87
    assert store.clean() > 3
    assert len(found) > 3
    assert found == sorted(found)
    assert found[-1] == store.queue_offsets("T", 0).first > found[0] > 0
    store.shutdown()


def test_index_files_of_deleted_log_files_are_deleted(tmp_path, disk, clock):
    store = open_store(tmp_path, disk, clock, max_index_num=16)
    for number in range(200):
        store.put_message(message(f"body {number}", keys="k"))
    assert len(store.query_message("T", "k", 1000, 0, 1 << 62)) > 0
    files = len(list((tmp_path / "index").iterdir()))
    disk.ratio = 0.87
    store.clean()
    assert len(list((tmp_path / "index").iterdir())) < files
    assert all(store.query_message("T", "k", 1000, 0, 1 << 62))
    store.shutdown()


def test_retention_works_with_a_clock_beyond_all_dates(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    store_at(store, clock, NOON + 8_000 * 365 * 24 * HOUR)
    assert store.clean() == 0
    store.shutdown()


class FullDisk(Disk):
    """A disk with space for ten log files, which other programs fill as well."""

    others = 0

    def usage(self, path):
        log_files = sum(name.isdigit() for name in self._disk.names(path / "commitlog"))
        used = (log_files + self.others) * LOG_FILE_BYTES
        return DiskUsage(10 * LOG_FILE_BYTES, used, 10 * LOG_FILE_BYTES - used)


@pytest.fixture
def full_disk():
    return FullDisk(LocalDisk())


def with_log_files(tmp_path, disk, clock, count, **settings):
    """Create a store with this number of new log files."""
    store = open_store(tmp_path, disk, clock, file_reserved_time_hours=72, **settings)
    fill_log_files(store, count)
    written_now(store, clock)
    return store


def fill_log_files(store, count):
    while len(log_files(store)) < count:
        assert store.put_message(message("x" * 200)).status is PutMessageStatus.PUT_OK


def written_now(store, clock):
    for number in range(len(log_files(store))):
        written_at(store, number, clock.now_ms)


@pytest.mark.parametrize(("log_files", "others", "deleted"), [(9, 0, 1), (5, 5, 2), (8, 0, 0)])
def test_full_disk_deletes_no_more_young_files_than_bring_it_below_the_ratio(
    tmp_path, full_disk, clock, log_files, others, deleted
):
    store = with_log_files(tmp_path, full_disk, clock, log_files)
    full_disk.others = others
    assert store.clean() == deleted
    assert store.clean() == 0
    store.shutdown()


def test_disk_that_stays_full_loses_all_files_but_the_last(tmp_path, full_disk, clock):
    store = with_log_files(tmp_path, full_disk, clock, 4)
    full_disk.others = 9
    assert store.clean() == 3
    assert store.clean() == 0
    store.shutdown()


class HoldingDisk(FullDisk):
    """A disk that frees deleted log files only when it commits, or when no reader or snapshot uses
    them."""

    held = 0

    def _run(self, call):
        self.held += call.kind == "delete" and call.path.parent.name == "commitlog"
        return super()._run(call)

    def usage(self, path):
        return super().usage(path).with_freed(-self.held * LOG_FILE_BYTES)


@pytest.fixture
def holding_disk():
    return HoldingDisk(LocalDisk())


def test_full_disk_deletes_no_more_files_while_the_room_of_deleted_ones_is_to_come(
    tmp_path, holding_disk, clock, caplog
):
    store = with_log_files(tmp_path, holding_disk, clock, 9)
    holding_disk.others = 2  # 11 of 10
    assert store.clean() == 3
    for held in (3, 2, 1, 0, 0):
        holding_disk.held = held
        clock.now_ms += 10_000
        assert store.clean() == 0
    holding_disk.others += 1  # freed space that was counted once does not count again
    assert store.clean() == 1
    assert not any("has freed" in text for text in caplog.messages)
    store.shutdown()


def test_messages_stored_meanwhile_do_not_hide_that_deleted_files_are_free(
    tmp_path, holding_disk, clock
):
    store = with_log_files(tmp_path, holding_disk, clock, 9, disk_space_warning_level_ratio=0.99)
    assert store.clean() == 1
    holding_disk.held = 0
    fill_log_files(store, 9)
    assert store.clean() == 1
    store.shutdown()


def test_deletion_that_frees_no_space_is_logged_and_slowed_down(
    tmp_path, holding_disk, clock, caplog
):
    store = with_log_files(tmp_path, holding_disk, clock, 9)
    deleted = []
    for _ in range(13):
        deleted.append(store.clean())
        clock.now_ms += 10_000
    assert deleted == [1, *5 * [0], 1, *5 * [0], 1]
    told = [text for text in caplog.messages if "freed only" in text]
    assert len(told) == 2
    assert told[0].startswith(f"deleting {LOG_FILE_BYTES} bytes of the commit log freed only 0: ")
    store.shutdown()


def test_full_disk_keeps_young_files_and_refuses_sends_without_clean_file_forcibly_enable(
    tmp_path, full_disk, clock
):
    store = with_log_files(tmp_path, full_disk, clock, 9, clean_file_forcibly_enable=False)
    assert store.clean() == 0
    assert "over 90%" in store.unavailable_reason()
    clock.now_ms += 73 * HOUR  # the messages expire; a later message shows the time
    full_disk.others = -5
    store.clean()
    store.put_message(message("later"))
    full_disk.others = 0
    assert store.clean() == 8
    store.shutdown()


def reports_of(store):
    reports = []
    store.cleaner.on_deleted = reports.append
    return reports


def test_deletion_report_separates_expired_and_forced_files(tmp_path, full_disk, clock):
    store = with_log_files(tmp_path, full_disk, clock, 6)
    reports = reports_of(store)
    for number in (0, 1):
        written_at(store, number, NOON - 73 * HOUR)
    full_disk.others = 5  # 11 of 10: four files must be deleted, two of which have expired
    first = store.queue_offsets("T", 0).first
    assert store.clean() == 4 - 1  # below the ratio again after three
    (report,) = reports
    low = store.queue_offsets("T", 0).first
    assert (report.expired_files, report.forced_files) == (2, 1)
    assert report.size_bytes == 3 * LOG_FILE_BYTES
    assert report.spans == (("T", 0, first, low),)
    assert report.message_count == low - first > 0
    assert report.first_ms == report.next_ms == NOON
    assert report.log_offset == 3 * LOG_FILE_BYTES
    store.shutdown()


def test_deletion_is_reported_though_the_disk_refuses_what_follows(tmp_path, full_disk, clock):
    store = with_log_files(tmp_path, full_disk, clock, 9)
    reports = reports_of(store)
    store.save_checkpoint()
    full_disk.plan = [Fault(persistent=True, kinds=frozenset({"write_whole"}), error=errno.ENOSPC)]
    store.clean()
    assert [report.forced_files for report in reports] == [1]
    full_disk.plan = []
    store.clean()
    assert len(reports) == 1
    store.shutdown()


class SecondDelete(Fault):
    """Fails each deletion of the second log file."""

    def hits(self, operation):
        return super().hits(operation) and int(operation.path.name) == LOG_FILE_BYTES


def test_deletion_that_fails_half_way_is_reported_whole_by_the_next(tmp_path, full_disk, clock):
    store = with_log_files(tmp_path, full_disk, clock, 5)
    reports = reports_of(store)
    full_disk.others = 6
    full_disk.plan = [
        SecondDelete(persistent=True, kinds=frozenset({"delete"}), error=errno.ENOSPC)
    ]
    with pytest.raises(OSError, match="No space"):
        store.clean()
    assert reports == []
    full_disk.plan = []
    store.clean()
    assert [report.forced_files for report in reports] == [3]
    store.shutdown()


def test_queue_that_could_not_be_read_is_reported_when_it_expires(tmp_path, clock):
    class Hesitant(FaultyDisk):
        ratio = 0.5

        def usage(self, path):  # noqa: ARG002  # signature of the protocol
            return usage_of_large_disk(self.ratio)

    disk = Hesitant()
    store = open_store(tmp_path, disk, clock)
    for number in range(240):
        store.put_message(message(f"body {number}", queue_id=number % 2))
    reports = reports_of(store)
    disk.ratio = 0.9
    disk.unreadable = [Refusal("1")]
    store.clean()
    disk.unreadable.clear()
    disk.ratio = 0.5
    store.clean()
    assert [[span.queue_id for span in report.spans] for report in reports] == [[0], [1]]
    assert [report.expired_files + report.forced_files > 0 for report in reports] == [True, False]
    store.shutdown()
