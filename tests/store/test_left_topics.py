"""Files of deleted topics are removed little by little: across restarts, skipping undeletable
files, during reads."""

import contextlib
import errno
from pathlib import Path

import pytest
from support.disks.faulty_disk import FaultIn, FaultyDisk
from support.stores.small_store import bodies, crash, message, open_store

from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.queues.consume_queue import ConsumeQueue


@pytest.fixture
def few(monkeypatch):
    """Delete four files and directories at a time."""
    monkeypatch.setattr("rocketpoll.broker.store.queues.queue_table.FILES_AT_A_TIME", 4)


def with_deleted(store, *topics, queues=4):
    for topic in topics:
        for queue_id in range(queues):
            store.put_message(message("old", topic, queue_id))
        store.delete_topic(topic)


def left(root):
    """Return the number of remaining queue directories."""
    return sum(1 for _ in (root / "consumequeue.deleted").glob("*/*"))


def deleted(store, root):
    """Run the deletion to its end; return the number of remaining queues after each call."""
    there = []
    while store.deleted_topic_files:
        store.deleted_topic_files.delete_some()
        there.append(left(root))
    return there


def test_files_of_deleted_topics_are_removed_in_steps(tmp_path, few):
    store = open_store(tmp_path)
    with_deleted(store, "T", "U")
    assert deleted(store, tmp_path) == [6, 4, 3, 1, 0]
    assert list((tmp_path / "consumequeue.deleted").iterdir()) == []
    store.shutdown()


@pytest.mark.parametrize("end", [crash, lambda store: store.shutdown()], ids=["kill", "stop"])
def test_deleted_topic_files_are_removed_further_after_a_restart(tmp_path, few, end):
    store = open_store(tmp_path)
    with_deleted(store, "T", "U")
    store.deleted_topic_files.delete_some()
    end(store)
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk)
    assert left(tmp_path) == 6
    with_deleted(store, "T", queues=2)
    assert deleted(store, tmp_path)[-1] == 0
    assert list((tmp_path / "consumequeue.deleted").iterdir()) == []
    store.put_message(message("new"))
    assert bodies(store) == ["new"]
    store.shutdown()


def test_undeletable_file_of_a_deleted_topic_does_not_block_others(tmp_path, few):
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk)
    with_deleted(store, "T", "U", "V", queues=1)
    disk.plan = (FaultIn(0, persistent=True, kinds={"delete"}, directory="1", error=errno.EACCES),)
    for _ in range(6):
        with contextlib.suppress(PermissionError):
            store.deleted_topic_files.delete_some()
    with pytest.raises(PermissionError):
        store.deleted_topic_files.delete_some()
    assert [each.name for each in (tmp_path / "consumequeue.deleted").iterdir()] == ["1"]
    disk.plan = ()
    assert deleted(store, tmp_path) == [0]
    assert list((tmp_path / "consumequeue.deleted").iterdir()) == []
    store.shutdown()


def test_topic_deleted_while_files_are_being_removed_is_removed_too(tmp_path):
    """The first name in the directory is free again once its files are deleted."""
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path, disk)
    with_deleted(store, "T", "U")
    delete = disk.delete

    def delete_and_more(path):
        delete(path)
        if path.parent.name == "consumequeue.deleted" and path.name == "0":
            disk.delete = delete
            with_deleted(store, "V")

    disk.delete = delete_and_more
    assert deleted(store, tmp_path)[-1] == 0
    assert list((tmp_path / "consumequeue.deleted").iterdir()) == []
    store.shutdown()


def test_checkpoint_covers_topic_files_being_deleted(tmp_path, few):
    store = open_store(tmp_path)
    store.put_message(message("kept", "K"))
    with_deleted(store, "T")
    for _ in range(4):
        store.deleted_topic_files.delete_some()
        assert store.save_checkpoint()
    assert store.state().degradation is None
    store.shutdown()
    again = open_store(tmp_path)
    assert not again.state().recovered_from_crash
    assert (bodies(again, "K"), bodies(again)) == (["kept"], [])
    again.shutdown()


def test_deleted_queue_is_closed_once_with_its_files(tmp_path, few, monkeypatch):
    closed, close = [], ConsumeQueue.close

    def note_and_close(queue):
        closed.append(queue.directory.name)
        close(queue)

    monkeypatch.setattr(ConsumeQueue, "close", note_and_close)
    store = open_store(tmp_path)
    with_deleted(store, "T", queues=6)
    assert len(deleted(store, tmp_path)) > 2
    assert sorted(closed) == [*"012345"]
    opened = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert not [each for each in opened if str(tmp_path) in each and each.endswith("(deleted)")]
    store.shutdown()
