"""Conversion between Avro schemas and Spark types, and types that no column can have."""

import json

import pytest
from hypothesis import given
from pyspark.sql import types as sql
from support.spark.body_rows import structs

from rmq_spark.spark.schemas.avro_schema import avro_name_faults, avro_schema_of, spark_schema_of
from rmq_spark.spark.schemas.schema_text import parse_schema


def as_avro_has_it(kind):
    """Return a type in which Avro's int replaces smaller integers."""
    if isinstance(kind, sql.StructType):
        return sql.StructType(
            [sql.StructField(each.name, as_avro_has_it(each.dataType)) for each in kind.fields]
        )
    if isinstance(kind, sql.ArrayType):
        return sql.ArrayType(as_avro_has_it(kind.elementType))
    if isinstance(kind, sql.MapType):
        return sql.MapType(kind.keyType, as_avro_has_it(kind.valueType))
    small = isinstance(kind, (sql.ByteType, sql.ShortType))
    return sql.IntegerType() if small else kind


@given(structs())
def test_avro_schema_of_a_spark_type_converts_back_to_it(kind_and_values):
    kind, _ = kind_and_values
    assert spark_schema_of(json.dumps(avro_schema_of(kind))) == as_avro_has_it(kind)


def field(kind):
    return json.dumps({"type": "record", "name": "A", "fields": [{"name": "x", "type": kind}]})


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ({"type": "string"}, "x STRING"),
        (["string", "null"], "x STRING"),
        ([{"type": "null"}, "string"], "x STRING"),
        ({"type": "string", "logicalType": "decimal", "precision": 4}, "x STRING"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "x STRING"),
        ({"type": "fixed", "name": "F", "size": 4}, "x BINARY"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "x TIMESTAMP"),
        ({"type": "long", "logicalType": "of somebody else"}, "x BIGINT"),
        ({"type": "string", "logicalType": "timestamp-micros"}, "x STRING"),
        ({"type": "string", "logicalType": "uuid"}, "x STRING"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}, "x DECIMAL(4,1)"),
    ],
)
def test_avro_types_become_spark_types(kind, found):
    assert spark_schema_of(field(kind)) == parse_schema(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ('{"type": "string"}', "needed an Avro schema of a record"),
        (field(["int", "string"]), "x is a union of 2 types, but a column has one type"),
        (field("Other"), "x is 'Other', which is neither a type of Avro nor defined before"),
        (field("null"), "x is always null: no column type matches it"),
        (field(5), "x is 5, which is not an Avro schema"),
        (field({"type": "enum", "name": "E"}), "x has no 'symbols': "),
        (field({"type": "fixed", "name": "F"}), "x has no 'size': "),
        (field({"type": "fixed", "name": "F", "size": -1}), "x: needed a size in bytes, found -1"),
        (
            field({"type": "fixed", "name": "F", "size": "8"}),
            "x: needed a size in bytes, found '8'",
        ),
        (field({"type": "bytes", "logicalType": "decimal"}), "x has no 'precision': "),
        (
            field({"type": "bytes", "logicalType": "decimal", "precision": 50}),
            "x has 50 digits, over the 38 of a column",
        ),
        (
            field({"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 9}),
            "x: needed precision and scale of a decimal, found 3 and 9",
        ),
        (
            field({"type": "bytes", "logicalType": "decimal", "precision": "3"}),
            "x: needed precision and scale of a decimal, found '3' and 0",
        ),
        (
            field({"type": "record", "name": "B", "fields": [{"type": "int"}]}),
            "a field of x has no 'name': ",
        ),
        (
            field({"type": "record", "name": "B", "fields": {"y": "int"}}),
            "fields of x: needed a list, found ",
        ),
        ('["null"]', " is a union of 0 types"),
        ('{"type": "array", "items": ' * 5_000 + '"int"' + "}" * 5_000, "it is nested too deep"),
        (field("A"), "x is A within itself"),
        (field({"type": "int", "logicalType": "time-millis"}), "x is a time-millis"),
        (field({"type": "array"}), "x has no 'items': "),
    ],
)
def test_avro_schema_without_column_type_is_refused(text, said):
    with pytest.raises(ValueError, match=said):
        spark_schema_of(text)


def test_column_names_invalid_in_avro_are_refused():
    kind = parse_schema("ok INT, `a-b` INT, s STRUCT<`1`: ARRAY<STRUCT<`ü`: INT>>>")
    assert [each.partition(" is ")[0] for each in avro_name_faults(kind)] == [
        "a-b",
        "s.1",
        "s.1[].ü",
    ]
