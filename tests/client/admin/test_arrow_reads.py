"""Topics read as Arrow tables have the rows of pulls and the types of Spark."""

import pyarrow as pa
import pytest
from support.messages.bad_messages import changed_bytes
from support.spark.source_queries import schema_of as spark_schema_of

import rocketpoll
from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.admin.arrow_reads import COLUMN_NAMES, DEFAULT_COLUMNS, build_schema
from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.errors import (
    ClientError,
    MessageRejected,
    ProtocolError,
    RouteNotFound,
    TableTooLarge,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.errors import RecordError
from rmq_spark.spark.schemas import columns as spark_schema
from rmq_spark.wire.chunk.columns import CodecMissing
from rmq_spark.wire.message_queue import MessageQueue

MIB = 1 << 20
QUEUES = [MessageQueue("T", "broker-a", n) for n in range(2)]
SAME_HASH = ("AaAa", "BBBB")


@pytest.fixture(params=["in chunks", "as RocketMQ"])
def way(request, monkeypatch):
    """Read with our bulk extension, and without it, as from RocketMQ."""
    if request.param == "as RocketMQ":
        monkeypatch.setattr(BrokerApi, "supports_chunks", lambda *_: False)


def test_read_table_stops_at_its_limit_of_inflated_bytes(admin, producer, way):
    """A body of a few KiB can inflate to gigabytes."""
    body = bytes(MIB)
    for _ in range(40):
        producer.send(Message("T", body), QUEUES[0])
    assert admin.topic_size("T").stored_bytes < MIB
    with pytest.raises(TableTooLarge, match=r"bytes_max.* raise bytes_max") as raised:
        admin.read_table("T", bytes_max=20 * MIB)
    assert (raised.value.topic, raised.value.bytes_max) == ("T", 20 * MIB)
    assert admin.read_table("T", columns=["queueOffset"], bytes_max=5 * MIB).num_rows == 40
    assert admin.read_table("T", bytes_max=50 * MIB).num_rows == 40
    one = {QUEUES[0]: 39}
    assert admin.read_table("T", start=one, bytes_max=5 * MIB)["body"].to_pylist() == [body]


@pytest.mark.parametrize("bytes_max", [0, -1])
def test_read_table_refuses_a_byte_limit_of_zero(admin, bytes_max):
    with pytest.raises(MessageRejected, match="bytes_max: needed at least 1"):
        admin.read_table("T", bytes_max=bytes_max)


def consumed(admin):
    """Return all messages of the topic, read by a consumer with assigned queues."""
    count = sum(span.max_offset for span in admin.topic_offsets("T").values())
    found = []
    consumer = LitePullConsumer("G", instance=admin.instance)
    consumer.assign(QUEUES)
    with consumer:
        for queue in QUEUES:
            consumer.seek_to_begin(queue)
        while len(found) < count:
            found += consumer.poll(1_000)
    return sorted(found, key=lambda message: (message.queue, message.queue_offset))


def row_of(message):
    properties = dict(message.properties)
    return {
        "topic": message.topic,
        "brokerName": message.queue.broker_name,
        "queueId": message.queue.queue_id,
        "queueOffset": message.queue_offset,
        "keys": properties.get("KEYS"),
        "tags": message.tags,
        "body": message.body,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "properties": properties,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "reconsumeTimes": message.reconsume_times,
        "commitLogOffset": message.commit_log_offset,
        "preparedTransactionOffset": message.prepared_transaction_offset,
    }


def rows_of(table):
    """Return rows as a consumer has them: times in milliseconds, properties as a dict."""
    rows = table.to_pylist()
    for row in rows:
        for name in ("bornTimestamp", "storeTimestamp"):
            if name in row:
                row[name] = round(row[name].timestamp() * 1000)
        if "properties" in row:
            row["properties"] = dict(row["properties"])
    return rows


def fill(producer):
    for number in range(40):
        queue = QUEUES[number % 2]
        producer.send(Message("T", b"%d" % number, tags=SAME_HASH[number % 2], flag=number), queue)
    producer.send(
        Message("T", b"compressed" * 1_000, keys=["a", "b"], properties={"n": "1", "ä": "ö"})
    )
    producer.send_batch(
        [Message("T", b"b%d" % number, keys="k", tags="batch") for number in range(100)]
    )
    producer.send_table(pa.table({"body": [b"row", b"another"], "tags": ["t", None]}), "T")


def test_read_table_rows_equal_the_messages_of_a_pull_consumer(admin, producer, way):
    fill(producer)
    table = admin.read_table("T", columns=COLUMN_NAMES)
    assert table.num_rows == 143
    assert rows_of(table) == [row_of(message) for message in consumed(admin)]


def test_read_table_columns_equal_those_of_the_spark_source():
    assert tuple(spark_schema.DDL_TYPES) == COLUMN_NAMES
    assert spark_schema.DEFAULT_COLUMNS == DEFAULT_COLUMNS
    of_spark = spark_schema.arrow_schema_of(spark_schema_of(spark_schema.ddl_of(COLUMN_NAMES)))
    assert build_schema(COLUMN_NAMES).equals(of_spark)


def test_read_table_decodes_requested_columns_only(admin, producer, monkeypatch):
    fill(producer)

    def inflated(*_):
        raise CodecMissing("body", at=0, needed="no body", found="a body")

    monkeypatch.setattr("rmq_spark.client.reading.record_batches.plain_bodies", inflated)
    monkeypatch.setattr("rmq_spark.client.reading.record_batches.damaged_bodies", inflated)
    assert admin.read_table("T", columns=["queueOffset", "keys"]).num_rows == 143
    with pytest.raises(CodecMissing):
        admin.read_table("T", columns=["body"])


def test_read_table_ends_where_the_topic_ended_when_the_read_began(admin, producer, monkeypatch):
    for body in (b"a", b"b"):
        producer.send(Message("T", body), QUEUES[0])
    pull_async = BrokerApi.pull_async

    def busy(*arguments, **more):
        producer.send(Message("T", b"more"), QUEUES[0])
        return pull_async(*arguments, **more)

    monkeypatch.setattr(BrokerApi, "pull_async", busy)
    assert admin.read_table("T").to_pydict()["body"] == [b"a", b"b"]
    assert admin.read_table("T", tags="*").num_rows == 3


def test_read_table_names_a_damaged_message(admin, producer, monkeypatch):
    fill(producer)
    monkeypatch.setattr(
        "rmq_spark.client.reading.record_batches.damaged_bodies", lambda _: pa.array([3]).to_numpy()
    )
    with pytest.raises(ProtocolError, match=r"offset 3 of .*queue.*CRC differs"):
        admin.read_table("T")


def test_module_level_read_table_takes_addresses_or_an_instance(admin, producer, running_broker):
    producer.send(Message("T", b"x"))
    assert rocketpoll.read_table("T", running_broker.address).num_rows == 1
    shared = rocketpoll.read_table("T", instance=admin.instance, columns=["body"])
    assert shared.to_pydict() == {"body": [b"x"]}
    assert producer.is_running
    producer.send(Message("orders", b"x"))
    with pytest.raises(RouteNotFound, match=r"ordres: .*did you mean orders\?"):
        rocketpoll.read_table("ordres", running_broker.address)


def test_read_table_creates_no_group_or_offset(admin, producer):
    producer.send(Message("T", b"x"))
    groups = admin.groups()
    admin.read_table("T")
    assert admin.groups() == groups
    assert not admin.groups_of_topic("T")


WRONG = {
    "an unknown column": ({"columns": ["bdy"]}, MessageRejected, "did you mean body"),
    "another case": ({"columns": ["queueid"]}, MessageRejected, "did you mean queueId"),
    "a column twice": ({"columns": ["body", "body"]}, MessageRejected, "each once"),
    "no columns": ({"columns": []}, MessageRejected, "one name or more"),
    "a column alone": ({"columns": "body"}, TypeError, r"for example: \[.body.\]"),
    "columns of int": ({"columns": [1]}, TypeError, "one of columns"),
    "columns: int": ({"columns": 1}, TypeError, "columns: needed several names"),
    "a list of tags": ({"tags": ["a", "b"]}, TypeError, "tags: needed a string.*created"),
    "no tag": ({"tags": "||"}, MessageRejected, "needed tags"),
    "a start": ({"start": "now"}, MessageRejected, "start: needed"),
}


@pytest.mark.parametrize(("arguments", "kind", "why"), WRONG.values(), ids=WRONG)
def test_read_table_names_the_wrong_argument(admin, arguments, kind, why):
    with pytest.raises(kind, match=why):
        admin.read_table("T", **arguments)


def test_read_table_refuses_unknown_column_without_a_request():
    with pytest.raises(MessageRejected):
        Admin(instance=ClientInstance("127.0.0.1:1")).read_table("T", columns=["bdy"])


def test_read_table_with_any_damaged_byte_omits_no_message(admin, producer, tmp_path, way):
    for number in range(4):
        producer.send(Message("T", f"body {number}".encode()), QUEUES[0])
    sound = [f"body {number}".encode() for number in range(4)]
    for at in changed_bytes(tmp_path / "store", b"body 2"):
        try:
            assert admin.read_table("T", columns=["body"])["body"].to_pylist() == sound, at
        except (ClientError, RecordError) as error:  # noqa: PERF203  # an error is allowed for any byte
            assert "T" in str(error), at  # else the read succeeds
