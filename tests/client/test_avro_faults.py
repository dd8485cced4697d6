"""What an Avro schema does not hold, and what is wrong with one: by the place of the field."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

import pytest
from baskets import BASKET_SCHEMA, WRONG, Item, basket, record

from rmq_spark.client.bodies.serializers import avro, encode_value
from rmq_spark.client.errors import MessageRejected


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (
            basket(items=[Item("a", Decimal(1)), Item("b", object())]),
            "its items[1].price: needed a Decimal of 9 digits, 2 of them behi",
        ),
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
        encode_value(value, avro(BASKET_SCHEMA))
    assert fault in str(raised.value)


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
