"""A start notices what has gone missing since the last checkpoint, and nothing else."""

from __future__ import annotations

import pytest
from stores import message, open_store

from broker.store.manifest import Manifest, QueueSpan


@pytest.fixture
def store(tmp_path):
    store = open_store(tmp_path)
    for number in range(3):
        store.put_message(message(number, keys="k"))
    store.save_checkpoint()
    yield store
    store.shutdown()


def misses(store, **fields):
    return Manifest(**fields).is_anything_missing(0, store._queues, store._index.file_names)


def test_what_is_there_is_not_missed(store):
    spans = {"T": {0: QueueSpan(min_offset=0, max_offset=3)}}
    assert not misses(store, queues=spans, index_files=store._index.file_names)
    assert not misses(store)


def test_a_queue_may_have_grown_or_be_empty_still(store):
    assert not misses(store, queues={"T": {0: QueueSpan(min_offset=1, max_offset=2)}})
    assert not misses(store, queues={"New": {0: QueueSpan(min_offset=0, max_offset=0)}})


@pytest.mark.parametrize(
    "fields",
    [
        {"queues": {"T": {0: QueueSpan(min_offset=0, max_offset=4)}}},
        {"queues": {"T": {1: QueueSpan(min_offset=0, max_offset=1)}}},
        {"queues": {"Gone": {0: QueueSpan(min_offset=0, max_offset=1)}}},
        {"index_files": ("20200101000000000",)},
        {"log_min_offset": 1 << 20},
    ],
)
def test_what_is_not_what_it_was_is_missed(store, fields):
    assert misses(store, **fields)
