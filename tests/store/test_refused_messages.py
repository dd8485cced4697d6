"""Messages refused by a full or failing disk never become visible, not even after a restart."""

import errno

import pytest
from support.disks.faulty_disk import Fault, FaultyDisk
from support.disks.file_versions import PAGE
from support.stores.small_store import (
    bodies,
    crash,
    encoded,
    message,
    open_store,
    put_batch,
    put_later,
)

from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.results import PutMessageStatus
from rocketpoll.broker.store.startup.directory_lock import ABORT

BIG = {"mapped_file_size_commit_log": 1 << 16, "flush_disk_type": FlushDiskType.SYNC_FLUSH}
REFUSED = [message(f"refused {number}" + "x" * 300) for number in range(60)]


def put_as_batch(store):
    return [put_batch(store, *REFUSED)]


def put_chunk(store):
    records = [encoded(each) for each in REFUSED]
    return [store.put_chunk(b"".join(records), [len(each) for each in records])]


def put_together(store):
    assert put_later(store, *REFUSED[:30]) == [None] * 30
    return store.write_buffered()


def with_one_message(root, disk):
    store = open_store(root, disk, **BIG)
    put(store, "first")
    return store


def put(store, body):
    result = store.wait_until_stored(store.put_message(message(body)))
    assert result.status is PutMessageStatus.PUT_OK


def after_a_start(root):
    store = open_store(root, **BIG)
    found = bodies(store)
    put(store, "next")
    assert bodies(store) == [*found, "next"]
    store.shutdown()
    return found


def tear_a_batch(store, disk):
    """Write a batch completely, report failure, and refuse all later writes."""
    torn = Fault(len(disk.operations), kinds={"write"}, error=errno.ENOSPC, prefix=1 << 20)
    disk.plan = (torn, Fault(0, persistent=True, kinds={"write"}, error=errno.ENOSPC))
    assert [each.status.name for each in put_as_batch(store)] == ["SERVICE_NOT_AVAILABLE"]
    assert bodies(store) == ["first"]


@pytest.mark.parametrize("end", ["stop", "kill", "deletion"])
@pytest.mark.parametrize("pages", [1, 2])
@pytest.mark.parametrize("refuse", [put_as_batch, put_chunk, put_together])
def test_messages_refused_on_a_full_disk_are_not_recovered(tmp_path, refuse, pages, end):
    disk = FaultyDisk(LocalDisk())
    store = with_one_message(tmp_path, disk)
    disk.capacity = disk.used + pages * PAGE
    results = refuse(store)
    assert {each.status.name for each in results} == {"SERVICE_NOT_AVAILABLE"}
    assert bodies(store) == ["first"]
    if end == "kill":
        crash(store)
    disk.capacity = None
    if end == "deletion":
        store.delete_topic("T")
    if end != "kill":
        store.shutdown()
    assert after_a_start(tmp_path) == ([] if end == "deletion" else ["first"])


@pytest.mark.parametrize("what", ["checkpoint", "deletion", "shutdown", "put"])
def test_torn_batch_is_wiped_by_the_next_operation(tmp_path, what):
    disk = FaultyDisk(LocalDisk())
    store = with_one_message(tmp_path, disk)
    tear_a_batch(store, disk)
    disk.plan = ()
    if what == "put":
        put(store, "second")
    elif what == "checkpoint":
        assert store.save_checkpoint()
    elif what == "deletion":
        store.delete_topic("T")
    else:
        store.shutdown()
        assert not (tmp_path / ABORT).exists()
    if what != "shutdown":
        crash(store)
    assert after_a_start(tmp_path) == {"put": ["first", "second"], "deletion": []}.get(
        what, ["first"]
    )


def test_topic_deletion_waits_until_refused_messages_are_wiped(tmp_path):
    disk = FaultyDisk(LocalDisk())
    store = with_one_message(tmp_path, disk)
    tear_a_batch(store, disk)
    with pytest.raises(OSError, match="No space left on device"):
        store.delete_topic("T")
    assert not store.half_deleted_topics
    assert bodies(store) == ["first"]
    disk.plan = ()
    store.shutdown()
    assert after_a_start(tmp_path) == ["first"]


def test_stop_that_cannot_wipe_refused_messages_keeps_the_abort_file(tmp_path, caplog):
    disk = FaultyDisk(LocalDisk())
    store = with_one_message(tmp_path, disk)
    tear_a_batch(store, disk)
    store.shutdown()
    assert (tmp_path / ABORT).exists()
    assert "remains of refused messages, " in caplog.text
    assert str(tmp_path / "commitlog" / f"{0:020}") in caplog.text


def test_wipe_runs_from_end_to_start_so_that_a_kill_leaves_no_hole(tmp_path):
    """A kill during the wipe leaves the same state as a kill during the write."""
    disk = FaultyDisk(LocalDisk())
    store = with_one_message(tmp_path, disk)
    tear_a_batch(store, disk)
    disk.plan = (
        Fault(len(disk.operations) + 2, persistent=True, kinds={"write"}, error=errno.ENOSPC),
    )
    assert not store.save_checkpoint()
    crash(store)
    found = after_a_start(tmp_path)
    wiped = len(REFUSED) - (len(found) - 1)
    assert found[1:] == [each.body.decode() for each in REFUSED[:-wiped]]
    assert 0 < wiped < len(REFUSED)
    again = open_store(tmp_path, **BIG)
    assert again.state().holes == ()
    again.shutdown()
