"""Baskets: a value of dataclasses within each other, and the Avro schema that holds it."""

from __future__ import annotations

import dataclasses
import enum
from datetime import date
from decimal import Decimal
from uuid import UUID


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
