"""The fake disks: faults, full disks, recordings, and the results of power losses."""

import errno
import os
import random
import threading

import pytest
from support.disks.faulty_disk import (
    Fault,
    FaultyDisk,
    RecordingDisk,
    power_loss_states,
)
from support.disks.file_versions import PAGE

from rocketpoll.broker.store.files.disk import LocalDisk

STATES = 60


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def states(tmp_path):
    """Return some states that a recording may leave, as file names and contents."""

    def draw(disk, point=None):
        into = tmp_path / "states"
        into.mkdir(exist_ok=True)
        found = power_loss_states(disk.log(point), random.Random(1), STATES, into)
        return [tree(path) for path in found]

    return draw


def tree(root):
    files = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*"))}
    return {name: path.read_bytes() if path.is_file() else None for name, path in files.items()}


def kinds(disk):
    return [operation.kind for operation in disk.operations]


# ---- the clock


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


def test_faulty_disk_without_faults_numbers_its_operations(root):
    disk = FaultyDisk(LocalDisk(), [])
    do_everything(disk, root)
    assert kinds(disk) == EVERYTHING
    assert [operation.number for operation in disk.operations] == list(range(8))
    assert disk.operations[2].path == root / "d/log"
    assert disk.read(root / "d/log") == b"\0\0\0abcdef".ljust(2 * PAGE, b"\0")
    assert disk.names(root) == ["d"]


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_faulty_disk_fails_any_operation_once(root, number, code):
    disk = FaultyDisk(LocalDisk(), [Fault(number, error=code)])
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        do_everything(disk, root)
    assert caught.value.errno == code
    assert kinds(disk) == EVERYTHING[: number + 1]
    disk.make_directory(root / "e")
    assert "e" in disk.names(root)


def test_persistent_fault_of_one_kind_lasts_until_the_plan_is_empty(root):
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


def test_faulty_disk_tears_a_write(root):
    disk = FaultyDisk(LocalDisk(), [Fault(1, prefix=2), Fault(2, prefix=3)])
    file = disk.create(root / "log", PAGE)
    with pytest.raises(OSError, match="error"):
        file.write(b"abcdef", 0)
    assert bytes(file.read(0, 4)) == b"ab\0\0"
    with pytest.raises(OSError, match="error"):
        disk.write_whole(root / "small", b"abcdef")
    assert disk.read(root / "small") == b"abc"
    file.close()


def test_faulty_disk_tears_a_create_and_a_rename(root):
    disk = FaultyDisk(LocalDisk(), [Fault(0, prefix=1), Fault(1, prefix=1)])
    with pytest.raises(OSError, match="error"):
        disk.create(root / "log", PAGE)
    assert disk.size_of(root / "log") == 0
    with pytest.raises(OSError, match="error"):
        disk.rename(root / "log", root / "other")
    assert disk.names(root) == ["other"]


# ---- a full disk


def test_full_disk_writes_what_fits_until_there_is_space(root):
    disk = FaultyDisk(LocalDisk(), capacity=2 * PAGE)
    file = disk.create(root / "log", 4 * PAGE)
    file.write(b"a" * 100, PAGE - 50)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file.write(b"b" * 100, 2 * PAGE - 50)
    assert bytes(file.read(2 * PAGE - 51, 52)) == b"\0" + b"b" * 50 + b"\0"
    assert disk.usage(root).ratio == 1.0
    file.write(b"c" * 2 * PAGE, 0)
    disk.capacity += PAGE
    file.write(b"b" * 100, 2 * PAGE - 50)
    assert disk.used == 3 * PAGE
    file.close()


def test_deleted_and_replaced_files_free_capacity(root):
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


# ---- recordings


def durable_log(disk, root, size=2 * PAGE):
    file = disk.create(root / "log", size)
    file.flush()
    disk.flush_directory(root)
    return file


def test_recording_disk_logs_operations_with_begin_and_end_of_flushes(root):
    disk = RecordingDisk(LocalDisk(), root)
    do_everything(disk, root)
    disk.delete(root / "other")
    assert kinds(disk) == [
        "make_directory",
        *("create", "truncate"),
        "write",
        *("begin_flush", "end_flush"),
        *("begin_write_whole", "end_flush"),
        "rename",
        *("begin_flush", "end_flush"),
        "delete",
    ]


def test_power_loss_states_keep_flushed_data_and_may_lose_the_rest(root, states):
    disk = RecordingDisk(LocalDisk(), root)
    file = durable_log(disk, root)
    file.write(b"kept", 0)
    file.flush()
    file.write(b"lost", 8)
    disk.write_whole(root / "small", b"data")
    found = states(disk)
    assert {state["log"][:4] for state in found} == {b"kept"}
    assert {state["log"][8:12] for state in found} == {b"lost", bytes(4)}
    assert {state.get("small") for state in found} == {None, b"data"}
    assert found[0] == {"log": b"kept".ljust(2 * PAGE, b"\0")}
    assert found[1] == tree(root)
    file.close()


class SlowDisk(FaultyDisk):
    """A disk on which operations of one kind block until released."""

    slow_kind = None

    def __init__(self):
        super().__init__(LocalDisk())
        self.has_started, self.may_end = threading.Event(), threading.Event()

    def _run(self, call):
        result = super()._run(call)
        if call.kind == self.slow_kind:
            self.has_started.set()
            assert self.may_end.wait(20)
        return result


@pytest.fixture
def slow(root):
    return SlowDisk()


@pytest.fixture
def during(slow):
    """Return a function that runs another one while an operation of a kind is in progress."""

    def do(kind, operation, meanwhile):
        slow.slow_kind = kind
        thread = threading.Thread(target=operation)
        thread.start()
        assert slow.has_started.wait(20)
        meanwhile()
        slow.may_end.set()
        thread.join(20)
        slow.slow_kind = None

    return do


def test_recorded_write_during_a_flush_is_not_flushed(root, states, slow, during):
    disk = RecordingDisk(slow, root)
    file = durable_log(disk, root)
    file.write(b"1", 0)
    during("flush", file.flush, lambda: file.write(b"2", 0))
    assert {state["log"][:1] for state in states(disk)} == {b"1", b"2"}
    file.flush()
    assert states(disk) == [tree(root)]
    file.close()


def test_directory_created_during_a_flush_may_be_lost(root, states, slow, during):
    disk = RecordingDisk(slow, root)

    def make():
        disk.make_directory(root / "d")

    during("flush_directory", lambda: disk.flush_directory(root), make)
    assert {"d" in state for state in states(disk)} == {False, True}


def test_recorded_flush_runs_during_a_write_whole_of_another_file(root, states, slow, during):
    disk = RecordingDisk(slow, root)
    file = durable_log(disk, root)
    file.write(b"1", 0)
    before = len(disk.operations)
    during("write_whole", lambda: disk.write_whole(root / "small", b"data"), file.flush)
    assert kinds(disk)[before:] == ["begin_write_whole", "begin_flush", "end_flush", "end_flush"]
    assert {state["log"][:1] for state in states(disk)} == {b"1"}
    file.close()


def test_recording_disk_records_a_failed_flush(root, states):
    disk = RecordingDisk(FaultyDisk(LocalDisk(), [Fault(4)]), root)
    file = durable_log(disk, root)
    file.write(b"lost", 0)
    with pytest.raises(OSError, match="error"):
        file.flush()
    file.flush()
    assert {state["log"][:4] for state in states(disk)} == {bytes(4), b"lost"}
    file.close()


def test_recording_disk_records_a_torn_write_as_it_landed(root, states):
    disk = RecordingDisk(FaultyDisk(LocalDisk(), [Fault(3, prefix=2)]), root)
    file = durable_log(disk, root)
    with pytest.raises(OSError, match="error"):
        file.write(b"data", 0)
    file.flush()
    assert {state["log"][:4] for state in states(disk)} == {b"da\0\0"}
    file.close()


def test_small_file_after_a_failed_write_may_exist_or_not(root, states):
    disk = RecordingDisk(FaultyDisk(LocalDisk(), [Fault(0, prefix=1), Fault(1)]), root)
    for name in ("torn", "absent"):
        with pytest.raises(OSError, match="error"):
            disk.write_whole(root / name, b"new")
    assert {None, b"", b"new"} <= {state.get("torn") for state in states(disk)}
    disk.flush_directory(root)
    assert {"absent" in state for state in states(disk)} == {False}


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("kind", ["make_directory", "create", "rename", "delete"])
def test_partially_failed_rename_is_recorded_as_it_came_about(root, states, kind, prefix):
    (root / "old").write_bytes(b"old")
    disk = RecordingDisk(FaultyDisk(LocalDisk(), [Fault(prefix=prefix)]), root)
    arguments = {"create": [PAGE], "rename": [root / "new"]}.get(kind, [])
    name = root / ("old" if kind in {"rename", "delete"} else "new")
    with pytest.raises(OSError, match="error"):
        getattr(disk, kind)(name, *arguments)
    disk.flush_directory(root)
    assert states(disk) == [tree(root)]


def test_recorded_file_keeps_its_content_through_a_rename_and_an_old_handle(root, states):
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


def test_power_loss_states_may_be_taken_after_any_operation(root, states):
    disk = RecordingDisk(LocalDisk(), root)
    durable_log(disk, root).close()
    disk.write_whole(root / "small", b"data")
    lengths = [len(states(disk, point)) for point in range(len(disk.operations) + 1)]
    made, sized, durable = 1, 2, 6
    assert lengths[0] == lengths[durable] == 1
    assert min(lengths[made : sized + 1]) > 1
    assert lengths[-1] == 2
    assert states(disk, durable) == [{"log": bytes(2 * PAGE)}]


def test_recording_can_continue_a_previous_one(root, states):
    disk = RecordingDisk(LocalDisk(), root)
    file = durable_log(disk, root)
    file.write(b"1", 0)
    second = RecordingDisk(LocalDisk(), root, disk.log())
    again = second.open(root / "log")
    again.write(b"2", 1)
    assert {state["log"][:2] for state in states(second)} == {b"\0\0", b"1\0", b"12"}
    again.flush()
    assert states(second) == [tree(root)]
    file.close()
    again.close()


def test_recording_disk_ignores_operations_outside_its_root(root, tmp_path):
    disk = RecordingDisk(LocalDisk(), root)
    disk.write_whole(tmp_path / "elsewhere", b"data")
    file = disk.create(tmp_path / "log", PAGE)
    file.write(b"x", 0)
    file.close()
    disk.flush_directory(tmp_path)
    assert disk.operations == []


def test_recording_disk_refuses_file_made_without_it(root):
    disk = RecordingDisk(LocalDisk(), root)
    (root / "x").write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match="x was made without the recording disk"):
        disk.open(root / "x")
