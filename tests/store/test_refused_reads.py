"""A start whose disk reads fail, temporarily or permanently."""

import errno
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.disks.faulty_disk import FOR_GOOD, FaultyDisk, Refusal, tree_in
from support.stores.small_store import crash, message, messages_of, open_store, read_all

from rmq_spark.wire.message.record import decode_record
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.errors import UnreadableFile
from rocketpoll.broker.store.message_store import MessageStore

LOG = "commitlog"
PAGE = 4096
LOG_FILE_BYTES = 1 << 16
FILES = {
    "mapped_file_size_commit_log": LOG_FILE_BYTES,
    "mapped_file_size_consume_queue": 20_000,
    "max_message_size": 1 << 15,
    "flush_disk_type": FlushDiskType.SYNC_FLUSH,
}


def acknowledged(root, sizes):
    """Return the acknowledged bodies of a killed store, and the end of its log."""
    store = open_store(root, **FILES)
    texts = [f"{number} ".ljust(size, "x") for number, size in enumerate(sizes)]
    for text in texts:
        put(store, text)
    end = store.state().written_offset
    crash(store)
    return texts, end


def put(store, text):
    """Put a message with its first character as key, and check that it is acknowledged."""
    stored = store.wait_until_stored(store.put_message(message(text, keys=text[0])))
    assert stored.status.name == "PUT_OK"


def found_in(store):
    """Return the message at each offset, and the position of its record."""
    return {
        each.queue_offset: (each.body.decode(), each.physical_offset)
        for each in read_all(store, "T", 0)
    }


def bodies_at(store, queue_offset):
    """Return the message at an offset, as a pull of one message gets it."""
    found = store.get_message("T", 0, queue_offset, count_max=1)
    return [each.body.decode() for each in messages_of(found)]


def log_of(root):
    return tree_in(root / LOG)


refused_times = st.one_of(st.integers(1, 12), st.integers(13, 60), st.just(FOR_GOOD))
messages = st.lists(st.sampled_from([20, 900, 6_000, 20_000]), min_size=1, max_size=12)
refusals = st.lists(
    st.tuples(st.integers(0, 40), refused_times, st.integers(0, 6)), min_size=1, max_size=3
)


def disk_without(pages, end):
    """Return a disk that refuses to read pages, counted back from the end of the log."""
    last_page = (end - 1) // PAGE
    return FaultyDisk(
        unreadable=[
            Refusal(LOG, max(last_page - back, 0) * PAGE, times, spared)
            for back, times, spared in pages
        ]
    )


@given(messages, refusals)
def test_start_with_any_refused_reads_loses_no_message(sizes, pages):
    """The start is refused without changing the log, or serves everything but reported holes, which
    become readable once the disk recovers."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        texts, end = acknowledged(root, sizes)
        before = log_of(root)
        disk = disk_without(pages, end)
        try:
            store = open_store(root, disk, **FILES)
        except UnreadableFile:
            assert log_of(root) == before
        else:
            disk.unreadable.clear()
            holes = store.state().holes
            found = found_in(store)
            assert all(text == texts[at] for at, (text, _) in found.items())
            assert len(found) == len(texts) or holes
            assert store.put_message(message("after")).queue_offset == len(texts)
            texts.append("after")
            store.shutdown()
        well = open_store(root, **FILES)
        assert [text for text, _ in found_in(well).values()] == texts
        well.shutdown()


@given(messages, refusals)
def test_out_of_memory_at_start_is_no_damage(sizes, pages):
    """The start is refused, or everything is served when memory is available again; nothing becomes
    a hole."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        texts, end = acknowledged(root, sizes)
        before = log_of(root)
        disk = disk_without(pages, end)
        disk.read_error = errno.ENOMEM
        try:
            store = open_store(root, disk, **FILES)
        except UnreadableFile as error:
            assert "Cannot allocate memory" in str(error)
            assert log_of(root) == before
            store = open_store(root, **FILES)
        disk.unreadable.clear()
        if store.is_opening:
            store.finish_opening()
        store.retry_degraded()
        assert store.state().holes == ()
        assert [text for text, _ in found_in(store).values()] == texts
        assert store.put_message(message("after")).queue_offset == len(texts)
        store.shutdown()


@pytest.mark.parametrize("times", [1, 4, 8, 12, 16, 20, 24, 30, 40, 60, FOR_GOOD])
@pytest.mark.parametrize("size", [400, 20_000])
def test_refused_read_at_the_log_end_is_not_taken_for_the_end(tmp_path, size, times):
    """The last message may be readable a moment later; nothing may overwrite it before."""
    texts, end = acknowledged(tmp_path, [9_000, 400, size])
    before = log_of(tmp_path)
    disk = FaultyDisk(unreadable=[Refusal(LOG, (end - size // 2) // PAGE * PAGE, times)])
    try:
        store = open_store(tmp_path, disk, **FILES)
    except UnreadableFile as refused:
        assert times > 8
        assert "the end of the commit log is unknown" in str(refused)
        assert log_of(tmp_path) == before
        store = open_store(tmp_path, **FILES)
    else:
        assert times != FOR_GOOD
    assert [text for text, _ in found_in(store).values()] == texts
    store.shutdown()


def test_message_readable_again_is_served_though_its_predecessor_is_damaged(
    tmp_path,
):
    """Even in a log so large that no start scans all of it, where both are one hole."""
    texts, _ = acknowledged(tmp_path, [6_000, 20, 9_000, 20])
    second = len(texts[0]) + 200
    [path] = (tmp_path / LOG).iterdir()
    data = bytearray(path.read_bytes())
    data[data.index(b"1 xxx", second)] ^= 1
    path.write_bytes(data)
    disk = FaultyDisk(unreadable=[Refusal(LOG, 2 * PAGE)])
    for whole, served in ((1 << 20, [0, 3]), (0, [0, 2, 3]), (0, [0, 2, 3])):
        store = open_store(tmp_path, disk, check_whole_log_bytes=whole, **FILES)
        assert list(found_in(store)) == served
        store.shutdown()
        disk.unreadable.clear()


LARGE = {**FILES, "check_whole_log_bytes": 0}
"""Settings under which no start scans more than the log past the checkpoint, as with a
large log."""


def large_store(root):
    """Return the messages of a stopped store; the third crosses the page that will be
    unreadable."""
    texts = [f"{number} ".ljust(size, "x") for number, size in enumerate([900, 900, 9_000, 900])]
    store = open_store(root, **LARGE)
    for text in texts:
        put(store, text)
    store.shutdown()
    return texts


@pytest.mark.parametrize("lost", ["consumequeue/T", "index", "config"])
@pytest.mark.parametrize("times", [1, FOR_GOOD])
def test_rebuild_from_the_log_skips_unreadable_page(tmp_path, lost, times):
    texts = large_store(tmp_path)
    shutil.rmtree(tmp_path / lost)
    disk = FaultyDisk(unreadable=[Refusal(LOG, PAGE, times)])
    store = open_store(tmp_path, disk, **LARGE)
    for at in [0, 1, 3, *([2] if times == 1 else [])]:
        [record] = store.query_message("T", str(at), 4, 0, 1 << 62)
        assert decode_record(record).body.decode() == texts[at]
        assert bodies_at(store, at) == [texts[at]]
    assert store.put_message(message("after")).queue_offset == 4
    store.shutdown()
    assert not (tmp_path / "abort").exists()
    well = open_store(tmp_path, **LARGE)
    assert [text for text, _ in found_in(well).values()] == [*texts, "after"]
    assert len(well.query_message("T", "2", 4, 0, 1 << 62)) == 1
    well.shutdown()


@pytest.mark.parametrize("times", [1, FOR_GOOD])
@pytest.mark.parametrize("after", [crash, MessageStore.shutdown])
@pytest.mark.parametrize(
    ("of", "at"), [("checkpoint", 0), ("abort", 0), ("index", 0), ("index", 2 * PAGE)]
)
def test_unreadable_derived_file_is_rebuilt_or_ignored(tmp_path, of, at, times, after, caplog):
    """The first two pages of an index file contain header and slots; the entries follow."""
    settings = {**LARGE, "max_hash_slot_num": (2 * PAGE - 40) // 4}
    store = open_store(tmp_path, **settings)
    texts = [f"{number} first" for number in range(5)]
    for text in texts:
        put(store, text)
    assert store.save_checkpoint()
    texts.append("5 last")
    put(store, texts[5])
    after(store)
    is_there = of == "index" or (tmp_path / of).exists()
    names = [path.name for path in (tmp_path / "index").iterdir()] if of == "index" else [of]
    disk = FaultyDisk(unreadable=[Refusal(name, at, times) for name in names])
    for opened in (disk, None):
        store = open_store(tmp_path, opened, **settings)
        assert [text for text, _ in found_in(store).values()] == texts
        for number in range(len(texts)):
            assert len(store.query_message("T", str(number), 4, 0, 1 << 62)) == 1
        texts.append(f"{len(texts)} later")
        put(store, texts[-1])
        assert store.save_checkpoint()
        store.shutdown()
        disk.unreadable.clear()
    assert bool(disk.refused) == is_there
    if is_there and of != "abort":
        assert f"/{of}" in caplog.text
