import errno
import os
import random

import pytest
from disks import PAGE, SECTOR, Fault, FaultyDisk, ManualClock, RecordingDisk, power_loss_states

from broker.store.disk import LocalDisk

STATES = 60


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def states(tmp_path):
    """All that a recording may leave, as file names and their content."""

    def draw(disk, point=None, seed=1, count=STATES):
        into = tmp_path / "states"
        into.mkdir(exist_ok=True)
        return [tree(path) for path in power_loss_states(disk.log(point), random.Random(seed), count, into)]

    return draw


def tree(root):
    files = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*"))}
    return {name: path.read_bytes() if path.is_file() else None for name, path in files.items()}


def kinds(disk):
    return [operation.kind for operation in disk.operations]


def distinct(found):
    return {tuple(sorted(state.items())) for state in found}


# ---- the clock


def test_the_clock_shows_what_it_is_set_to():
    clock = ManualClock(5)
    assert clock() == 5
    clock.now_ms -= 1
    assert clock() == 4


# ---- faults


def do_everything(disk, root):
    disk.make_directory(root / "d")
    file = disk.create(root / "d/log", 2 * PAGE)
    file.write(b"abcdef", 3)
    file.flush()
    disk.write_whole(root / "small", b"whole")
    disk.rename(root / "small", root / "other")
    disk.flush_directory(root)
    disk.delete(root / "other")
    file.close()


EVERYTHING = [
    "make_directory",
    "create",
    "write",
    "flush",
    "write_whole",
    "rename",
    "flush_directory",
    "delete",
]


def test_a_disk_without_faults_does_what_it_is_told_and_numbers_it(root):
    disk = FaultyDisk(LocalDisk(), [])
    do_everything(disk, root)
    assert kinds(disk) == EVERYTHING
    assert [operation.number for operation in disk.operations] == list(range(8))
    assert disk.operations[2].path == root / "d/log"
    assert disk.read(root / "d/log") == b"\0\0\0abcdef".ljust(2 * PAGE, b"\0")
    assert disk.names(root) == ["d"]


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_any_operation_can_fail_once(root, number, code):
    disk = FaultyDisk(LocalDisk(), [Fault(number, error=code)])
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        do_everything(disk, root)
    assert caught.value.errno == code
    assert kinds(disk) == EVERYTHING[: number + 1]
    disk.make_directory(root / "e")
    assert "e" in disk.names(root)


def test_all_of_a_kind_can_fail_from_an_operation_on_until_the_disk_is_mended(root):
    disk = FaultyDisk(LocalDisk(), [Fault(2, persistent=True, kinds=frozenset({"flush"}))])
    file = disk.create(root / "log", PAGE)
    file.flush()
    for _ in range(3):
        file.write(b"x", 0)
        with pytest.raises(OSError, match="error"):
            file.flush()
    disk.plan = []
    file.flush()
    file.close()


def test_a_write_can_be_torn(root):
    disk = FaultyDisk(LocalDisk(), [Fault(1, prefix=2), Fault(2, prefix=3)])
    file = disk.create(root / "log", PAGE)
    with pytest.raises(OSError, match="error"):
        file.write(b"abcdef", 0)
    assert bytes(file.view[:4]) == b"ab\0\0"
    with pytest.raises(OSError, match="error"):
        disk.write_whole(root / "small", b"abcdef")
    assert disk.read(root / "small") == b"abc"
    file.close()


def test_a_torn_create_leaves_an_empty_file_and_a_torn_rename_a_renamed_one(root):
    disk = FaultyDisk(LocalDisk(), [Fault(0, prefix=1), Fault(1, prefix=1)])
    with pytest.raises(OSError, match="error"):
        disk.create(root / "log", PAGE)
    assert disk.size_of(root / "log") == 0
    with pytest.raises(OSError, match="error"):
        disk.rename(root / "log", root / "other")
    assert disk.names(root) == ["other"]


# ---- a full disk


def test_a_full_disk_takes_what_fits_and_goes_on_when_there_is_room_again(root):
    disk = FaultyDisk(LocalDisk(), capacity=2 * PAGE)
    file = disk.create(root / "log", 4 * PAGE)
    file.write(b"a" * 100, PAGE - 50)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file.write(b"b" * 100, 2 * PAGE - 50)
    assert bytes(file.view[2 * PAGE - 51 : 2 * PAGE + 1]) == b"\0" + b"b" * 50 + b"\0"
    assert disk.used_ratio(root) == 1.0
    file.write(b"c" * 2 * PAGE, 0)
    disk.capacity += PAGE
    file.write(b"b" * 100, 2 * PAGE - 50)
    assert disk.used == 3 * PAGE
    file.close()


def test_what_is_deleted_or_replaced_makes_room(root):
    disk = FaultyDisk(LocalDisk(), capacity=2 * PAGE)
    disk.write_whole(root / "a", b"a" * PAGE)
    disk.write_whole(root / "b", b"b" * PAGE)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        disk.write_whole(root / "c", b"c")
    disk.rename(root / "a", root / "b")
    disk.write_whole(root / "c", b"c")
    disk.delete(root / "b")
    disk.write_whole(root / "c", b"c" * 2 * PAGE)
    assert disk.used == 2 * PAGE


# ---- power loss: content


def durable_log(disk, root, size=2 * PAGE):
    file = disk.create(root / "log", size)
    file.flush()
    disk.flush_directory(root)
    return file


def test_a_write_without_a_flush_can_be_lost_and_one_with_it_cannot(root, states):
    disk = RecordingDisk(LocalDisk(), root)
    file = durable_log(disk, root)
    file.write(b"kept", 0)
    file.flush()
    file.write(b"lost", 8)
    found = states(disk)
    assert {state["log"][:4] for state in found} == {b"kept"}
    assert {state["log"][8:12] for state in found} == {b"lost", bytes(4)}
    file.flush()
    assert {state["log"][8:12] for state in states(disk)} == {b"lost"}
    file.close()


def test_a_flush_that_is_under_way_promises_nothing(root, states):
    disk = RecordingDisk(LocalDisk(), root)
    file = durable_log(disk, root)
    file.write(b"data", 0)
    file.flush()
    assert kinds_of_log(disk)[-1] == "flush"
    assert len(distinct(states(disk, point=len(disk.operations) - 1))) == 2
    assert len(distinct(states(disk))) == 1
    file.close()


def kinds_of_log(disk):
    return [each.call.kind for each in disk.operations]


def test_pages_are_lost_independently_and_within_one_the_writes_stay_in_order(root, states):
    disk = RecordingDisk(LocalDisk(), root)
    file = durable_log(disk, root)
    file.write(b"1", 0)
    file.write(b"2", PAGE)
    file.write(b"3", 1)
    found = {(state["log"][:2], state["log"][PAGE : PAGE + 1]) for state in states(disk)}
    first, second = {b"\0\0", b"1\0", b"13"}, {b"\0", b"2"}
    assert found == {(one, two) for one in first for two in second}
    file.close()


def test_a_page_can_be_torn_between_sectors_but_not_within_one(root, states):
    disk = RecordingDisk(LocalDisk(), root)
    file = durable_log(disk, root, PAGE)
    file.write(b"x" * PAGE, 0)
    found = [state["log"] for state in states(disk)]
    sectors = {page[at : at + SECTOR] for page in found for at in range(0, PAGE, SECTOR)}
    assert sectors == {bytes(SECTOR), b"x" * SECTOR}
    assert len(set(found)) > 10
    file.close()


def test_a_new_file_can_be_empty_until_it_was_flushed(root, states):
    disk = RecordingDisk(LocalDisk(), root)
    file = disk.create(root / "log", PAGE)
    disk.flush_directory(root)
    assert {len(state["log"]) for state in states(disk)} == {0, PAGE}
    file.flush()
    assert {len(state["log"]) for state in states(disk)} == {PAGE}
    file.close()


def test_after_a_failed_flush_only_what_is_written_again_can_be_made_durable(root, states):
    disk = RecordingDisk(FaultyDisk(LocalDisk(), [Fault(5)]), root)
    file = durable_log(disk, root)
    file.write(b"lost", 0)
    file.write(b"again", PAGE)
    with pytest.raises(OSError, match="error"):
        file.flush()
    file.write(b"again", PAGE)
    file.flush()
    found = states(disk)
    assert {state["log"][:4] for state in found} == {bytes(4), b"lost"}
    assert {state["log"][PAGE : PAGE + 5] for state in found} == {b"again"}
    file.close()


def test_a_torn_write_is_logged_as_it_landed(root, states):
    disk = RecordingDisk(FaultyDisk(LocalDisk(), [Fault(3, prefix=2)]), root)
    file = durable_log(disk, root)
    with pytest.raises(OSError, match="error"):
        file.write(b"data", 0)
    file.flush()
    assert {state["log"][:4] for state in states(disk)} == {b"da\0\0"}
    file.close()


# ---- power loss: small files


def test_a_small_file_that_is_being_written_can_be_anything_between_old_and_new(root, states):
    (root / "small").write_bytes(b"old")
    disk = RecordingDisk(LocalDisk(), root)
    disk.write_whole(root / "small", b"n" * 1000)
    found = {state["small"] for state in states(disk, point=0, count=300)}
    assert {b"old", b"", b"n" * 512, b"n" * 1000, bytes(1000), bytes(512)} <= found
    assert {state["small"] for state in states(disk)} == {b"n" * 1000}


def test_a_small_file_that_failed_to_be_written_can_be_anything_until_it_is_written_again(root, states):
    (root / "small").write_bytes(b"old")
    disk = RecordingDisk(FaultyDisk(LocalDisk(), [Fault(0, prefix=1)]), root)
    with pytest.raises(OSError, match="error"):
        disk.write_whole(root / "small", b"new")
    assert {b"old", b"", b"new"} <= {state["small"] for state in states(disk)}
    disk.write_whole(root / "small", b"new")
    assert {state["small"] for state in states(disk)} == {b"new"}


# ---- power loss: names


def test_a_flushed_file_can_be_lost_with_its_name_until_its_directory_is_flushed(root, states):
    disk = RecordingDisk(LocalDisk(), root)
    disk.write_whole(root / "small", b"data")
    assert {state.get("small") for state in states(disk)} == {None, b"data"}
    disk.flush_directory(root)
    assert {state.get("small") for state in states(disk)} == {b"data"}


def test_a_rename_can_be_lost_until_the_directory_is_flushed_and_never_happens_by_half(root, states):
    for name in ("new", "old"):
        (root / name).write_bytes(name.encode())
    disk = RecordingDisk(LocalDisk(), root)
    disk.rename(root / "new", root / "old")
    assert distinct(states(disk)) == {(("new", b"new"), ("old", b"old")), (("old", b"new"),)}
    disk.flush_directory(root)
    assert distinct(states(disk)) == {(("old", b"new"),)}


def test_renames_of_two_files_are_lost_independently(root, states):
    for name in ("a", "b"):
        (root / name).write_bytes(name.encode())
    disk = RecordingDisk(LocalDisk(), root)
    disk.rename(root / "a", root / "a2")
    disk.rename(root / "b", root / "b2")
    found = {tuple(sorted(state)) for state in states(disk)}
    assert found == {("a", "b"), ("a2", "b"), ("a", "b2"), ("a2", "b2")}


def test_a_rename_between_directories_needs_both_of_them_flushed(root, states):
    for name in ("a", "b"):
        (root / name).mkdir()
    (root / "a/x").write_bytes(b"x")
    disk = RecordingDisk(LocalDisk(), root)
    disk.rename(root / "a/x", root / "b/x")
    disk.flush_directory(root / "b")
    assert {tuple(sorted(state)) for state in states(disk)} == {("a", "a/x", "b"), ("a", "b", "b/x")}
    disk.flush_directory(root / "a")
    assert {tuple(sorted(state)) for state in states(disk)} == {("a", "b", "b/x")}


def test_a_deleted_file_can_come_back_until_the_directory_is_flushed(root, states):
    (root / "x").write_bytes(b"x")
    disk = RecordingDisk(LocalDisk(), root)
    disk.delete(root / "x")
    disk.delete(root / "x")
    assert {"x" in state for state in states(disk)} == {True, False}
    disk.flush_directory(root)
    assert {"x" in state for state in states(disk)} == {False}


def test_a_directory_takes_along_all_that_was_flushed_in_it(root, states):
    disk = RecordingDisk(LocalDisk(), root)
    disk.make_directory(root / "a/b")
    disk.make_directory(root / "a/b")
    disk.write_whole(root / "a/b/small", b"data")
    disk.flush_directory(root / "a/b")
    disk.flush_directory(root / "a")
    assert {tuple(sorted(state)) for state in states(disk)} == {(), ("a", "a/b", "a/b/small")}
    disk.flush_directory(root)
    assert {tuple(sorted(state)) for state in states(disk)} == {("a", "a/b", "a/b/small")}


def test_a_file_keeps_its_content_under_a_new_name_and_through_an_old_handle(root, states):
    disk = RecordingDisk(LocalDisk(), root)
    file = durable_log(disk, root, PAGE)
    disk.rename(root / "log", root / "old")
    again = disk.create(root / "log", PAGE)
    file.write(b"old", 0)
    again.write(b"new", 0)
    reopened = disk.open(root / "old")
    reopened.write(b"!", 3)
    for each in (file, again, reopened):
        each.flush()
        each.close()
    disk.flush_directory(root)
    assert {(state["old"][:4], state["log"][:4]) for state in states(disk)} == {(b"old!", b"new\0")}


# ---- the states


def test_the_first_state_has_lost_the_most_and_the_second_nothing(root, states):
    disk = RecordingDisk(LocalDisk(), root)
    file = durable_log(disk, root, 8 * PAGE)
    for page in range(8):
        file.write(b"x" * PAGE, page * PAGE)
    disk.write_whole(root / "small", b"data")
    worst, best, *_ = states(disk)
    assert worst == {"log": bytes(8 * PAGE)}
    assert best == tree(root)
    file.close()


def test_states_come_again_with_the_same_dice_and_none_twice(root, states):
    disk = RecordingDisk(LocalDisk(), root)
    file = durable_log(disk, root, 8 * PAGE)
    for page in range(8):
        file.write(b"x" * PAGE, page * PAGE)
    once, again, other = states(disk), states(disk), states(disk, seed=2)
    assert once == again != other
    assert len(once) > STATES / 2
    file.close()


def test_a_log_that_is_certain_has_one_state(root, states):
    (root / "d").mkdir()
    (root / "d/x").write_bytes(b"x" * 5000)
    disk = RecordingDisk(LocalDisk(), root)
    assert states(disk) == [tree(root)]


def test_a_recording_can_go_on_upon_a_state_of_another(root, tmp_path):
    disk = RecordingDisk(LocalDisk(), root)
    durable_log(disk, root).close()
    for state in power_loss_states(disk.log(), random.Random(1), 1, tmp_path):
        second = RecordingDisk(LocalDisk(), state)
        second.delete(state / "log")
        assert kinds_of_log(second) == ["delete"]


def test_what_is_done_outside_the_root_is_not_logged(root, tmp_path):
    disk = RecordingDisk(LocalDisk(), root)
    disk.write_whole(tmp_path / "elsewhere", b"data")
    file = disk.create(tmp_path / "log", PAGE)
    file.write(b"x", 0)
    file.close()
    disk.flush_directory(tmp_path)
    assert disk.operations == []
