"""Message bodies decoded to rows as tasks do, without Spark and broker; random schemas and rows."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import types as sql

from rmq_spark.spark.bodies.bad_records import BadRecordHandler
from rmq_spark.spark.bodies.columns import check_schema, source_schema, with_body_schema
from rmq_spark.spark.bodies.decoder import record_batches_for
from rmq_spark.spark.options.options import read_options
from rmq_spark.spark.options.values import OnBadRecord
from rmq_spark.spark.schemas.columns import arrow_schema_of
from rmq_spark.wire.chunk import RecordChunk
from rmq_spark.wire.message.record import StoredMessage, encode_record


def options_of(kind="json", schema=None, **more):
    given = {"namesrvAddr": "localhost:9876", "topic": "orders", "bodyFormat": kind, **more}
    return read_options(given if schema is None else {**given, "bodySchema": schema})


def batches(bodies, schema, kind="json", **more):
    """Decode messages with these bodies; return the record batches."""
    options = options_of(kind, schema, **more)
    columns = source_schema(options)
    check_schema(columns, options)
    options = with_body_schema(options, columns)
    records = [
        encode_record(StoredMessage("orders", body, queue_id=3, queue_offset=at))
        for at, body in enumerate(bodies)
    ]
    how = BadRecordHandler(OnBadRecord(more.get("onBadRecord", "fail")))
    made = record_batches_for(options, arrow_schema_of(columns), how)
    return list(made.convert(RecordChunk(b"".join(records)), "broker-a"))


def rows(bodies, schema, kind="json", **more):
    return [row for batch in batches(bodies, schema, kind, **more) for row in batch.to_pylist()]


def values(bodies, type_, **more):
    """Decode valid bodies; return the values of field v, which has this type."""
    return [row["v"] for row in rows(bodies, f"v {type_}", columns="v", **more)]


def alone(decoder, body):
    """Decode one body by itself; raise its error."""
    found, faults = decoder.decode_each(pa.array([body], pa.binary()))
    for fault in faults.values():
        raise fault
    return found


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.text("abcxyz_", min_size=1, max_size=4).map(lambda name: f"f{name}")
_INT_BITS = {sql.ByteType: 8, sql.ShortType: 16, sql.IntegerType: 32, sql.LongType: 64}
_TIMES = {"min_value": datetime(1, 1, 2), "max_value": datetime(9999, 12, 30)}  # noqa: DTZ001  # naive: the tests add time zones


def _integers(bits):
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


LEAVES = {
    sql.StringType(): TEXTS,
    sql.BooleanType(): st.booleans(),
    **{kind(): _integers(bits) for kind, bits in _INT_BITS.items()},
    sql.FloatType(): st.floats(width=32, allow_nan=False),
    sql.DoubleType(): st.floats(allow_nan=False),
    sql.DecimalType(9, 2): st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n) / 100),
    sql.DateType(): st.dates(date(1, 1, 2), date(9999, 12, 30)),
    sql.TimestampType(): st.datetimes(**_TIMES, timezones=st.just(timezone.utc)),
    sql.TimestampNTZType(): st.datetimes(**_TIMES),
    sql.BinaryType(): st.binary(max_size=6),
}


@st.composite
def kinds(draw, depth=2):
    """Generate a Spark type, nested a few times at most, with a strategy of its values."""
    shape = draw(st.sampled_from(["leaf", "leaf", "leaf", "struct", "array", "map"]))
    if shape == "leaf" or not depth:
        kind = draw(st.sampled_from(list(LEAVES)))
        return kind, st.none() | LEAVES[kind]
    if shape == "struct":
        kind, found = draw(structs(depth - 1))
        return kind, st.none() | found
    inner, found = draw(kinds(depth - 1))
    if shape == "array":
        return sql.ArrayType(inner), st.none() | st.lists(found, max_size=3)
    pairs = st.dictionaries(TEXTS, found, max_size=3).map(lambda each: list(each.items()))
    return sql.MapType(sql.StringType(), inner), st.none() | pairs


@st.composite
def structs(draw, depth=2):
    """Generate a struct type, with a strategy of its values."""
    fields = {
        name: draw(kinds(depth))
        for name in draw(st.lists(NAMES, min_size=1, unique=True, max_size=4))
    }
    kind = sql.StructType([sql.StructField(name, each) for name, (each, _) in fields.items()])
    return kind, st.fixed_dictionaries({name: found for name, (_, found) in fields.items()})


def same(one: pa.Array, other: pa.Array):
    """Return whether two arrays have the same type and equal values, including the
    signs of floats."""
    return one.type == other.type and repr(one.to_pylist()) == repr(other.to_pylist())
