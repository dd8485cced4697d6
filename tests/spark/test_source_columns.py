"""Source rows: every column with its type and value, and only the selected ones."""

import re
from datetime import datetime, timezone

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType
from support.brokers.broker_kinds import NAME
from support.brokers.clusters import Cluster
from support.brokers.in_process import BrokerThread, small_broker
from support.spark.source_fixture import SourceRoom, complaint

from rmq_spark.client.message import Message

USUAL = (
    "topic string, brokerName string, queueId int, queueOffset bigint, keys string, tags string, "
    "body binary, bornTimestamp timestamp, storeTimestamp timestamp"
)
ALL = (
    f"{USUAL}, msgId string, offsetMsgId string, properties map<string,string>, flag int, sysFlag "
    "int, bornHost string, storeHost string, reconsumeTimes int, commitLogOffset bigint, "
    "preparedTransactionOffset bigint"
)
IN_DDL = ALL.replace(" timestamp", " timestamp_ltz")
"""The columns as DDL that means the same in every session."""


def names_of(ddl):
    return re.findall(r"(\w+) [a-z]", ddl)


def time_of(ms):
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


def as_row(message):
    """Return a received message as a row, in the order of ALL."""
    return (
        *(message.topic, message.queue.broker_name, message.queue.queue_id, message.queue_offset),
        *(message.properties.get("KEYS"), message.properties.get("TAGS"), message.body),
        *(time_of(message.born_timestamp), time_of(message.store_timestamp)),
        *(message.message_id, message.offset_message_id, dict(message.properties)),
        *(message.flag, message.sys_flag, message.born_host, message.store_host),
        *(message.reconsume_times, message.commit_log_offset, message.prepared_transaction_offset),
    )


def test_source_columns_hold_a_messages_values(source):
    topic = source.cluster.topic(2)
    producer = source.clients.producer()
    producer.send(
        Message(
            topic,
            b"one",
            "red",
            ["k1", "k2"],
            {"colour": "grün", "n": "7"},
            flag=7,
            sharding_key="s",
        )
    )
    producer.send(Message(topic, b"two"))

    found = source.load(topic=topic, columns=", ".join(names_of(ALL)))

    expected = [as_row(message) for message in source.clients.read(topic, 2, queues=2)]
    assert_df_equality(
        found.orderBy("body"),
        source.spark.createDataFrame(expected, ALL).orderBy("body"),
        ignore_nullable=True,
    )
    (row,) = found.where("keys is not null").collect()
    assert (row.keys, row.tags, row.flag, row.properties["colour"]) == ("k1 k2", "red", 7, "grün")


class TestProjection:
    @pytest.fixture
    def topic(self, source):
        topic = source.cluster.topic(1)
        source.cluster.send(topic, "a", "b", "c", queues=1, TAGS="red")
        return topic

    def test_source_columns_keep_the_order_of_the_option(self, source, topic):
        found = source.load(topic=topic, columns="tags, queueOffset ,BODY")
        expected = [("red", at, body) for at, body in enumerate([b"a", b"b", b"c"])]
        assert_df_equality(
            found,
            source.spark.createDataFrame(expected, "tags string, queueOffset bigint, body binary"),
        )

    def test_users_schema_selects_columns_in_any_order(self, source, topic):
        schema = StructType(
            [StructField("queueId", IntegerType()), StructField("body", BinaryType())]
        )
        found = source.load(schema, topic=topic)
        rows = [{"queueId": 0, "body": body} for body in (b"a", b"b", b"c")]
        assert_df_equality(
            found, source.spark.createDataFrame(rows, found.schema), ignore_nullable=True
        )
        assert set(found.columns) == {"queueId", "body"}

    def test_source_columns_are_the_same_with_timestamp_ntz_as_session_default(self, source, topic):
        usual = source.load(topic=topic)
        schema, rows = usual.schema, usual.collect()
        source.spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
        try:
            found = source.load(topic=topic)
            assert (found.schema, found.collect()) == (schema, rows)
            with pytest.raises(PySparkException, match="is timestamp_ltz, not timestamp_ntz"):
                source.load("bornTimestamp timestamp", topic=topic).collect()
        finally:
            source.spark.conf.unset("spark.sql.timestampType")

    def test_rows_can_be_counted_without_their_columns(self, source, topic):
        usual = source.load(topic=topic)
        assert (usual.count(), usual.select().count(), usual.where("queueOffset > 0").count()) == (
            3,
            3,
            2,
        )

    def test_streams_take_a_users_schema_as_well(self, source, topic):
        schema = "tags string, body binary"
        batches = source.run(source.stream(schema, topic=topic, startingOffsets="earliest"))
        assert [tuple(row) for row in batches.rows] == [("red", b"a"), ("red", b"b"), ("red", b"c")]

    def test_users_schema_with_unknown_columns_is_refused(self, source, topic):
        with pytest.raises(PySparkException) as raised:
            source.load("queueId bigint, Tags string", topic=topic).collect()
        problem = "column queueId is int, not bigint; there is no column Tags"
        assert complaint(raised) == (
            f"SchemaError: the schema given to the source does not fit: {problem}. "
            f".schema(...) selects columns of the source: {IN_DDL}. Remove it, and parse "
            'the body with from_json(CAST(body AS STRING), "id BIGINT, name STRING")'
        )


def test_source_columns_show_ipv6_hosts(spark, tmp_path):
    with BrokerThread(
        small_broker(tmp_path / "store", bindAddress="::1", brokerName=NAME)
    ) as broker:
        address = f"[::1]:{broker.port}"
        cluster = Cluster(address, address, NAME)
        source = SourceRoom(spark, cluster, tmp_path)
        topic = cluster.topic(1)
        cluster.send(topic, "a", queues=1)
        (row,) = source.load(topic=topic, columns="bornHost,storeHost,offsetMsgId").collect()
        (message,) = source.clients.read(topic, 1, queues=1)
        cluster.close()
    assert row == (message.born_host, message.store_host, message.offset_message_id)
    assert "::1" in row.storeHost or "0:0:0:0:0:0:0:1" in row.storeHost
