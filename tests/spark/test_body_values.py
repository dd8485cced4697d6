"""Dates and times in text to columns, also within lists, maps and null structs."""

import pyarrow as pa
import pytest

from rmq_spark.spark.schemas.arrow_conversion import BodyFault, parsed_type, to_exact_type

DATE, MOMENT = pa.date32(), pa.timestamp("us", "UTC")
NESTED = pa.struct(
    [
        pa.field("days", pa.list_(pa.field("element", DATE))),
        pa.field("by", pa.map_(pa.string(), pa.struct([("at", MOMENT)]))),
    ]
)


def test_null_values_stay_null_at_every_level():
    given = [
        None,
        {"days": None, "by": None},
        {"days": [None, "2026-01-31"], "by": [("a", None), ("b", {"at": None})]},
        {"days": [], "by": []},
    ]
    found = to_exact_type(pa.array(given, parsed_type(NESTED)), NESTED, "")
    assert found.type == NESTED
    lists = [
        row and row["days"] and [day and str(day) for day in row["days"]]
        for row in found.to_pylist()
    ]
    assert lists == [None, None, [None, "2026-01-31"], []]
    assert [row and row["by"] for row in found.to_pylist()][1:] == [
        None,
        [("a", None), ("b", {"at": None})],
        [],
    ]


def test_times_with_and_without_a_zone_may_stand_in_one_column():
    texts = ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00", "2026-01-31", None]
    found = to_exact_type(pa.array(texts), MOMENT, "at").cast(pa.int64()).to_pylist()
    assert found[0] == found[1]
    assert (found[0] - found[2], found[3]) == (12 * 3_600_000_000, None)


def test_unparsable_time_value_is_named_in_the_body_fault():
    with pytest.raises(BodyFault, match=r"its at: needed a time such as .* found 'noon'"):
        to_exact_type(pa.array(["2026-01-31T12:00:00Z", "noon"]), MOMENT, "at")


def test_long_column_path_is_shortened_in_a_body_fault():
    assert len(str(BodyFault("a." * 1_000, "it", "that"))) < 300
