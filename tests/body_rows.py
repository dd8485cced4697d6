"""Bodies of messages to rows, by the same way as tasks go, without Spark and without a broker."""

from __future__ import annotations

import pyarrow as pa

from rmq_spark.spark.bodies.bad_records import BadRecordHandler
from rmq_spark.spark.bodies.columns import check_schema, source_schema, with_body_schema
from rmq_spark.spark.bodies.decoder import record_batches_for
from rmq_spark.spark.options.options import read_options
from rmq_spark.spark.options.values import OnBadRecord
from rmq_spark.spark.schemas.columns import arrow_schema_of
from rmq_spark.wire.chunk import RecordChunk
from rmq_spark.wire.record import StoredMessage, encode_record


def options_of(kind="json", schema=None, **more):
    given = {"namesrvAddr": "localhost:9876", "topic": "orders", "bodyFormat": kind, **more}
    return read_options(given if schema is None else {**given, "bodySchema": schema})


def batches(bodies, schema, kind="json", **more):
    """The record batches of messages with these bodies."""
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
    """The values of field v, of a type, in bodies that are all right."""
    return [row["v"] for row in rows(bodies, f"v {type_}", columns="v", **more)]


def alone(decoder, body):
    """One body as its decoder has it when it is alone; its fault is raised."""
    found, faults = decoder.decode_each(pa.array([body], pa.binary()))
    for fault in faults.values():
        raise fault
    return found
