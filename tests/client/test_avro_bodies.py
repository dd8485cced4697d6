"""Avro records and schema registries."""

from __future__ import annotations

import dataclasses
import enum
import sys
from datetime import date
from decimal import Decimal
from uuid import UUID

import pytest

from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.serializers import avro, decode_value, encode_value, resolve_serializer
from rmq_spark.errors import BodyError


class Plain(enum.Enum):
    BIG = "big"


PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


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
        {"name": "price", "type": PRICE},
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


def record(*fields, **more):
    return {"type": "record", "name": "Order", "fields": list(fields), **more}


WRONG = {"name": "x", "type": "strng"}

ORDER = record({"name": "id", "type": "long"}, {"name": "customer", "type": ["null", "string"]})


@pytest.mark.parametrize(
    "by",
    [*map(resolve_serializer, ("json", "msgpack")), avro(BASKET_SCHEMA)],
    ids=["json", "msgpack", "avro"],
)
@pytest.mark.parametrize("whole", [basket(seen={"x"}), vars(basket(seen={"x"}))], ids=type)
def test_dataclasses_within_others_have_decimals_ids_and_enums(by, whole):
    """Nested as in a pydantic model, in every position."""
    found = decode_value(encode_value(whole, by), by, "it", "1")
    assert (str(found["id"]), str(found["day"])) == (str(UUID(int=7)), "2026-01-31")
    prices = [(each["sku"], str(each["price"]), each["kind"]) for each in found["items"]]
    assert prices == [("a", "1.25", "big"), ("b", "2.50", "big")]
    assert found["seen"] == ["x"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (basket(items=[Item("a", Decimal(1)), Item("b", object())]), "TypeError: .* field price"),
        (basket(items=[Item("a", Decimal("1.253"))]), "ValueError: .*decimal"),
        (basket(items=[Item("a", Decimal(1), "huge")]), "ValueError: 'huge' is not in list"),
        (basket(items=[{"sku": "a"}]), "ValueError: no value and no default for price"),
        (basket(items=None), "TypeError: .* on field items"),
        (basket(note=7), "ValueError: 7 .* on field note"),
        ({**vars(basket()), "either": "x" * 1_000}, r"ValueError: 'x+\.\.\."),
        (7, "TypeError: .*int"),
    ],
)
def test_value_not_fitting_the_avro_schema_is_refused_with_fastavros_reason(value, reason):
    kind = type(value).__name__
    why = rf"^body: serializer Avro cannot encode {kind} .*: it does not fit the schema \({reason}"
    with pytest.raises(TypeError, match=why) as raised:
        encode_value(value, avro(BASKET_SCHEMA))
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record(WRONG), "UnknownType: strng"),
        (record({"name": "x", "type": "int", "default": "one"}), "SchemaParseException: Default"),
        (record({"name": "x", "type": {"type": "fixed", "name": "F"}}), "KeyError: 'size'"),
        # old fastavro releases have shorter messages for these two
        (
            record({"name": "x"}),
            "(SchemaParseException: Record field 'x' is missing|KeyError:) 'type'",
        ),
        (record("x"), "(SchemaParseException: Record field must be a dict|AttributeError: 'str')"),
        ({}, "KeyError: 'type'"),
    ],
)
def test_invalid_avro_schema_is_refused_with_fastavros_reason(schema, reason):
    why = rf"^schema: needed an Avro schema that fastavro can read \({reason}.*\), found "
    with pytest.raises(MessageRejected, match=why):
        avro(schema)


@pytest.mark.parametrize(
    ("registry", "said"),
    [
        ({}, r"schema_of has no schema for header b'\\x01'"),
        ({b"\1": None}, r"schema_of: needed a schema for header b'\\x01', found NoneType None"),
        (
            {b"\1": record(WRONG)},
            r"schema_of: fastavro cannot read the schema .*\(UnknownType: strng\)",
        ),
        ({b"\1": record({"name": "id", "type": "string"})}, "does not fit this schema .*mismatch"),
    ],
)
def test_unknown_avro_schema_id_is_a_bad_body(registry, said):
    by = avro(record({"name": "id", "type": "int"}), header=b"\2", schema_of=registry.__getitem__)
    with pytest.raises(BodyError, match=rf"orders at offset 5: .*{said}"):
        decode_value(b"\1\2a", by, "the message of orders", "offset 5")


def test_unreachable_schema_registry_error_is_not_a_body_error():
    def away(_):
        raise ConnectionError("it is away")

    by = avro(record({"name": "id", "type": "int"}), header=b"\2", schema_of=away)
    with pytest.raises(ConnectionError, match="it is away"):
        decode_value(b"\1\2a", by, "the message of orders", "offset 5")


def test_schema_registry_is_asked_once_per_header():
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


def test_avro_without_its_extra_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install fastavro"):
        avro(ORDER)
