"""Spans, trace context and counters of an instrumented client."""

import asyncio
import logging
import time
from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.messages.received_messages import several
from support.programs.python_programs import python_program

from rmq_spark.client import observer
from rmq_spark.client.consumer.dispatch.listeners import ConsumeConcurrentlyStatus
from rmq_spark.client.observer import observe_listener
from rmq_spark.client.opentelemetry import context_of, instrument, uninstrument
from rmq_spark.client.producer.async_sender import SendFuture
from rocketpoll import (
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    Message,
    Producer,
    PushConsumer,
    PushSettings,
    aio,
)
from rocketpoll.errors import MessageRejected, RequestTimeout

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
ORDER = Message("orders", b"one", tags="paid", keys="order-42")
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Seen:
    """Collects the output of an application's exporters."""

    def __init__(self):
        self._pending_pulls, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._pending_pulls))
        self.tracer = provider.get_tracer("application")
        instrument(provider, MeterProvider([self._reader]))

    def spans(self, name):
        return [span for span in self._pending_pulls.get_finished_spans() if span.name == name]

    def measures(self, name):
        """Return the points of a metric; for a histogram, the number of records."""
        data = self._reader.get_metrics_data()
        return [
            (getattr(point, "value", None) or point.count, dict(point.attributes))
            for of_resource in data.resource_metrics
            for scope in of_resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def seen():
    yield Seen()
    uninstrument()


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def producer(broker):
    with Producer("shop", broker.address) as running:
        yield running


def polled(broker, group, topic, count):
    """Return the messages that a new group's consumer polls."""
    settings = LitePullSettings(consume_from_where=FIRST)
    with LitePullConsumer(group, broker.address, settings) as consumer:
        consumer.subscribe(topic)
        found = []
        while len(found) < count:
            found += consumer.poll(10_000)
    return found


def heard(broker, group, topic, kind="listener", answers=(None,)):
    """Call a listener once for each answer; return its messages, span and baggage."""
    calls, left = SimpleQueue(), list(answers)

    def listen(messages, context):
        calls.put((messages, trace.get_current_span(), baggage.get_all()))
        answer = left.pop(0) if left else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    settings = PushSettings(consume_from_where=FIRST)
    with PushConsumer(group, broker.address, settings=settings, **{kind: listen}) as consumer:
        consumer.subscribe(topic)
        return [calls.get(timeout=30) for _ in answers]


def test_send_span_has_message_attributes(seen, producer):
    with seen.tracer.start_as_current_span("checkout") as parent:
        result = producer.send(replace(ORDER, topic="plain", sharding_key="ada", delay_level=1))
    [span] = seen.spans("send plain")
    assert span.kind is SpanKind.PRODUCER
    assert span.parent.span_id == parent.get_span_context().span_id
    assert dict(span.attributes) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "plain",
        "messaging.destination.partition.id": str(result.queue.queue_id),
        "messaging.message.id": result.message_id,
        "messaging.rocketmq.message.group": "ada",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("order-42",),
        "messaging.rocketmq.message.delay_time_level": 1,
    }


def test_sent_message_carries_its_spans_trace_context(seen, broker, producer):
    producer.send(replace(ORDER, topic="borne"))
    [message] = polled(broker, "borne", "borne", 1)
    [span] = seen.spans("send borne")
    found = trace.get_current_span(context_of(message)).get_span_context()
    assert (found.trace_id, found.span_id) == (span.context.trace_id, span.context.span_id)
    assert found.is_remote


def test_trace_properties_set_by_the_user_are_kept(seen, broker, producer):
    given = {"traceparent": PARENT, "colour": "red"}
    producer.send(replace(ORDER, topic="own", properties=given))
    [message] = polled(broker, "own", "own", 1)
    assert message.properties["traceparent"] == PARENT
    assert message.properties["colour"] == "red"
    assert "tracestate" not in message.properties
    assert given == {"traceparent": PARENT, "colour": "red"}


def test_message_without_trace_context_has_an_empty_one(seen):
    with seen.tracer.start_as_current_span("around"):
        assert not context_of(ORDER)


def test_async_send_span_ends_with_its_result(seen, producer):
    result = producer.send_async(replace(ORDER, topic="later")).result()
    done = SimpleQueue()
    producer.send_async(replace(ORDER, topic="behind")).add_done_callback(done.put)
    done.get(timeout=10)  # callbacks run in order, so that of the first send has run
    [span] = seen.spans("send later")
    assert span.attributes["messaging.message.id"] == result.message_id


def test_async_send_span_ends_with_the_answer_despite_slow_callbacks(seen):
    waiting = []
    future = SendFuture(SimpleNamespace(submit=waiting.append))
    sending = observer.observe_send([replace(ORDER, topic="waits")])
    with sending:
        sending.end_with_future(future)
    future.set_exception(RequestTimeout("10.0.0.7:10911", 310, 3_000))
    answered_ns = time.time_ns()
    assert not seen.spans("send waits")
    for callback in waiting:
        callback()
    [span] = seen.spans("send waits")
    assert span.end_time <= answered_ns
    assert span.attributes["error.type"] == "RequestTimeout"


def test_one_way_send_has_a_span(seen, producer):
    producer.send_one_way(replace(ORDER, topic="one-way"))
    assert len(seen.spans("send one-way")) == 1


def test_batch_send_has_one_span_for_all_messages(seen, broker, producer):
    producer.send_batch(replace(ORDER, topic="batch", body=b"%d" % n) for n in range(3))
    [span] = seen.spans("send batch")
    assert span.attributes["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in span.attributes
    parents = {each.properties["traceparent"] for each in polled(broker, "batch", "batch", 3)}
    assert [parent.split("-")[2] for parent in parents] == [f"{span.context.span_id:016x}"]
    [(count, attributes)] = seen.measures("messaging.client.sent.messages")
    assert (count, attributes["messaging.destination.name"]) == (3, "batch")


def test_failed_send_has_an_error_span_and_is_not_counted_as_sent(seen, producer):
    with pytest.raises(MessageRejected):
        producer.send(Message("refused", b""))
    [span] = seen.spans("send refused")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "MessageRejected"
    assert [event.name for event in span.events] == ["exception"]
    assert not seen.measures("messaging.client.sent.messages")
    [(_, attributes)] = seen.measures("messaging.client.operation.duration")
    assert attributes["error.type"] == "MessageRejected"


@pytest.mark.parametrize("given", [None, "text", Message("orders", b"1", properties=5)])
def test_instrumented_producer_refuses_invalid_message_as_before(seen, producer, caplog, given):
    with pytest.raises(TypeError):
        producer.send(given)
    assert "OpenTelemetry" not in caplog.text


def test_aio_send_span_is_a_child_of_its_tasks_span(seen, broker):
    async def send():
        async with aio.Producer("aio", broker.address) as producer:
            with seen.tracer.start_as_current_span("task"):
                await producer.send(replace(ORDER, topic="coroutine"))
                await producer.send_batch([replace(ORDER, topic="coroutines")] * 2)
                await producer.send_async(replace(ORDER, topic="future"))
                with pytest.raises(MessageRejected):
                    producer.send_async(replace(ORDER, topic="refused", body=b""))

    asyncio.run(send())
    [parent] = seen.spans("task")
    for name in ("send coroutine", "send coroutines", "send future", "send refused"):
        [span] = seen.spans(name)
        assert span.parent.span_id == parent.context.span_id
    assert span.status.status_code is StatusCode.ERROR


def test_polls_of_threads_and_coroutines_count_what_they_return(seen, broker, producer):
    producer.send(replace(ORDER, topic="polled"))
    polled(broker, "by-thread", "polled", 1)

    async def poll():
        settings = LitePullSettings(consume_from_where=FIRST)
        async with aio.Consumer("by-task", broker.address, settings) as consumer:
            await consumer.subscribe("polled")
            async for _ in consumer:
                return

    asyncio.run(poll())
    found = {
        attributes["messaging.consumer.group.name"]: count
        for count, attributes in seen.measures("messaging.client.consumed.messages")
    }
    assert found == {"by-thread": 1, "by-task": 1}


@pytest.mark.parametrize("kind", ["listener", "orderly_listener"])
def test_listener_runs_in_a_span_below_the_sends_span(seen, broker, producer, kind):
    topic = kind.replace("_", "-")
    producer.send(replace(ORDER, topic=topic, properties={"baggage": "customer=ada"}))
    [([message], current, bag)] = heard(broker, topic, topic, kind)
    [sent], [span] = seen.spans(f"send {topic}"), seen.spans(f"process {topic}")
    assert current.get_span_context().span_id == span.context.span_id
    assert bag == {"customer": "ada"}
    assert span.kind is SpanKind.CONSUMER
    assert span.parent.span_id == sent.context.span_id
    assert [link.context.span_id for link in span.links] == [sent.context.span_id]
    assert span.attributes["messaging.consumer.group.name"] == topic
    assert span.attributes["messaging.message.id"] == message.message_id
    [(count, _)] = seen.measures("messaging.process.duration")
    assert count == 1
    assert [count for count, _ in seen.measures("messaging.client.consumed.messages")] == [1]


def test_listener_span_links_each_message_of_a_batch(seen):
    messages = [
        replace(each, properties={"traceparent": parent})
        for each, parent in zip(
            several(0, 1, 2), (PARENT, PARENT.replace("b7", "b8"), "none"), strict=True
        )
    ]
    success = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
    observe_listener("many", lambda *_: None, success)(messages, None)
    [span] = seen.spans(f"process {messages[0].topic}")
    assert span.parent is None
    assert [f"{link.context.span_id:016x}"[:2] for link in span.links] == ["b7", "b8"]
    assert span.attributes["messaging.batch.message_count"] == 3


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ConsumeConcurrentlyStatus.RECONSUME_LATER, "RECONSUME_LATER"),
        (ValueError("no"), "ValueError"),
        (True, "bool"),
    ],
)
def test_failing_listeners_span_has_its_error_type(seen, broker, producer, answer, reason):
    topic = f"fails-{reason}"
    producer.send(replace(ORDER, topic=topic))
    heard(broker, topic, topic, answers=[answer])
    [span] = seen.spans(f"process {topic}")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == reason
    [(_, attributes)] = seen.measures("messaging.process.duration")
    assert attributes["error.type"] == reason


class Broken(TracerProvider):
    """A provider whose tracers fail."""

    def get_tracer(self, *_, **__):
        return self

    def start_span(self, *_, **__):
        raise RuntimeError("the exporter is away")


def test_telemetry_that_fails_harms_neither_sends_nor_listeners(broker, producer, caplog):
    caplog.set_level(logging.ERROR)
    instrument(Broken())
    try:
        for _ in range(3):
            producer.send(replace(ORDER, topic="unharmed"))
        assert len(heard(broker, "unharmed", "unharmed", answers=[None] * 3)) == 3
    finally:
        uninstrument()
    said = [record for record in caplog.records if "OpenTelemetry failed" in record.message]
    assert len(said) == 1


def test_message_without_space_for_trace_context_is_sent_without(seen, broker, producer):
    full = {"notes": "x" * 32_150}
    producer.send(replace(ORDER, topic="full", properties=full))
    [message] = polled(broker, "full", "full", 1)
    assert "traceparent" not in message.properties
    assert len(seen.spans("send full")) == 1


def test_uninstrument_stops_tracing(seen, broker, producer):
    uninstrument()
    producer.send(replace(ORDER, topic="unseen"))
    [message] = polled(broker, "unseen", "unseen", 1)
    assert "traceparent" not in message.properties
    assert not seen.spans("send unseen")


def test_opentelemetry_without_its_package_names_the_extra(tmp_path):
    done = python_program(
        "import sys; sys.modules['opentelemetry'] = None\nimport rocketpoll.opentelemetry",
        cwd=tmp_path,
    )
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: spans and counters need the module opentelemetry: "
        "pip install opentelemetry-api"
    )
