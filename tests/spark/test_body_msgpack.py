"""MessagePack bodies: the output of the client's serializer, and bodies that do not match the
schema."""

from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import msgpack
import pytest
from support.spark.body_rows import rows, values

from rmq_spark.client.serializers import MsgPack
from rmq_spark.spark.errors import RecordFault

NOON = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=timezone.utc)


@dataclass
class Order:
    id: int
    day: date
    at: datetime
    price: Decimal
    raw: bytes
    lines: list
    notes: dict
    total: float = 1.5
    paid: bool = True
    ref: UUID | None = None


def test_msgpack_bodies_of_the_clients_serializer_become_columns():
    order = Order(
        2**53 + 1,
        NOON.date(),
        NOON,
        Decimal("1.50"),
        b"\0\xff",
        [{"sku": "ü"}, None],
        {"a": 1},
        ref=UUID(int=7),
    )
    schema = (
        "id BIGINT, day DATE, at TIMESTAMP, price DECIMAL(9,2), raw BINARY, "
        "lines ARRAY<STRUCT<sku: STRING>>, notes MAP<STRING, INT>, total DOUBLE, paid BOOLEAN, "
        "ref STRING"
    )
    names = ",".join(Order.__dataclass_fields__)
    found = rows([MsgPack().dumps(order)], schema, "msgpack", columns=names)
    assert found == [{**vars(order), "notes": [("a", 1)], "ref": str(order.ref)}]


@pytest.mark.parametrize(
    ("type_", "value", "needed"),
    [
        ("BIGINT", 2**63, "a whole number of 64 bits, found 9223372036854775808"),
        ("BIGINT", 1.0, "a whole number of 64 bits, found 1.0"),
        ("INT", True, "a whole number of 32 bits, found true"),
        ("STRING", 7, "a string, found 7"),
        ("STRING", b"a", "a string, found b'a'"),
        ("BINARY", "a", "bytes, found 'a'"),
        ("BOOLEAN", 1, "true or false, found 1"),
        ("DOUBLE", "1", "a number, found '1'"),
        ("FLOAT", 1e300, "a number that fits into 32 bits, found 1e.300"),
        ("DECIMAL(4,2)", "123.45", "a number of 4 digits, 2 of them after the point"),
        ("DECIMAL(4,2)", [], "a number, or a string with a number, found an array"),
        ("DATE", "soon", "a date such as 2026-01-31, found 'soon'"),
        ("TIMESTAMP", 1_769_860_800, "a string, found 1769860800"),
        ("STRUCT<a: INT>", [1], "an object, found an array"),
        ("ARRAY<INT>", {"a": 1}, "an array, found an object"),
        ("MAP<STRING, INT>", {1: 1}, "a string, found 1"),
        ("INT", msgpack.ExtType(7, b"x"), "a whole number of 32 bits, found ExtType"),
    ],
)
def test_msgpack_value_that_does_not_fit_its_column_is_a_bad_record(type_, value, needed):
    good, bad = MsgPack().dumps({"v": None}), msgpack.packb({"v": value})
    with pytest.raises(RecordFault, match=f"offset 1 of queue 3.*its v.*: needed {needed}"):
        rows([good, bad], f"v {type_}", "msgpack")
    found = rows([good, bad, good], f"v {type_}", "msgpack", columns="v", onBadRecord="null")
    assert found == [{"v": None}] * 3


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "needed MessagePack"),
        (b"\x81", "needed MessagePack"),
        (b"\x80\x80", "needed MessagePack"),
        (b"\xc1", "needed MessagePack"),
        (b"\x81\xa1v\xa1\xff", "needed MessagePack"),
        (b"\x91" * 2_000, "needed MessagePack"),
        (b"\xdd\xff\xff\xff\xff", "needed MessagePack"),
        (b"\x81\x90\x01", "needed MessagePack"),
        (b"\x81\xa1v\xd6\xff\xff", "needed MessagePack"),
        (b"\x07", "its body: needed an object, found 7"),
        (b"\xc0", "its body: needed an object, found null"),
        (b"\x82\xa1v\x01\xa1v\x02", "needed each name once, found v twice"),
    ],
    ids=range(12),
)
def test_msgpack_body_that_is_no_map_is_a_bad_record(body, said):
    with pytest.raises(RecordFault, match="offset 0 of queue 3") as caught:
        rows([body], "v INT", "msgpack")
    assert said in str(caught.value)


def test_msgpack_numbers_and_times_in_any_of_their_forms_are_read():
    of_msgpack = {"kind": "msgpack"}
    numbers = [MsgPack().dumps({"v": each}) for each in (1, 2.5, float("inf"), -(2**63))]
    assert values(numbers, "DOUBLE", **of_msgpack) == [1.0, 2.5, float("inf"), -(2.0**63)]
    prices = [MsgPack().dumps({"v": each}) for each in ("1.5", 1, 0.25, "1E+2")]
    assert values(prices, "DECIMAL(9,2)", **of_msgpack) == list(
        map(Decimal, ("1.5", "1", ".25", "100"))
    )
    moments = [NOON, NOON.astimezone(timezone(timedelta(hours=2)))]
    bodies = [
        msgpack.packb({"v": NOON}, datetime=True),
        *map(MsgPack().dumps, ({"v": each} for each in moments)),
    ]
    assert values(bodies, "TIMESTAMP", **of_msgpack) == [NOON] * 3


def test_msgpack_schema_without_matching_fields_is_warned_of(caplog):
    assert rows([MsgPack().dumps({"order_id": 1, 7: 1})], "id INT", "msgpack", columns="id")
    assert "bodySchema has 'id', but 1 bodies of" in caplog.text
    assert "have the fields 'order_id'" in caplog.text
