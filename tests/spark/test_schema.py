"""The columns of the source, and schemas of users."""

import pytest
from support.spark.source_queries import schema_of

from rmq_spark.spark.bodies.columns import check_schema
from rmq_spark.spark.errors import OptionError, SchemaError
from rmq_spark.spark.options.options import read_options
from rmq_spark.spark.schemas.columns import (
    DDL_TYPES,
    DEFAULT_COLUMNS,
    check_columns,
    ddl_of,
)
from rmq_spark.wire.chunk import COLUMNS


def check(schema):
    check_schema(schema, read_options({"namesrvAddr": "h:1", "topic": "T"}))


def test_every_column_has_a_ddl_type():
    assert set(DDL_TYPES) == {*COLUMNS, "brokerName"}


def test_columns_option_ignores_case_and_keeps_order():
    assert check_columns([]) == DEFAULT_COLUMNS
    assert check_columns(["BODY", "queueid", "msgId"]) == ("body", "queueId", "msgId")


def test_ddl_means_the_same_in_every_session():
    """`timestamp` depends on spark.sql.timestampType."""
    assert ddl_of(["storeTimestamp", "flag"]) == "storeTimestamp timestamp_ltz, flag int"


@pytest.mark.parametrize(
    ("names", "said"),
    [(["bod"], "there is no bod; the columns are topic,"), (["body", "Body"], "twice")],
)
def test_columns_option_refuses_unknown_and_repeated_columns(names, said):
    with pytest.raises(OptionError, match=f"option columns: .*{said}"):
        check_columns(names)


def test_users_schema_may_select_columns_of_their_own_types():
    check(schema_of("body binary, topic string"))
    with pytest.raises(
        SchemaError, match="there is no column value; column body is binary, not string"
    ):
        check(schema_of("value string, body string, topic string"))


def test_users_schema_naming_a_column_twice_is_refused():
    with pytest.raises(SchemaError, match="does not fit: it names body twice"):
        check(schema_of("body binary, topic string, body binary"))


def test_users_schema_with_a_not_null_column_is_refused():
    """Spark would drop rows because of it, or fail at the first null."""
    schema = schema_of("body binary, tags string")
    schema["tags"].nullable = False
    with pytest.raises(SchemaError, match="column tags can be null: declare it without NOT NULL"):
        check(schema)
