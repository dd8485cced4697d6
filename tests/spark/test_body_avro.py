"""Avro bodies read with an Avro or Spark schema, and invalid bodies."""

import io
import json
from uuid import UUID

import fastavro
import pytest
from support.spark.body_rows import rows

from rmq_spark.spark.errors import RecordFault

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "kinds", "type": {"type": "array", "items": "Kind"}},
    ],
}
VALUE = {"id": 2**53 + 1, "kind": "OLD", "note": "ü", "kinds": ["NEW"]}


def body_of(value, schema):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def test_avro_bodies_are_decoded_with_the_writers_schema():
    names = {"columns": "id,kind,note,kinds"}
    assert rows([body_of(VALUE, ORDER)], json.dumps(ORDER), "avro", **names) == [VALUE]
    assert rows([body_of(VALUE, ORDER)], json.dumps(ORDER), "avro", columns="note") == [
        {"note": "ü"}
    ]


def test_spark_schema_for_avro_means_nullable_fields():
    schema = {
        "type": "record",
        "name": "any",
        "fields": [
            {"name": "id", "type": ["null", "long"]},
            {"name": "x", "type": ["null", "int"]},
        ],
    }
    body = body_of({"id": 7, "x": None}, schema)
    assert rows([body], "id BIGINT, x SMALLINT", "avro", columns="id,x") == [{"id": 7, "x": None}]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "needed Avro of the schema"),
        (b"\x02", "needed Avro of the schema"),
        (
            body_of(VALUE, ORDER) + b"x",
            "needed one Avro record of the schema, found 1 bytes after",
        ),
        (b"\x00\x08\x00\x00", "needed Avro of the schema"),
    ],
)
def test_avro_body_that_is_no_record_is_a_bad_record(body, said):
    with pytest.raises(RecordFault, match="offset 0 of queue 3") as caught:
        rows([body], json.dumps(ORDER), "avro")
    assert said in str(caught.value)
    good = body_of(VALUE, ORDER)
    found = rows([good, body, good], json.dumps(ORDER), "avro", columns="id", onBadRecord="null")
    assert [row["id"] for row in found] == [VALUE["id"], None, VALUE["id"]]


def test_avro_value_too_large_for_its_column_is_a_bad_record():
    schema = {"type": "record", "name": "any", "fields": [{"name": "id", "type": ["null", "int"]}]}
    with pytest.raises(
        RecordFault, match=r"its id: needed a value .* of type int16, found 70000 .*too large"
    ):
        rows([body_of({"id": 70_000}, schema)], "id SMALLINT", "avro")


def test_avro_uuids_become_text_columns():
    kind = {"type": "string", "logicalType": "uuid"}
    fields = [
        {"name": "id", "type": kind},
        {"name": "all", "type": {"type": "array", "items": kind}},
    ]
    schema = {"type": "record", "name": "R", "fields": fields}
    body = body_of({"id": UUID(int=7), "all": [UUID(int=8)]}, schema)
    found = {"id": str(UUID(int=7)), "all": [str(UUID(int=8))]}
    assert rows([body], json.dumps(schema), "avro", columns="id,all") == [found]
