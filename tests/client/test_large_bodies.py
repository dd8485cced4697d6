"""Highly compressible bodies: producers send no more than readers inflate, and readers can raise
the limit."""

import asyncio
import json
import queue
import zlib

import pytest
from support.messages.bad_messages import ZLIB
from support.spark.source_queries import options_for, schema_of

from rmq_spark.cli.main import main
from rmq_spark.client.producer.prepared_message import now_ms
from rmq_spark.errors import BodyTooLarge
from rmq_spark.spark.errors import RecordFault
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.read.partition_reader import read_range
from rmq_spark.spark.schemas.columns import arrow_schema_of
from rmq_spark.wire.compression import PLAIN_BYTES_MAX, uncompress_body
from rmq_spark.wire.headers.members import SendMessageRequestHeader
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import (
    Admin,
    ClientInstance,
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    Message,
    Producer,
    PushConsumer,
    PushSettings,
    SendRules,
    aio,
)
from rocketpoll.errors import MessageRejected, MessageUnreadable

BODY = bytes(PLAIN_BYTES_MAX + 1)
ROOM = PLAIN_BYTES_MAX + 1
QUEUE = MessageQueue("T", "broker-a", 0)
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.fixture(scope="module")
def broker():
    """Run a broker with one message of a Java producer with a higher maxMessageSize."""
    with EmbeddedBroker() as broker, ClientInstance(broker.address) as instance:
        broker.create_topic("T", 1)
        header = SendMessageRequestHeader(
            *("java", "T", "TBW102", 4, 0, ZLIB, now_ms(), 0, "KEYS\x01k\x02"), batch=False
        )
        instance.api.send(broker.address, header, zlib.compress(BODY), "")
        yield broker


@pytest.fixture
def roomy(broker):
    """Return a client whose limit is high enough for the message."""
    return ClientInstance(broker.address, max_body_bytes=ROOM)


@pytest.mark.parametrize("size", [PLAIN_BYTES_MAX + 1, 64 << 20])
def test_producer_max_message_bytes_above_the_inflate_limit_is_refused(size):
    with pytest.raises(MessageRejected, match=r"max_message_bytes: needed at most 16777216.*split"):
        SendRules("P", max_message_bytes=size)


def test_body_size_is_checked_before_compression_with_advice():
    with EmbeddedBroker() as broker:
        rules = SendRules("P", max_message_bytes=PLAIN_BYTES_MAX)
        with Producer("P", broker.address, rules=rules) as producer:
            with pytest.raises(
                MessageRejected, match=r"at most 16777216 bytes before compression.*\(split it"
            ):
                producer.send(Message("T", BODY))
            producer.send(Message("T", BODY[:-1]))
        [message] = broker.messages("T")
        assert (len(message.body), message.fault) == (PLAIN_BYTES_MAX, None)
        with (
            Producer("Q", broker.address) as producer,
            pytest.raises(
                MessageRejected, match="if the brokers' limit is higher, raise max_message_bytes"
            ),
        ):
            producer.send(Message("T", BODY))


@pytest.mark.parametrize("size", [0, -1, (1 << 30) + 1])
def test_client_instance_with_an_invalid_max_body_bytes_is_refused(size):
    with pytest.raises(MessageRejected, match="max_body_bytes"):
        ClientInstance("localhost:9876", max_body_bytes=size)


def test_body_over_the_inflate_limit_raises_body_too_large_with_advice():
    with pytest.raises(BodyTooLarge, match=r"at most 5 bytes inflated .*raise max_body_bytes"):
        uncompress_body(zlib.compress(bytes(6)), ZLIB, 5)


def test_lookups_and_tables_read_a_large_body_with_raised_max_body_bytes(broker, roomy):
    with Admin(broker.address) as admin:
        [found] = admin.messages_by_key("T", "k")
        assert "at most 16777216 bytes inflated" in found.fault
        with pytest.raises(MessageUnreadable, match="offset 0 of queue 0 of T on broker-a"):
            admin.read_table("T", columns=["body"])
    with Admin(instance=roomy) as admin:
        [found] = admin.messages_by_key("T", "k")
        assert (found.body, found.fault) == (BODY, None)
        assert admin.message_at(QUEUE, 0).body == BODY
        assert admin.message_by_offset_id(found.offset_message_id).body == BODY
        assert admin.read_table("T", columns=["body"]).column("body").to_pylist() == [BODY]


def test_lite_consumer_gets_a_large_body_with_raised_max_body_bytes(roomy):
    settings = LitePullSettings(consume_from_where=FIRST)
    with LitePullConsumer("lite", instance=roomy, settings=settings) as consumer:
        consumer.subscribe("T")
        [message] = consumer.poll(10_000)
    assert message.body == BODY


def test_push_consumer_gets_a_large_body_with_raised_max_body_bytes(roomy):
    seen = queue.Queue()
    settings = PushSettings(consume_from_where=FIRST)
    listener = lambda messages, _: seen.put(messages)  # noqa: E731  # a listener in one line
    with PushConsumer("push", instance=roomy, listener=listener, settings=settings) as consumer:
        consumer.subscribe("T")
        [message] = seen.get(timeout=20)
    assert message.body == BODY


def test_aio_consumer_gets_a_large_body_with_raised_max_body_bytes(broker):
    async def story():
        client = aio.Client(broker.address, max_body_bytes=ROOM)
        settings = LitePullSettings(consume_from_where=FIRST)
        async with aio.Consumer("aio", client=client, settings=settings) as consumer:
            await consumer.subscribe("T")
            return await consumer.poll(10_000)

    [message] = asyncio.run(asyncio.wait_for(story(), 60))
    assert message.body == BODY


@pytest.mark.parametrize("way", ["option", "profile"])
def test_command_line_reads_large_body_with_raised_limit(
    broker, way, capsysbinary, tmp_path, monkeypatch
):
    (tmp_path / "profiles.ini").write_text(f"[roomy]\nmax-body-bytes = {ROOM}\n", encoding="utf-8")
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(tmp_path / "profiles.ini"))
    more = ["--max-body-bytes", str(ROOM)] if way == "option" else ["--profile", "roomy"]
    call = ["consume", "T", "-o", "json", "--namesrv", broker.address]
    assert main(call) == 0
    assert "fault" in json.loads(capsysbinary.readouterr().out)
    assert main([*call, *more]) == 0
    assert json.loads(capsysbinary.readouterr().out)["body"] == BODY.decode()


@pytest.mark.parametrize("value", ["0", "many", str(1 << 31)])
def test_profile_with_an_invalid_max_body_bytes_is_refused(value, capsys, tmp_path, monkeypatch):
    (tmp_path / "profiles.ini").write_text(f"[p]\nmax-body-bytes = {value}\n", encoding="utf-8")
    monkeypatch.setenv("ROCKETPOLL_PROFILES", str(tmp_path / "profiles.ini"))
    assert main(["consume", "T", "--profile", "p"]) == 2
    assert "max-body-bytes" in capsys.readouterr().err


def test_spark_task_reads_a_large_body_with_the_max_body_bytes_option(broker):
    schema = arrow_schema_of(schema_of("body binary"))

    def bodies(**options):
        batches = read_range(options_for(broker, "T", **options), schema, OffsetRange(QUEUE, 0, 1))
        return [body for batch in batches for body in batch.column("body").to_pylist()]

    with pytest.raises(RecordFault, match="option maxBodyBytes"):
        bodies()
    assert bodies(maxBodyBytes=str(ROOM)) == [BODY]
