import os
import random
from datetime import datetime, timezone

import pytest
from disks import FaultyDisk, ManualClock, RecordingDisk, materialise, power_loss_states
from stores import bodies, crash, message, messages_of, open_store

from rocketpoll.broker.store.directory_lock import OUR_SIGN
from rocketpoll.broker.store.disk import DiskUsage, LocalDisk

NOON = 1_700_000_000_000 // 86_400_000 * 86_400_000 + 43_200_000
HOUR = 3_600_000


def local_hour(now_ms):
    return datetime.fromtimestamp(now_ms / 1000, timezone.utc).astimezone().hour


@pytest.fixture
def clock():
    return ManualClock(NOON)


class Disk(FaultyDisk):
    """A disk of which it can be said how full it is."""

    ratio = 0.5
    after_delete = None

    def _run(self, call):
        done = super()._run(call)
        if call.kind == "delete" and self.after_delete is not None:
            self.after_delete()
        return done

    def usage(self, path):  # noqa: ARG002  # the protocol's
        return DiskUsage(100, round(100 * self.ratio), round(100 * (1 - self.ratio)))


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
    for mapped in store._log.files.files:
        os.utime(mapped.file.path, (NOON / 1000, NOON / 1000))
    return store


def store_at(store, clock, now_ms):
    """One more message, at a time."""
    clock.now_ms = now_ms
    store.put_message(message("x"))


def test_files_past_their_time_go_at_the_hour_that_is_set_but_never_the_last(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    count = len(store._log.files.files)
    assert 3 < count < 10
    store_at(store, clock, NOON + 71 * HOUR)
    assert store.clean() == 0
    store_at(store, clock, NOON + 73 * HOUR)
    assert store.clean() == 0  # another hour
    store_at(store, clock, NOON + 96 * HOUR)
    assert store.clean() == count - 1
    low, high = store.queue_offsets("T", 0)
    assert 0 < low < high == 203
    assert bodies(store)[0] == f"body {low}"
    store.shutdown()


def test_a_disk_that_fills_up_does_not_wait_for_the_hour(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    store_at(store, clock, NOON + 73 * HOUR)
    disk.ratio = 0.75
    assert store.clean() > 0
    store.shutdown()


TEN_YEARS = 3_650 * 24 * HOUR


def test_a_clock_that_is_years_ahead_makes_no_file_old(tmp_path, disk, clock):
    """R31: neither while the broker runs nor if it starts then."""
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


def test_a_message_stored_by_such_a_clock_makes_none_old_once_it_is_right_again(
    tmp_path, disk, clock
):
    store = store_on(tmp_path, disk, clock)
    store_at(store, clock, NOON + TEN_YEARS)
    clock.now_ms = NOON + 48 * HOUR
    assert store.clean() == 0
    store_at(store, clock, NOON + 96 * HOUR)
    assert store.clean() > 0
    store.shutdown()


def written_at(store, number, now_ms):
    os.utime(store._log.files.files[number].file.path, (now_ms / 1000, now_ms / 1000))


def test_a_file_that_was_written_by_such_a_clock_goes_with_those_behind_it(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    count = len(store._log.files.files)
    for number in (0, 2):
        written_at(store, number, NOON + TEN_YEARS)
    store_at(store, clock, NOON + 48 * HOUR)
    assert store.clean() == 0
    store_at(store, clock, NOON + 96 * HOUR)
    assert store.clean() == count - 1
    store.shutdown()


def test_a_file_whose_time_has_passed_is_believed_though_one_behind_it_is_older(
    tmp_path, disk, clock
):
    store = store_on(tmp_path, disk, clock)
    written_at(store, 1, NOON + 48 * HOUR)
    written_at(store, 2, NOON - TEN_YEARS)
    store_at(store, clock, NOON + 96 * HOUR)
    assert store.clean() == 1
    store.shutdown()


def test_a_clock_that_is_behind_makes_no_file_old_and_need_goes_before_all(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    clock.now_ms = NOON - TEN_YEARS
    assert store.clean() == 0
    disk.ratio = 0.85
    assert store.clean() > 0
    store.shutdown()


def test_a_disk_that_is_nearly_full_does_not_wait_for_the_time(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    disk.ratio = 0.85
    assert store.clean() > 0
    assert store.put_message(message("still")).status.name == "PUT_OK"
    store.shutdown()


def test_above_the_last_ratio_nothing_is_taken_until_there_is_room_again(tmp_path, disk, clock):
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


def test_what_is_being_read_stays_readable(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    result = store.get_message("T", 0, 0)
    disk.ratio = 0.85
    assert store.clean() > 0
    assert not (tmp_path / "commitlog" / ("0" * 20)).exists()
    assert messages_of(result)[0].body == b"body 0"
    store.shutdown()


def test_after_files_have_gone_a_start_finds_all_that_is_left(tmp_path, disk, clock):
    """R27: the first offset of a queue is one that can be read, before and after a restart."""
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


def test_a_power_loss_while_files_go_leaves_a_store_that_opens(tmp_path, clock):
    """The log must not come back with an old file, and without the one behind it."""
    root, scratch = tmp_path / "store", tmp_path / "states"
    root.mkdir()
    scratch.mkdir()
    disk = RecordingDisk(Disk(LocalDisk()), root)
    store = store_on(root, disk, clock)
    store.save_checkpoint()
    disk._disk.ratio = 0.85
    before = len(disk.operations)
    assert store.clean() > 2
    left = bodies(store)
    for point in range(before, len(disk.operations)):
        for state in power_loss_states(disk.log(point), random.Random(point), 16, scratch):
            again = open_store(state, clock=clock)
            assert bodies(again)[-len(left) :] == left
            again.shutdown()
    store.shutdown()


def test_whenever_a_broker_dies_while_files_go_no_offset_is_given_twice(tmp_path, clock):
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


def test_a_start_behind_a_kill_while_files_go_makes_nothing_again_that_a_checkpoint_had_noted(
    tmp_path, clock
):
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


def test_whoever_searches_while_files_go_is_answered_by_what_is_left(tmp_path, clock):
    """The queues hear of it last: until then, they have entries of messages that are gone."""
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
    disk.ratio = 0.85
    assert store.clean() > 3
    assert len(found) > 3
    assert found == sorted(found)
    assert found[-1] == store.queue_offsets("T", 0).first > found[0] > 0
    store.shutdown()


def test_the_index_forgets_what_the_log_no_longer_has(tmp_path, disk, clock):
    store = open_store(tmp_path, disk, clock, max_index_num=16)
    for number in range(200):
        store.put_message(message(f"body {number}", keys="k"))
    assert len(store.query_message("T", "k", 1000, 0, 1 << 62)) > 0
    files = len(list((tmp_path / "index").iterdir()))
    disk.ratio = 0.85
    store.clean()
    assert len(list((tmp_path / "index").iterdir())) < files
    assert all(store.query_message("T", "k", 1000, 0, 1 << 62))
    store.shutdown()


def test_a_clock_beyond_all_dates_is_in_nobodys_way(tmp_path, disk, clock):
    store = store_on(tmp_path, disk, clock)
    store_at(store, clock, NOON + 8_000 * 365 * 24 * HOUR)
    assert store.clean() == 0
    store.shutdown()
