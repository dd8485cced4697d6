"""Bodies with the header of a schema registry, which is a real HTTP server here."""

import contextlib
import io
import json
import logging
import pickle

import fastavro
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from support.rocketmq.real_broker import free_port
from support.servers.schema_registry import RegistryServer
from support.servers.tls import certificate, server_context
from support.spark.body_rows import options_of, rows
from support.spark.protobuf_files import descriptor_set, file_of
from support.spark.sessions import log_of

from rmq_spark.client.errors import RegistryAway
from rmq_spark.spark.bodies.encoder import BodyEncoder
from rmq_spark.spark.errors import OptionError, RecordFault, RowError, SchemaError
from rmq_spark.spark.options.options import write_options
from rmq_spark.spark.options.sink_columns import check_sink_columns
from rmq_spark.spark.schemas.protobuf_schema import message_class
from rmq_spark.spark.schemas.schema_text import parse_schema

PASSWORD = "hush-of-the-registry"  # noqa: S105  # the password of this file's registry
SUBJECT = "orders-value"


def record(*fields, name="Order"):
    return {
        "type": "record",
        "name": name,
        "namespace": "shop",
        "fields": [dict(zip(("name", "type", "default"), each, strict=False)) for each in fields],
    }


FIRST = record(("id", "int"), ("note", "string"))
SECOND = record(
    ("id", "long"), ("note", "string"), ("customer", ["null", "string"], None), ("vip", "boolean")
)


def avro(header, schema, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return header + stream.getvalue()


@pytest.fixture
def registry():
    with RegistryServer() as found:
        yield found


def read(bodies, registry, kind="avro", schema=None, **more):
    return rows(bodies, schema, kind, bodyRegistry=registry.url, **more)


# ---- source


def test_registry_columns_follow_the_newest_schema_and_bodies_their_own(registry):
    old, new = registry.add(SUBJECT, FIRST), registry.add(SUBJECT, SECOND)
    bodies = [
        avro(old, FIRST, {"id": 1, "note": "a"}),
        avro(new, SECOND, {"id": 2**40, "note": "b", "customer": "ada", "vip": True}),
    ]
    found = read(bodies * 300, registry, columns="id,note,customer,vip")
    assert found[:2] == [
        {"id": 1, "note": "a", "customer": None, "vip": None},
        {"id": 2**40, "note": "b", "customer": "ada", "vip": True},
    ]
    assert found == found[:2] * 300
    asked = [path for path in registry.requests if path.startswith("/schemas")]
    assert len(asked) <= 3  # the driver sends one, tasks one for each schema


def test_schema_that_is_newer_than_the_columns_adds_none_until_a_restart(registry):
    old = registry.add(SUBJECT, FIRST)
    options = {"bodySchema": json.dumps(FIRST), "columns": "id,note"}
    new = registry.add(SUBJECT, SECOND)
    bodies = [
        avro(new, SECOND, {"id": 2, "note": "b", "customer": "ada", "vip": True}),
        avro(old, FIRST, {"id": 1, "note": "a"}),
    ]
    with pytest.raises(RecordFault, match="needed Avro of the schema"):  # long is not int
        read(bodies, registry, **options)
    newer = json.dumps({**FIRST, "fields": SECOND["fields"][:2]})
    found = read(bodies, registry, bodySchema=newer, columns="id,note")
    assert found == [{"id": 2, "note": "b"}, {"id": 1, "note": "a"}]


def test_avro_schemas_that_refer_to_others_are_read(registry):
    line = record(("sku", "string"), name="Line")
    registry.add("line-value", line)
    order = record(("lines", {"type": "array", "items": "shop.Line"}), ("last", "shop.Line"))
    header = registry.add(SUBJECT, order, references=[("shop.Line", "line-value")])
    whole = record(("lines", {"type": "array", "items": line}), ("last", "shop.Line"))
    value = {"lines": [{"sku": "a"}], "last": {"sku": "b"}}
    assert read([avro(header, whole, value)], registry, columns="lines,last") == [value]


def test_envelope_of_debezium_is_read_from_avro(registry):
    value = record(("id", "long"), ("name", ["null", "string"], None), name="Value")
    envelope = record(
        ("before", ["null", value], None),
        ("after", ["null", "shop.Value"], None),
        ("source", record(("connector", "string"), name="Source")),
        ("op", "string"),
        ("ts_ms", ["null", "long"], None),
        name="Envelope",
    )
    header = registry.add(SUBJECT, envelope)
    row = {"id": 1, "name": "ada"}
    change = {"before": None, "after": row, "source": {"connector": "mysql"}, "op": "c", "ts_ms": 5}
    found = read([avro(header, envelope, change)], registry, columns="before,after,source,op,ts_ms")
    assert found == [change]


JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "name": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "lines": {
            "type": "array",
            "items": {"type": ["object", "null"], "properties": {"n": {"type": "number"}}},
        },
        "notes": {"type": "object", "additionalProperties": {"type": "boolean"}},
    },
}


def test_json_schema_gives_the_columns_of_json_bodies(registry):
    header = registry.add(SUBJECT, JSON_SCHEMA, "JSON")
    value = {"id": 1, "name": None, "lines": [{"n": 1.5}, None], "notes": {"a": True}}
    found = read(
        [header + json.dumps(value).encode()], registry, "json", columns="id,name,lines,notes"
    )
    assert found == [{**value, "notes": [("a", True)]}]
    bodies = [header + b'{"id": %d}' % at for at in range(300)]
    assert [row["id"] for row in read(bodies, registry, "json", columns="id")] == list(range(300))


def test_json_schema_without_single_types_leaves_the_columns_to_the_user(registry):
    header = registry.add(SUBJECT, {"type": "object", "properties": {"id": {}}}, "JSON")
    said = r"needs the schema of the bodies: subject .* gives no columns, because id has no single"
    with pytest.raises(OptionError, match=said):
        read([], registry, "json")
    found = read([header + b'{"id": 1}'], registry, "json", "id INT", columns="id")
    assert found == [{"id": 1}]


LINES = file_of({"Line": {"sku": "string"}}, package="parts", name="line.proto")
ORDERS = file_of(
    {"Refund": {"id": "int64"}, "Order": {"id": "int64", "line": "parts.Line"}},
    imports=["line.proto"],
)


def protobuf(registry, **fields):
    options = options_of("protobuf", bodyRegistry=registry.url, bodyMessage="shop.Order")
    return message_class(options.body.message)(**fields).SerializeToString()


def test_protobuf_header_names_the_message_of_a_registered_file(registry):
    registry.add_file("line.proto", LINES)
    header = registry.add_file(SUBJECT, ORDERS, [("line.proto", "line.proto")])
    body = protobuf(registry, id=1, line={"sku": "a"})
    how = {"bodyMessage": "shop.Order", "columns": "id,line"}
    good = header + b"\x02\x02" + body
    assert read([good], registry, "protobuf", **how) == [{"id": 1, "line": {"sku": "a"}}]
    assert read([header + b"\0\x08\x07"], registry, "protobuf", columns="id") == [{"id": 7}]
    for index, said in (
        (b"\0", "needed a message shop.Order, found shop.Refund, as its header says"),
        (b"\x02\x08", r"schema cannot be used \(schema.proto has no message at index \[4\]"),
        (b"\x02", "needed the header of a schema registry"),
        (b"\x80" * 9, "needed the header of a schema registry"),
        (b"\xff\xff\x03", "needed the header of a schema registry"),
    ):
        with pytest.raises(RecordFault, match=said):
            read([good, header + index], registry, "protobuf", **how)


def test_descriptor_file_gives_the_columns_and_the_registry_the_message_of_each_body(
    registry, tmp_path
):
    newer = file_of({"Order": {"id": "int64", "extra": "string"}})
    header = registry.add_file(SUBJECT, newer)
    path = tmp_path / "orders.desc"
    descriptor_set(file_of({"Order": {"id": "int64"}}), path=path)
    body = header + b"\0" + b"\x08\x07\x12\x01x"
    found = read([body], registry, "protobuf", bodyDescriptor=str(path), columns="id")
    assert found == [{"id": 7}]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "needed the header of a schema registry"),
        (b"\0\0\0\0", "needed the header of a schema registry"),
        (b"\1\0\0\0\1\2", "needed the header of a schema registry"),
        (
            b"\0\0\0\0\x63\2",
            "needed the id of a schema, found 99: schema registry http.*: it has no 99",
        ),
        (b"\0\0\0\0\2\2", "needed a schema of AVRO, found JSON at id 2"),
        (b"\0\0\0\0\1", "needed Avro of the schema"),
        (b"\0\0\0\0\3\2", "needed the id of a schema, found id 3, whose schema cannot be used"),
    ],
    ids=["empty", "short", "magic", "unknown-id", "other-kind", "cut", "broken-schema"],
)
def test_body_without_a_known_header_is_a_bad_record(registry, body, said):
    header = registry.add(SUBJECT, FIRST)
    registry.add("other", JSON_SCHEMA, "JSON")
    registry.add("broken", {"type": "recrd"})
    good = avro(header, FIRST, {"id": 1, "note": "a"})
    with pytest.raises(RecordFault, match=f"offset 1 of queue 3.*{said}"):
        read([good, body, good], registry)
    found = read([good, body, good], registry, columns="id", onBadRecord="null")
    assert [row["id"] for row in found] == [1, None, 1]
    assert read([body], registry, columns="id", onBadRecord="skip") == []


def test_registry_that_is_down_is_waited_for_and_then_fails_the_task(registry, monkeypatch, caplog):
    monkeypatch.setattr("rmq_spark.client.concurrency.retry_timer.time.sleep", lambda _: None)
    header = registry.add(SUBJECT, FIRST)
    body = avro(header, FIRST, {"id": 1, "note": "a"})
    how = {"bodySchema": json.dumps(FIRST), "columns": "id"}
    registry.status = 503
    with pytest.raises(RegistryAway) as caught:
        read([body], registry, onBadRecord="skip", retryTimeoutMs="0", **how)
    assert "it has not answered for 0 ms (option retryTimeoutMs): status 503" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301  # the test's own data
    assert "asking the schema registry failed, retrying" in caplog.text
    registry.status = None
    assert read([body], registry, **how) == [{"id": 1}]


def test_task_retries_a_registry_until_it_is_back(registry, monkeypatch, caplog):
    header = registry.add(SUBJECT, FIRST)
    body = avro(header, FIRST, {"id": 1, "note": "a"})
    registry.status = 503

    def sleep(_):
        registry.status = None

    monkeypatch.setattr("rmq_spark.client.concurrency.retry_timer.time.sleep", sleep)
    with caplog.at_level(logging.WARNING):
        found = read([body], registry, bodySchema=json.dumps(FIRST), columns="id")
    assert found == [{"id": 1}]
    assert "asking the schema registry recovered after" in caplog.text


# ---- access


def test_registry_gets_user_and_password_which_appear_in_no_error(monkeypatch, tmp_path):
    with RegistryServer("reader", PASSWORD) as registry:
        header = registry.add(SUBJECT, FIRST)
        body = avro(header, FIRST, {"id": 1, "note": "a"})
        with pytest.raises(OptionError, match=r"bodyRegistry: .* it demands user and password"):
            read([body], registry)
        with pytest.raises(OptionError) as caught:
            read([body], registry, bodyRegistryUser="reader", bodyRegistryPassword="wrong-one")
        assert "another user or password (status 401)" in str(caught.value)
        assert "wrong-one" not in str(caught.value)
        given = {"bodyRegistryUser": "reader", "bodyRegistryPassword": PASSWORD}
        assert read([body], registry, columns="id", **given) == [{"id": 1}]
        monkeypatch.setenv("ROCKETPOLL_REGISTRY_USER", "reader")
        monkeypatch.setenv("ROCKETPOLL_REGISTRY_PASSWORD", PASSWORD)
        assert read([body], registry, columns="id") == [{"id": 1}]
        assert PASSWORD not in repr(options_of("avro", bodyRegistry=registry.url))
        monkeypatch.delenv("ROCKETPOLL_REGISTRY_USER")
        monkeypatch.delenv("ROCKETPOLL_REGISTRY_PASSWORD")
        profiles = tmp_path / "profiles.ini"
        profiles.write_text(
            f"[prod]\nregistry-user = reader\nregistry-password = {PASSWORD}\n", encoding="utf-8"
        )
        profiles.chmod(0o600)
        monkeypatch.setenv("ROCKETPOLL_PROFILES", str(profiles))
        assert read([body], registry, columns="id", profile="prod") == [{"id": 1}]


def test_registry_over_tls_needs_a_trusted_certificate():
    with RegistryServer(tls=server_context()) as registry:
        header = registry.add(SUBJECT, FIRST)
        body = avro(header, FIRST, {"id": 1, "note": "a"})
        with pytest.raises(OptionError, match=r"bodyRegistry: .*CERTIFICATE_VERIFY_FAILED"):
            read([body], registry)
        trusting = {"bodyRegistryCaFile": certificate("ca.pem")}
        assert read([body], registry, columns="id", **trusting) == [{"id": 1}]


def test_first_registry_that_answers_is_used(registry):
    header = registry.add(SUBJECT, FIRST)
    urls = f"http://127.0.0.1:{free_port()}, {registry.url}/"
    body = avro(header, FIRST, {"id": 1, "note": "a"})
    assert rows([body], None, "avro", bodyRegistry=urls, columns="id") == [{"id": 1}]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"bodySubject": "other"},
            "bodySubject: schema registry http.*: it has no such subject 'other'. Register",
        ),
        ({"topic": "a,b"}, "bodySubject: it is required, because there is no single topic. Give"),
        (
            {"bodyFormat": "protobuf"},
            "bodyFormat: the schema of subject 'orders-value' is of AVRO, not PROTOBUF",
        ),
        ({"bodySubject": "broken"}, "bodySubject: the schema of subject 'broken' cannot be used: "),
        ({"bodySchema": "id INT"}, "bodySchema: with bodyRegistry it must be an Avro schema. Give"),
    ],
)
def test_unreadable_registry_subject_is_refused_at_load(registry, more, said):
    registry.add(SUBJECT, FIRST)
    registry.add("broken", {"type": "record", "name": "R", "fields": [{"name": "a", "type": "b"}]})
    with pytest.raises(OptionError, match=said) as caught:
        read(
            [],
            registry,
            **{**({"kind": more.pop("bodyFormat")} if "bodyFormat" in more else {}), **more},
        )
    assert "\n" not in str(caught.value)


def test_registry_that_does_not_answer_is_refused_at_load():
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(
        OptionError, match=f"bodyRegistry: schema registry {url}: no answer: .*refused"
    ):
        options_of("avro", bodyRegistry=url)


@pytest.mark.parametrize("answer", ["[]", "not JSON", '{"id": "x"}'])
def test_registry_answer_of_another_server_is_refused_at_load(registry, monkeypatch, answer):
    registry.add(SUBJECT, FIRST)
    monkeypatch.setattr("support.servers.schema_registry.json.dumps", lambda _: answer)
    with pytest.raises(OptionError, match=r"bodyRegistry: schema registry .*: its answer"):
        options_of("avro", bodyRegistry=registry.url)


# ---- sink


def encoder_for(registry, schema, kind="avro", **more):
    given = {"namesrvAddr": "localhost:9876", "topic": "orders", "bodyFormat": kind}
    body = write_options({**given, "bodyRegistry": registry.url, **more}).body
    columns = parse_schema(schema)
    check_sink_columns(columns, has_topic=True, body=body)
    return pickle.loads(pickle.dumps(BodyEncoder(columns, body)))  # noqa: S301  # the test's own data


def bodies_of(encoder, *columns):
    names = [str(at) for at in range(len(columns))]
    batch = pa.RecordBatch.from_arrays(list(columns), names=names)
    return [
        each for one in encoder.encode_batches([batch], 7) for each in one.columns[-1].to_pylist()
    ]


def test_sink_writes_by_the_newest_schema_of_the_subject(registry):
    registry.add(SUBJECT, FIRST)
    registry.add(SUBJECT, SECOND)
    encoder = encoder_for(registry, "note STRING, id BIGINT, vip BOOLEAN, keys STRING")
    found = bodies_of(encoder, *map(pa.array, (["a"], [1], [True], ["k"])))
    assert found[0].startswith(b"\0\0\0\0\2")
    assert read(found, registry, columns="id,note,customer,vip") == [
        {"id": 1, "note": "a", "customer": None, "vip": True}
    ]
    assert len(registry.schemas) == 2
    with pytest.raises(SchemaError, match="column id is int, but bodies have bigint: cast it"):
        encoder_for(registry, "id INT")
    with pytest.raises(RowError, match="row 0 of partition 7, column body: it cannot be encoded"):
        bodies_of(encoder_for(registry, "id BIGINT"), pa.array([1]))  # column note has no default


@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
def test_sink_registers_the_schema_of_its_columns_when_asked(registry, tmp_path, kind):
    more = {}
    if kind == "protobuf":
        path = tmp_path / "orders.desc"
        fields = {"id": "int64", "name": "optional string", "at": "google.protobuf.Timestamp"}
        descriptor_set(file_of({"Other": {"x": "int32"}, "Order": fields}), path=path)
        more = {"bodyDescriptor": str(path), "bodyMessage": "shop.Order"}
    with pytest.raises(OptionError, match=r"bodySubject: .*it has no such subject"):
        encoder_for(
            registry,
            "id BIGINT",
            kind,
            **{key: each for key, each in more.items() if key == "bodyMessage"},
        )
    assert registry.schemas == {}
    asked = {**more, "bodyRegister": "true"}
    columns = pa.array([1, 2]), pa.array([None, "ü"])
    found = bodies_of(encoder_for(registry, "id BIGINT, name STRING", kind, **asked), *columns)
    assert list(registry.subjects) == [SUBJECT]
    again = bodies_of(encoder_for(registry, "id BIGINT, name STRING", kind, **asked), *columns)
    assert again == found
    assert len(registry.schemas) == 1
    name = {"bodyMessage": "shop.Order"} if kind == "protobuf" else {}
    assert read(found, registry, kind, columns="id,name", **name) == [
        {"id": 1, "name": None},
        {"id": 2, "name": "ü"},
    ]


def test_schema_that_the_registry_refuses_fails_the_write(registry):
    registry.status = 409
    with pytest.raises(OptionError, match=r"bodyRegister: the schema cannot be registered: .*409"):
        encoder_for(registry, "id BIGINT", bodyRegister="true")


def test_protobuf_file_that_imports_others_is_not_registered(registry, tmp_path):
    path = tmp_path / "orders.desc"
    descriptor_set(LINES, ORDERS, path=path)
    more = {"bodyDescriptor": str(path), "bodyMessage": "shop.Order", "bodyRegister": "true"}
    with pytest.raises(OptionError, match=r"file orders.proto imports line.proto. Register it by"):
        encoder_for(registry, "id BIGINT", "protobuf", **more)


# ---- with Spark


SECOND_NAMES = ["id", "note", "customer", "vip"]


def load_registered(room, registry, **more):
    names = {"namesrvAddr": room.cluster.address, "topic": room.topic, "bodyFormat": "avro"}
    return {**names, "bodyRegistry": registry.url, "bodySubject": SUBJECT, **more}


@pytest.mark.deep
def test_new_registry_schema_columns_are_read_after_a_restart(sink, registry, tmp_path):
    spark, seen = sink.spark, []
    options = load_registered(sink, registry)

    def run():
        """Restart the query from its checkpoint."""
        stream = spark.readStream.format("rocketpoll").options(**options).load()
        columns = [name for name in stream.columns if name in SECOND_NAMES]
        query = (
            stream.select(columns)
            .writeStream.foreachBatch(lambda rows, _: seen.extend(rows.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(120)
        finally:
            query.stop()
        found, seen[:] = sorted(map(tuple, seen)), []
        return columns, found

    options["startingOffsets"] = "earliest"
    registry.add(SUBJECT, FIRST)
    written = {key: options[key] for key in ("bodyFormat", "bodyRegistry", "bodySubject")}
    sink.write(spark.sql("SELECT 1 AS id, 'a' AS note"), **written)
    assert run()[1] == [(1, "a")]
    sink.write(spark.sql("SELECT 2 AS id, 'b' AS note"), **written)
    registry.add(SUBJECT, SECOND)
    sink.write(spark.sql("SELECT 3L AS id, 'c' AS note, 'ada' AS customer, true AS vip"), **written)
    columns, found = run()
    assert found == [(2, "b", None, None), (3, "c", "ada", True)]
    assert columns == SECOND_NAMES


@pytest.mark.deep
def test_registry_password_appears_in_no_plan_error_progress_or_log(sink):
    shown = io.StringIO()
    with RegistryServer("reader", PASSWORD) as registry, contextlib.redirect_stdout(shown):
        header = registry.add(SUBJECT, FIRST)
        options = load_registered(
            sink, registry, bodyRegistryUser="reader", bodyRegistryPassword=PASSWORD
        )
        body = bytearray(avro(header, FIRST, {"id": 1, "note": "a"}))
        sink.write(sink.spark.createDataFrame([(body,)], "body BINARY"))
        frame = sink.spark.read.format("rocketpoll").options(**options).load()
        frame.explain(extended=True)
        assert [row.id for row in frame.collect()] == [1]
        registry.status = 403
        with pytest.raises(PySparkException) as raised:
            sink.spark.read.format("rocketpoll").options(**options).load()
        shown.write(str(raised.value))
    log = log_of(sink.spark).read_text(encoding="utf-8", errors="replace")
    assert "status 403" in shown.getvalue()
    assert PASSWORD not in shown.getvalue() + log
