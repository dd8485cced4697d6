"""Chunks are indexed from memory in steps, with the same result as from the log."""

import errno
import random

import pytest
from support.disks.faulty_disk import FaultIn, FaultyDisk
from support.stores.small_store import (
    Listener,
    components_of,
    holds_all,
    message,
    open_store,
    put_batch,
    reads_of,
)

from rmq_spark.wire.chunk import encode_chunk
from rocketpoll.broker.store.bulk import bulk_tools
from rocketpoll.broker.store.dispatch import reput
from rocketpoll.broker.store.files.disk import LocalDisk


def chunk_of(rows, keys=lambda row: f"k{row}"):
    """Return a chunk of this number of messages, with or without keys."""
    bulk_tools.start_loading().result()
    columns = {"body": [b"b"] * rows, "keys": [keys(row) for row in range(rows)]}
    return encode_chunk({"topic": "T", "storeHost": "1.2.3.4:1", **columns})


def put(store, rows, keys=lambda row: f"k{row}"):
    chunk = chunk_of(rows, keys)
    return store.put_chunk(chunk.data, chunk.sizes)


def large_store(root, **settings):
    sizes = {"mapped_file_size_commit_log": 4 << 20, "max_index_num": 1 << 16}
    return open_store(root, **{**sizes, **settings})


def found(store, key):
    return len(store.query_message("T", key, 100, 0, 1 << 62))


def test_chunk_after_an_unindexed_message_is_not_read_again(tmp_path, monkeypatch):
    """Otherwise a single message before a chunk would make the index read and decode all later
    ones."""
    store = large_store(tmp_path)
    single = store.put_message(message("a", keys="k1"))
    read = reads_of(store, monkeypatch)
    for _ in range(3):
        put(store, 500)
    assert read == [single.physical_offset]
    assert components_of(store).reput.index_from_offset == store.state().written_offset
    assert found(store, "k1") == 4
    assert holds_all(store)
    store.shutdown()


def test_indexing_of_a_chunk_yields_between_steps(tmp_path):
    store = large_store(tmp_path, wake_reput=lambda: None)
    put(store, 3_000, lambda row: f"a{row} b{row}")
    steps = [0]
    while not components_of(store).reput.run(lambda: True):
        index = components_of(store).index
        steps.append(sum(file.header.index_count - 1 for file in index._files))
    assert steps[:4] == [0, 0, 2_048, 4_096]  # the first step dispatches to the queue
    assert found(store, "b2999") == 1
    assert holds_all(store)
    store.shutdown()


def test_messages_are_carried_though_there_is_no_room_for_the_index(tmp_path):
    """Keys that wait in memory come before dispatch; if they do not fit, dispatch continues."""
    disk, listener = FaultyDisk(LocalDisk()), Listener()
    store = large_store(tmp_path, disk=disk, listener=listener)
    disk.plan = [FaultIn(directory="index", persistent=True, kinds={"create"}, error=errno.ENOSPC)]
    for rows in (200, 300):
        put(store, rows)
        assert "disk is full" in store.state().degradation
    store.put_message(message("a", keys="k1"))
    assert [arrival[2] for arrival in listener.arrivals] == [200, 500, 501]
    disk.plan = []
    assert found(store, "k1") == 3
    assert holds_all(store)
    store.shutdown()


@pytest.mark.parametrize("seed", range(6))
def test_index_is_the_same_from_memory_and_from_the_log(tmp_path, monkeypatch, seed):
    """Chunks, batches and single messages in random order, with steps between them."""
    drawn = random.Random(seed)
    monkeypatch.setattr(reput, "_DISPATCHED_KEYS_MAX", drawn.choice([1, 40, 10_000]))
    monkeypatch.setattr(reput, "INDEX_LAG_BYTES_MAX", drawn.choice([500, 10_000, 1 << 20]))
    store = large_store(
        tmp_path,
        wake_reput=lambda: None,
        mapped_file_size_commit_log=drawn.choice([1 << 16, 1 << 20]),
    )
    keys = [lambda row: f"k{row} l", lambda _: None, lambda row: f"k{row}" if row % 3 else None]
    for _ in range(60):
        act = drawn.randrange(6)
        if act == 0:
            store.put_message(message("single", keys="k1"))
        elif act == 1:
            put_batch(store, *(message(row, UNIQ_KEY=f"U{row}") for row in range(150)))
        elif act == 2:
            put(store, drawn.randint(1, 400), drawn.choice(keys))
        elif act == 3:
            components_of(store).reput.catch_up_index(lambda: True)
        else:
            components_of(store).reput.run(lambda: drawn.random() < 0.7)
    store.reput()
    found(store, "k1")
    assert holds_all(store)
    store.shutdown()
