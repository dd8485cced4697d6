"""Columns in the forms that users pass."""

import numpy as np
import pyarrow as pa
import pytest

from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk.encode import (
    InputColumns,
    concatenate_rows,
    properties_lengths_of,
    property_parts,
    to_binary,
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
def test_input_bodies_that_are_no_column_are_refused(bodies):
    with pytest.raises(RecordError, match="chunk at column body: needed one body for each message"):
        InputColumns({"topic": "T", "body": bodies})


@pytest.mark.parametrize(
    "bodies",
    [tuple(BODY), np.array(BODY), np.array(BODY, object), pa.array(BODY), pa.chunked_array([BODY])],
)
def test_input_bodies_may_be_any_sequence_that_arrow_accepts(bodies):
    given = InputColumns({"body": bodies})
    assert given.rows == 3
    assert given.array("body").equals(pa.array(BODY, pa.binary()))


def test_input_columns_repeat_scalars_and_default_to_zero_or_none():
    given = InputColumns({"body": BODY, "flag": 7, "bornTimestamp": 5})
    assert given.numbers("flag") == 7
    assert given.array("flag").to_pylist() == [7, 7, 7]
    assert given.numbers("bornTimestamp") == 5
    assert given.numbers("queueId") == 0
    assert given.optional("tags") is None
    with pytest.raises(RecordError, match="column topic: needed a value for each message"):
        given.array("topic")


def test_unknown_or_short_input_columns_are_named():
    with pytest.raises(RecordError, match=r"columns: needed only .*found \['tag'\]"):
        InputColumns({"body": BODY, "tag": "A"})
    with pytest.raises(RecordError, match="column flag: needed 3 values, found 2"):
        InputColumns({"body": BODY, "flag": [1, 2]}).array("flag")


def test_input_properties_are_keys_tags_and_maps_in_order():
    maps = [[("a", "1")], [], None]
    given = InputColumns({"body": BODY, "tags": ["A", None, "C"], "keys": "k", "properties": maps})
    parts = [*property_parts(given), pa.array(BODY, pa.binary()), pa.scalar(b"END", pa.binary())]
    lengths = properties_lengths_of(parts, 3)
    texts = [
        b"KEYS\x01k\x02TAGS\x01A\x02a\x011\x02aEND",
        b"KEYS\x01k\x02bEND",
        b"KEYS\x01k\x02TAGS\x01C\x02cEND",
    ]
    assert bytes(concatenate_rows(parts, 3, int(lengths.sum()))) == b"".join(texts)
    assert lengths.tolist() == [len(text) for text in texts]


def test_input_without_properties_has_no_property_parts():
    given = InputColumns({"body": BODY})
    assert property_parts(given) == []
    assert properties_lengths_of([], 3).tolist() == [0, 0, 0]


def test_constant_column_is_distinguished_from_varying_values():
    given = InputColumns({"body": BODY, "flag": 7, "queueId": [1, 2, 3]})
    assert given.one_value("flag").as_py() == 7
    assert given.one_value("queueId") is None
    assert given.numbers("queueId").tolist() == [1, 2, 3]
    with pytest.raises(RecordError, match="flag 0: needed a value for each message"):
        InputColumns({"body": BODY, "flag": pa.scalar(None, pa.int32())}).numbers("flag")


def test_to_binary_returns_the_bytes_of_each_number():
    assert to_binary(np.array([1, 258], ">i2")).to_pylist() == [b"\x00\x01", b"\x01\x02"]


def test_concatenate_rows_joins_parts_row_by_row():
    parts = (pa.array(BODY), pa.scalar(b"-", pa.binary()))
    assert bytes(concatenate_rows(parts, 3, 6)) == b"a-b-c-"
    assert bytes(concatenate_rows(parts, 3, 6, b"begin")) == b"begina-b-c-"
    nothing = (pa.array([], pa.binary()),)
    assert bytes(concatenate_rows(nothing, 0, 0)) == b""
    assert bytes(concatenate_rows(nothing, 0, 0, b"begin")) == b"begin"
