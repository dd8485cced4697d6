"""Columns that users give."""

import numpy as np
import pyarrow as pa
import pytest

from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk.encode import (
    InputColumns,
    concatenate_rows,
    property_strings,
    to_binary,
    value_lengths,
)

BODY = [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "bodies",
    [
        5,
        "abc",
        bytearray(b"abc"),
        memoryview(b"abc"),
        {b"a": 1},
        (b for b in BODY),
        np.array(b"a"),
        pa.scalar(b""),
    ],
)
def test_bodies_are_a_column_and_nothing_that_may_look_like_one(bodies):
    with pytest.raises(RecordError, match="chunk at column body: needed one body for each message"):
        InputColumns({"topic": "T", "body": bodies})


@pytest.mark.parametrize(
    "bodies",
    [tuple(BODY), np.array(BODY), np.array(BODY, object), pa.array(BODY), pa.chunked_array([BODY])],
)
def test_bodies_may_be_any_sequence_that_arrow_reads(bodies):
    given = InputColumns({"body": bodies})
    assert given.rows == 3
    assert given.array("body").equals(pa.array(BODY, pa.binary()))


def test_input_columns_repeat_scalars_and_default_to_zero_or_none():
    given = InputColumns({"body": BODY, "flag": 7, "bornTimestamp": 5})
    assert given.numbers("flag").tolist() == [7, 7, 7]
    assert given.numbers("bornTimestamp").tolist() == [5, 5, 5]
    assert given.numbers("queueId") == 0
    assert given.optional("tags") is None
    with pytest.raises(RecordError, match="column topic: needed a value for each message"):
        given.array("topic")


def test_unknown_or_short_input_columns_are_named():
    with pytest.raises(RecordError, match=r"columns: needed only .*found \['tag'\]"):
        InputColumns({"body": BODY, "tag": "A"})
    with pytest.raises(RecordError, match="column flag: needed 3 values, found 2"):
        InputColumns({"body": BODY, "flag": [1, 2]}).array("flag")


def test_property_strings_contain_keys_tags_maps_and_additions():
    maps = [[("a", "1")], [], None]
    given = InputColumns({"body": BODY, "tags": ["A", None, "C"], "keys": "k", "properties": maps})
    end = pa.scalar(b"END", pa.binary())
    assert property_strings(given, pa.array(BODY, pa.binary()), end).to_pylist() == [
        b"KEYS\x01k\x02TAGS\x01A\x02a\x011\x02aEND",
        b"KEYS\x01k\x02bEND",
        b"KEYS\x01k\x02TAGS\x01C\x02cEND",
    ]


def test_equal_properties_of_all_rows_stay_a_scalar():
    given = InputColumns({"body": BODY})
    end = pa.scalar(b"END", pa.binary())
    assert property_strings(given).as_py() == b""
    assert property_strings(given, end) is end
    assert value_lengths(end, 3).tolist() == [3, 3, 3]
    assert value_lengths(pa.array(BODY), 3).tolist() == [1, 1, 1]


def test_structures_are_values_of_their_bytes():
    assert to_binary(np.array([1, 258], ">i2")).to_pylist() == [b"\x00\x01", b"\x01\x02"]


def test_concatenate_rows_joins_parts_row_by_row():
    parts = (pa.array(BODY), pa.scalar(b"-", pa.binary()))
    assert bytes(concatenate_rows(parts, 3, 6)) == b"a-b-c-"
    assert bytes(concatenate_rows((pa.array([], pa.binary()),), 0, 0)) == b""
