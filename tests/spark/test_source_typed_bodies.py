"""Typed bodies in Spark: read and written, compared with from_json, in streams and exactly once."""

import json
import re

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as fn
from support.spark.protobuf_files import descriptor_set, file_of
from support.spark.source_fixture import complaint
from support.suite.selection import spread

from rmq_spark.client.message import Message

SCHEMA = (
    "id BIGINT, name STRING, total DOUBLE, paid BOOLEAN, price DECIMAL(9,2), day DATE, "
    "at TIMESTAMP, inner STRUCT<a: INT, b: ARRAY<STRING>>, notes MAP<STRING, INT>"
)
BODIES = [
    {"id": 2**53 + 1, "name": "ada", "total": 9.5, "paid": True, "price": 1.25},
    {"id": None, "name": 'ü\n"', "total": -1e-300, "extra": [1, {"x": 2}]},
    {"day": "2026-01-31", "at": "2026-01-31T12:00:00.123456Z"},
    {"at": "2026-01-31T12:00:00+02:00", "inner": {"a": 1, "b": ["x", None], "c": 0}},
    {"inner": {}, "notes": {"a": 1, "b": None}},
    {"inner": None, "notes": {}},
    {},
]


def sent(source, bodies):
    topic = source.cluster.topic(1)
    producer = source.clients.producer()
    for body in bodies:
        producer.send(
            Message(topic, body if isinstance(body, bytes) else json.dumps(body).encode())
        )
    return topic


def assert_same(found, expected, by):
    """Compare rows with maps, which chispa cannot sort."""
    assert found.dtypes == expected.dtypes
    assert found.orderBy(by).collect() == expected.orderBy(by).collect()


def test_typed_json_bodies_equal_from_json(source):
    topic = sent(source, BODIES)
    raw = source.load(topic=topic)
    theirs = raw.select(
        "queueOffset", fn.from_json(fn.col("body").cast("string"), SCHEMA).alias("v")
    )
    ours = source.load(topic=topic, bodyFormat="json", bodySchema=SCHEMA)
    names = [field.split()[0] for field in re.split(r", (?=\w+ [A-Z])", SCHEMA)]
    assert_same(
        ours.select("queueOffset", *names), theirs.select("queueOffset", "v.*"), "queueOffset"
    )
    assert "body" not in ours.columns
    in_one = source.load(
        topic=topic, bodyFormat="json", bodySchema=SCHEMA, bodyColumn="v", columns="queueOffset,v"
    )
    assert_same(in_one, theirs, "queueOffset")


def test_users_schema_selects_message_and_body_columns(source):
    topic = sent(source, [{"id": 1, "name": "ada"}, b"bad"])
    schema = "name STRING, queueOffset BIGINT, id INT"
    found = source.load(schema, topic=topic, bodyFormat="json", onBadRecord="null")
    assert [tuple(row) for row in found.orderBy("queueOffset").collect()] == [
        ("ada", 0, 1),
        (None, 1, None),
    ]


def test_text_bodies_are_strings(source):
    topic = sent(source, ["ü".encode()])
    found = source.load(topic=topic, bodyFormat="text")
    assert dict(found.dtypes)["body"] == "string"
    assert [row.body for row in found.collect()] == ["ü"]


def test_bad_typed_body_ends_the_query_with_its_place(source):
    topic = sent(source, [{"id": 1}, {"id": "one"}])
    found = source.load(topic=topic, bodyFormat="json", bodySchema="id INT")
    with pytest.raises(PySparkException) as raised:
        found.collect()
    said = complaint(raised)
    assert f"offset 1 of queue 0 of {topic} on" in said
    assert "its id: needed a whole number of 32 bits, found 'one'" in said


@pytest.mark.parametrize(
    ("form", "schema", "said"),
    [
        ("json", "id DATE", "its id: needed a string, found 0"),
        pytest.param(
            *("avro", "a STRING, b STRING", "its body: needed Avro of the schema"),
            marks=pytest.mark.deep,
        ),
    ],
)
def test_body_schema_that_fits_no_body_fails_or_yields_nulls_or_no_rows(
    source, tmp_path, form, schema, said
):
    topic = sent(source, [{"id": number} for number in range(20)])
    how = {"topic": topic, "bodyFormat": form, "bodySchema": schema}
    names = [field.split()[0] for field in schema.split(", ")]
    rows = source.load(**how, onBadRecord="null")
    assert [tuple(row) for row in rows.select(*names).collect()] == [(None,) * len(names)] * 20
    assert source.load(**how, onBadRecord="skip").count() == 0
    stream = (
        source.spark.readStream.format("rocketpoll")
        .options(namesrvAddr=source.cluster.address, startingOffsets="earliest", **how)
        .load()
    )
    query = (
        stream.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(PySparkException) as raised:
        query.awaitTermination(120)
    assert f"offset 0 of queue 0 of {topic} on" in complaint(raised)
    assert said in complaint(raised)
    assert not query.recentProgress


@pytest.mark.deep
def test_body_schema_with_unknown_field_names_yields_nulls(source):
    topic = sent(source, [{"order_id": number} for number in range(20)])
    found = source.load(topic=topic, bodyFormat="json", bodySchema="orderId INT")
    assert [row.orderId for row in found.collect()] == [None] * 20


@pytest.mark.parametrize(
    ("form", "column", "more"),
    spread(
        2,
        [
            ("text", "value", {"bodyColumn": "value"}),
            ("text", "body", {}),
            ("binary", "body", {}),
            (None, "body", {}),
        ],
    ),
)
def test_text_and_bytes_bodies_round_trip(sink, form, column, more):
    how = {**more, **({} if form is None else {"bodyFormat": form})}
    kind = "STRING" if form == "text" else "BINARY"
    rows = sink.spark.range(100).selectExpr(f"CAST(concat('ü', id) AS {kind}) AS {column}")
    sink.write(rows, **how)
    found = sink.load(topic=sink.topic, columns=column, **how)
    assert_same(found, rows, column)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"bodyFormat": "yaml"},
            "option bodyFormat: needed binary, text, json, avro, msgpack or protobuf",
        ),
        (
            {"bodyFormat": "json"},
            "option bodySchema: bodyFormat=json needs the schema of the bodies. Give",
        ),
        ({"bodyFormat": "json", "bodySchema": "id INTERVAL"}, "a type of bodies"),
        ({"bodyFormat": "json", "bodySchema": "tags INT"}, "Name one column for the whole body"),
        ({"bodyFormat": "json", "bodySchema": "x STRUCT<>"}, "x is a struct without fields"),
        (
            {"bodySchema": "id INT"},
            "it applies to bodyFormat json, avro and msgpack only, found binary",
        ),
    ],
)
def test_invalid_typed_body_options_are_refused_by_load(source, options, said):
    topic = source.cluster.topic(1)
    with pytest.raises(PySparkException) as raised:
        source.load(topic=topic, **options)
    assert said in complaint(raised)
    assert "\n" not in complaint(raised)


def orders(spark):
    return spark.range(1_000).selectExpr(
        "concat('k', id) AS keys",
        "id",
        "IF(id % 3 = 0, NULL, concat('ü', id)) AS name",
        "CAST(id AS DECIMAL(9,2)) AS price",
        "timestamp_micros(id * 1000003) AS at",
        "named_struct('a', IF(id % 2 = 0, NULL, id), 'b', array(id, NULL)) AS inner",
        "map('x', id) AS notes",
    )


@pytest.mark.parametrize("form", ["json", "avro", "msgpack"])
def test_typed_bodies_round_trip(sink, form):
    rows = orders(sink.spark)
    sink.write(rows, bodyFormat=form)
    found = sink.load(
        topic=sink.topic,
        bodyFormat=form,
        bodySchema=rows.drop("keys").schema.simpleString(),
        columns=",".join(rows.columns),
    )
    assert_same(found, rows, "keys")


def test_protobuf_bodies_round_trip(sink, tmp_path):
    path = tmp_path / "orders.desc"
    fields = {
        "id": "int64",
        "name": "optional string",
        "most": "uint64",
        "at": "google.protobuf.Timestamp",
        "took": "google.protobuf.Duration",
        "kind": "Kind",
        "inner": "Line",
        "lines": "repeated Line",
        "ratios": "map<int32, double>",
    }
    messages = {"Line": {"sku": "string", "count": "uint32"}, "Order": fields}
    enums = {"Kind": {"NEW": 0, "OLD": 1}}
    descriptor_set(file_of(messages, enums=enums), path=path)
    rows = sink.spark.range(100).selectExpr(
        "concat('k', id) AS keys",
        "id",
        "IF(id % 3 = 0, NULL, concat('ü', id)) AS name",
        "CAST(18446744073709551615 - id AS DECIMAL(20,0)) AS most",
        "timestamp_micros(id * 1000003) AS at",
        "make_dt_interval(0, 0, 0, -1.5 * id) AS took",
        "IF(id % 2 = 0, 'NEW', 'OLD') AS kind",
        "IF(id % 2 = 0, NULL, named_struct('sku', 's', 'count', id)) AS inner",
        "array(named_struct('sku', 's', 'count', id)) AS lines",
        "map(1, 0.5D) AS ratios",
    )
    how = {"bodyFormat": "protobuf", "bodyDescriptor": str(path), "bodyMessage": "Order"}
    sink.write(rows, **how)
    found = sink.load(topic=sink.topic, **how, columns=",".join(rows.columns))
    assert_same(found, rows, "keys")


@pytest.mark.deep
def test_struct_body_column_round_trip(sink):
    rows = orders(sink.spark).selectExpr("struct(id, name) AS value", "keys")
    sink.write(rows, bodyFormat="json", bodyColumn="value")
    found = sink.load(
        topic=sink.topic,
        bodyFormat="json",
        bodySchema="id BIGINT, name STRING",
        bodyColumn="value",
        columns="value,keys",
    )
    assert_same(found, rows, "keys")


@pytest.mark.deep
def test_typed_bodies_round_trip_exactly_once(sink):
    rows = orders(sink.spark)
    sink.write(rows, bodyFormat="json", delivery="exactly_once")
    found = sink.load(
        topic=sink.topic,
        isolation="committed",
        bodyFormat="json",
        bodySchema=rows.drop("keys").schema.simpleString(),
        columns=",".join(rows.columns),
    )
    assert_same(found, rows, "keys")


def test_sink_refuses_columns_that_cannot_be_bodies(sink):
    ids = sink.spark.range(1)
    for rows, options, said in (
        (ids.selectExpr("'a' AS keys"), {}, "there is no column for the bodies of bodyFormat=json"),
        (ids.selectExpr("id", "'a' AS body"), {}, "makes the body of id: drop it"),
        (ids, {"bodyColumn": "id"}, "column id is bigint, not a struct"),
        (ids, {"bodyColumn": "value"}, "there is no column value"),
        (ids.selectExpr("map(id, id) AS m"), {}, "m has keys of bigint: needed string"),
    ):
        with pytest.raises(PySparkException) as caught:
            sink.write(rows, bodyFormat="json", **options)
        assert said in str(caught.value)


def test_stream_reads_and_writes_typed_bodies(sink, tmp_path):
    rows = orders(sink.spark)
    sink.write(rows, bodyFormat="json")
    second = sink.cluster.topic(1)
    names = {"namesrvAddr": sink.cluster.address}
    stream = (
        sink.spark.readStream.format("rocketpoll")
        .options(**names, topic=sink.topic, startingOffsets="earliest", bodyFormat="json")
        .schema("keys STRING, id BIGINT, name STRING")
        .load()
    )
    query = (
        stream.writeStream.format("rocketpoll")
        .options(**names, topic=second, bodyFormat="json", checkpointLocation=str(tmp_path / "cp"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(120)
    finally:
        query.stop()
    found = sink.load(
        topic=second, bodyFormat="json", bodySchema="id BIGINT, name STRING", columns="keys,id,name"
    )
    assert_same(found, rows.select("keys", "id", "name"), "keys")
