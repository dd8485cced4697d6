"""Serializers: what each makes of values, and a producer that has one."""

from __future__ import annotations

import dataclasses
import enum
import sys
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.serializers import SERIALIZERS, Avro, avro, chosen, decoded, encoded
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


class Loose(pydantic.BaseModel):
    id: Any


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
def test_plain_values_come_back_equal(name, value):
    by = SERIALIZERS[name]
    assert by.loads(encoded(value, by)) == value


@pytest.mark.parametrize(
    "by", [*map(chosen, ("json", "msgpack")), avro(ORDER)], ids=["json", "msgpack", "avro"]
)
@pytest.mark.parametrize(
    "value", [{"id": 7, "customer": "ada"}, Order(7, "ada"), Model(id=7, customer="ada")], ids=type
)
def test_dicts_dataclasses_and_models_are_one_and_the_same(by, value):
    assert decoded(encoded(value, by), by, "it", "1") == {"id": 7, "customer": "ada"}


class Line(pydantic.BaseModel):
    """A model with what JSON and Avro have no type for."""

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
    "by", [*map(chosen, ("json", "msgpack")), avro(LINE_SCHEMA)], ids=["json", "msgpack", "avro"]
)
def test_a_model_comes_back_as_the_same_model(by):
    """Whatever its fields are, by each serializer: what pydantic has validated, it takes again."""
    body = encoded(LINE, by)
    assert Line.model_validate(decoded(body, by, "it", "1")) == LINE


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_models_may_stand_within_other_values(name):
    by = SERIALIZERS[name]
    found = decoded(encoded({"lines": [LINE], "order": Order(7, "ada")}, by), by, "it", "1")
    assert Line.model_validate(found["lines"][0]) == LINE
    assert found["order"] == {"id": 7, "customer": "ada"}


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_times_of_day_dates_ids_and_names_of_values_are_texts(name):
    value = {"day": date(2026, 1, 31), "at": time(12), "id": UUID(int=7), "kind": Plain.BIG}
    found = decoded(encoded(value, SERIALIZERS[name]), SERIALIZERS[name], "it", "1")
    assert found == {"day": "2026-01-31", "at": "12:00:00", "id": str(UUID(int=7)), "kind": "big"}


def test_a_body_that_a_model_refuses_is_told_by_the_model():
    body = encoded({"id": "seven"}, SERIALIZERS["json"])
    with pytest.raises(pydantic.ValidationError, match="id\n"):
        Model.model_validate(decoded(body, SERIALIZERS["json"], "it", "1"))


def test_times_in_json_are_texts():
    moment = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    assert encoded({"at": moment}, SERIALIZERS["json"]) == b'{"at":"2026-01-31T12:00:00+00:00"}'


def test_text_is_for_texts_alone():
    assert encoded("ü", SERIALIZERS["text"]) == "ü".encode()
    with pytest.raises(TypeError, match="Text cannot encode int 7: body: needed a text"):
        encoded(7, SERIALIZERS["text"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("json", object()), ("json", {1: 2}), ("msgpack", object()), ("json", Order)],
)
def test_a_value_without_a_body_is_refused_with_its_kind(name, value):
    with pytest.raises(TypeError, match=f"cannot encode {type(value).__name__}"):
        encoded(value, SERIALIZERS[name])


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
def test_a_body_of_another_kind_is_refused_with_its_place(by, body):
    with pytest.raises(BodyError, match=r"orders at offset 5: needed a body of serializer \w+ \("):
        decoded(body, by, "the message of orders", "offset 5")


@dataclasses.dataclass
class Item:
    sku: str
    price: Decimal
    kind: Plain = Plain.BIG


@dataclasses.dataclass
class Basket:
    id: UUID
    day: date
    items: list[Item]
    note: str | None = None
    seen: set[str] = dataclasses.field(default_factory=set)


ITEM_SCHEMA = {
    "type": "record",
    "name": "Item",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "price", "type": LINE_SCHEMA["fields"][1]["type"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["big", "small"]}},
    ],
}
BASKET_SCHEMA = {
    "type": "record",
    "name": "Basket",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "items", "type": {"type": "array", "items": ITEM_SCHEMA}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "seen", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "first", "type": ["null", "Item"], "default": None},
        {"name": "by_name", "type": {"type": "map", "values": "Item"}, "default": {}},
        {"name": "either", "type": ["null", "int", "Kind"], "default": None},
    ],
}


def basket(**more):
    items = [Item("a", Decimal("1.25")), Item("b", Decimal("2.50"))]
    return Basket(UUID(int=7), date(2026, 1, 31), **{"items": items, **more})


@pytest.mark.parametrize(
    "by", [*map(chosen, ("json", "msgpack")), avro(BASKET_SCHEMA)], ids=["json", "msgpack", "avro"]
)
@pytest.mark.parametrize("whole", [basket(seen={"x"}), vars(basket(seen={"x"}))], ids=type)
def test_dataclasses_within_others_have_decimals_ids_and_enums(by, whole):
    """As a model of pydantic has them, whatever they stand in."""
    found = decoded(encoded(whole, by), by, "it", "1")
    assert (str(found["id"]), str(found["day"])) == (str(UUID(int=7)), "2026-01-31")
    prices = [(each["sku"], str(each["price"]), each["kind"]) for each in found["items"]]
    assert prices == [("a", "1.25", "big"), ("b", "2.50", "big")]
    assert found["seen"] == ["x"]


NO_ITEM = [Item("a", Decimal(1)), Item("b", object())]
IN_ITSELF = []
IN_ITSELF.append(IN_ITSELF)


@pytest.mark.parametrize("name", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("value", "place"),
    [
        (basket(items=NO_ITEM), r"its items\[1\]\.price: .*object"),
        (basket(note={"a": [1, {"b": 2j}]}), r"its note\.a\[1\]\.b: .*complex"),
        (basket(note="\ud800"), r"its note: .*surrogates"),
        (basket(note=1 << 70), "its note: "),
        ({"orders": [Model(id=1), Loose(id=object())]}, r"its orders\[1\]\.id: "),
        ([IN_ITSELF], r"its (\[0\])+: .*([Rr]ecursion|int)"),
    ],
)
def test_a_part_that_has_no_form_is_named_by_its_place(name, value, place):
    with pytest.raises(TypeError, match=rf"cannot encode .*: {place}"):
        encoded(value, SERIALIZERS[name])


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (basket(items=NO_ITEM), "its items[1].price: needed a Decimal of 9 digits, 2 of them behi"),
        (basket(items=[Item("a", Decimal("1.253"))]), "its items[0].price: needed a Decimal of"),
        (
            basket(items=[Item("a", Decimal(1), "huge")]),
            "its items[0].kind: needed one of big, sma",
        ),
        (
            basket(items=[{"sku": "a"}]),
            "its items[0].price: needed a Decimal of 9 digits, 2 of the",
        ),
        (basket(items=None), "its items: needed an array, found None"),
        (basket(items=["a"]), "its items[0]: needed a record shop.Item, found 'a'"),
        (basket(note=7), "its note: needed string, found 7"),
        ({**vars(basket()), "first": {"sku": 1}}, "its first.sku: needed string, found 1"),
        ({**vars(basket()), "by_name": {"x": None}}, "its by_name.x: needed a record shop.Item, f"),
        ({**vars(basket()), "by_name": {1: 2}}, "its by_name: needed a map whose keys are texts"),
        ({**vars(basket()), "either": "huge"}, "its either: needed one of null, int, shop.Kind, f"),
        ({"id": UUID(int=7)}, "its day: needed date, found nothing"),
        (7, "needed a record shop.Basket, found 7"),
    ],
)
def test_a_value_that_a_schema_does_not_hold_is_named_by_its_place(value, fault):
    with pytest.raises(TypeError) as raised:
        encoded(value, avro(BASKET_SCHEMA))
    assert fault in str(raised.value)


def record(*fields, **more):
    return {"type": "record", "name": "Order", "fields": list(fields), **more}


WRONG = {"name": "x", "type": "strng"}


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        (record(WRONG), "its x: 'strng' is no type"),
        (
            record({"name": "l", "type": {"type": "array", "items": record(WRONG, name="L")}}),
            "l[].x",
        ),
        (record({"name": "u", "type": ["null", record(WRONG, name="L")]}), "its u.x: 'strng'"),
        (record({"name": "x", "type": "int", "default": "one"}), "its x: Default value <one>"),
        (record({"name": "x", "type": {"type": "fixed", "name": "F"}}), "its x: it lacks 'size'"),
        (record({"name": "x"}), "its x: Record field 'x' is missing 'type'"),
        (record("x"), "its fields[0]: Record field must be a dict"),
        (
            record({"name": "me", "type": ["null", "Order"]}, WRONG, namespace="shop"),
            "its x: 'shop.strng' is no type",
        ),
        (
            record(
                {"name": "a", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
                {"name": "b", "type": "E"},
                {"name": "c", "type": {"type": "enum", "name": "F", "symbols": ["A-B"]}},
            ),
            "its c: Every symbol must match",
        ),
        ({}, "it lacks 'type'"),
    ],
)
def test_a_schema_that_is_none_is_named_by_the_field(schema, fault):
    with pytest.raises(MessageRejected, match=r"^schema: needed an Avro schema \(") as raised:
        avro(schema)
    assert fault in str(raised.value)


@pytest.mark.parametrize(
    ("registry", "said"),
    [
        ({}, r"schema_of has no schema for header b'\\x01'"),
        ({b"\1": None}, r"schema_of: needed a schema for header b'\\x01', found NoneType None"),
        ({b"\1": record(WRONG)}, r"schema_of: no schema for header b'\\x01': its x: 'strng' is no"),
        ({b"\1": record({"name": "id", "type": "string"})}, "cannot be one of this .*mismatch"),
    ],
)
def test_a_registry_that_has_no_schema_for_a_body_is_told_of_as_a_bad_body(registry, said):
    by = avro(record({"name": "id", "type": "int"}), header=b"\2", schema_of=registry.__getitem__)
    with pytest.raises(BodyError, match=rf"orders at offset 5: .*{said}"):
        decoded(b"\1\2a", by, "the message of orders", "offset 5")


def test_a_registry_that_cannot_be_asked_is_no_bad_body():
    def away(_):
        raise ConnectionError("it is away")

    by = avro(record({"name": "id", "type": "int"}), header=b"\2", schema_of=away)
    with pytest.raises(ConnectionError, match="it is away"):
        decoded(b"\1\2a", by, "the message of orders", "offset 5")


def test_a_registry_is_asked_once_for_each_header():
    old = {**ORDER, "fields": ORDER["fields"][:1]}
    asked = []

    def schema_of(header):
        asked.append(header)
        return old

    new = {**ORDER, "fields": [ORDER["fields"][0], {**ORDER["fields"][1], "default": None}]}
    before, now = avro(old, header=b"\0\1"), avro(new, header=b"\0\2", schema_of=schema_of)
    for number in (1, 2):
        assert now.loads(before.dumps({"id": number})) == {"id": number, "customer": None}
    assert asked == [b"\0\1"]
    assert now.dumps({"id": 1, "customer": None}).startswith(b"\0\2")


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "rocketpoll\[avro\]"'):
        avro(ORDER)


@pytest.mark.parametrize("wrong", ["yaml", 7, Avro, object(), print])
def test_what_is_no_serializer_is_refused(wrong):
    with pytest.raises(TypeError, match="serializer: needed 'json', 'msgpack', 'text', avro"):
        Producer("shop", "localhost:9876", serializer=wrong)


@pytest.mark.parametrize(
    "serializer",
    ["json", "msgpack", avro(ORDER), Reversed()],
    ids=["json", "msgpack", "avro", "own"],
)
def test_what_is_sent_is_received(rocketpoll_broker, rocketpoll_topic, serializer):
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


def test_without_a_serializer_a_dict_is_refused_and_told_of_one(rocketpoll_broker):
    with (
        Producer("shop", rocketpoll_broker.address) as producer,
        pytest.raises(TypeError, match=r"body: needed bytes.*serializer=.*found dict.*'json'"),
    ):
        producer.send(Message("orders", {"id": 1}))
