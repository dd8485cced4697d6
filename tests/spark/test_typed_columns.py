"""The columns of a source with typed bodies, and their schemas."""

import pyarrow as pa
import pytest
from support.spark.body_rows import options_of

from rmq_spark.spark.bodies.columns import (
    check_schema,
    is_body_column,
    source_schema,
    with_body_schema,
)
from rmq_spark.spark.errors import OptionError, SchemaError
from rmq_spark.spark.schemas.arrow_conversion import BodyFault, parsed_type, to_exact_type
from rmq_spark.spark.schemas.schema_text import parse_schema


def names(kind="json", schema="id BIGINT, name STRING", **more):
    return source_schema(options_of(kind, schema, **more)).fieldNames()


def test_decoded_fields_replace_the_body_column():
    assert names() == [
        *("topic", "brokerName", "queueId", "queueOffset", "keys", "tags"),
        *("id", "name", "bornTimestamp", "storeTimestamp"),
    ]
    assert "value" in names(bodyColumn="value")
    assert names("text", None)[6] == "body"
    assert names("text", None, bodyColumn="value")[6] == "value"


def test_columns_choose_among_those_of_messages_and_of_bodies():
    assert names(columns="NAME, queueid, body") == ["name", "queueId", "body"]
    assert names(columns="topic") == ["topic"]
    assert names("text", None, columns="body,topic") == ["body", "topic"]


@pytest.mark.parametrize(
    ("schema", "more", "said"),
    [
        (None, {}, "bodySchema: bodyFormat=json needs the schema of the bodies. Give"),
        ("Tags INT, x INT", {}, "bodySchema: messages have columns Tags, too"),
        ("body STRING", {}, "bodySchema: messages have columns body, too"),
        ("id INT", {"bodyColumn": "keys"}, "bodyColumn: messages have a column keys"),
        ("id INT", {"columns": "id,nmae"}, "columns: there is no nmae; the columns are topic"),
        ("id INT", {"columns": "id,ID"}, "columns: id is named twice"),
    ],
)
def test_invalid_body_column_names_are_refused_by_their_option(schema, more, said):
    with pytest.raises(OptionError) as caught:
        source_schema(options_of("json", schema, **more))
    assert str(caught.value).startswith(f"option {said}")


@pytest.mark.parametrize(
    ("kind", "schema", "more", "given"),
    [
        ("json", None, {}, "id BIGINT, topic STRING"),
        ("json", "id BIGINT, name STRING", {}, "name STRING"),
        ("json", None, {"bodyColumn": "v"}, "v STRUCT<tags: INT>, tags STRING"),
        ("json", "tags INT", {"bodyColumn": "v"}, "v STRUCT<tags: INT>"),
        ("text", None, {}, "body STRING, queueId INT"),
        ("avro", None, {}, "id BIGINT"),
    ],
)
def test_users_schema_may_select_message_and_body_columns(kind, schema, more, given):
    check_schema(parse_schema(given), options_of(kind, schema, **more))


@pytest.mark.parametrize(
    ("kind", "schema", "more", "given", "said"),
    [
        ("json", None, {}, "topic STRING", "it has no column for the bodies"),
        ("json", None, {}, "id INT, tags INT", "column tags of messages is string, not int"),
        ("json", None, {}, "id INT, TAGS INT", "column TAGS is a column of messages"),
        ("json", None, {}, "id INT NOT NULL", "id can be null"),
        ("json", "id INT", {}, "id BIGINT", "column id is int, not bigint"),
        ("json", "id INT", {}, "name STRING", "there is no column name, of messages or of bodies"),
        ("json", None, {"bodyColumn": "v"}, "v INT", "column v is int, not a struct"),
        (
            "json",
            None,
            {"bodyColumn": "v"},
            "w INT",
            "there is no column w: bodies are in column v",
        ),
        ("text", None, {}, "body BINARY", "column body is string, not binary"),
        ("text", None, {}, "id INT", "there is no column id"),
        ("json", None, {}, "id INT, id INT", "it names id twice"),
    ],
)
def test_schema_that_does_not_fit_the_body_type_is_refused(kind, schema, more, given, said):
    with pytest.raises(SchemaError) as caught:
        check_schema(parse_schema(given), options_of(kind, schema, **more))
    assert said in str(caught.value)


def test_columns_option_and_users_schema_must_agree():
    with pytest.raises(OptionError, match="Keep one of the two"):
        check_schema(parse_schema("id INT, topic STRING"), options_of("json", columns="topic,id"))


def test_body_schema_may_come_from_the_read_schema():
    options = options_of("json", bodyColumn="v")
    schema = parse_schema("v STRUCT<id: INT>, topic STRING")
    assert with_body_schema(options, schema).body.schema == parse_schema("id INT")
    assert is_body_column("v", options.body)
    assert not is_body_column("topic", options.body)
    assert not is_body_column("id", options_of("binary").body)


# ---- dates and times in text as columns, also within lists, maps and null structs


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


def test_times_with_and_without_a_zone_share_one_column():
    texts = ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00", "2026-01-31", None]
    found = to_exact_type(pa.array(texts), MOMENT, "at").cast(pa.int64()).to_pylist()
    assert found[0] == found[1]
    assert (found[0] - found[2], found[3]) == (12 * 3_600_000_000, None)


def test_unparsable_time_value_is_named_in_the_body_fault():
    with pytest.raises(BodyFault, match=r"its at: needed a time such as .* found 'noon'"):
        to_exact_type(pa.array(["2026-01-31T12:00:00Z", "noon"]), MOMENT, "at")


def test_long_column_path_is_shortened_in_a_body_fault():
    assert len(str(BodyFault("a." * 1_000, "it", "that"))) < 300
