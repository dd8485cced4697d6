"""The commit records of batches, damaged at any byte: a start reports it, or the rows stay right.

The rows of an acknowledged batch stay visible; those of an unfinished one stay hidden. Otherwise
the start is refused with the file's name, and has changed no row.
"""

import json
import shutil
from contextlib import suppress

import pytest
from support.disks.faulty_disk import tree_in
from support.stores.small_store import bodies, components_of, crash, message, open_store
from support.stores.staged_batches import Sink

from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.errors import BatchRefused, DamagedTable
from rocketpoll.broker.store.message_store import MessageStore
from rocketpoll.broker.store.staging import commit_table

PAGE = 4_096
SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
QUEUES = [("T", 0), ("T", 1), ("U", 0)]
ENDS = {"stopped": MessageStore.shutdown, "killed": crash}


@pytest.fixture(autouse=True)
def _small_journal(monkeypatch):
    monkeypatch.setattr(commit_table, "JOURNAL_BYTES", 6 * PAGE)


def texts_of(batch_id):
    return [f"{batch_id} {row}" for row in range(3)]


def seen(store):
    return [bodies(store, *queue) for queue in QUEUES]


def committed(root, end, batches, **settings):
    """Create a store with this number of committed batches, and a message after each."""
    store = open_store(root, **settings)
    sink = Sink(store)
    for batch_id in range(batches):
        attempt = sink.stage(batch_id, [(*queue, texts_of(batch_id)) for queue in QUEUES])
        sink.commit(batch_id, attempt)
        store.wait_until_stored(store.put_message(message(f"behind {batch_id}")))
        store.reput()
    found = seen(store)
    assert all(text in each for each in found for text in texts_of(batches - 1))
    ENDS[end](store)
    return found


def entries_in(data):
    """Return start and end of each entry of a journal."""
    starts = [at for at in range(0, len(data), PAGE) if data.startswith(b"RPBJ", at)]
    return [(at, len(data[at : at + PAGE].rstrip(b"\0")) + at) for at in starts]


def started(root, whole):
    """Return whether a start after a crash served all rows; otherwise it was refused."""
    try:
        store = open_store(root, **SYNC)
    except DamagedTable as refused:
        assert str(root / "config" / "stagedBatches.journal") in str(refused)
        return "refused"
    assert seen(store) == whole
    crash(store)
    return "served"


@pytest.mark.parametrize("end", ENDS)
def test_flipped_bit_in_the_batch_journal_takes_no_committed_row(tmp_path, end):
    """Also in the last entry, which a crash may damage: it says that rows are committed."""
    whole = committed(tmp_path / "whole", end, 2, **SYNC)
    journal = "config/stagedBatches.journal"
    data = (tmp_path / "whole" / journal).read_bytes()
    outcomes = []
    for first, last in entries_in(data):
        for at in (first + 5, first + 22, last - 1):
            root = shutil.copytree(tmp_path / "whole", tmp_path / str(at))
            changed = bytearray(data)
            changed[at] ^= 1
            (root / journal).write_bytes(changed)
            log = tree_in(root / "commitlog")
            outcomes += [
                started(root, whole),
                started(root, whole),
            ]  # the result of the first start
            assert "refused" not in outcomes[-2:] or tree_in(root / "commitlog") == log
            shutil.rmtree(root)
    assert "refused" in outcomes


def test_deleting_the_damaged_journal_helps_as_advised(tmp_path):
    """Deletion forgets all sinks: their rows stay, and stay visible."""
    whole = committed(tmp_path, "stopped", 2)
    journal = tmp_path / "config" / "stagedBatches.journal"
    data = bytearray(journal.read_bytes())
    data[entries_in(data)[-1][1] - 1] ^= 1
    journal.write_bytes(data)
    with pytest.raises(DamagedTable, match=r"move both and stagedBatches\.json\.bak away"):
        open_store(tmp_path)
    for path in (tmp_path / "config").glob("stagedBatches.*"):
        path.unlink()
    store = open_store(tmp_path)
    assert seen(store) == whole
    assert Sink(store).last is None
    store.shutdown()


class Killed(Exception):
    """Raised when the broker is killed."""


@pytest.mark.parametrize("steps", range(1, 9))
def test_messages_of_others_do_not_decide_a_commit_under_way_at_recovery(tmp_path, steps):
    """Messages of others are between the start of the commit and its first row, and in their
    queues."""
    store = open_store(tmp_path, **SYNC)
    sink, others = Sink(store), []
    attempt = sink.stage(0, [(*queue, texts_of(0)) for queue in QUEUES])

    def send():
        others.append(f"other {len(others)}")
        store.wait_until_stored(store.put_message(message(others[-1])))
        store.reput()
        if len(others) == steps:
            raise Killed

    with suppress(Killed):
        sink.commit(0, attempt, between=send)
    is_committed = sink.last is not None
    crash(store)
    store = open_store(tmp_path, **SYNC)
    rows = texts_of(0) if is_committed else []
    assert [text for text in bodies(store) if "other" in text] == others
    assert [text for text in bodies(store) if "other" not in text] == rows
    assert bodies(store, "U", 0) == rows
    store.shutdown()


def test_rows_already_rolled_back_are_rolled_back_again_after_journal_damage(tmp_path):
    """The entry that records the rollback is damaged, which loses nothing."""
    store = open_store(tmp_path)
    sink = Sink(store)
    sink.commit(0, sink.stage(0, [("T", 0, texts_of(0))]))

    def refuse(_):
        raise BatchRefused

    attempt = sink.stage(1, [("T", 0, texts_of(1))])
    with pytest.raises(BatchRefused):
        sink.commit(1, attempt, admit=refuse)
    store.put_message(message("behind"))
    store.reput()
    store.shutdown()
    journal = tmp_path / "config" / "stagedBatches.journal"
    data = bytearray(journal.read_bytes())
    data[entries_in(data)[-1][1] - 1] ^= 1
    journal.write_bytes(data)
    store = open_store(tmp_path)
    assert bodies(store) == [*texts_of(0), "behind"]
    store.shutdown()


# ---- older copies of both files


def one_more(root, batch_id, *, checkpoint=False, end=MessageStore.shutdown):
    """Commit another batch of the sink, unknown to an earlier copy of the store."""
    store = open_store(root, **SYNC)
    sink = Sink(store)
    sink.commit(batch_id, sink.stage(batch_id, [(*queue, texts_of(batch_id)) for queue in QUEUES]))
    store.reput()
    if checkpoint:
        store.save_checkpoint()
    found = seen(store)
    end(store)
    return found


def put_back(copy, root, *names):
    """Replace files by those of a copy of the store."""
    for name in names:
        shutil.rmtree(root / name) if (root / name).is_dir() else (root / name).unlink()
        copied = copy / name
        (shutil.copytree if copied.is_dir() else shutil.copy)(copied, root / name)


BOTH = ("config/stagedBatches.json", "config/stagedBatches.journal")


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("what", [BOTH, ("config",)], ids=["both files", "all of config"])
def test_older_copy_of_both_batch_files_is_refused(tmp_path, end, checkpoint, what):
    """Otherwise the sink would commit batches again that are already visible."""
    root = tmp_path / "s"
    committed(root, "stopped", 2, **SYNC)
    shutil.copytree(root, tmp_path / "copy")
    whole = one_more(root, 2, checkpoint=checkpoint, end=ENDS[end])
    shutil.copytree(root / "config", tmp_path / "newest")
    put_back(tmp_path / "copy", root, *what)
    log = tree_in(root / "commitlog")
    for _ in range(2):
        with pytest.raises(DamagedTable, match=r"it is an older copy: the newest commit"):
            open_store(root, **SYNC)
    assert tree_in(root / "commitlog") == log
    for name in BOTH:
        shutil.copy(tmp_path / "newest" / name.removeprefix("config/"), root / name)
    store = open_store(root, **SYNC)
    assert seen(store) == whole
    assert Sink(store).commit(2).batch_id == 2
    assert seen(store) == whole
    store.shutdown()


def test_older_copy_of_a_whole_store_is_served(tmp_path):
    root = tmp_path / "s"
    whole = committed(root, "stopped", 2, **SYNC)
    shutil.copytree(root, tmp_path / "copy")
    one_more(root, 2)
    assert one_more(tmp_path / "copy", 2) == [[*each, *texts_of(2)] for each in whole]


def test_missing_journal_of_a_batch_without_rows_is_not_noticed(tmp_path):
    """A batch without rows, or a forgotten sink: no other file depends on them."""
    root = tmp_path / "s"
    whole = committed(root, "stopped", 2, **SYNC)
    shutil.copytree(root, tmp_path / "copy")
    store = open_store(root, **SYNC)
    Sink(store).commit(2)
    Sink(store, "another").forget()
    store.shutdown()
    put_back(tmp_path / "copy", root, *BOTH)
    store = open_store(root, **SYNC)
    assert (seen(store), Sink(store).last) == (whole, 1)
    store.shutdown()


def test_batch_table_of_an_earlier_release_is_accepted(tmp_path):
    """Such a table does not say which commit was the newest; the next commit adds that."""
    whole = committed(tmp_path, "stopped", 2, **SYNC)
    manifest, table = (tmp_path / "config" / name for name in ("manifest.json", BOTH[0][7:]))
    journal = tmp_path / BOTH[1]
    for path in (manifest, table):
        said = json.loads(path.read_bytes())
        assert said.pop("newestMark", None) or path == table
        said.pop("checksum", None)
        path.write_text(json.dumps(said))
    entries = journal.read_bytes()
    journal.write_bytes(bytes(len(entries)))
    store = open_store(tmp_path, **SYNC)
    assert seen(store) == whole
    store.shutdown()
    one_more(tmp_path, 2)
    assert components_of(store).batch_table.newest_mark is None
    assert open_newest_mark(tmp_path) is not None


def open_newest_mark(root):
    store = open_store(root, **SYNC)
    store.shutdown()
    return components_of(store).batch_table.newest_mark


def test_damaged_commit_entry_refuses_the_start_as_an_older_copy(tmp_path):
    """The entry of the commit's start is damaged, and some of its rows are in the log."""
    store = open_store(tmp_path, **SYNC)
    sink, calls = Sink(store), []
    sink.commit(0, sink.stage(0, [("T", 0, texts_of(0))]))
    attempt = sink.stage(1, [(*queue, texts_of(1)) for queue in QUEUES])

    def look():
        calls.append(store.state().written_offset)
        if calls[-1] > calls[0]:
            raise Killed

    with suppress(Killed):
        sink.commit(1, attempt, between=look)
    store.flush_future(store.state().written_offset).result(5)
    crash(store)
    journal = tmp_path / BOTH[1]
    data = bytearray(journal.read_bytes())
    data[entries_in(data)[-1][1] - 1] ^= 1
    journal.write_bytes(data)
    with pytest.raises(DamagedTable, match="it is an older copy"):
        open_store(tmp_path, **SYNC)
