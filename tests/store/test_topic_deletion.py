"""Topic deletion: no client waits for the files, and no crash restores old messages or drops newer
ones."""

import shutil
from itertools import count

import pytest
from support.disks.faulty_disk import Fault, FaultIn, FaultyDisk, RecordingDisk, power_loss_states
from support.stores.small_store import (
    LOG_FILE_BYTES,
    bodies,
    components_of,
    crash,
    message,
    open_store,
    read_all,
)
from support.suite.log_records import lines_of
from support.suite.selection import some

from rmq_spark.wire.message.record import decode_record
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.errors import StoreFailed, TransientFailure
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.queues.manifest import DELETIONS_MAX

SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}


def put(store, *texts, topic="T", queue_id=0):
    for text in texts:
        stored = store.wait_until_stored(store.put_message(message(text, topic, queue_id)))
        assert stored.status.name == "PUT_OK"


class Telling(FaultyDisk):
    """Calls a function before each operation."""

    def __init__(self):
        super().__init__(LocalDisk())
        self.tell = lambda _call: None

    def _run(self, call):
        self.tell(call)
        return super()._run(call)


def test_topic_deletion_blocks_appends_only_for_the_directory_rename(tmp_path):
    disk = Telling()
    store = open_store(tmp_path, disk)
    for queue_id in range(20):
        put(store, *"abcdefghijkl", queue_id=queue_id)
    kinds = {True: [], False: []}
    disk.tell = lambda call: kinds[components_of(store).reput._lock.locked()].append(call.kind)
    store.delete_topic("T")
    assert kinds[True] == ["make_directory", "rename"]
    assert "delete" not in kinds[False]
    store.deleted_topic_files.delete_some()
    assert kinds[True] == ["make_directory", "rename"]
    assert (
        kinds[False].count("delete") == 20 * (2 + 1) + 1
    )  # two files and a directory for each queue, and one for the topic
    assert list((tmp_path / "consumequeue.deleted").iterdir()) == []
    store.shutdown()


@pytest.mark.parametrize("can_move", [True, False])
def test_message_put_during_topic_deletion_belongs_to_the_recreated_topic(tmp_path, can_move):
    stays = FaultIn(0, persistent=True, kinds={"rename"}, directory="consumequeue")
    disk = Telling()
    store = open_store(tmp_path, disk)
    put(store, "old", "older")
    put(store, "kept", topic="U")

    def once(call):
        if call.kind == "write_whole":
            disk.tell = lambda _call: None
            put(store, "new")
            put(store, "first of its queue", queue_id=1)

    disk.tell, disk.plan = once, () if can_move else (stays,)
    store.delete_topic("T")
    disk.plan = ()
    for _ in range(2):
        assert [(each.queue_offset, each.body) for each in read_all(store, "T", 0)] == [(2, b"new")]
        assert bodies(store, "T", 1) == ["first of its queue"]
        assert store.queue_offsets("T", 0) == (2, 3)
        store.shutdown()
        (tmp_path / "checkpoint").unlink()  # everything is rebuilt from the log
        store = open_store(tmp_path)
    put(store, "newer")
    assert bodies(store) == ["new", "newer"]
    assert bodies(store, "U") == ["kept"]
    store.shutdown()


class CountingDisk(FaultyDisk):
    """Counts operations and written bytes."""

    def __init__(self):
        super().__init__(LocalDisk())
        self.written_bytes = 0

    def _run(self, call):
        self.written_bytes += len(call.data)
        return super()._run(call)


@pytest.mark.deep
def test_topic_deletion_cost_does_not_grow_with_earlier_deletions(tmp_path):
    """Measured between two saves of the manifest, which is saved once for hundreds of deletions."""
    disk = CountingDisk()
    store = open_store(tmp_path, disk)
    written, operations, most = [], [], 2 * DELETIONS_MAX
    for number in range(3 * most):
        store.put_message(message("x", f"T{number}"))
        before = disk.written_bytes, len(disk.operations)
        store.delete_topic(f"T{number}")
        store.finish_deletion(f"T{number}")
        written.append(disk.written_bytes - before[0])
        operations.append(len(disk.operations) - before[1])
        disk.operations.clear()
        store.deleted_topic_files.delete_some()
    for costs in (written, operations):  # the flusher's own operations are included
        thirds = [sum(costs[at : at + most]) for at in range(0, 3 * most, most)]
        assert thirds[2] < 1.25 * thirds[0]
    store.shutdown()
    again = open_store(tmp_path)
    assert again.queue_nums() == {}
    again.shutdown()


def test_damaged_deletion_table_is_quarantined_with_a_warning(tmp_path, caplog):
    store = open_store(tmp_path)
    for topic in ("first", "second"):
        put(store, "x", topic=topic)
        store.delete_topic(topic)
    crash(store)
    (tmp_path / "config/deletions.json").write_bytes(bytes(100))
    store = open_store(tmp_path)
    [line] = [each for each in lines_of(caplog, "rocketpoll.broker.store") if "damaged" in each]
    assert "config/deletions.json was damaged" in line
    assert "is now deletions.json.corrupt: its backup is used" in line
    store.shutdown()


def test_number_of_deleted_topics_is_limited_until_messages_expire(tmp_path, monkeypatch):
    monkeypatch.setattr("rocketpoll.broker.store.maintenance.checkpointer.DELETED_TOPICS_MAX", 2)
    store = open_store(tmp_path)
    for name in ("T", "U", "V"):
        put(store, "x" * 1000, topic=name)
    store.delete_topic("T")
    store.delete_topic("U")
    with pytest.raises(
        TransientFailure, match="2 deleted topics still have messages in the commit log"
    ):
        store.delete_topic("V")
    assert bodies(store, "V") == ["x" * 1000]
    put(store, *["y" * 3000] * 3, topic="V")
    components_of(store).log.files.delete_before(LOG_FILE_BYTES)
    store.save_checkpoint()
    store.clean()
    store.delete_topic("V")
    store.shutdown()


@pytest.mark.parametrize("kind", ["write_whole", "rename"])
def test_failed_topic_deletion_is_reported_and_can_be_repeated(tmp_path, kind):
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk, **SYNC)
    put(store, "old")
    put(store, "kept", topic="U")
    disk.plan = (Fault(0, persistent=True, kinds={kind}),)
    with pytest.raises(OSError, match="Input/output error"):
        store.delete_topic("T")
    disk.plan = ()
    put(store, "new")
    assert bodies(store) == ["old", "new"]
    store.delete_topic("T")
    assert bodies(store) == []
    put(store, "newer")
    store.shutdown()
    again = open_store(tmp_path)
    assert (bodies(again), bodies(again, "U")) == (["newer"], ["kept"])
    again.shutdown()


def test_unknown_outcome_of_topic_deletion_stops_the_store(tmp_path):
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk, **SYNC)
    put(store, "old")
    behind_the_first = len(disk.operations) + 1
    disk.plan = (Fault(behind_the_first, persistent=True, kinds={"flush_directory"}),)
    with pytest.raises(StoreFailed, match="deleting a topic failed"):
        store.delete_topic("T")
    disk.plan = ()
    assert "deleting a topic failed" in store.state().failure
    assert store.put_message(message("new")).status.name == "SERVICE_NOT_AVAILABLE"
    assert bodies(store) == ["old"]
    store.shutdown()


@pytest.mark.parametrize("prefix", [0, 1000])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_topic_deletion_with_any_disk_error_is_atomic_after_restart(
    tmp_path, persistent, prefix, killed
):
    """A message put before the deletion and acknowledged after it is deleted or kept together with
    the topic."""
    for number in count():
        root = tmp_path / str(number)
        root.mkdir()
        disk = FaultyDisk(LocalDisk())
        store = open_store(root, disk, **SYNC)
        put(store, *(f"old {each}" for each in range(12)))
        put(store, "kept", topic="U")
        under_way = store.put_message(message("under way"))
        disk.plan = (Fault(len(disk.operations) + number, persistent=persistent, prefix=prefix),)
        begun = len(disk.operations)
        has_happened = True
        try:
            store.delete_topic("T")
        except (OSError, StoreFailed):
            has_happened = False
        is_over = len(disk.operations) <= begun + number
        disk.plan = ()
        if store.state().failure is None:
            assert store.wait_until_stored(under_way).status.name == "PUT_OK"
            put(store, "new")
            expected = [
                *([] if has_happened else [*(f"old {n}" for n in range(12)), "under way"]),
                "new",
            ]
            assert bodies(store) == expected
            store.shutdown() if not killed else crash(store)
            again = open_store(root, **SYNC)
            assert (bodies(again), bodies(again, "U")) == (expected, ["kept"])
            put(again, "newest")
            assert bodies(again) == [*expected, "newest"]
            again.shutdown()
        if is_over:
            break
    assert number > 5


def test_power_loss_neither_revives_deleted_messages_nor_takes_new_ones(tmp_path, dice):
    root = tmp_path / "told"
    root.mkdir()
    disk = RecordingDisk(LocalDisk(), root)
    store = open_store(root, disk, **SYNC)
    done = {}

    def note(name):
        done[name] = len(disk.operations)

    put(store, *(f"old {number}" for number in range(12)))
    put(store, "kept", topic="U")
    store.save_checkpoint()
    put(store, "last old")
    begun = len(disk.operations)
    store.delete_topic("T")
    note("deleted")
    for number in range(3):
        put(store, f"new {number}")
        note(f"new {number}")
    store.save_checkpoint()
    store.delete_topic("T")
    note("deleted again")
    put(store, "newest")
    note("newest")
    store.shutdown()
    for point in some(
        range(begun, len(disk.operations) + 1), "ROCKETPOLL_MOMENTS_OF_DELETIONS", 40
    ):
        for state in power_loss_states(disk.log(point), dice, 3, tmp_path):
            again = open_store(state, **SYNC)
            found = bodies(again)
            known = {name for name, at in done.items() if at <= point}
            assert sum("old" in text for text in found) in ({0} if "deleted" in known else {0, 13})
            if "deleted again" in known:
                assert not set(found) & {f"new {number}" for number in range(3)}
            else:
                begun_again = point > done["new 2"]  # the second deletion may have happened
                assert {name for name in known if name.startswith("new ")} <= set(
                    found
                ) or begun_again
            assert "newest" in found or "newest" not in known
            assert bodies(again, "U") == ["kept"]
            put(again, "after")
            assert bodies(again)[-1] == "after"
            again.shutdown()


def deleted_behind_a_checkpoint(root):
    """Return a store, and the disk operations of a topic created and deleted since its
    checkpoint."""
    root.mkdir()
    disk = RecordingDisk(LocalDisk(), root)
    store = open_store(root, disk)
    store.put_message(message("kept", "U"))
    store.save_checkpoint()
    for number in range(20):
        store.put_message(message(f"old {number}", "T", KEYS="k"))
    store.delete_topic("T")
    return store, disk


def test_second_crash_before_the_checkpoint_hides_no_message_after_deletion(tmp_path, dice):
    """The first start finds the end of the deletion, and records it at once."""
    store, disk = deleted_behind_a_checkpoint(tmp_path / "told")
    for state in power_loss_states(disk.log(), dice, 5, tmp_path):
        again = open_store(state)
        again.put_message(message("new", "T"))
        crash(again)
        again = open_store(state)
        assert (bodies(again), bodies(again, "U")) == (["new"], ["kept"])
        again.shutdown()
    store.shutdown()


@pytest.mark.parametrize("restart", [False, True], ids=["at once", "after a restart"])
def test_messages_of_a_deleted_topic_are_not_found_by_key(tmp_path, restart):
    store = open_store(tmp_path)
    store.put_message(message("old", "T", KEYS="k"))
    store.put_message(message("another's", "U", KEYS="k"))
    store.delete_topic("T")
    if restart:
        store.shutdown()
        store = open_store(tmp_path)
    assert store.query_message("T", "k", 9, 0, 1 << 62) == []
    store.put_message(message("new", "T", KEYS="k"))
    for topic, text in (("T", b"new"), ("U", b"another's")):
        (found,) = store.query_message(topic, "k", 9, 0, 1 << 62)
        assert decode_record(found).body == text
    store.shutdown()


@pytest.mark.parametrize("made_again", [False, True])
def test_half_done_topic_deletion_is_moved_away_by_the_next_start(tmp_path, made_again):
    """The deletion was recorded, and its files not moved yet, or moved back by a power loss."""
    store = open_store(tmp_path)
    for queue_id in range(4):
        put(store, *"abcdefghijkl", queue_id=queue_id)
    store.save_checkpoint()
    shutil.copytree(tmp_path / "consumequeue", tmp_path / "before")
    store.delete_topic("T")
    if made_again:
        put(store, "new", queue_id=1)
        store.save_checkpoint()
        shutil.copytree(
            tmp_path / "consumequeue" / "T" / "1",
            tmp_path / "before" / "T" / "1",
            dirs_exist_ok=True,
        )
    crash(store)
    for name in ("consumequeue", "consumequeue.deleted"):
        shutil.rmtree(tmp_path / name)
    (tmp_path / "before").rename(tmp_path / "consumequeue")
    disk = Telling()
    kinds = []
    disk.tell = lambda call: kinds.append(call.kind)
    again = open_store(tmp_path, disk)
    assert bodies(again, queue_id=1) == (["new"] if made_again else [])
    assert bodies(again) == []
    if not made_again:
        assert "delete" not in kinds
        assert [each.name for each in (tmp_path / "consumequeue.deleted").iterdir()] == ["0"]
        again.deleted_topic_files.delete_some()
        assert list((tmp_path / "consumequeue.deleted").iterdir()) == []
    again.shutdown()


def test_start_deletes_queues_of_deleted_topics_that_cannot_be_moved(tmp_path):
    store = open_store(tmp_path)
    put(store, "old")
    put(store, "kept", topic="U")
    shutil.copytree(tmp_path / "consumequeue", tmp_path / "before")
    store.delete_topic("T")
    crash(store)
    for name in ("consumequeue", "consumequeue.deleted"):
        shutil.rmtree(tmp_path / name)
    (tmp_path / "before").rename(tmp_path / "consumequeue")
    disk = FaultyDisk(LocalDisk())
    disk.plan = (FaultIn(0, persistent=True, kinds={"rename"}, directory="consumequeue"),)
    again = open_store(tmp_path, disk)
    assert not (tmp_path / "consumequeue" / "T").exists() or not list(
        (tmp_path / "consumequeue" / "T").iterdir()
    )
    assert (bodies(again), bodies(again, "U")) == ([], ["kept"])
    put(again, "new")
    assert bodies(again) == ["new"]
    again.shutdown()


def test_topic_stays_half_deleted_until_finish_deletion_across_crashes(tmp_path):
    store = open_store(tmp_path)
    for topic in ("T", "U", "V"):
        put(store, "old", topic=topic)
        store.delete_topic(topic)
    crash(store)
    store = open_store(tmp_path)
    assert store.half_deleted_topics == ("T", "U", "V")
    store.finish_deletion("U")
    crash(store)
    again = open_store(tmp_path)
    assert again.half_deleted_topics == ("T", "V")
    again.finish_deletion("T")
    again.finish_deletion("V")
    crash(again)
    last = open_store(tmp_path)
    assert last.half_deleted_topics == ()
    last.shutdown()
