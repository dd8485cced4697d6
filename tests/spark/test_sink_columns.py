"""Columns that a sink accepts."""

import re

import pytest
from support.programs.python_programs import ROOT
from support.spark.source_queries import schema_of

from rmq_spark.spark.errors import SchemaError
from rmq_spark.spark.options.sink_columns import SINK_COLUMNS, check_sink_columns
from rmq_spark.spark.schemas.columns import DDL_TYPES, ddl_of


def names(ddl, *, has_topic=True):
    return [column.name for column in check_sink_columns(schema_of(ddl), has_topic=has_topic)]


def refused(ddl, *, has_topic=True):
    with pytest.raises(SchemaError) as raised:
        check_sink_columns(schema_of(ddl), has_topic=has_topic)
    return str(raised.value)


def test_sink_needs_only_a_body_and_a_topic():
    assert names("body string") == ["body"]
    assert names("body binary, topic string", has_topic=False) == ["body", "topic"]


def test_sink_columns_are_found_by_name_ignoring_case():
    found = check_sink_columns(
        schema_of("TAGS string, queueOffset bigint, Body binary"), has_topic=True
    )
    assert [tuple(column) for column in found] == [("tags", 0, "string"), ("body", 2, "binary")]


def test_topic_option_overrides_the_topic_column():
    assert names("body string, topic string") == ["body"]


def test_source_columns_are_valid_sink_columns():
    everything = ddl_of(DDL_TYPES)
    assert names(everything, has_topic=False) == [
        *("topic", "brokerName", "queueId", "keys", "tags", "body", "properties", "flag")
    ]


def test_sink_page_names_the_columns_that_a_sink_ignores():
    page = (ROOT / "docs" / "sink.md").read_text(encoding="utf-8")
    ignored = page.partition("The sink ignores these columns")[2].partition("\n- ")[0]
    assert re.findall(r"`(\w+)`", ignored) == [
        name for name in DDL_TYPES if name not in SINK_COLUMNS
    ]


@pytest.mark.parametrize(
    ("ddl", "problem"),
    [
        ("tags string", "there is no column body (string or binary), the body of the messages"),
        (
            "body int",
            "column body is int, not binary or string: use to_json(struct(...)), or cast it",
        ),
        ("body string, keys int", "column keys is int, not string or array<string>: cast it"),
        ("body string, delayLevel double", "column delayLevel is double, not int or smallint"),
        ("body string, deliverAt bigint", "column deliverAt is bigint, not timestamp: cast it"),
        ("body string, BODY string", "column body occurs twice: keep one"),
        ("body string, tag string", "there is no column tag (is it tags?): rename it, or drop it"),
        ("body string, city string", "there is no column city, only body, topic, keys"),
        ("body string, city string", ".drop('city'), or move it into column properties"),
        (
            "value string",
            (
                "column value is Kafka's, and is named body here: rename it with "
                ".withColumnRenamed('value', 'body')"
            ),
        ),
        ("body string, queueId int, shardingKey string", "both choose the queue: drop one of them"),
        ("body string, brokerName string", "needs column queueId"),
    ],
)
def test_unsupported_sink_column_is_refused_with_advice(ddl, problem):
    assert problem in refused(ddl)


def test_sink_without_topic_option_or_column_is_refused():
    assert "set option topic, or add a column topic" in refused("body string", has_topic=False)


def test_sink_column_errors_are_all_reported_at_once():
    problem = refused("bodi string, tags int", has_topic=False)
    assert problem.count("; ") == 3
