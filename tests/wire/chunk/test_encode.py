"""Columns become chunks of records."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.wire_strategies import fits_i16, properties, stored_messages

from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk import COLUMNS, RecordChunk, chunk_columns, encode_chunk
from rmq_spark.wire.chunk.buffer_slices import BUFFER_BYTES_MAX, lengths_of
from rmq_spark.wire.chunk.checksums import with_empty_checksums
from rmq_spark.wire.chunk.encode import ENCODED_PROPERTIES
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import compress_body
from rmq_spark.wire.message.properties import decode_properties, encode_properties
from rmq_spark.wire.message.record import (
    StoredMessage,
    decode_record,
    decode_records,
    encode_record,
)

ENCODED = [name for name in COLUMNS if name not in ("msgId", "offsetMsgId", "keys", "tags")]


def clean(message):
    """Return the message with its properties as we write them."""
    text = encode_properties(decode_properties(message.properties_text))
    return dataclasses.replace(message, properties_text=text)


def columns_of(messages):
    return {
        "topic": [message.topic for message in messages],
        "body": [message.body for message in messages],
        "properties": [list(message.properties.items()) for message in messages],
        "queueId": [message.queue_id for message in messages],
        "queueOffset": [message.queue_offset for message in messages],
        "commitLogOffset": [message.physical_offset for message in messages],
        "flag": [message.flag for message in messages],
        "sysFlag": [message.sys_flag for message in messages],
        "bornTimestamp": [message.born_timestamp for message in messages],
        "bornHost": [str(message.born_host) for message in messages],
        "storeTimestamp": [message.store_timestamp for message in messages],
        "storeHost": [str(message.store_host) for message in messages],
        "reconsumeTimes": [message.reconsume_times for message in messages],
        "preparedTransactionOffset": [message.prepared_transaction_offset for message in messages],
    }


def stored(message):
    """Return the message as the log holds it, compressed if its flags say so."""
    if not message.sys_flag & MessageSysFlag.COMPRESSED:
        return message
    kind = MessageSysFlag(message.sys_flag) & MessageSysFlag.COMPRESSION_MASK
    body = compress_body(message.body, kind or MessageSysFlag.COMPRESSION_ZLIB)
    return dataclasses.replace(message, body=body)


many = st.lists(stored_messages(compressed=True).map(clean).filter(fits_i16), max_size=6)


@given(many)
def test_encoded_chunk_equals_the_bytes_of_single_messages(messages):
    records = [encode_record(stored(message)) for message in messages]
    chunk = encode_chunk(columns_of(messages))
    assert bytes(chunk.data) == b"".join(records)
    assert chunk.sizes.tolist() == [len(record) for record in records]


@given(many)
def test_decoded_chunk_columns_can_be_encoded_again(messages):
    data = b"".join(encode_record(stored(message)) for message in messages)
    batch = chunk_columns(RecordChunk(data), ENCODED)
    assert bytes(encode_chunk({name: batch[name] for name in ENCODED}).data) == data


def test_encode_chunk_repeats_scalars_and_applies_defaults():
    chunk = encode_chunk(
        {"topic": "T", "body": [b"a", b"bc"], "bornTimestamp": 5, "storeHost": "1.2.3.4:5"}
    )
    message = decode_record(bytes(chunk.data))
    assert message == dataclasses.replace(
        StoredMessage("T", b"a", born_timestamp=5, store_host=message.store_host),
        body_crc=message.body_crc,
    )
    assert str(message.store_host) == "1.2.3.4:5"
    assert [each.body for each in decode_records(bytes(chunk.data))] == [b"a", b"bc"]


@given(
    st.lists(
        properties.map(lambda each: {k: v for k, v in each.items() if k not in ("KEYS", "TAGS")}),
        max_size=4,
    )
)
def test_keys_and_tags_come_before_other_properties(maps):
    keys = ["k1 k2" if number % 2 else None for number in range(len(maps))]
    chunk = encode_chunk(
        {
            "topic": "T",
            "body": [b"x"] * len(maps),
            "keys": keys,
            "tags": "TagA" if maps else [],
            "properties": [list(each.items()) for each in maps],
        }
    )
    for key, each, message in zip(keys, maps, decode_records(bytes(chunk.data)), strict=True):
        first = {"KEYS": key, "TAGS": "TagA"} if key else {"TAGS": "TagA"}
        assert message.properties_text == encode_properties({**first, **each})


def test_encode_chunk_accepts_slices_and_chunked_arrays():
    bodies = pa.array([b"no", b"yes", b"and", b"no"])
    tags = pa.chunked_array([["A"], [None]])
    chunk = encode_chunk({"topic": "T", "body": bodies.slice(1, 2), "tags": tags})
    messages = list(decode_records(bytes(chunk.data)))
    assert [(message.body, message.tags) for message in messages] == [(b"yes", "A"), (b"and", None)]


def test_encode_chunk_without_messages_is_empty():
    chunk = encode_chunk({"topic": "T", "body": []})
    assert (chunk.data.size, len(chunk.sizes)) == (0, 0)


def test_encoded_chunk_passes_its_crc_check():
    RecordChunk(
        encode_chunk({"topic": "T", "body": [b"a" * n for n in range(300)]}).data
    ).check_crcs()


BODY = [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"body": BODY}, "column topic: needed a value for each message"),
        ({"topic": "T"}, "column body: needed one body for each message"),
        ({"topic": "T", "body": b"abc"}, "column body: needed one body for each message"),
        ({"topic": "T", "body": [b"a", None]}, "chunk at body 1: needed a value for each message"),
        ({"topic": ["T", None, "T"], "body": BODY}, "chunk at topic 1: needed a value"),
        (
            {"topic": "T", "body": BODY, "queueId": [1, 2]},
            "column queueId: needed 3 values, found 2",
        ),
        (
            {"topic": "T", "body": BODY, "queueId": "x"},
            "column queueId: needed values of type int32",
        ),
        (
            {"topic": "T", "body": BODY, "queueId": 1 << 31},
            "column queueId: needed values of type int32",
        ),
        (
            {"topic": "T", "body": BODY, "queueId": [1, None, 2]},
            "chunk at queueId 1: needed a value",
        ),
        ({"topic": 5, "body": BODY}, "column topic: needed values of type string"),
        ({"topic": "T", "body": ["text", 5, None]}, "column body: needed values of type binary"),
        (
            {"topic": "T", "body": BODY, "msgId": "x"},
            r"chunk at columns: needed only .*found \['msgId'\]",
        ),
        ({"topic": "T", "body": BODY, "tag": "A"}, r"found \['tag'\]"),
        ({"topic": "T", "body": BODY, "storeHost": "x"}, "host at text: needed address:port"),
        (
            {"topic": "T", "body": BODY, "storeHost": "[::1]:1"},
            "sysFlag 0: needed the IPv6 bits of the hosts, 0x20",
        ),
        (
            {"topic": "T", "body": BODY, "sysFlag": [0, 0x10, 0]},
            "sysFlag 1: needed the IPv6 bits of the hosts, 0x0",
        ),
        (
            {"topic": "T", "body": BODY, "tags": ["A", "", None]},
            "text 1: needed text that is not empty",
        ),
        (
            {"topic": "T", "body": BODY, "keys": ["A", "a\x02", None]},
            r"text 1: needed text without \\x02",
        ),
        (
            {"topic": "T", "body": BODY, "keys": "k" * 40_000},
            "properties 0: needed at most 32767 bytes",
        ),
        ({"topic": "t" * 40_000, "body": BODY}, "topic: needed at most 32767 bytes"),
        (
            {"topic": "T", "body": BODY, "queueOffset": 1 << 70},
            "column queueOffset: needed values of type int64",
        ),
        (
            {"topic": "T", "body": BODY, "queueOffset": [0, 1 << 70, 0]},
            "column queueOffset: needed values of",
        ),
        ({"topic": "\ud800", "body": BODY}, "column topic: needed values of type string"),
        (
            {"topic": ["T", "\ud800", "T"], "body": BODY},
            "column topic: needed values of type string",
        ),
        (
            {"topic": "T", "body": BODY, "tags": ["\ud800"] * 3},
            "column tags: needed values of type string",
        ),
        (
            {"topic": "T", "body": BODY, "properties": [[("\ud800", "v")], [], []]},
            "column properties: needed",
        ),
        (
            {"topic": "T", "body": BODY, "properties": [5, 6, 7]},
            "column properties: needed values of type map",
        ),
        (
            {"topic": "T", "body": BODY, "queueId": np.zeros((3, 1), np.int32)},
            "column queueId: needed values",
        ),
        (
            {"topic": "T", "body": BODY, "queueId": np.array(5)},
            "column queueId: needed values of type int32",
        ),
        (
            {"topic": "T", "body": BODY, "storeTimestamp": object()},
            "column storeTimestamp: needed values",
        ),
    ],
)
def test_encode_chunk_names_a_column_that_cannot_be_encoded(columns, message):
    with pytest.raises(RecordError, match=message):
        encode_chunk(columns)


def test_too_large_chunk_is_refused_before_it_is_encoded(monkeypatch):
    columns = {
        "topic": ["T", "t" * 200],
        "body": [b"x" * 100] * 2,
        "tags": "A",
        "storeHost": "1.2.3.4:5",
    }
    chunk = encode_chunk(columns)
    assert chunk.sizes.dtype == np.int32
    total = int(chunk.sizes.sum())
    monkeypatch.setattr("rmq_spark.wire.chunk.encode.BUFFER_BYTES_MAX", total)
    assert encode_chunk(columns).data == chunk.data
    monkeypatch.setattr("rmq_spark.wire.chunk.encode.BUFFER_BYTES_MAX", total - 1)
    monkeypatch.setattr("rmq_spark.wire.chunk.encode.body_crcs", lambda _: pytest.fail("too early"))
    with pytest.raises(
        RecordError, match=f"chunk at its end: needed at most {total - 1} bytes, found {total}"
    ):
        encode_chunk(columns)


def test_encode_chunk_lengths_do_not_overflow_32_bits(monkeypatch):
    # Bodies of the maximum length of columns, without the bytes.
    assert lengths_of(pa.array([b"ab", b"c"])).dtype == np.int64
    monkeypatch.setattr(
        "rmq_spark.wire.chunk.encode.lengths_of", lambda array: lengths_of(array) + BUFFER_BYTES_MAX
    )
    total = BUFFER_BYTES_MAX + 91 + 2
    with pytest.raises(
        RecordError,
        match=f"chunk at its end: needed at most {BUFFER_BYTES_MAX} bytes, found {total}",
    ):
        encode_chunk({"topic": "T", "body": [b"a"]})


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([("", "v")], "needed text that is not empty"),
        ([("a\x01", "v")], r"needed a name without \\x01"),
        ([("a\x02", "v")], r"needed text without \\x02"),
        ([("a", "")], "needed text that is not empty"),
        ([("a", None)], "needed text, found None"),
        ([("a", "v\x02")], r"needed text without \\x02"),
        ([("TAGS", "B")], "needed TAGS only once, found 'TAGS'"),
    ],
)
def test_properties_that_would_be_read_differently_are_refused(entries, message):
    with pytest.raises(RecordError, match=message):
        encode_chunk(
            {"topic": "T", "body": BODY, "tags": "A", "properties": [[], [("ok", "1")], entries]}
        )


def test_unknown_compression_flag_is_refused_when_encoding():
    with pytest.raises(
        RecordError, match=r"chunk at sysFlag 1: .*compression at type: needed COMPRESSION_ZLIB"
    ):
        encode_chunk({"topic": "T", "body": BODY, "sysFlag": [0, 0x701, 0]})


def as_maps(lists, validity):
    """Return a column of maps with entries at its nulls, as other programs may build one."""
    entries = [entry for each in lists for entry in each]
    whole = pa.MapArray.from_arrays(
        pa.array(np.cumsum([0, *map(len, lists)]), pa.int32()),
        pa.array([name for name, _ in entries], pa.string()),
        pa.array([value for _, value in entries], pa.string()),
    )
    if all(validity):
        return whole
    entries = pa.StructArray.from_arrays(
        [whole.keys, whole.items], fields=[whole.type.key_field, whole.type.item_field]
    )
    is_valid = pa.py_buffer(np.packbits(validity, bitorder="little").tobytes())
    return pa.Array.from_buffers(
        whole.type, len(lists), [is_valid, whole.buffers()[1]], children=[entries]
    )


def test_encoded_properties_follow_all_others():
    own = [b"row\x011\x02", b"", b"row\x013\x02"]
    columns = {
        "topic": "T",
        "body": BODY,
        "tags": ["A", None, "C"],
        "properties": [[("a", "1")], [("b", "2")], []],
        ENCODED_PROPERTIES: own,
    }
    messages = decode_records(bytes(encode_chunk(columns).data))
    assert [each.properties_text for each in messages] == [
        "TAGS\x01A\x02a\x011\x02row\x011\x02",
        "b\x012\x02",
        "TAGS\x01C\x02row\x013\x02",
    ]
    with pytest.raises(RecordError, match="encodedProperties 1: needed a value for each message"):
        encode_chunk({**columns, ENCODED_PROPERTIES: [b"", None, b""]})


@given(st.lists(st.tuples(properties, st.booleans()), min_size=1, max_size=6), st.data())
def test_encode_chunk_writes_nothing_for_null_properties(rows, data):
    maps = as_maps([list(each.items()) for each, _ in rows], [valid for _, valid in rows])
    assert maps.null_count == sum(not valid for _, valid in rows)
    first = data.draw(st.integers(0, len(rows) - 1))
    shown = rows[first : data.draw(st.integers(first + 1, len(rows)))]
    chunk = encode_chunk(
        {"topic": "T", "body": [b""] * len(shown), "properties": maps.slice(first, len(shown))}
    )
    assert [message.properties for message in decode_records(bytes(chunk.data))] == [
        each if valid else {} for each, valid in shown
    ]


def test_encode_chunk_does_not_validate_values_under_null():
    maps = as_maps([[("", "no name")], [("a", "1")]], [False, True])
    chunk = encode_chunk({"topic": "T", "body": [b"", b""], "tags": "A", "properties": maps})
    texts = [message.properties_text for message in decode_records(bytes(chunk.data))]
    assert texts == ["TAGS\x01A\x02", "TAGS\x01A\x02a\x011\x02"]


@pytest.mark.parametrize("more", [{}, {"tags": ["A", None]}, {"properties": [[("a", "b")], []]}])
def test_encode_chunk_can_reserve_room_for_checksums(more):
    columns = {"topic": "T", "body": [b"one", b"two"], **more}
    roomy = encode_chunk(columns, has_checksums=True)
    plain = encode_chunk(columns)
    made = with_empty_checksums(RecordChunk(plain.data, plain.sizes))
    assert bytes(roomy.data) == made.data.tobytes()
    assert roomy.sizes.tolist() == made.sizes.tolist()
