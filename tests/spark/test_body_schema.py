"""Body schemas as DDL: accepted ones are parsed as Spark does, all others are refused."""

import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql import types as sql
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from support.spark.body_rows import structs

from rmq_spark.spark.schemas.schema_text import parse_schema, schema_faults, writable_schema_faults

TAKEN = [
    "id BIGINT, name STRING",
    "id: long, name: string",
    "`a b` INT COMMENT 'it''s', c ARRAY<STRUCT<d: MAP<STRING, DECIMAL(9, 2)>>>",
    "STRUCT<id: INT>",
    "a tinyint, b smallint, c integer, d float, e double, f boolean, g binary, h date",
    "t timestamp, n timestamp_ntz, l timestamp_ltz, p decimal, q numeric(4)",
    "`b``t` INT NOT NULL",
]


@pytest.mark.parametrize("text", TAKEN)
def test_body_schema_ddl_is_parsed_as_by_spark(spark, text):
    ours = parse_schema(text)
    theirs = StructType.fromDDL(text)
    for field in theirs.fields:
        field.metadata = {}
    assert ours == theirs


@given(structs())
def test_body_schema_survives_its_json_and_simple_string_forms(kind_and_values):
    kind, _ = kind_and_values
    assert parse_schema(kind.json()) == kind
    assert parse_schema(kind.simpleString()) == kind
    assert schema_faults(kind) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id", "needed a type, found the end"),
        ("id FOO", "needed a type of bodies .* after 'id', found 'FOO'"),
        ("id INT name STRING", "needed , after 'INT', found 'name'"),
        ("id INT,", "needed the name of a field, found the end"),
        ("id ARRAY<INT", "needed >, found the end"),
        ("id ARRAY<INT>>", "needed"),
        ("id DECIMAL(x)", "needed a number of digits after '\\(', found 'x'"),
        ("id DECIMAL(39,0)", "1 to 38 digits"),
        ("id INT; DROP", "needed a type of bodies"),
        ("< INT", "needed the name of a field, found '<'"),
        ('{"a": 1}', "a schema as df.schema.json"),
        ("{", "a schema as df.schema.json"),
    ],
)
def test_invalid_ddl_is_refused_at_its_position(text, said):
    with pytest.raises(ValueError, match=said):
        parse_schema(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a INT, A INT", "a occurs twice"),
        ("a STRUCT<b: INT, b: INT>", "a.b occurs twice"),
        ("a STRUCT<>", "a is a struct without fields"),
        ("a MAP<INT, INT>", "a has keys of int: needed string"),
        ("a STRUCT<b: INT NOT NULL>", "a.b can be null"),
    ],
)
def test_unsupported_body_type_is_refused_by_its_path(text, fault):
    (found,) = schema_faults(parse_schema(text))
    assert found.startswith(fault)


def test_sink_accepts_columns_that_are_not_nullable():
    assert writable_schema_faults(parse_schema("a INT NOT NULL, b STRUCT<c: INT NOT NULL>")) == []


def a_struct(kind):
    return sql.StructType([sql.StructField("f", kind)])


def a_map(kind):
    return sql.MapType(sql.StringType(), kind)


@pytest.mark.parametrize("make", [sql.ArrayType, a_struct, a_map])
def test_deeply_nested_arrow_type_is_refused_by_its_column(make):
    def nested(depth):
        kind = sql.IntegerType()
        for _ in range(depth // 2 if make is a_map else depth):
            kind = make(kind)
        return sql.StructType([sql.StructField("a", kind), sql.StructField("b", sql.DateType())])

    assert schema_faults(nested(60)) == writable_schema_faults(nested(60)) == []
    told = ["a is nested 62 levels deep, over the 60 of Arrow, which transfers the rows"]
    assert schema_faults(nested(62)) == writable_schema_faults(nested(62)) == told
    within = sql.StructType([sql.StructField("body", nested(60))])
    batch = pa.RecordBatch.from_pylist([], to_arrow_schema(within))
    batch.serialize()
    with pytest.raises(pa.ArrowInvalid, match="recursion depth"):
        pa.RecordBatch.from_pylist([], to_arrow_schema(nested(80))).serialize()
    assert "nested 200 levels deep" in writable_schema_faults(nested(200))[0]
