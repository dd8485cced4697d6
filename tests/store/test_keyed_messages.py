"""Keys of many messages, extracted together, equal those of each message."""

import pytest
from support.stores.small_store import encoded, message, open_store

from rmq_spark.wire.chunk import RecordChunk, encode_chunk
from rocketpoll.broker.store.index import index_keys
from rocketpoll.broker.store.index.index_keys import (
    KeyedChunk,
    hash_columns,
    hash_records,
    key_columns,
)


@pytest.mark.parametrize("tags", [None, "A"])
def test_keys_of_many_messages_equal_those_of_each(tags):
    keys = [None, "k", "k l", "é  m", "k"]
    records = [
        encoded(
            message(number, tags=tags, keys=each, UNIQ_KEY=f"U{number}" if number % 2 else None)
        )
        for number, each in enumerate(keys)
    ]
    data, sizes = b"".join(records), [len(each) for each in records]
    few = hash_records(data, sizes, 7_000)
    chunk = RecordChunk(bytearray(data), sizes)
    many = hash_columns(key_columns(chunk, 7_000))
    assert [column.tolist() for column in many] == [column.tolist() for column in few]
    taken = KeyedChunk(chunk, 7_000)
    assert [each.tolist() for each in taken.next_keys(99)] == [each.tolist() for each in few]
    assert taken.start_offset == taken.end_offset == 7_000 + len(data)


def test_keyed_messages_are_taken_in_limited_chunks():
    keys = [None, "a", "b c", "d e f", "g", None, None]
    records = [encoded(message(number, keys=each)) for number, each in enumerate(keys)]
    sizes = [len(each) for each in records]
    taken, found = KeyedChunk(RecordChunk(b"".join(records), sizes), 7_000), []
    while taken.start_offset < taken.end_offset:
        start, (_, places, _) = taken.start_offset, taken.next_keys(2)
        found.append(len(places))
        assert all(start <= place < taken.start_offset for place in places)
    assert found == [1, 2, 3, 1]
    assert taken.end_offset == 7_000 + sum(sizes)


def test_indexing_messages_with_many_keys_reads_each_step_once(tmp_path, monkeypatch):
    """One step indexes a limited number of words, and must not read megabytes again for
    the next."""
    count, words, looked_at = 120, 4_000, []
    store = open_store(
        tmp_path,
        mapped_file_size_commit_log=16 << 20,
        max_index_num=1 << 20,
        max_hash_slot_num=1 << 16,
    )
    keys = [" ".join(f"{row:x}.{word:x}" for word in range(words)) for row in range(count)]
    chunk = encode_chunk(
        {"topic": "T", "body": [b"b"] * count, "keys": keys, "storeHost": "1.2.3.4:1"}
    )
    columns = index_keys.key_columns

    def key_columns(some, *where):
        looked_at.append(int(some.properties_length.sum()))
        return columns(some, *where)

    monkeypatch.setattr(index_keys, "key_columns", key_columns)
    store.put_chunk(chunk.data, chunk.sizes)
    for row in (0, 1, count // 2, count - 1):
        for word in (0, words - 1):
            assert len(store.query_message("T", f"{row:x}.{word:x}", 10, 0, 1 << 62)) == 1
    whole = sum(map(len, keys))
    assert whole > 3 << 20
    assert max(looked_at) <= 1 << 20
    assert sum(looked_at) < 20 * whole
    store.shutdown()
