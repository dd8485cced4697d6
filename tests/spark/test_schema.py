import pyarrow as pa
import pytest
from source_parts import queue_of, schema_of, send

from rmq_spark.client.bulk_pull import BulkPull
from rmq_spark.client.instance import ClientInstance
from rmq_spark.spark.errors import OptionError, SchemaError
from rmq_spark.spark.schema import (
    DDL_TYPES,
    DEFAULT_COLUMNS,
    BatchMaker,
    arrow_schema_of,
    check_columns,
    columns_of,
    ddl_of,
)
from rmq_spark.wire.chunk import COLUMNS, RecordChunk


def test_each_column_can_be_built():
    assert set(DDL_TYPES) == {*COLUMNS, "brokerName"}


def test_columns_are_found_whatever_their_case_and_in_the_order_given():
    assert check_columns([]) == DEFAULT_COLUMNS
    assert check_columns(["BODY", "queueid", "msgId"]) == ("body", "queueId", "msgId")


@pytest.mark.parametrize(
    ("names", "said"), [(["bod"], "there is no bod; there are topic,"), (["body", "Body"], "twice")]
)
def test_columns_that_there_are_not_or_twice_are_refused(names, said):
    with pytest.raises(OptionError, match=f"option columns: .*{said}"):
        check_columns(names)


def test_a_users_schema_is_a_choice_of_columns():
    assert columns_of(schema_of("body binary, topic string")) == ("body", "topic")
    with pytest.raises(SchemaError, match="there is no column value; column body is binary, not string"):
        columns_of(schema_of("value string, body string, topic string"))


@pytest.mark.parametrize("names", [tuple(DDL_TYPES), tuple(reversed(DDL_TYPES)), ("body",), ("brokerName",)])
def test_record_batches_have_exactly_sparks_types(rocketpoll_broker, rocketpoll_topic, names):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b", keys="k", tags="t", properties={"p": "1"})
    schema = arrow_schema_of(schema_of(ddl_of(names)))
    instance = ClientInstance(rocketpoll_broker.address)
    try:
        instance.routes.route(rocketpoll_topic)
        pulled = BulkPull(instance.api, rocketpoll_broker.address, "G", queue_of(rocketpoll_topic), 0, 2)
        [chunk] = pulled
        rows = BatchMaker(schema).record_batch(RecordChunk(chunk.records, chunk.sizes), "broker-a")
    finally:
        instance.shutdown()
    assert rows.schema.equals(schema)
    assert rows.num_rows == 2
    if "brokerName" in names:
        assert rows.column("brokerName").to_pylist() == ["broker-a", "broker-a"]
    if "properties" in names:
        assert ("p", "1") in rows.column("properties").to_pylist()[0]
        assert rows.column("storeTimestamp").type == pa.timestamp("us", "UTC")
        stored = rocketpoll_broker.messages(rocketpoll_topic)[0].store_timestamp
        assert rows.column("storeTimestamp")[0].value == stored * 1000
