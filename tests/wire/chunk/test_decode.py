"""Chunks of records become columns, or are refused like single records."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.wire_strategies import stored_messages

from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk import COLUMNS, RecordChunk, encode_chunk, encode_sized_chunk
from rmq_spark.wire.chunk.decode import readable_records
from rmq_spark.wire.chunk.sized_chunk import decode_sized_chunk, encode_sizes
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.message.record import StoredMessage, decode_records, encode_record

RECORDS = [encode_record(StoredMessage("T", b"x" * size, "TAGS\x01A\x02")) for size in (0, 5, 100)]
DATA = b"".join(RECORDS)
SIZES = [len(record) for record in RECORDS]


@given(st.lists(stored_messages(), max_size=5))
def test_chunk_finds_records_without_given_sizes(messages):
    records = [encode_record(message) for message in messages]
    chunk = RecordChunk(b"".join(records))
    assert chunk.sizes.tolist() == [len(record) for record in records]
    assert len(chunk) == len(messages)
    chunk.check_crcs()


def test_record_chunk_accepts_any_buffer():
    for data in (DATA, bytearray(DATA), memoryview(DATA), memoryview(b"x" + DATA)[1:]):
        assert len(RecordChunk(data)) == 3
        assert len(RecordChunk(data, SIZES)) == 3


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (SIZES[:2], f"chunk at sizes: needed a sum of {len(DATA)} bytes, found {sum(SIZES[:2])}"),
        ([*SIZES, 91], "chunk at sizes: needed a sum"),
        (
            [SIZES[0] - 1, SIZES[1] + 1, SIZES[2]],
            r"at byte 0: needed a totalSize .*\(record 0\), found",
        ),
        ([sum(SIZES[:2]), SIZES[2]], r"a totalSize that fits \(record 0\)"),
        ([0, *SIZES], r"a totalSize of a record that fits \(record 0\), found 0"),
        ([-5, len(DATA) + 5], r"\(record 0\), found -5"),
        (
            [SIZES[0], len(DATA) + 1],
            rf"chunk at byte {SIZES[0]}: .*\(record 1\), found {len(DATA) + 1}",
        ),
        (
            [1 << 62, 1 << 62, 1 << 62, (1 << 62) + len(DATA)],
            r"\(record 0\), found 4611686018427387904",
        ),
        (np.array([1 << 63, len(DATA)], np.uint64), r"\(record 0\), found 9223372036854775808"),
        ([1 << 64], "chunk at sizes: needed a list of integers"),
        ([1 << 63, -1], "chunk at sizes: needed a list of integers"),
        ([SIZES], "chunk at sizes: needed a list of integers"),
        ([SIZES, [1]], "chunk at sizes: needed a list of integers"),
        (len(DATA), "chunk at sizes: needed a list of integers, found"),
        (["a"], r"chunk at sizes: needed a list of integers, found \['a'\]"),
        ([None], r"chunk at sizes: needed a list of integers, found \[None\]"),
        ([float(size) for size in SIZES], "chunk at sizes: needed a list of integers"),
        ([True], "chunk at sizes: needed a list of integers"),
        ({"sizes": SIZES}, "chunk at sizes: needed a list of integers"),
    ],
)
def test_sizes_that_do_not_fit_the_records_are_refused(sizes, message):
    with pytest.raises(RecordError, match=message):
        RecordChunk(DATA, sizes)


@pytest.mark.parametrize("kind", [list, tuple, np.int16, np.int32, np.uint32, np.int64, np.uint64])
def test_record_chunk_accepts_sizes_of_any_integer_type(kind):
    sizes = kind(SIZES) if kind in {list, tuple} else np.array(SIZES, kind)
    chunk = RecordChunk(DATA, sizes)
    assert chunk.sizes.tolist() == SIZES
    assert chunk.sizes.dtype == np.int64


@pytest.mark.parametrize("sizes", [[], (), np.array([]), np.array([], np.int32)])
def test_empty_sizes_fit_only_an_empty_chunk(sizes):
    assert len(RecordChunk(b"", sizes)) == 0
    with pytest.raises(RecordError, match="chunk at sizes: needed a sum"):
        RecordChunk(DATA, sizes)


SECOND = SIZES[0]


@pytest.mark.parametrize(
    ("at", "replacement"),
    [
        (0, struct.pack(">i", 90)),
        (0, struct.pack(">i", SIZES[1] - 1)),
        (0, struct.pack(">i", SIZES[1] + 1)),
        (0, struct.pack(">i", 1 << 30)),
        (0, struct.pack(">i", -1)),
        (4, b"\0\0\0\0"),
        (4, struct.pack(">i", layout.MAGIC_V2)),
        (4, struct.pack(">i", layout.MAGIC_BLANK)),
        (36, struct.pack(">i", 0x10)),
        (36, struct.pack(">i", 0x30)),
        (84, struct.pack(">i", -1)),
        (84, struct.pack(">i", 4)),
        (84, struct.pack(">i", 1 << 30)),
        (93, b"\x00"),
        (93, b"\xff"),
        (95, struct.pack(">h", -1)),
        (95, struct.pack(">h", 8)),
    ],
)
def test_chunk_refuses_what_a_single_record_refuses(at, replacement):
    at += SECOND
    data = DATA[:at] + replacement + DATA[at + len(replacement) :]
    with pytest.raises(RecordError):
        list(decode_records(data))
    with pytest.raises(RecordError):
        RecordChunk(data)
    with pytest.raises(RecordError, match=rf"chunk at byte {SECOND}: .*\(record 1\)"):
        RecordChunk(data, SIZES)


@given(st.data())
def test_chunk_and_record_decoders_agree_on_any_changed_byte(data):
    at = data.draw(st.integers(0, len(DATA) - 1))
    changed = DATA[:at] + bytes([DATA[at] ^ data.draw(st.integers(1, 255))]) + DATA[at + 1 :]

    def outcome(read):
        try:
            return read()
        except RecordError:
            return "refused"

    slow = outcome(lambda: len(list(decode_records(changed, check_crc=False))))
    assert outcome(lambda: len(RecordChunk(changed))) == slow
    if slow != "refused":
        intact = outcome(lambda: len(list(decode_records(changed))))
        assert outcome(lambda: RecordChunk(changed).check_crcs()) == (
            None if intact == 3 else intact
        )


@pytest.mark.parametrize("end", [1, 50, 90, len(DATA) - 1, SIZES[0] + 1])
def test_chunk_ending_within_a_record_is_refused(end):
    with pytest.raises(RecordError, match="stored message at byte"):
        RecordChunk(DATA[:end])


def test_check_crcs_finds_a_damaged_body():
    damaged = DATA.replace(b"xxxxx\x01T", b"xxxxy\x01T", 1)
    chunk = RecordChunk(damaged)
    with pytest.raises(
        RecordError, match=rf"chunk at byte {SECOND}: needed a bodyCRC .*\(record 1\)"
    ):
        chunk.check_crcs()


def test_chunk_columns_locate_all_parts():
    chunk = RecordChunk(DATA)
    assert chunk.starts.tolist() == [0, SIZES[0], SIZES[0] + SIZES[1]]
    assert [DATA[at : at + 1] for at in chunk.topic_at] == [b"T"] * 3
    assert chunk.body_length.tolist() == [0, 5, 100]
    assert chunk.properties_length.tolist() == [7] * 3
    assert np.array_equal(chunk.properties_at + chunk.properties_length, chunk.ends)


# ---- unreadable records among others


def records_with(number, change):
    """Return five records, one of them changed, and their sizes."""
    records = [encode_record(StoredMessage("T", b"x" * n, queue_offset=n)) for n in range(5)]
    sizes = [len(record) for record in records]
    changed = bytearray(records[number])
    change(changed)
    return b"".join([*records[:number], bytes(changed), *records[number + 1 :]]), sizes


def longer_body(record):
    struct.pack_into(">i", record, 84, 1 << 20)  # bodyLength


def other_size(record):
    struct.pack_into(">i", record, 0, 7)


@pytest.mark.parametrize("change", [longer_body, other_size])
@pytest.mark.parametrize("has_sizes", [True, False])
@pytest.mark.parametrize("number", range(5))
def test_chunk_reads_records_before_an_unreadable_one(number, has_sizes, change):
    data, sizes = records_with(number, change)
    readable, fault = readable_records(data, sizes if has_sizes else None)
    assert [len(readable), readable.head["queue_offset"].tolist()] == [number, list(range(number))]
    assert fault is not None


def test_readable_records_of_a_sound_chunk_are_all():
    data, sizes = records_with(0, lambda _: None)
    assert [len(readable_records(data, given)[0]) for given in (sizes, None)] == [5, 5]
    assert readable_records(data)[1] is None


def test_sizes_of_other_records_are_refused():
    data, sizes = records_with(0, lambda _: None)
    with pytest.raises(RecordError, match="chunk at sizes"):
        readable_records(data, sizes[:4])


@pytest.mark.parametrize("v6", [0, 0x10, 0x20, 0x30])
def test_chunk_set_stored_changes_queue_offsets_and_store_times(v6):
    host = parse_host("[2001:db8::1]:5")
    hosts = {}
    if v6 & 0x10:
        hosts["born_host"] = host
    if v6 & 0x20:
        hosts["store_host"] = host
    message = StoredMessage("T", b"x", sys_flag=v6, store_timestamp=7, **hosts)
    chunk = RecordChunk(encode_record(message) * 2)
    assert chunk.store_timestamp.tolist() == [7, 7]
    chunk.set_stored(np.array([4, 5]), 1_700_000_000_000)
    assert chunk.store_timestamp.tolist() == [1_700_000_000_000] * 2
    assert chunk.head["queue_offset"].tolist() == [4, 5]
    assert (
        COLUMNS["storeTimestamp"].build(chunk).view("int64").to_pylist() == [1_700_000_000_000] * 2
    )


# ---- chunks that begin with the sizes of their records


@given(st.lists(st.integers(0, (1 << 31) - 1), max_size=50), st.binary(max_size=50))
def test_sized_chunk_round_trips(sizes, records):
    found, rest = decode_sized_chunk(encode_sizes(np.array(sizes, np.int32)) + records)
    assert found.tolist() == sizes
    assert bytes(rest) == records


@pytest.mark.parametrize("bodies", [[b"one", b"three", b""], [b"one"], []])
def test_encoded_sized_chunk_has_the_sizes_and_then_the_records(bodies):
    columns = {"topic": "T", "body": bodies, "keys": "k", "storeHost": "1.2.3.4:5"}
    chunk = encode_chunk(columns, has_checksums=True)
    sizes, records = decode_sized_chunk(encode_sized_chunk(columns))
    assert sizes.tolist() == chunk.sizes.tolist()
    assert bytes(records) == chunk.data.to_pybytes()
    assert RecordChunk(records, sizes).sizes.tolist() == chunk.sizes.tolist()


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\2\0\0\0\1", b"\xff\xff\xff\xff\0\0\0\0"]
)
def test_impossible_record_count_of_a_sized_chunk_is_refused(data):
    with pytest.raises(RecordError, match="sized chunk"):
        decode_sized_chunk(data)
