"""Batches of messages encoded from columns."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.wire_strategies import int32, property_names, property_values

from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk import encode_batch_columns
from rmq_spark.wire.message.message_batch import BatchedMessage, decode_batch, encode_batch
from rmq_spark.wire.message.properties import RESERVED_NAMES, encode_properties

MAP = pa.map_(pa.string(), pa.string())


def _pairs(mapping):
    return [*mapping.items()]


_own_names = property_names.filter(lambda name: name not in RESERVED_NAMES)
rows = st.fixed_dictionaries(
    {
        "body": st.binary(max_size=30),
        "keys": st.none() | property_values,
        "tags": st.none() | property_values,
        "properties": st.dictionaries(_own_names, property_values, max_size=3).map(
            lambda map_: [*map_.items()]
        ),
        "flag": int32,
    }
)


def one_by_one(row, unique_id):
    named = {"KEYS": row.get("keys"), "TAGS": row.get("tags"), **dict(row.get("properties", ()))}
    properties = {**named, "UNIQ_KEY": unique_id, "WAIT": "true"}
    text = encode_properties(
        {name: value for name, value in properties.items() if value is not None}
    )
    return BatchedMessage(row["body"], text, row.get("flag", 0))


def ids_of(table):
    return [f"{number:032X}" for number in range(len(table))]


@given(st.lists(rows, max_size=6))
def test_columnar_batch_encoding_equals_message_by_message(table):
    columns = {
        name: [row[name] for row in table]
        for name in ("body", "keys", "tags", "properties", "flag")
    }
    ids = ids_of(table)
    encoded = encode_batch_columns(columns, ids)
    assert bytes(encoded) == encode_batch(map(one_by_one, table, ids))


def test_batch_columns_need_only_bodies():
    table = [{"body": b"one"}, {"body": b"two"}]
    encoded = encode_batch_columns({"body": pa.array([b"one", b"two"]).slice(0)}, ids_of(table))
    assert decode_batch(encoded) == [*map(one_by_one, table, ids_of(table))]


def test_batch_of_a_table_slice_holds_only_that_slice():
    bodies = pa.array([b"%d" % number for number in range(10)])
    tags = pa.array([f"t{number}" for number in range(10)])
    encoded = encode_batch_columns(
        {"body": bodies.slice(4, 2), "tags": tags.slice(4, 2)}, ids_of(range(2))
    )
    found = decode_batch(encoded)
    assert [(message.body, message.properties["TAGS"]) for message in found] == [
        (b"4", "t4"),
        (b"5", "t5"),
    ]


def test_batch_properties_over_their_limit_are_refused():
    with pytest.raises(RecordError, match="at most 32767 bytes"):
        encode_batch_columns({"body": [b"x"], "tags": ["t" * 32_720]}, ids_of(range(1)))


def test_batch_property_text_with_separators_is_refused():
    with pytest.raises(RecordError, match="without"):
        encode_batch_columns({"body": [b"x"], "tags": ["a\x02b"]}, ids_of(range(1)))
