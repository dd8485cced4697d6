"""A slow checkpoint blocks no other operation, and records a state that holds when it ends.

The disk suspends flushes of consume queues until the test resumes them. Other operations complete
meanwhile; then the checkpoint continues, and a crash or power loss at any later moment leaves the
store in a correct state.
"""

import random
import threading
from functools import partial

import pytest
from support.disks.faulty_disk import (
    FaultyDisk,
    ManualClock,
    RecordingDisk,
    power_loss_states,
    usage_of_large_disk,
)
from support.stores.small_store import bodies, checkpointer_of, crash, message, open_store
from support.stores.staged_batches import roll_back

from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.files.disk import _JOB_THREADS_MAX as DOERS
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.maintenance import checkpointer
from rocketpoll.broker.testing import wait_until

SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}


class Disk(FaultyDisk):
    """A disk with a settable usage, which can suspend flushes of queues."""

    def __init__(self):
        super().__init__(slow="consumequeue")
        self.ratio = 0.5

    def usage(self, _):
        return usage_of_large_disk(self.ratio)


@pytest.fixture
def disk():
    slow = Disk()
    yield slow
    slow.let_go()


class UnderWay:
    """A checkpoint suspended in the flush of a queue."""

    def __init__(self, store, disk):
        self._store, self._disk = store, disk
        self.noted = None
        self._thread = threading.Thread(target=self._save)

    def _save(self):
        self.noted = self._store.save_checkpoint()

    def __enter__(self):
        self._disk.keep_waiting()
        self._thread.start()
        assert self._disk.is_waiting.wait(10)
        return self

    def __exit__(self, error, *_):
        was_under_way = self.noted is None
        self._disk.let_go()
        self._thread.join(10)
        assert not self._thread.is_alive()
        assert error or was_under_way, "what was done meanwhile has waited for it"


def put(store, *texts, topic="T", queue_id=0):
    for text in texts:
        stored = store.wait_until_stored(store.put_message(message(text, topic, queue_id)))
        assert stored.status.name == "PUT_OK"


def files_of_the_log(root):
    return len(list((root / "commitlog").iterdir()))


def test_messages_are_stored_and_visible_while_a_checkpoint_flushes(tmp_path, disk):
    store = open_store(tmp_path, disk, **SYNC)
    put(store, "a")
    with UnderWay(store, disk):
        put(store, "b")
        put(store, "c", topic="U")
        assert (bodies(store), bodies(store, "U")) == (["a", "b"], ["c"])
    crash(store)
    again = open_store(tmp_path, **SYNC)
    assert (bodies(again), bodies(again, "U")) == (["a", "b"], ["c"])
    again.shutdown()


def test_checkpoint_omits_rolled_back_rows_of_a_topic_deleted_meanwhile(tmp_path, disk):
    """Otherwise a gap in the next topic of this name would count as rolled-back rows."""
    store = open_store(tmp_path, disk, **SYNC)
    roll_back(store)
    put(store, "kept", topic="U")
    with UnderWay(store, disk) as checkpoint:
        assert checkpointer_of(store).load_manifest().taken_back == {}
        store.delete_topic("T")
    assert checkpoint.noted
    assert checkpointer_of(store).load_manifest().taken_back == {}
    roll_back(store)
    assert store.save_checkpoint()
    assert list(checkpointer_of(store).load_manifest().taken_back) == ["T"]
    store.shutdown()


def test_log_files_are_deleted_while_a_checkpoint_flushes(tmp_path, disk):
    """An earlier checkpoint covers the deleted files; a start after the crash rebuilds no queue."""
    store = open_store(tmp_path, disk, ManualClock(), **SYNC)
    put(store, *("x" * 500 for _ in range(40)))
    store.save_checkpoint()
    put(store, "y")
    files = files_of_the_log(tmp_path)
    assert files > 3
    with UnderWay(store, disk) as checkpoint:
        disk.ratio = 0.87
        assert store.clean() == files - 1
        low, high = store.queue_offsets("T", 0)
        assert 0 < low < high == 41
    assert checkpoint.noted
    assert checkpointer_of(store).load_manifest().spans == {"T": (0, low, high)}
    crash(store)
    again = open_store(tmp_path, disk, **SYNC)
    assert again.queue_offsets("T", 0) == (low, high)
    again.shutdown()


def test_topic_deleted_while_its_directory_is_flushed_causes_no_failure(tmp_path):
    """The directory is missing under its old name, which is no failure."""
    gone = []

    class DeletingDisk(LocalDisk):
        def flush_directory(self, path):
            if path.name == "T" and not gone:
                gone.append(path)
                deleting = threading.Thread(target=store.delete_topic, args=("T",))
                deleting.start()
                deleting.join(10)
                assert not deleting.is_alive()
            super().flush_directory(path)

    store = open_store(tmp_path, DeletingDisk(), **SYNC)
    put(store, "a")
    assert store.save_checkpoint()
    assert gone
    assert store.state().failure is None
    store.shutdown()


def test_shutdown_does_not_wait_for_a_hanging_disk_and_loses_nothing(
    tmp_path, disk, monkeypatch, caplog
):
    """The next start recovers as after a crash."""
    monkeypatch.setattr(checkpointer, "_LAST_CHECKPOINT_SECONDS", 0.05)
    store = open_store(tmp_path, disk, **SYNC)
    put(store, *"abc")
    with UnderWay(store, disk) as checkpoint:
        store.shutdown()
        assert "are flushed after" in caplog.text
        before = checkpointer_of(store).load_manifest()
        again = open_store(tmp_path, **SYNC)
        assert again.state().recovered_from_crash
        assert bodies(again) == list("abc")
        assert checkpointer_of(store).load_manifest() == before
    assert checkpoint.noted is False
    assert (
        checkpointer_of(again).load_manifest() == before
    )  # it writes nothing after another store has taken the directory
    again.shutdown()


def test_store_shutdown_ends_a_running_checkpoint_and_saves_its_own(tmp_path, disk):
    store = open_store(tmp_path, disk, **SYNC)
    for queue_id in range(9):
        put(store, "a", queue_id=queue_id)
    with UnderWay(store, disk) as checkpoint:
        store.stop_accepting("the end has come")
    assert checkpoint.noted is False
    store.shutdown()
    again = open_store(tmp_path, **SYNC)
    assert not again.state().recovered_from_crash
    assert [bodies(again, queue_id=queue_id) for queue_id in range(9)] == [["a"]] * 9
    again.shutdown()


@pytest.mark.parametrize("number", range(6))
def test_power_loss_after_a_checkpoint_with_concurrent_writes_loses_nothing(tmp_path, number):
    dice = random.Random(number)
    root, scratch = tmp_path / "told", tmp_path / "states"
    root.mkdir()
    scratch.mkdir()
    slow = Disk()
    disk = RecordingDisk(slow, root)
    store = open_store(root, disk, mapped_file_size_commit_log=1 << 14, **SYNC)
    due = {}  # queue -> expected messages, and since when

    def note(queue, texts):
        due.setdefault(queue, []).append((len(disk.operations), list(texts)))

    def put_some(topic, count):
        queue = topic, dice.randrange(2)
        texts = [f"{topic} {len(disk.operations)} {at}" for at in range(count)]
        before = due.get(queue, [(0, [])])[-1][1]
        put(store, *texts, topic=topic, queue_id=queue[1])
        note(queue, before + texts)

    def delete(topic):
        for queue in [queue for queue in due if queue[0] == topic]:
            del due[queue]
        store.delete_topic(topic)

    for topic in "TUTUV":
        put_some(topic, dice.choice([1, 9]))
    with UnderWay(store, slow):
        for _ in range(4):
            dice.choice(
                [lambda: delete(dice.choice("TU")), lambda: put_some(dice.choice("TU"), 3)]
            )()
        begun = len(disk.operations)
    put_some("T", 2)
    crash(store)
    for moment in (begun, *range(begun + 1, len(disk.operations) + 1, 3)):
        for state in power_loss_states(disk.log(moment), dice, 3, scratch):
            again = open_store(state, mapped_file_size_commit_log=1 << 14, **SYNC)
            for (topic, queue_id), told in due.items():
                certain = max((texts for at, texts in told if at <= moment), key=len, default=[])
                found = bodies(again, topic, queue_id)
                assert found[: len(certain)] == certain
                assert told[-1][1][: len(found)] == found
            again.shutdown()


@pytest.mark.parametrize("slow", range(3))
def test_checkpoint_waits_for_all_parallel_flushes(slow):
    """Every thread has a flush in progress, and one of these does not end."""
    done, all_at_work, go_on = [], threading.Barrier(DOERS), threading.Event()

    def flush(number):
        if number < DOERS:
            all_at_work.wait(10)
        if number == slow:
            go_on.wait(10)
        done.append(number)

    jobs = [partial(flush, number) for number in range(100)]
    all_of_them = threading.Thread(target=LocalDisk().run_all, args=(jobs,))
    all_of_them.start()
    wait_until(lambda: len(done) == 99, 10, "all but one")
    all_of_them.join(0.2)
    assert all_of_them.is_alive()
    go_on.set()
    all_of_them.join(10)
    assert sorted(done) == list(range(100))


def test_parallel_flushes_raise_the_one_error():
    def fail():
        raise OSError("this one")

    for count in (1, 100):
        with pytest.raises(OSError, match="this one"):
            LocalDisk().run_all([*[lambda: None] * count, fail])


@pytest.mark.parametrize("after", range(16))
def test_stopped_checkpoint_writes_no_manifest_afterwards(tmp_path, after):
    """Another broker may own the directory by then."""
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk, **SYNC)
    for queue_id in range(4):
        store.wait_until_stored(store.put_message(message("k", queue_id=queue_id, keys="k")))
        if not queue_id:
            store.save_checkpoint()
    begun = len(disk.operations)
    is_noted = checkpointer_of(store).save(lambda: len(disk.operations) - begun > after)
    done = disk.operations[begun:]
    notes = [at for at, each in enumerate(done) if each.path.name.startswith("manifest")]
    assert is_noted == bool(notes)
    assert all(at <= after for at in notes[:1])
    store.shutdown()
