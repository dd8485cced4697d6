"""Protobuf bodies: columns, values, bodies that do not match, and invalid descriptors."""

import pickle
import sys
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.spark.body_rows import TEXTS, alone, options_of, rows
from support.spark.protobuf_files import descriptor_set, file_of, with_googles

from rmq_spark.spark.bodies.encoder import BodyEncoder
from rmq_spark.spark.errors import OptionError, RecordFault, RowError, SchemaError, SetUpError
from rmq_spark.spark.options.options import write_options
from rmq_spark.spark.options.sink_columns import check_sink_columns
from rmq_spark.spark.schemas.columns import arrow_schema_of
from rmq_spark.spark.schemas.protobuf_schema import (
    ProtobufBodies,
    find_message,
    message_class,
    protobuf_columns,
    protobuf_encoder,
)
from rmq_spark.spark.schemas.schema_text import parse_schema

KIND = {"Kind": {"NEW": 0, "OLD": 1}}
ORDER = {
    "Line": {"sku": "string", "count": "uint32"},
    "Order": {
        "id": "int64",
        "note": "optional string",
        "kind": "Kind",
        "lines": "repeated Line",
        "by_name": "map<string, Line>",
        "ratios": "map<int32, double>",
        "at": "google.protobuf.Timestamp",
        "took": "google.protobuf.Duration",
        "wrapped": "google.protobuf.Int64Value",
        "most": "uint64",
        "inner": "Line",
        "card": "string [pay]",
        "cash": "int32 [pay]",
        "names": "repeated google.protobuf.StringValue",
        "any": "google.protobuf.Any",
    },
    "Empty": {},
}
NOON = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=timezone.utc)
ROW = {
    "id": 2**53 + 1,
    "note": "",
    "kind": "OLD",
    "lines": [{"sku": "ü", "count": 2**32 - 1}],
    "by_name": [("a", {"sku": "x", "count": 1})],
    "ratios": [(-7, 0.5)],
    "at": NOON,
    "took": timedelta(days=-1, microseconds=1),
    "wrapped": 0,
    "most": Decimal(2**64 - 1),
    "inner": None,
    "card": None,
    "cash": 0,
    "names": ["", "y"],
    "any": {"type_url": "t", "value": b"\0"},
}


@pytest.fixture
def orders(tmp_path):
    """Return the options for bodies that are orders."""
    path = tmp_path / "orders.desc"
    descriptor_set(*with_googles(file_of(ORDER, enums=KIND)), path=path)
    return {"bodyDescriptor": str(path), "bodyMessage": "shop.Order"}


def options_for(tmp_path, messages, name="shop.M", **more):
    path = tmp_path / "m.desc"
    descriptor_set(file_of(messages, **more), path=path)
    return {"bodyDescriptor": str(path), "bodyMessage": name}


def body_of(options, **fields):
    body = options_of("protobuf", **options).body
    return message_class(body.message)(**fields).SerializeToString()


def test_protobuf_fields_have_the_types_of_from_protobuf_without_wrapping_around(orders):
    found = options_of("protobuf", **orders).body.schema
    line = "struct<sku:string,count:bigint>"
    assert found.simpleString() == (
        f"struct<id:bigint,note:string,kind:string,lines:array<{line}>,by_name:map<string,{line}>,"
        "ratios:map<int,double>,at:timestamp,took:interval day to second,wrapped:bigint,"
        f"most:decimal(20,0),inner:{line},card:string,cash:int,names:array<string>,"
        "any:struct<type_url:string,value:binary>>"
    )


def test_protobuf_body_becomes_columns_and_back(orders):
    body = options_of("protobuf", **orders).body
    encoded = protobuf_encoder(body.message, body.schema)(ROW)
    names = ",".join(ROW)
    assert rows([encoded], None, "protobuf", columns=names, **orders) == [ROW]
    assert rows([encoded], None, "protobuf", columns="cash,at", **orders) == [
        {"cash": 0, "at": NOON}
    ]
    [of_nothing] = rows([b""], None, "protobuf", columns=names, **orders)
    unset = ("note", "at", "took", "wrapped", "inner", "card", "cash", "any")
    assert {name for name, value in of_nothing.items() if value is None} == set(unset)
    assert (of_nothing["id"], of_nothing["kind"], of_nothing["lines"]) == (0, "NEW", [])


@pytest.mark.parametrize(
    ("kind", "type_", "values"),
    [
        ("sint32", "int", [-(2**31), 2**31 - 1]),
        ("sfixed64", "bigint", [-(2**63), 2**63 - 1]),
        ("fixed32", "bigint", [0, 2**32 - 1]),
        ("fixed64", "decimal(20,0)", [Decimal(0), Decimal(2**64 - 1)]),
        ("float", "float", [1.5, float("inf")]),
        ("bytes", "binary", [b"", b"\0\xff"]),
        ("bool", "boolean", [True, False]),
        ("google.protobuf.UInt64Value", "decimal(20,0)", [None, Decimal(2**64 - 1)]),
        ("google.protobuf.BoolValue", "boolean", [None, False]),
    ],
)
def test_every_protobuf_type_keeps_its_extremes(tmp_path, kind, type_, values):
    options = options_for(tmp_path, {"M": {"v": kind}})
    body = options_of("protobuf", **options).body
    assert body.schema["v"].dataType.simpleString() == type_
    encode = protobuf_encoder(body.message, body.schema, may_be_empty=True)
    bodies = [encode({"v": value}) for value in values]
    found = rows(bodies, None, "protobuf", columns="v", **options)
    assert [row["v"] for row in found] == values


def test_unknown_protobuf_fields_are_ignored_and_enum_numbers_named_as_in_java(orders, tmp_path):
    newer = {**KIND["Kind"], "LOST": 7}
    more = {"Order": {**ORDER["Order"], "extra": "string"}, "Line": ORDER["Line"]}
    path = tmp_path / "newer.desc"
    descriptor_set(file_of(more, enums={"Kind": newer}), path=path)
    body = body_of({**orders, "bodyDescriptor": str(path)}, id=1, kind="LOST", extra="x")
    found = rows([body], None, "protobuf", columns="id,kind", **orders)
    assert found == [{"id": 1, "kind": "UNKNOWN_ENUM_VALUE_Kind_7"}]


SECONDS = b"\x3a\x0a\x08" + b"\xff" * 8 + b"\x7f"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\x08", "its body: needed a message shop.Order, found b'.x08'"),
        (b"\x12\x01\xff", "its body: needed a message shop.Order"),
        (SECONDS, "its at: needed -62135596800 to 253402300799 seconds"),
        (b"\xfb\x3e" * 200, "its body: needed a message shop.Order"),
        (b"\x12\xff\xff\xff\xff\x0f", "its body: needed a message shop.Order"),
    ],
    ids=["cut", "no-utf-8", "a-time-too-large", "deep-groups", "a-length-too-large"],
)
def test_protobuf_body_that_is_no_message_is_a_bad_record(orders, body, said):
    with pytest.raises(RecordFault, match=f"offset 1 of queue 3.*{said}"):
        rows([b"", body], None, "protobuf", **orders)
    good = body_of(orders, id=1)
    more = {"columns": "id,at", "onBadRecord": "null", **orders}
    found = rows([good, body, good], None, "protobuf", **more)
    assert [row["id"] for row in found] == [1, None, 1]


def test_proto2_defaults_are_read_and_missing_required_fields_are_bad_records(tmp_path):
    file = file_of({"M": {"id": "required int64", "n": "int32", "s": "string"}}, syntax="proto2")
    file.message_type[0].field[1].default_value = "5"
    options = {"bodyDescriptor": str(tmp_path / "m.desc"), "bodyMessage": "M"}
    descriptor_set(file, path=tmp_path / "m.desc")
    found = rows([b"\x08\x01"], None, "protobuf", columns="id,n,s", **options)
    assert found == [{"id": 1, "n": 5, "s": None}]
    with pytest.raises(RecordFault, match=r"needed the required fields of shop\.M, found no id"):
        rows([b""], None, "protobuf", **options)
    with pytest.raises(RecordFault, match="needed strings in UTF-8"):
        rows([b"\x08\x01\x1a\x01\xff"], None, "protobuf", **options)


# ---- rows to bodies

_TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(timezone.utc))  # noqa: DTZ001  # naive: the test adds time zones
_FIELDS = {
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1).map(Decimal),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": TEXTS,
    "bytes": st.binary(max_size=6),
    "Kind": st.sampled_from(list(KIND["Kind"])),
    "google.protobuf.Timestamp": _TIMES,
    "google.protobuf.Duration": st.timedeltas(timedelta(days=-(10**6)), timedelta(days=10**6)),
    "google.protobuf.StringValue": TEXTS,
}
_KEYS = ["string", "int32", "uint64", "bool"]


@st.composite
def _messages(draw, depth=1):
    """Draw the fields of messages, with a strategy for the values of a row."""
    messages, found = {"M": {}}, {}
    for at in range(draw(st.integers(1, 5))):
        name, values = draw(st.sampled_from(list(_FIELDS.items())))
        if depth and draw(st.booleans()):
            inner, values = draw(_messages(depth - 1))
            name = f"Inner{at}"
            messages |= {name: inner["M"]}
        label = draw(st.sampled_from(["", "optional ", "repeated ", "map"]))
        has_presence = label == "optional " or "." in name or name.startswith("Inner")
        text = f"{label}{name}"
        if label == "map":
            key = draw(st.sampled_from(_KEYS))
            text, pairs = f"map<{key}, {name}>", st.dictionaries(_FIELDS[key], values, max_size=3)
            values = pairs.map(lambda each: sorted(each.items()))
        elif label == "repeated ":
            values = st.lists(values, max_size=3)
        elif has_presence:
            values = st.none() | values
        messages["M"][f"f{at}"], found[f"f{at}"] = text, values
    return messages, st.fixed_dictionaries(found)


def _sorted_maps(value):
    if isinstance(value, dict):
        return {name: _sorted_maps(each) for name, each in value.items()}
    if isinstance(value, list):
        found = [_sorted_maps(each) for each in value]
        return sorted(found, key=repr) if found and isinstance(found[0], tuple) else found
    return tuple(map(_sorted_maps, value)) if isinstance(value, tuple) else value


@given(_messages().flatmap(lambda each: st.tuples(st.just(each[0]), st.lists(each[1], max_size=4))))
def test_protobuf_rows_are_decoded_equal(written):
    messages, given_rows = written
    files = descriptor_set(file_of(messages, enums=KIND))
    message = find_message(files, "shop.M")
    schema = protobuf_columns(message)
    kind = pa.struct(list(arrow_schema_of(schema)))
    expected = pa.array(given_rows, kind)
    encode = protobuf_encoder(message, schema, may_be_empty=True)
    decoder = ProtobufBodies(kind, message)
    bodies = [encode(row) for row in expected.to_pylist()]
    found = decoder.decode_all(pa.array(bodies, pa.binary()))
    assert found.type == kind
    assert list(map(_sorted_maps, found.to_pylist())) == list(
        map(_sorted_maps, expected.to_pylist())
    )
    one_by_one = [_sorted_maps(alone(decoder, body)[0].as_py()) for body in bodies]
    assert one_by_one == list(map(_sorted_maps, found.to_pylist()))


def encoder_for(options, schema):
    given = {"namesrvAddr": "localhost:9876", "topic": "T", "bodyFormat": "protobuf", **options}
    body = write_options(given).body
    kind = parse_schema(schema) if isinstance(schema, str) else schema
    check_sink_columns(kind, has_topic=True, body=body)
    return pickle.loads(pickle.dumps(BodyEncoder(kind, body)))  # noqa: S301  # the test's own data


def bodies_of(encoder, *columns):
    batch = pa.RecordBatch.from_arrays(list(columns), names=[str(at) for at in range(len(columns))])
    return [
        each for one in encoder.encode_batches([batch], 7) for each in one.columns[-1].to_pylist()
    ]


def test_protobuf_fields_get_columns_by_name_and_others_stay_unset(orders):
    encoder = encoder_for(orders, "note STRING, keys STRING, id BIGINT")
    found = bodies_of(encoder, pa.array(["a", None]), pa.array(["k", "l"]), pa.array([1, 2]))
    assert found == [body_of(orders, id=1, note="a"), body_of(orders, id=2)]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("id INT", "column id is int, but bodies have bigint: cast it"),
        ("total BIGINT", "bodies have no field total for column total, only id, note, kind"),
        (
            "inner STRUCT<sku: STRING, n: INT>",
            "no field inner.n for column inner.n, only sku, count",
        ),
        ("lines ARRAY<STRING>", "column lines[] is string, but bodies have struct<"),
        ("ratios MAP<STRING, DOUBLE>", "column ratios (key) is string, but bodies have int"),
    ],
)
def test_columns_missing_in_the_protobuf_message_are_refused(orders, schema, said):
    with pytest.raises(SchemaError) as caught:
        encoder_for(orders, schema)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ("id BIGINT", None, "id is null, but the field always has a value: coalesce it"),
        ("lines ARRAY<STRUCT<sku: STRING>>", None, "lines is null, but the field always has"),
        ("lines ARRAY<STRUCT<sku: STRING>>", [None], "lines has a null in it, which no message"),
        ("inner STRUCT<sku: STRING>", {"sku": None}, "inner.sku is null, but the field always"),
        ("most DECIMAL(20,0)", Decimal(-1), "Value out of range: -1"),
        ("kind STRING", "GONE", "GONE"),
        ("lines ARRAY<STRUCT<count: BIGINT>>", [{"count": 2**32}], "Value out of range"),
        ("id BIGINT", 0, "all fields have their default values, which have no bytes"),
    ],
)
def test_row_unencodable_in_protobuf_is_named_with_its_field(orders, schema, value, said):
    encoder = encoder_for(orders, schema)
    (kind,) = encoder.arrow_types.values()
    good = {"id BIGINT": 1, "kind STRING": "OLD"}.get(schema)
    with pytest.raises(
        RowError, match=r"row . of partition 7, column body: it cannot be"
    ) as caught:
        bodies_of(encoder, pa.array([*([good] if good else []), value], kind))
    assert said in str(caught.value)


def test_row_with_two_fields_of_a_protobuf_oneof_is_refused(orders):
    encoder = encoder_for(orders, "card STRING, cash INT")
    ok = bodies_of(encoder, pa.array(["a", None]), pa.array([None, 1], pa.int32()))
    assert ok == [body_of(orders, card="a"), body_of(orders, cash=1)]
    with pytest.raises(RowError, match="card, cash of oneof pay are given: keep one"):
        bodies_of(encoder, pa.array(["a"]), pa.array([1], pa.int32()))


# ---- descriptors

RECURSIVE = {"M": {"id": "int64", "inner": "N"}, "N": {"all": "repeated M"}}


@pytest.mark.parametrize(
    ("messages", "name", "said"),
    [
        (ORDER, "shop.Ordr", "there is no message 'shop.Ordr'. Did you mean shop.Order?"),
        (ORDER, None, "it is required. Give the name of the message: shop.Line, shop.Order"),
        (ORDER, "shop.Empty", "message shop.Empty has no fields"),
        (RECURSIVE, "M", "inner.all is shop.M within itself: a column cannot be recursive. Leave"),
        (
            {"M": {"v": "google.protobuf.Struct"}},
            "M",
            "v.fields.struct_value is google.protobuf.Struct within itself",
        ),
        (
            {f"M{at}": {"v": f"M{at + 1}"} for at in range(70)} | {"M70": {"v": "int64"}},
            "M0",
            "v is nested 70 levels deep, over the 60 of Arrow",
        ),
    ],
    ids=["misspelt", "none", "empty", "recursive", "struct", "deep"],
)
def test_protobuf_message_with_unsupported_types_is_refused_at_load(tmp_path, messages, name, said):
    options = options_for(tmp_path, messages, name, enums=KIND)
    with pytest.raises(OptionError) as caught:
        options_of("protobuf", **{key: each for key, each in options.items() if each})
    assert str(caught.value).startswith(f"option bodyMessage: {said}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b"syntax = 'proto3';", "it is not a descriptor set"),
        (b"", "it has no files"),
        (
            descriptor_set(file_of({"M": {"v": "int64"}}, imports=("other.proto",))),
            "file orders.proto imports other.proto, which is not in the set",
        ),
        (
            descriptor_set(file_of({"M": {"v": "Missing"}})),
            "the library refuses file orders.proto of the set",
        ),
    ],
    ids=["missing", "text", "empty", "import", "type"],
)
def test_invalid_protobuf_descriptor_file_is_refused_at_load(tmp_path, content, said):
    path = tmp_path / "m.desc"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError) as caught:
        options_of("protobuf", bodyDescriptor=str(path), bodyMessage="M")
    assert str(caught.value).startswith(f"option bodyDescriptor: {path} cannot be used: {said}")


def test_unique_short_protobuf_message_names_are_accepted(tmp_path):
    files = [
        file_of({"M": {"v": "int64"}}, package=name, name=f"{name}.proto") for name in ("a", "b")
    ]
    path = tmp_path / "m.desc"
    descriptor_set(files[0], path=path)
    assert options_of("protobuf", bodyDescriptor=str(path)).body.message.name == "a.M"
    assert (
        options_of("protobuf", bodyDescriptor=str(path), bodyMessage="M").body.message.name == "a.M"
    )
    descriptor_set(*reversed(files), path=path)
    with pytest.raises(OptionError, match=r"more than one message 'M'\. Give one of .* b.M, a.M"):
        options_of("protobuf", bodyDescriptor=str(path), bodyMessage="M")


def test_protobuf_without_its_library_is_refused_with_what_to_install(monkeypatch, orders):
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(SetUpError, match=r"protobuf.*: pip install protobuf"):
        options_of("protobuf", **orders)
