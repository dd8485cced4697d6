"""Schemas of bodies: the DDL that is taken is read as Spark reads it, and the rest is refused."""

import pytest
from body_types import structs
from hypothesis import given
from pyspark.sql.types import StructType

from rmq_spark.spark.body_schema import faults_of, parse_schema, unwritable

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
def test_ddl_is_read_as_spark_reads_it(spark, text):
    ours = parse_schema(text)
    theirs = StructType.fromDDL(text)
    for field in theirs.fields:
        field.metadata = {}
    assert ours == theirs


@given(structs())
def test_the_json_and_the_text_of_a_schema_lead_back_to_it(kind_and_values):
    kind, _ = kind_and_values
    assert parse_schema(kind.json()) == kind
    assert parse_schema(kind.simpleString()) == kind
    assert faults_of(kind) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id", "needed a type, found the end"),
        ("id FOO", "needed a type that bodies can have .* behind 'id', found 'FOO'"),
        ("id INT name STRING", "needed , behind 'INT', found 'name'"),
        ("id INT,", "needed the name of a field, found the end"),
        ("id ARRAY<INT", "needed >, found the end"),
        ("id ARRAY<INT>>", "needed"),
        ("id DECIMAL(x)", "needed a number of digits behind '\\(', found 'x'"),
        ("id DECIMAL(39,0)", "1 to 38 digits"),
        ("id INT; DROP", "needed a type that bodies can have"),
        ("< INT", "needed the name of a field, found '<'"),
        ('{"a": 1}', "no schema as df.schema.json"),
        ("{", "no schema as df.schema.json"),
    ],
)
def test_what_is_no_schema_is_refused_where_it_goes_wrong(text, said):
    with pytest.raises(ValueError, match=said):
        parse_schema(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a INT, A INT", "a stands there twice"),
        ("a STRUCT<b: INT, b: INT>", "a.b stands there twice"),
        ("a STRUCT<>", "a is a struct without fields"),
        ("a MAP<INT, INT>", "a has keys of int: needed string"),
        ("a STRUCT<b: INT NOT NULL>", "a.b can be null"),
    ],
)
def test_what_no_body_can_have_is_refused_by_its_path(text, fault):
    (found,) = faults_of(parse_schema(text))
    assert found.startswith(fault)


def test_a_data_frame_may_have_columns_that_are_never_null():
    assert unwritable(parse_schema("a INT NOT NULL, b STRUCT<c: INT NOT NULL>")) == []
