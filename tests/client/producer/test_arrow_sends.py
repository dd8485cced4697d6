"""Tables are sent as messages: queues, retries, and which rows are stored when a request fails."""

import itertools
from concurrent.futures import Future
from types import SimpleNamespace

import pyarrow as pa
import pytest
from support.servers.fake_servers import FakeCluster

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.errors import MessageRejected, PartlySent, SendFailed, SystemBusy
from rmq_spark.client.message import decode_messages
from rmq_spark.client.producer.arrow_sender import CHUNK_ROWS, _TableSend
from rmq_spark.client.producer.producer import Producer
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import PullSysFlag, RequestCode, ResponseCode
from rmq_spark.wire.headers.members import PullMessageRequestHeader
from rmq_spark.wire.message.message_batch import decode_batch
from rmq_spark.wire.message_queue import MessageQueue

TABLE = pa.table(
    {
        "body": pa.array([b"%d" % n for n in range(100)], pa.binary()),
        "keys": pa.array([f"k{n}" if n % 2 else None for n in range(100)]),
        "tags": pa.array(["t"] * 100),
        "properties": pa.array(
            [[("mine", str(n))] for n in range(100)], pa.map_(pa.string(), pa.string())
        ),
        "flag": pa.array(range(100), pa.int32()),
    }
)


@pytest.fixture
def producer(running_broker, api):
    api.admin.create_topic(
        running_broker.address, TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)
    )
    with Producer("P", running_broker.address) as made:
        yield made


@pytest.fixture
def pull(running_broker, api):
    def pull(topic="T"):
        found = []
        for queue in api.admin.topic_stats(running_broker.address, topic).offset_table:
            header = PullMessageRequestHeader(
                consumer_group="G",
                topic=topic,
                queue_id=queue.queue_id,
                queue_offset=0,
                max_msg_nums=1_000,
                sys_flag=PullSysFlag.SUBSCRIPTION,
                commit_offset=0,
                suspend_timeout_millis=0,
                sub_version=0,
                subscription="*",
                expression_type="TAG",
            )
            result = api.pull_async(running_broker.address, header, is_chunk=True).result(10)
            found += decode_messages(result.records, "broker-a")
        return found

    return pull


def test_send_table_sends_every_row_as_a_message(producer, pull):
    result = producer.send_table(TABLE, "T", chunk_bytes=4_000)
    assert result.message_count == sum(span.message_count for span in result.spans) == 100
    assert len(result.spans) > 4
    found = sorted(pull(), key=lambda message: message.flag)
    assert [message.body for message in found] == [b"%d" % n for n in range(100)]
    assert [message.keys for message in found[:3]] == [(), ("k1",), ()]
    assert found[7].properties == {"KEYS": "k7", "TAGS": "t", "mine": "7"}
    assert all(message.born_timestamp > 0 for message in found)
    assert {message.store_host for message in found} == {
        producer.instance.name_servers.addresses[0]
    }


def test_send_table_accepts_topics_by_row_and_text_bodies(producer, pull):
    table = pa.table({"topic": ["T", "U", "T"], "body": ["a", "b", "c"]})
    assert producer.send_table(table).message_count == 3
    assert sorted(message.body for message in pull("T")) == [b"a", b"c"]
    assert [message.body for message in pull("U")] == [b"b"]


def test_send_table_to_one_queue_keeps_the_row_order(producer, pull):
    queue = MessageQueue("T", "broker-a", 1)
    result = producer.send_batches(TABLE.to_batches(max_chunksize=10), "T", queue=queue)
    assert [span.queue_offset for span in result.spans] == list(range(0, 100, 10))
    assert [message.body for message in pull()] == [b"%d" % n for n in range(100)]


def test_send_table_refuses_a_queue_of_another_topic(producer, pull):
    table = pa.table({"body": ["one"], "topic": ["T"]})
    other = MessageQueue("Another", "broker-a", 0)
    with pytest.raises(MessageRejected, match="queue: needed a queue of T"):
        producer.send_table(table, queue=other)
    with pytest.raises(MessageRejected, match="queue: needed a queue of T"):
        producer.send_table(table.select(["body"]), "T", queue=other)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"in_flight": 0}, MessageRejected, "in_flight: needed 1 or more"),
        ({"in_flight": "3"}, TypeError, "in_flight: needed a whole number"),
        ({"chunk_bytes": -1}, MessageRejected, "chunk_bytes: needed 1 or more"),
        ({"timeout_ms": "x"}, TypeError, "timeout_ms: needed a number of milliseconds"),
        ({"queue": 3}, TypeError, "queue: needed a MessageQueue"),
    ],
)
def test_send_table_refuses_meaningless_settings_by_name(producer, given, error, said):
    with pytest.raises(error, match=said):
        producer.send_table(pa.table({"body": ["one"]}), "T", **given)


def test_refused_append_keeps_later_chunks_from_being_stored(producer, pull, monkeypatch):
    """A broker may refuse one request as busy, and accept the next."""
    refused = Future()
    refused.set_exception(
        SystemBusy(ResponseCode.SYSTEM_BUSY, "busy", "127.0.0.1:1", RequestCode.APPEND_CHUNK)
    )
    append, count = BrokerApi.append_chunk, itertools.count()

    def busy_once(*arguments):
        return refused if next(count) == 2 else append(*arguments)

    monkeypatch.setattr(BrokerApi, "append_chunk", busy_once)
    with pytest.raises(PartlySent) as raised:
        producer.send_batches(
            TABLE.to_batches(max_chunksize=10), "T", queue=MessageQueue("T", "broker-a", 1)
        )
    assert raised.value.messages_sent == 20
    assert [message.body for message in pull()] == [b"%d" % n for n in range(20)]


def test_send_table_without_rows_sends_nothing(producer):
    assert producer.send_table(TABLE.slice(0, 0), "T").message_count == 0


REJECTED = {
    "no body": (pa.table({"keys": ["k"]}), "columns"),
    "an unknown column": (pa.table({"body": [b"x"], "key": ["k"]}), "columns"),
    "ids of the Spark sink": (pa.table({"body": [b"x"], "encodedProperties": [b"a"]}), "columns"),
    "no topic": (pa.table({"body": [b"x"]}), "topic"),
    "an empty body": (pa.table({"body": [b"x", b""], "topic": ["T", "T"]}), "at least one byte"),
    "a null body": (pa.table({"body": [b"x", None], "topic": ["T", "T"]}), "one in each row"),
    "a null topic": (
        pa.table({"body": [b"x"], "topic": pa.array([None], pa.string())}),
        "one in each row",
    ),
    "a topic that cannot be": (pa.table({"body": [b"x"], "topic": ["a/b"]}), "topic"),
    "a body too long": (pa.table({"body": [bytes(5 << 20)], "topic": ["T"]}), "at most 4194304"),
    "a tag that cannot be": (
        pa.table({"body": [b"x"], "topic": ["T"], "tags": ["a\x02b"]}),
        "a row",
    ),
    "a reserved property": (
        pa.table(
            {
                "body": [b"x"],
                "topic": ["T"],
                "properties": pa.array([[("WAIT", "no")]], pa.map_(pa.string(), pa.string())),
            }
        ),
        "RocketMQ does not reserve",
    ),
}


@pytest.mark.parametrize(("table", "why"), REJECTED.values(), ids=REJECTED)
def test_send_table_refuses_rows_that_cannot_be_messages(producer, table, why):
    with pytest.raises(MessageRejected, match=why):
        producer.send_table(table)


def test_send_table_to_a_rocketmq_broker_sends_batches():
    with FakeCluster(a=lambda _: 0) as cluster, Producer("P", cluster.address) as producer:
        assert producer.send_table(TABLE, "T", chunk_bytes=4_000).message_count == 100
        sent = cluster.brokers["a"].sent
        assert all(header.batch for header, _ in sent)
        entries = sorted((e for _, body in sent for e in decode_batch(body)), key=lambda e: e.flag)
        assert [entry.body for entry in entries] == [b"%d" % n for n in range(100)]
        properties = entries[7].properties
        assert len(properties.pop("UNIQ_KEY")) == 32
        assert properties == {"KEYS": "k7", "TAGS": "t", "mine": "7", "WAIT": "true"}


def test_send_table_to_rocketmq_refuses_rows_unfit_for_batches():
    with FakeCluster(a=lambda _: 0) as cluster, Producer("P", cluster.address) as producer:
        with pytest.raises(MessageRejected, match="no retry topic"):
            producer.send_table(TABLE, "%RETRY%G")
        with pytest.raises(MessageRejected, match="a row"):
            producer.send_table(REJECTED["a tag that cannot be"][0], "T")
        assert cluster.sends() == {"a": 0}


def test_arrow_rows_sent_to_a_queue_wait_for_the_answer_before():
    with FakeCluster(a=lambda _: None) as cluster, Producer("P", cluster.address) as producer:
        queue = producer.publish_queues("T")[0]
        with pytest.raises(SendFailed, match="did not answer"):
            producer.send_table(TABLE, "T", queue=queue, chunk_bytes=4_000, timeout_ms=100)
        assert cluster.sends() == {"a": 1}


def test_failed_arrow_request_is_retried_at_another_broker():
    with (
        FakeCluster(a=lambda _: 14, b=lambda _: 0) as cluster,
        Producer("P", cluster.address) as producer,
    ):
        result = producer.send_table(TABLE, "T", chunk_bytes=4_000)
        assert {span.queue.broker_name for span in result.spans} == {"b"}
        assert result.message_count == 100
        cluster.servers["a"].__exit__()
        assert producer.send_table(TABLE, "T", chunk_bytes=4_000).message_count == 100


def test_send_table_to_a_topic_with_fewer_queues_refreshes_its_route(running_broker, api, producer):
    producer.send_table(TABLE, "T", chunk_bytes=2_000)
    fewer = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
    api.admin.create_topic(running_broker.address, fewer)
    for _ in range(8):
        result = producer.send_table(TABLE, "T", chunk_bytes=2_000)
        assert {span.queue.queue_id for span in result.spans} == {0}


def test_permanent_send_table_error_lists_what_is_stored():
    with (
        FakeCluster(a=lambda _: 2) as cluster,
        Producer("P", cluster.address) as producer,
        pytest.raises(SendFailed, match="failed 1 time: "),
    ):
        producer.send_table(TABLE, "T")
    with (
        FakeCluster(a=lambda n: 0 if n == 1 else 13) as cluster,
        Producer("P", cluster.address) as producer,
    ):
        with pytest.raises(PartlySent) as raised:
            producer.send_table(TABLE, "T", chunk_bytes=4_000, in_flight=1)
        assert raised.value.messages_sent == raised.value.results[0].message_count


def test_send_table_negotiates_with_brokers_in_a_fixed_order(monkeypatch):
    names = [f"broker-{number}" for number in range(8)]
    queues = [MessageQueue("T", name, 0) for name in reversed(names)]
    asked = []
    sender = SimpleNamespace(publish_queues=lambda _: queues)
    bulk = _TableSend(sender, None, timeout_ms=1, retries=0)
    monkeypatch.setattr(bulk, "_supports_chunks", lambda name: asked.append(name) or True)
    assert bulk.rows_max("T") == CHUNK_ROWS
    assert asked == names
