"""Rows encoded by the sink are read back unchanged by the source."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as sql
from support.spark.body_rows import alone, options_of, same, structs

from rmq_spark.spark.bodies.encoder import BodyEncoder
from rmq_spark.spark.bodies.json_bodies import JsonBodies
from rmq_spark.spark.bodies.msgpack_bodies import MsgPackBodies
from rmq_spark.spark.errors import RowError
from rmq_spark.spark.options.sink_columns import check_sink_columns
from rmq_spark.spark.schemas.avro_schema import AvroBodies, avro_schema_of
from rmq_spark.spark.schemas.columns import arrow_schema_of
from rmq_spark.spark.schemas.schema_text import parse_schema
from rmq_spark.spark.writer import to_record_batches


def encoder_of(schema, kind="json", **more):
    return BodyEncoder(schema, options_of(kind, **more).body)


def bodies_of(schema, columns, kind="json", **more):
    """Encode the arrays of one record batch; return the bodies."""
    batch = pa.RecordBatch.from_arrays(columns, names=[str(at) for at in range(len(columns))])
    [encoded] = encoder_of(schema, kind, **more).encode_batches([batch], 7)
    return encoded.columns[-1]


def decoder_of(kind, arrow, schema):
    if kind == "avro":
        return AvroBodies(arrow, avro_schema_of(schema))
    return JsonBodies(arrow) if kind == "json" else MsgPackBodies(arrow)


@pytest.mark.parametrize("kind", ["json", "avro", "msgpack"])
@given(structs().flatmap(lambda each: st.tuples(st.just(each[0]), st.lists(each[1], max_size=4))))
def test_encoded_rows_are_decoded_equal(kind, written):
    schema, rows = written
    arrow = pa.struct(list(arrow_schema_of(schema)))
    structs_written = pa.array(rows, arrow)
    bodies = bodies_of(schema, structs_written.flatten(), kind)
    decoder = decoder_of(kind, arrow, schema)
    if len(bodies):
        assert same(
            pa.concat_arrays([alone(decoder, body) for body in bodies.to_pylist()]), structs_written
        )
        try:
            together = decoder.decode_all(bodies)
        except (ValueError, pa.ArrowException):
            return
        assert same(together, structs_written)


MOMENTS = [-62_135_596_800_000_000, 253_402_300_799_999_999, -1, None]
"""The first and last microsecond of the years 1 to 9999, the last one before 1970, and a null."""

OF_MOMENTS = {
    "TIMESTAMP": lambda each: each,
    "STRUCT<t: TIMESTAMP>": lambda each: {"t": each},
    "ARRAY<TIMESTAMP>": lambda each: [each, None],
    "MAP<STRING, TIMESTAMP>": lambda each: [("k", each)],
    "MAP<STRING, STRUCT<t: ARRAY<TIMESTAMP>>>": lambda each: [("k", {"t": [each]})],
    "ARRAY<MAP<STRING, TIMESTAMP>>": lambda each: [[("k", each)]],
}


def in_zone(kind, zone):
    """Return an Arrow type as Spark uses it in a session with this time zone."""
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(in_zone(each.type, zone)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(in_zone(kind.value_type, zone))
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), in_zone(kind.item_type, zone))
    return pa.timestamp("us", zone) if pa.types.is_timestamp(kind) else kind


@pytest.mark.parametrize("kind", ["json", "avro", "msgpack"])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Amsterdam", "America/New_York", "Asia/Kathmandu"])
@pytest.mark.parametrize("type_", OF_MOMENTS)
def test_timestamps_of_years_1_to_9999_are_encoded_in_any_zone(kind, zone, type_):
    schema = parse_schema(f"v {type_}, n BIGINT")
    (arrow, _) = arrow_schema_of(schema).types
    moments = pa.array([OF_MOMENTS[type_](each) for each in MOMENTS], arrow)
    numbers = pa.array(range(len(MOMENTS)), pa.int64())
    given = moments.cast(in_zone(arrow, zone))
    structs_written = pa.StructArray.from_arrays([moments, numbers], names=["v", "n"])
    found = bodies_of(schema, [given, numbers], kind)
    whole = pa.struct(list(arrow_schema_of(schema)))
    decoder = decoder_of(kind, whole, schema)
    read = pa.concat_arrays([alone(decoder, body) for body in found.to_pylist()])
    assert same(read, structs_written.cast(whole))
    sliced = bodies_of(schema, [given.slice(1), numbers.slice(1)], kind)
    assert sliced.to_pylist() == found.to_pylist()[1:]


def test_encoded_json_body_has_every_field_type_in_its_portable_form():
    schema = parse_schema(
        "id BIGINT, price DECIMAL(9,2), at TIMESTAMP, day DATE, raw BINARY, ratio DOUBLE, "
        "notes MAP<STRING, STRING>, none STRING"
    )
    types = arrow_schema_of(schema).types
    values = [
        2**53 + 1,
        "1.50",
        1_769_860_800_000_000,
        20_484,
        b"\0\1",
        float("nan"),
        [("a", "b")],
        None,
    ]
    columns = [
        pa.array([value]).cast(kind) if isinstance(value, str) else pa.array([value], kind)
        for value, kind in zip(values, types, strict=True)
    ]
    [body] = bodies_of(schema, columns).to_pylist()
    assert body == (
        b'{"id":9007199254740993,"price":1.50,"at":"2026-01-31T12:00:00Z","day":"2026-01-31",'
        b'"raw":"AAE=","ratio":"NaN","notes":{"a":"b"},"none":null}'
    )


def test_message_columns_are_not_encoded_into_bodies():
    schema = parse_schema("keys STRING, id INT, tags STRING, name STRING")
    columns = [pa.array([value]) for value in ("k", 1, "t", "ada")]
    assert [json.loads(each) for each in bodies_of(schema, columns).to_pylist()] == [
        {"id": 1, "name": "ada"}
    ]
    sent = check_sink_columns(schema, has_topic=True, body=options_of("json").body)
    assert [(column.name, column.position) for column in sent] == [
        ("body", 4),
        ("keys", 0),
        ("tags", 2),
    ]


def test_struct_column_is_encoded_as_a_body_and_null_as_none():
    schema = parse_schema("value STRUCT<tags: INT>, keys STRING")
    columns = [pa.array([{"tags": 1}, None]), pa.array(["a", "b"])]
    found = bodies_of(schema, columns, bodyColumn="value")
    assert found.to_pylist() == [b'{"tags":1}', None]


def test_unencodable_row_is_named_by_row_and_partition():
    schema = parse_schema("at TIMESTAMP")
    beyond = pa.array([0, 1 << 60], pa.timestamp("us", "UTC"))
    with pytest.raises(RowError, match="row 1 of partition 7, column body: it cannot be encoded"):
        bodies_of(schema, [beyond])


def test_rows_are_encoded_to_the_same_bodies_as_by_older_releases():
    schema = parse_schema("keys STRING, id INT, inner STRUCT<a: ARRAY<INT>, m: MAP<STRING, INT>>")
    rows = [Row("k", 1, Row([1, None], {"x": 1})), Row("l", None, None)]
    encoder = encoder_of(schema)
    sent = check_sink_columns(schema, has_topic=True, body=options_of("json").body)
    [encoded] = encoder.encode_batches(to_record_batches(iter(rows), sent, encoder), 0)
    assert encoded.columns[-1].to_pylist() == [
        b'{"id":1,"inner":{"a":[1,null],"m":{"x":1}}}',
        b'{"id":null,"inner":null}',
    ]
    assert encoded.column(0).to_pylist() == ["k", "l"]


@pytest.mark.parametrize("kind", ["json", "avro", "msgpack"])
def test_null_struct_with_non_nullable_fields_is_encoded(kind):
    inner = sql.StructType([sql.StructField("a", sql.IntegerType(), nullable=False)])
    schema = sql.StructType(
        [sql.StructField("s", inner), sql.StructField("l", sql.ArrayType(inner, False))]
    )
    arrow = arrow_schema_of(schema).types
    children = pa.array([None, 1], pa.int32())  # null within a null struct, as Spark passes it
    fields = [pa.field("a", pa.int32(), nullable=False)]
    structs_given = pa.StructArray.from_arrays(
        [children], fields=fields, mask=pa.array([True, False])
    )
    values = structs_given, pa.array([[{"a": 1}], None], arrow[1])
    nullable = parse_schema("s STRUCT<a: INT>, l ARRAY<STRUCT<a: INT>>")
    decoder = decoder_of(kind, pa.struct(list(arrow_schema_of(nullable))), nullable)
    found = [
        alone(decoder, body).to_pylist()
        for body in bodies_of(schema, list(values), kind).to_pylist()
    ]
    assert found == [[{"s": None, "l": [{"a": 1}]}], [{"s": {"a": 1}, "l": None}]]


def test_non_nullable_fields_are_encoded():
    schema = sql.StructType([sql.StructField("id", sql.LongType(), nullable=False)])
    assert bodies_of(schema, [pa.array([1])]).to_pylist() == [b'{"id":1}']
