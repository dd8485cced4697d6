"""Traces of producers and consumers reach the trace topic, and never delay or fail the traced
operation."""

import asyncio
import logging
import threading

import pytest
from support.brokers.broker_kinds import wait_until

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.aio.consumer import Consumer as AioConsumer
from rmq_spark.client.aio.producer import Producer as AioProducer
from rmq_spark.client.consumer.dispatch.listeners import ConsumeConcurrentlyStatus
from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.settings import LitePullSettings, PushSettings
from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.producer.trace_dispatcher import PENDING_MAX, TraceDispatcher
from rmq_spark.client.producer.transaction_producer import TransactionProducer, TransactionState
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.names import TRACE_TOPIC
from rmq_spark.wire.trace import (
    ConsumeReturnType,
    MessageTrace,
    TraceMessageType,
    TraceType,
    decode_traces,
)


@pytest.fixture
def address(running_broker, api):
    config = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
    api.admin.create_topic(running_broker.address, config)
    return running_broker.address


@pytest.fixture
def admin(address):
    with Admin(address) as admin:
        yield admin


def traced(admin, message_id, count):
    """Return the traces of a message after this number is stored."""
    wait_until(f"{count} traces", lambda: len(admin.message_traces(message_id)) >= count)
    found = admin.message_traces(message_id)
    assert len(found) == count
    return found


def test_sends_of_each_kind_are_traced(address, admin):
    message = Message("T", b"12345", tags="red", keys=["k1", "k2"])
    with Producer("P", address, enable_trace=True) as producer:
        results = [producer.send(message), producer.send_async(message).result(10)]
        batch = producer.send_batch([message, Message("T", b"2")])
        producer.send_one_way(Message("T", b"nobody knows"))
        delayed = producer.send(Message("T", b"x", delay_level=18))
        assert producer.health().dropped_traces == 0
    for result in results:
        (trace,) = traced(admin, result.message_id, 1)
        assert trace.trace_type is TraceType.PUB
        assert (trace.group, trace.topic, trace.region_id) == ("P", "T", "DefaultRegion")
        assert (trace.tags, trace.keys, trace.body_length) == ("red", "k1 k2", 5)
        assert trace.offset_message_id == result.offset_message_id
        assert (trace.store_host, trace.is_success) == (address, True)
        assert trace.message_type is TraceMessageType.NORMAL
        assert 0 <= trace.cost_ms < 60_000 < trace.timestamp_ms
    for number, message_id in enumerate(batch[0].message_id.split(",")):
        (trace,) = traced(admin, message_id, 1)
        assert trace.body_length == (5, 1)[number]
        assert trace.offset_message_id == batch[0].offset_message_id.split(",")[number]
    (trace,) = traced(admin, delayed.message_id, 1)
    assert trace.message_type is TraceMessageType.DELAY
    found = {
        each
        for message in admin.messages_by_key(TRACE_TOPIC, "k1")
        for each in decode_traces(message.body)
        if each.keys == "k1 k2"
    }
    assert len(found) == 3


def test_transactions_are_traced_with_their_end(address, admin):
    def check(_):
        return TransactionState.UNKNOWN

    ended = {}
    with TransactionProducer("P", address, check_listener=check, enable_trace=True) as producer:
        for state in (TransactionState.COMMIT, TransactionState.ROLLBACK):
            done = producer.send_in_transaction(Message("T", b"x"), lambda _, state=state: state)
            ended[done.send_result.message_id] = f"{state.name}_MESSAGE"
    for message_id, state in ended.items():
        half, end = traced(admin, message_id, 2)
        assert (half.trace_type, half.message_type) == (TraceType.PUB, TraceMessageType.HALF)
        assert (end.trace_type, end.transaction_state) == (TraceType.END_TRANSACTION, state)
        assert (end.group, end.topic, end.store_host) == ("P", "T", address)


def test_listener_calls_are_traced_with_their_end(address, admin):
    came, end = threading.Event(), threading.Event()
    outcomes = {b"good": None, b"later": ConsumeConcurrentlyStatus.RECONSUME_LATER}

    def listen(messages, _):
        (message,) = messages
        if message.body == b"last":
            came.set()
        if message.body == b"bad":
            raise ValueError(message.body)
        return outcomes.get(message.body)

    settings = PushSettings(enable_trace=True)
    consumer = PushConsumer("G", address, listener=listen, settings=settings, start="earliest")
    consumer.subscribe("T")
    with Producer("P", address) as producer, consumer:
        sent = {
            body: producer.send(Message("T", body, keys="k"))
            for body in (b"good", b"bad", b"later", b"last")
        }
        assert came.wait(20)
    for body, status in (
        (b"good", ConsumeReturnType.SUCCESS),
        (b"bad", ConsumeReturnType.EXCEPTION),
        (b"later", ConsumeReturnType.FAILED),
    ):
        before, after = traced(admin, sent[body].message_id, 2)[:2]
        kinds = {before.trace_type, after.trace_type}
        assert kinds == {TraceType.SUB_BEFORE, TraceType.SUB_AFTER}
        if before.trace_type is TraceType.SUB_AFTER:
            before, after = after, before
        assert before.request_id == after.request_id
        assert (before.group, after.group, before.keys) == ("G", "G", "k")
        assert (after.return_type, after.is_success) == (
            status,
            status is ConsumeReturnType.SUCCESS,
        )
    assert not end.is_set()


def test_polls_are_traced(address, admin):
    consumer = LitePullConsumer("G", address, LitePullSettings(enable_trace=True), start="earliest")
    consumer.subscribe("T")
    with Producer("P", address) as producer, consumer:
        sent = producer.send(Message("T", b"x"))
        assert consumer.poll(20_000)
    assert {each.trace_type for each in traced(admin, sent.message_id, 2)} == {
        TraceType.SUB_BEFORE,
        TraceType.SUB_AFTER,
    }


def test_asyncio_members_are_traced(address, admin):
    async def run():
        settings = LitePullSettings(enable_trace=True)
        async with (
            AioProducer("P", address, enable_trace=True) as producer,
            AioConsumer("G", address, settings, start="earliest") as consumer,
        ):
            await consumer.subscribe("T")
            sent = await producer.send(Message("T", b"x"))
            async for _ in consumer:
                return sent
        return None

    sent = asyncio.run(run())
    assert {each.trace_type for each in traced(admin, sent.message_id, 3)} == {
        TraceType.PUB,
        TraceType.SUB_BEFORE,
        TraceType.SUB_AFTER,
    }


def test_traces_go_to_the_topic_that_is_given_and_are_not_traced_themselves(address, admin):
    admin.create_topic("Traces", 1)
    with Producer("P", address, enable_trace=True, trace_topic="Traces") as producer:
        sent = producer.send(Message("T", b"x"))
        producer.send(Message("Traces", b"no trace"))
    wait_until("a trace", lambda: admin.message_traces(sent.message_id, "Traces"))
    assert admin.message_traces(sent.message_id) == ()
    assert admin.topic_size("Traces").messages == 2


def test_trace_topic_that_cannot_be_written_fails_no_send(address, admin, caplog):
    admin.create_topic("Traces", config=TopicConfig(topic_name="Traces", perm=4))
    with Producer("P", address, enable_trace=True, trace_topic="Traces") as producer:
        for _ in range(3):
            producer.send(Message("T", b"x"))
        wait_until("they are dropped", lambda: producer.health().dropped_traces == 3)
    dropped = [
        each for each in caplog.messages if "sending traces of P failed, dropping them" in each
    ]
    assert len(dropped) == 1
    assert "no route to topic Traces: " in dropped[0]


def trace_of(message_id, keys):
    return MessageTrace(
        trace_type=TraceType.PUB,
        message_id=message_id,
        keys=keys,
        group="G",
        topic="T",
        store_host="h:1",
        offset_message_id="0",
    )


TRACE = trace_of("id", "k")


def test_queue_of_traces_is_bounded_and_its_recovery_is_logged(caplog):
    caplog.set_level(logging.WARNING)
    held, sent = threading.Event(), []

    def send(message):
        held.wait(30)
        sent.append(message)

    dispatcher = TraceDispatcher(None, "G", send=send)
    dispatcher.append([TRACE] * 100)
    wait_until("some are being sent", lambda: len(dispatcher._pending) == 0)
    dispatcher.append([TRACE] * (PENDING_MAX + 7))
    assert dispatcher.dropped_count == 7
    held.set()
    dispatcher.stop()
    assert sum(len(decode_traces(each.body)) for each in sent) == PENDING_MAX + 100
    assert all(each.keys == ["id", "k"] for each in sent)
    assert [each.partition(" after ")[0] for each in caplog.messages] == [
        (
            "sending traces of G failed, dropping them; sends and consumers are not affected: 2048 "
            "traces wait already"
        ),
        "sending traces of G recovered",
    ]
    assert dispatcher.thread_count == 0


def test_keys_of_a_trace_message_fit_into_its_properties():
    sent = []
    dispatcher = TraceDispatcher(None, "G", send=sent.append)
    long = [trace_of(f"{n:032}", "é" * 2_000) for n in range(20)]
    huge = trace_of("huge", "x" * 30_000)
    dispatcher.append([*long, huge])
    dispatcher.stop()
    assert [each for message in sent for each in decode_traces(message.body)] == [*long, huge]
    for message in sent:
        message.check()
        message.properties_text("x" * 32)


@pytest.mark.parametrize(
    "arguments",
    [{"enable_trace": 1}, {"trace_topic": "a b"}, {"trace_topic": "SCHEDULE_TOPIC_XXXX"}],
)
def test_trace_arguments_that_cannot_work_are_refused(arguments):
    (name,) = arguments
    kind = TypeError if name == "enable_trace" else MessageRejected
    with pytest.raises(kind, match=name if kind is TypeError else "topic"):
        Producer("P", "127.0.0.1:1", **arguments)
    with pytest.raises(kind):
        PushConsumer(
            "G", "127.0.0.1:1", listener=lambda *_: None, settings=PushSettings(**arguments)
        )
