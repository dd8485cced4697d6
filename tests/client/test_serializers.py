"""Serializers: the bytes of each kind of value, and producers that use one."""

from __future__ import annotations

import dataclasses
import enum
import keyword
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import ClassVar
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.serializers import (
    SERIALIZERS,
    Avro,
    avro,
    decode_value,
    encode_value,
    resolve_serializer,
)
from rmq_spark.errors import BodyError

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "customer", "type": ["null", "string"]}],
}


class Kind(str, enum.Enum):
    BIG = "big"


class Plain(enum.Enum):
    BIG = "big"


@dataclasses.dataclass
class Order:
    id: int
    customer: str | None = None


class Model(pydantic.BaseModel):
    id: int
    customer: str | None = None


class Reversed:
    def dumps(self, value):
        return value[::-1].encode()

    def loads(self, body):
        return body.decode()[::-1]


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("name", ["json", "msgpack"])
@given(PLAIN)
def test_serializers_return_plain_values_unchanged(name, value):
    by = SERIALIZERS[name]
    assert by.loads(encode_value(value, by)) == value


@pytest.mark.parametrize(
    "by",
    [*map(resolve_serializer, ("json", "msgpack")), avro(ORDER)],
    ids=["json", "msgpack", "avro"],
)
@pytest.mark.parametrize(
    "value", [{"id": 7, "customer": "ada"}, Order(7, "ada"), Model(id=7, customer="ada")], ids=type
)
def test_serializers_encode_equal_dicts_dataclasses_and_models_alike(by, value):
    assert decode_value(encode_value(value, by), by, "it", "1") == {"id": 7, "customer": "ada"}


class Line(pydantic.BaseModel):
    """A model with types that JSON and Avro lack."""

    at: datetime
    price: Decimal
    kind: Kind
    tags: set[str] = set()
    inner: Model | None = None


LINE = Line(at="2026-01-31T12:00:00Z", price="1.25", kind="big", tags={"a"}, inner={"id": 1})
LINE_SCHEMA = {
    "type": "record",
    "name": "Line",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "kind", "type": "string"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "inner", "type": ["null", {**ORDER, "name": "Inner"}]},
    ],
}


@pytest.mark.parametrize(
    "by",
    [*map(resolve_serializer, ("json", "msgpack")), avro(LINE_SCHEMA)],
    ids=["json", "msgpack", "avro"],
)
def test_pydantic_model_survives_encoding_and_decoding_by_each_serializer(by):
    """pydantic accepts its own validated values, whatever the fields and the serializer."""
    body = encode_value(LINE, by)
    assert Line.model_validate(decode_value(body, by, "it", "1")) == LINE


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_serializers_accept_models_nested_in_other_values(name):
    by = SERIALIZERS[name]
    found = decode_value(
        encode_value({"lines": [LINE], "order": Order(7, "ada")}, by), by, "it", "1"
    )
    assert Line.model_validate(found["lines"][0]) == LINE
    assert found["order"] == {"id": 7, "customer": "ada"}


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_serializers_write_times_dates_uuids_and_enums_as_text(name):
    value = {"day": date(2026, 1, 31), "at": time(12), "id": UUID(int=7), "kind": Plain.BIG}
    found = decode_value(encode_value(value, SERIALIZERS[name]), SERIALIZERS[name], "it", "1")
    assert found == {"day": "2026-01-31", "at": "12:00:00", "id": str(UUID(int=7)), "kind": "big"}


NAMES = st.from_regex("_?[a-z]{1,3}_?", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name)
)
LEAVES = {int: "long", str: "string", bool: "boolean", float: "double"}


@st.composite
def dataclass_values(draw, record="R", depth=2):
    """Draw a dataclass value, its Avro type, and its dict."""
    fields, types, expected, taken = [], [], {}, {}
    for name in draw(st.lists(NAMES, min_size=1, max_size=4, unique=True)):
        kind = draw(st.sampled_from([*LEAVES, list, *([dataclasses.dataclass] if depth else [])]))
        if kind is dataclasses.dataclass:
            taken[name], type_, expected[name] = draw(
                dataclass_values(f"{record}_{name}", depth - 1)
            )
        elif kind is list:
            taken[name] = expected[name] = draw(st.lists(st.integers(0, 9), max_size=2))
            type_ = {"type": "array", "items": "long"}
        else:
            value = {int: st.integers(-(2**40), 2**40), str: st.text("ab_"), bool: st.booleans()}
            taken[name] = expected[name] = draw(value.get(kind, st.floats(-1e9, 1e9)))
            type_ = LEAVES[kind]
        has_init = draw(st.booleans())
        fields.append((name, object, dataclasses.field(init=has_init, kw_only=True)))
        types.append({"name": name, "type": type_})
    if draw(st.booleans()):
        fields.append(("shared", ClassVar[int], 5))
    options = {"slots": draw(st.booleans()), "frozen": draw(st.booleans())}
    made = dataclasses.make_dataclass("Made", fields, **options)
    given_ = {each.name: taken[each.name] for each in dataclasses.fields(made) if each.init}
    value = made(**given_)
    for name in taken.keys() - given_.keys():
        object.__setattr__(value, name, taken[name])
    return value, {"type": "record", "name": record, "fields": types}, expected


@given(dataclass_values())
def test_serializers_keep_the_same_dataclass_fields(made):
    value, record, expected = made
    for by in (*map(resolve_serializer, ("json", "msgpack")), avro(record)):
        assert by.loads(encode_value(value, by)) == expected, by
        if not isinstance(by, Avro):
            assert by.loads(encode_value([{"in": value}], by)) == [{"in": expected}], by


class AliasedLine(pydantic.BaseModel):
    unit_price: int = pydantic.Field(alias="unitPrice")


class Aliased(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="orderId")
    lines: list[AliasedLine]


ALIASED = {
    "type": "record",
    "name": "Aliased",
    "fields": [
        {"name": "orderId", "type": "long"},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "unitPrice", "type": "long"}],
                },
            },
        },
    ],
}


@pytest.mark.parametrize(
    "by",
    [*map(resolve_serializer, ("json", "msgpack")), avro(ALIASED)],
    ids=["json", "msgpack", "avro"],
)
def test_pydantic_model_with_aliases_survives_encoding_and_decoding(by):
    order = Aliased(orderId=7, lines=[AliasedLine(unitPrice=3)])
    assert Aliased.model_validate(by.loads(encode_value(order, by))) == order
    if not isinstance(by, Avro):
        within = by.loads(encode_value({"orders": [order]}, by))
        assert Aliased.model_validate(within["orders"][0]) == order


def test_model_validation_error_is_raised_unchanged():
    body = encode_value({"id": "seven"}, SERIALIZERS["json"])
    with pytest.raises(pydantic.ValidationError, match="id\n"):
        Model.model_validate(decode_value(body, SERIALIZERS["json"], "it", "1"))


def test_json_serializer_writes_times_as_text():
    moment = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    assert (
        encode_value({"at": moment}, SERIALIZERS["json"]) == b'{"at":"2026-01-31T12:00:00+00:00"}'
    )


def test_text_serializer_accepts_text_only():
    assert encode_value("ü", SERIALIZERS["text"]) == "ü".encode()
    with pytest.raises(TypeError, match="Text cannot encode int 7: body: needed a string"):
        encode_value(7, SERIALIZERS["text"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("json", object()), ("json", {1: 2}), ("msgpack", object()), ("json", Order)],
)
def test_unserializable_value_is_refused_with_its_type(name, value):
    with pytest.raises(TypeError, match=f"cannot encode {type(value).__name__}"):
        encode_value(value, SERIALIZERS[name])


class RaisingModel:
    def model_dump(self, **_):
        raise ValueError("not today")


RECURSIVE = []
RECURSIVE.append(RECURSIVE)


@pytest.mark.parametrize("name", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"items": [1, object()]}, "object"),
        ({"note": {"a": 2j}}, "complex"),
        ({"note": "\ud800"}, "surrogates"),
        ({"note": 1 << 70}, "64-bit|int"),
        (RECURSIVE, "[Rr]ecursion|int"),
        ([RaisingModel()], "not today|not JSON serializable"),
    ],
)
def test_serializer_error_quotes_the_librarys_reason(name, value, reason):
    kind = type(value).__name__
    with pytest.raises(TypeError, match=f"^body: serializer .* cannot encode {kind} .*({reason})"):
        encode_value(value, SERIALIZERS[name])


@pytest.mark.parametrize(
    ("by", "body"),
    [
        (SERIALIZERS["json"], b"{"),
        (SERIALIZERS["json"], b"\xff"),
        (SERIALIZERS["json"], b"[" * 100_000),
        (SERIALIZERS["msgpack"], b"\xc1"),
        (SERIALIZERS["msgpack"], b"\x01\x01"),
        (SERIALIZERS["text"], b"\xff"),
        (avro(ORDER), b"\x02"),
        (avro(ORDER), b"\x02\x00\x00"),
        (avro(ORDER, header=b"\x01"), b"\x02\x02\x00"),
    ],
)
def test_body_of_another_serializer_is_refused_with_topic_and_offset(by, body):
    with pytest.raises(BodyError, match=r"orders at offset 5: needed a body of serializer \w+ \("):
        decode_value(body, by, "the message of orders", "offset 5")


@pytest.mark.parametrize("wrong", ["yaml", 7, Avro, object(), print])
def test_invalid_serializer_is_refused(wrong):
    with pytest.raises(TypeError, match="serializer: needed 'json', 'msgpack', 'text', avro"):
        Producer("shop", "localhost:9876", serializer=wrong)


@pytest.mark.parametrize(
    "serializer",
    ["json", "msgpack", avro(ORDER), Reversed()],
    ids=["json", "msgpack", "avro", "own"],
)
def test_serialized_value_round_trips_through_the_broker(
    rocketpoll_broker, rocketpoll_topic, serializer
):
    value = "abc" if isinstance(serializer, Reversed) else {"id": 7, "customer": "ada"}
    with Producer("shop", rocketpoll_broker.address, serializer=serializer) as producer:
        message = Message(rocketpoll_topic, value)
        producer.send(message)
        producer.send_async(message).result()
        producer.send_one_way(message)
        producer.send_batch([message, Message(rocketpoll_topic, b"bytes stay")])
        producer.send(Message(rocketpoll_topic, memoryview(b"so do these")))
        producer.send(message)
    found = rocketpoll_broker.messages(rocketpoll_topic)
    bodies = [each.body for each in found]
    assert bodies.count(b"bytes stay") == bodies.count(b"so do these") == 1
    typed = [each for each in found if each.body not in (b"bytes stay", b"so do these")]
    assert [each.value(serializer) for each in typed] == [value] * 5


def test_dict_body_without_serializer_is_refused_with_advice(rocketpoll_broker):
    with (
        Producer("shop", rocketpoll_broker.address) as producer,
        pytest.raises(TypeError, match=r"body: needed bytes.*serializer=.*found dict.*'json'"),
    ):
        producer.send(Message("orders", {"id": 1}))
