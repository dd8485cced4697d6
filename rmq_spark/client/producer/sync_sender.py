"""SyncSender: blocking sends, retried until stored, out of time, or refused for good.

    a try ──> stored
       ├─ connection fails, or it `is_retryable` ──> the next one, at another broker if any
       └─ any other refusal ──> the end

A try that has to connect first gets only its share of the timeout, so that time is left for other
brokers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    UNREACHABLE_ERRORS,
    BrokerNotFound,
    BrokerRefused,
    ClientError,
    ConnectionFailed,
    MessageIllegal,
    PartlySent,
    SendFailed,
)
from rmq_spark.client.message import Message
from rmq_spark.client.producer.prepared_message import BatchPart, PreparedMessage
from rmq_spark.client.producer.topic_sender import (
    RETRY_MS_MIN,
    TopicSender,
    has_time_to_retry,
    is_retryable,
    is_route_stale,
)
from rmq_spark.client.results import SendResult, SendStatus
from rmq_spark.wire.message_queue import MessageQueue


class _Attempt(NamedTuple):
    """One try of a send: its queue, its time, and the number of tries left after it."""

    queue: MessageQueue
    remaining_ms: int
    attempts_left: int
    deadline: float

    @property
    def has_next(self) -> bool:
        return self.attempts_left > 0 and has_time_to_retry(self.deadline, time.monotonic())


class SyncSender:
    """The blocking sends of one producer. All methods may be called from any thread."""

    def __init__(self, sender: TopicSender, *, retries: int, is_retried_when_not_ok: bool) -> None:
        """With ``is_retried_when_not_ok``, resend what is not stored with SEND_OK."""
        self.retries = retries
        self._sender = sender
        self._instance = sender.instance
        self._is_retried_when_not_ok = is_retried_when_not_ok

    def send(self, prepared: PreparedMessage, timeout_ms: int) -> SendResult:
        """Send to a queue of the topic, and retry elsewhere if that fails."""
        tries: list[ClientError] = []
        stored: SendResult | None = None
        for each in self._attempts(prepared.topic, timeout_ms):
            try:
                stored = self.send_once(prepared, each.queue, each.remaining_ms, each.attempts_left)
            except (*UNREACHABLE_ERRORS, BrokerRefused) as error:  # noqa: PERF203  # each try has an outcome of its own
                if not is_retryable(error):
                    if stored is None:
                        raise
                    break
                tries.append(error)
                self._refresh_route_after(error, prepared.topic, each)
            else:
                is_ok = stored.send_status is SendStatus.SEND_OK
                if is_ok or not self._is_retried_when_not_ok or not each.attempts_left:
                    return stored
        if stored is not None:  # stored, but with another status than SEND_OK
            return stored
        raise SendFailed(prepared.topic, tries)

    def send_once(
        self,
        prepared: PreparedMessage,
        queue: MessageQueue,
        timeout_ms: int,
        attempts_left: int = 0,
    ) -> SendResult:
        """Send to one queue, with one try."""
        instance = self._instance
        started = time.monotonic()
        try:
            address = instance.routes.master_address(queue.broker_name)
            instance.connections.connect(address, timeout_ms // (attempts_left + 1))
            remaining_ms = max(timeout_ms - int((time.monotonic() - started) * 1000), 1)
            header = prepared.header(queue)
            result = self._sender.strip_result(
                instance.api.send(
                    address,
                    header,
                    prepared.body,
                    prepared.message_id,
                    remaining_ms,
                    is_reply=prepared.is_reply,
                )
            )
        except CONNECTION_FAULTS:
            self._sender.queue_selector.record_failure(queue.broker_name)
            raise
        cost_ms = (time.monotonic() - started) * 1000
        self._sender.queue_selector.record_latency(queue.broker_name, cost_ms)
        if self._sender.tracer is not None:
            self._sender.tracer.record_send(prepared, address, result, int(cost_ms))
        return result

    def send_batch(self, messages: Iterable[Message], timeout_ms: int) -> list[SendResult]:
        """Send messages of one topic together, in as few requests as the brokers' limits allow."""
        todo = self._sender.prepare_batches(messages)
        todo.reverse()
        results: list[SendResult] = []
        sent = 0
        while todo:
            parts = todo.pop()
            try:
                results.append(self._send_parts(parts, timeout_ms))
            except ClientError as error:
                half = len(parts) // 2
                if not half or not isinstance(error, MessageIllegal):
                    raise _partial_failure(error, results, sent) from error
                # The broker's limit is below ours: the two halves may pass.
                todo += [parts[half:], parts[:half]]
            else:
                sent += len(parts)
        return results

    def _send_parts(self, parts: Sequence[BatchPart], timeout_ms: int) -> SendResult:
        """Send a batch: with a sharding key, to the key's queue, with one try."""
        first = parts[0].message
        fixed = self._sender.fixed_queue(first, None)

        def send(prepared: PreparedMessage) -> SendResult:
            if fixed is not None:
                return self.send_once(prepared, fixed, timeout_ms)
            return self.send(prepared, timeout_ms)

        try:
            return send(self._sender.encode_batch(parts))
        except MessageIllegal:
            if len(parts) > 1:
                raise
            # A batch is larger than the body of its only message, which may be as large as allowed.
            return send(self._sender.prepare(first))

    def send_one_way(self, prepared: PreparedMessage, timeout_ms: int) -> None:
        """Send to a queue without a response; if its broker is unreachable, to another."""
        tries: list[ClientError] = []
        for each in self._attempts(prepared.topic, timeout_ms):
            try:
                return self.send_one_way_once(
                    prepared, each.queue, each.remaining_ms // (each.attempts_left + 1)
                )
            except (ConnectionFailed, BrokerNotFound) as error:  # noqa: PERF203  # each try has an outcome of its own
                tries.append(error)
                self._refresh_route_after(error, prepared.topic, each)
        raise SendFailed(prepared.topic, tries)

    def send_one_way_once(
        self, prepared: PreparedMessage, queue: MessageQueue, timeout_ms: int
    ) -> None:
        """Send to one queue without a response, with one try."""
        try:
            address = self._instance.routes.master_address(queue.broker_name)
            self._instance.connections.connect(address, timeout_ms)
            header = prepared.header(queue)
            self._instance.api.send_one_way(
                address, header, prepared.body, is_reply=prepared.is_reply
            )
        except CONNECTION_FAULTS:
            self._sender.queue_selector.record_failure(queue.broker_name)
            raise

    def _attempts(self, topic: str, timeout_ms: int) -> Iterator[_Attempt]:
        """Yield one try after the other while there is time, each at another broker if any."""
        deadline = time.monotonic() + timeout_ms / 1000
        failed: str | None = None
        for left in range(self.retries, -1, -1):
            if failed is not None and not has_time_to_retry(deadline, time.monotonic()):
                return
            target = self._sender.queue_selector.select(self._sender.publish_queues(topic), failed)
            # Fetching the topic's route may have taken a while.
            remaining_ms = max(
                int((deadline - time.monotonic()) * 1000), min(timeout_ms, RETRY_MS_MIN)
            )
            yield _Attempt(target, remaining_ms, left, deadline)
            failed = target.broker_name

    def _refresh_route_after(self, error: ClientError, topic: str, attempt: _Attempt) -> None:
        """Refresh the topic's route if the error of a try suggests that it has changed.

        This does not wait for the route if there is no further try, or if a connection failed and
        another broker is next. After a broker's refusal it waits: the next broker's queues may have
        changed as well.
        """
        if not is_route_stale(error):
            return
        if not attempt.has_next:
            self._instance.refresh_routes_soon()
            return
        known = {queue.broker_name for queue in self._sender.publish_queues(topic)}
        has_other_broker = isinstance(error, CONNECTION_FAULTS) and known - {
            attempt.queue.broker_name
        }
        seconds = (
            0
            if has_other_broker
            else (attempt.deadline - time.monotonic()) / (attempt.attempts_left + 1)
        )
        self._instance.routes.refresh_within(topic, max(seconds, 0))


def _partial_failure(error: ClientError, results: Sequence[SendResult], sent: int) -> ClientError:
    if not results:
        return error
    tries = error.tries if isinstance(error, SendFailed) else (error,)
    return PartlySent(results[0].queue.topic, tries, results, sent)
