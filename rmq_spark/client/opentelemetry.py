"""OpenTelemetry: spans and counters for the producers and consumers of a process.

    send ──▶ span "send TOPIC" ──▶ its context becomes properties of the message
                                                     │
    listener ◀── span "process TOPIC" ◀── linked to ─┘ and, for a single message, its child

Names follow OpenTelemetry's conventions for messaging. The application supplies the SDK, the
exporter and the propagator. A failure here never reaches a send or a listener; the first one is
logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import Token
from dataclasses import replace
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

from rmq_spark import __version__
from rmq_spark.client.arguments import (
    explain_keywords,
)
from rmq_spark.client.errors import (
    ClientShutDown,
    MessageRejected,
    PartlySent,
    RouteNotFound,
    TooManyPending,
)
from rmq_spark.client.message import Message, MessageExt
from rmq_spark.client.observer import set_observer
from rmq_spark.client.results import SendResult
from rmq_spark.wire.message.properties import RESERVED_NAMES

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
    from opentelemetry.util.types import AttributeValue
except ImportError as missing:
    raise ModuleNotFoundError(
        "spans and counters need the module opentelemetry: pip install opentelemetry-api"
    ) from missing

_log = logging.getLogger(__name__)

_SCHEMA: Final = "https://opentelemetry.io/schemas/1.36.0"
"""The version of the naming conventions; later ones may rename RocketMQ's own attributes."""

_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_UNCHECKED_CHARS: Final = 7_000
"""Characters of properties that fit in RocketMQ's limit however UTF-8 encodes them."""

_NOT_SENT_ERRORS: Final = (
    ClientShutDown,
    MessageRejected,
    RouteNotFound,
    TooManyPending,
    TypeError,
)
"""Errors of messages that were never sent, and are therefore not counted as sent."""

_Attributes = dict[str, AttributeValue]
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Self = TypeVar("_Self")


@explain_keywords
def instrument(
    tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Make spans and count messages for all producers and consumers of the process.

    Calling it again replaces the providers.

    Args:
        tracer_provider: Makes the tracer; by default the application's global one.
        meter_provider: Makes the meter; by default the application's global one.
    """
    set_observer(_Telemetry(tracer_provider, meter_provider))


def uninstrument() -> None:
    """Undo `instrument`; spans that have begun are still ended."""
    set_observer(None)


def context_of(message: Message | MessageExt) -> Context:
    """Return the context that a message carries; an empty one if it carries none.

    Give it to a tracer as ``context``, so that a span of your own is below the sender's::

        with tracer.start_as_current_span("bill", context=context_of(message)):
            ...
    """
    return propagate.extract(message.properties, context=Context())


def _log_errors(
    method: Callable[Concatenate[_Self, _Arguments], _Result],
) -> Callable[Concatenate[_Self, _Arguments], _Result | None]:
    """Make a method return None instead of raising; the first error of all methods is logged."""

    @wraps(method)
    def wrapper(
        self: _Self, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result | None:
        try:
            return method(self, *args, **kwargs)
        except Exception:  # noqa: BLE001  # no provider's error may reach a send or a listener
            if not _Telemetry.has_failed:
                _Telemetry.has_failed = True
                text = (
                    "OpenTelemetry failed; messages continue without it, and later failures are "
                    "not logged"
                )
                _log.exception(text)
            return None

    return wrapper


class _Telemetry:
    """The observer that makes spans and counts; it holds the process's instruments."""

    has_failed = False

    def __init__(
        self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None
    ) -> None:
        _Telemetry.has_failed = False  # later failures are logged again
        self.tracer = trace.get_tracer("rocketpoll", __version__, tracer_provider, _SCHEMA)
        meter = metrics.get_meter("rocketpoll", __version__, meter_provider, _SCHEMA)
        self.sent_messages = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that producers tried to send."
        )
        self.consumed_messages = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages given to the application."
        )
        self.operation_duration = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of sends, with all their tries.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self.process_duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of calls of listeners.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

    @_log_errors
    def on_send(self, messages: Sequence[Message]) -> _SendSpan | None:
        if not messages or not all(map(_can_carry_context, messages)):
            return None
        return _SendSpan(self, messages)

    @_log_errors
    def on_process(self, group: str, messages: Sequence[MessageExt]) -> _ProcessSpan:
        return _ProcessSpan(self, group, messages)

    @_log_errors
    def on_poll(self, group: str, messages: Sequence[MessageExt]) -> None:
        topic = messages[0].real_topic
        attributes = _common_attributes("poll", "receive", topic, group)
        self.consumed_messages.add(len(messages), attributes)


class _ObservedSpan:
    """The common part of send and process spans: the span, its duration, and its failure."""

    def __init__(self, span: Span, attributes: _Attributes) -> None:
        self._span = span
        self._attributes = attributes
        self._started_at = time.perf_counter()
        self._duration: float | None = None
        self._ended_ns: int | None = None

    def _fail(self, kind: str, error: BaseException | None = None) -> None:
        self._attributes["error.type"] = kind
        self._span.set_attribute("error.type", kind)
        self._span.set_status(StatusCode.ERROR, kind if error is None else str(error))
        if error is not None:
            self._span.record_exception(error)

    def _record_end(self) -> None:
        self._duration, self._ended_ns = time.perf_counter() - self._started_at, time.time_ns()

    def _seconds(self) -> float:
        return time.perf_counter() - self._started_at if self._duration is None else self._duration

    @_log_errors
    def _end_span(self) -> None:
        self._span.end(self._ended_ns)


class _SendSpan(_ObservedSpan):
    """The span of one call that sends, or of a batch; messages carry its context."""

    def __init__(self, telemetry: _Telemetry, messages: Sequence[Message]) -> None:
        first = messages[0]
        attributes = _common_attributes("send", "send", first.topic)
        span = telemetry.tracer.start_span(
            f"send {first.topic}",
            kind=SpanKind.PRODUCER,
            attributes={**attributes, **_span_attributes(messages)},
        )
        super().__init__(span, attributes)
        self._telemetry = telemetry
        self._is_ended_by_future = False
        self.messages = messages
        self._inject()

    @_log_errors
    def _inject(self) -> None:
        carrier: dict[str, str] = {}
        propagate.inject(carrier, context=trace.set_span_in_context(self._span))
        self.messages = [_with_context(message, carrier) for message in self.messages]

    def __enter__(self) -> None:
        """Do nothing: the span began before, so that messages carry its context."""

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if not self._is_ended_by_future:
            self._end(error)

    @_log_errors
    def on_results(self, results: Sequence[SendResult]) -> None:
        if len(results) == 1 and len(self.messages) == 1:
            self._span.set_attribute("messaging.message.id", results[0].message_id)
            queue_id = str(results[0].queue.queue_id)
            self._span.set_attribute("messaging.destination.partition.id", queue_id)

    @_log_errors
    def end_with_future(self, future: Future[SendResult]) -> None:
        # The thread that reads the answer notes the end. Providers and exporters may take long, so
        # they run in the producer's thread of callbacks.
        Future.add_done_callback(future, lambda _: self._record_end())
        future.add_done_callback(self._on_done)
        self._is_ended_by_future = True

    def _on_done(self, future: Future[SendResult]) -> None:
        if future.cancelled():
            self._end(None, "CancelledError")
            return
        error = future.exception()
        if error is None:
            self.on_results((future.result(),))
        self._end(error)

    def _end(self, error: BaseException | None, reason: str = "") -> None:
        self._measure(error, reason)
        self._end_span()

    @_log_errors
    def _measure(self, error: BaseException | None, reason: str) -> None:
        seconds, count, telemetry = self._seconds(), len(self.messages), self._telemetry
        if isinstance(error, PartlySent):
            telemetry.sent_messages.add(error.messages_sent, dict(self._attributes))
            count -= error.messages_sent
        if error is not None or reason:
            self._fail(reason or type(error).__qualname__, error)
        if not isinstance(error, _NOT_SENT_ERRORS):
            telemetry.sent_messages.add(count, self._attributes)
        telemetry.operation_duration.record(seconds, self._attributes)


class _ProcessSpan(_ObservedSpan):
    """The span of one listener call, current in its thread while it runs."""

    def __init__(self, telemetry: _Telemetry, group: str, messages: Sequence[MessageExt]) -> None:
        first, count = messages[0], len(messages)
        sent_in = [context_of(message) for message in messages]
        contexts_of_spans = [trace.get_current_span(each).get_span_context() for each in sent_in]
        self._context = sent_in[0] if count == 1 else Context()
        attributes = _common_attributes("process", "process", first.real_topic, group)
        span = telemetry.tracer.start_span(
            f"process {first.real_topic}",
            context=self._context,
            kind=SpanKind.CONSUMER,
            attributes={**attributes, **_span_attributes(messages)},
            links=[Link(each) for each in contexts_of_spans if each.is_valid],
        )
        super().__init__(span, attributes)
        self._telemetry = telemetry
        self._token: Token[Context] | None = None
        telemetry.consumed_messages.add(count, dict(attributes))

    @_log_errors
    def __enter__(self) -> None:
        self._token = contexts.attach(trace.set_span_in_context(self._span, self._context))

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        self._detach_context()
        self._measure(error)
        self._end_span()

    @_log_errors
    def on_failure(self, reason: str) -> None:
        self._fail(reason)

    @_log_errors
    def _detach_context(self) -> None:
        if self._token is not None:
            contexts.detach(self._token)

    @_log_errors
    def _measure(self, error: BaseException | None) -> None:
        seconds = self._seconds()
        if error is not None:
            self._fail(type(error).__qualname__, error)
        self._telemetry.process_duration.record(seconds, self._attributes)


def _common_attributes(name: str, kind: str, topic: str, group: str = "") -> _Attributes:
    """Return the attributes that spans and measures share: those with few different values."""
    attributes: _Attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }
    if group:
        attributes["messaging.consumer.group.name"] = group
    return attributes


def _span_attributes(messages: Sequence[Message] | Sequence[MessageExt]) -> _Attributes:
    """Return the attributes of a single message, or the number of messages."""
    if len(messages) > 1:
        return {"messaging.batch.message_count": len(messages)}
    message = messages[0]
    found: _Attributes = {}
    if isinstance(message, MessageExt):
        found["messaging.message.id"] = message.message_id
        found["messaging.destination.partition.id"] = str(message.queue.queue_id)
    elif message.sharding_key:
        found["messaging.rocketmq.message.group"] = message.sharding_key
    if message.tags:
        found["messaging.rocketmq.message.tag"] = message.tags
    if keys := message.keys:
        found["messaging.rocketmq.message.keys"] = [keys] if isinstance(keys, str) else list(keys)
    if message.delay_level:
        found["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    return found


def _can_carry_context(found: object) -> bool:
    properties = getattr(found, "properties", None)
    return isinstance(found, Message) and isinstance(properties, Mapping)


def _with_context(message: Message, carrier: Mapping[str, str]) -> Message:
    """Return a message with a context added to its properties; its own properties stay.

    A ``tracestate`` belongs to its ``traceparent``, and is left out if the message has its own. A
    message that would exceed a broker's limits with the context is sent without it.
    """
    own = message.properties
    is_traced = "traceparent" in own
    more = {
        name: value
        for name, value in carrier.items()
        if name not in own and not (is_traced and name == "tracestate")
    }
    if not more or RESERVED_NAMES.intersection(more):
        return message
    with_context = replace(message, properties={**own, **more})
    text = "".join((*more, *more.values()))
    size = sum(len(name) + len(str(value)) for name, value in with_context.properties.items())
    is_plain = text.isascii() and "\1" not in text and "\2" not in text
    if size > _UNCHECKED_CHARS or not is_plain:
        try:
            with_context.properties_text("")
        except (
            MessageRejected,
            TypeError,
        ):  # the producer reports the fault
            return message
    return with_context
