"""ConsumeMessageConcurrentlyService: calls the listener from many threads, in no order.

Messages that the listener failed to consume, or has had for too long, are sent back to the broker.
If no broker accepts them, they stay in this process and are retried. The committed offset is that
of the first message that is not finished.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from rmq_spark.client.arguments import INT32_MAX
from rmq_spark.client.concurrency.per_broker_executor import PerBrokerExecutor
from rmq_spark.client.concurrency.scheduler import Scheduler
from rmq_spark.client.consumer.dispatch.listeners import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    MessageListenerConcurrently,
    call_listener,
    clamp_listener_value,
    restore_properties,
)
from rmq_spark.client.consumer.dispatch.redelivery import DEAD_LETTER, FIRST_DELAY_LEVEL, Redelivery
from rmq_spark.client.consumer.pull.pull_request import PullRequest
from rmq_spark.client.message import MessageExt

_log = logging.getLogger(__name__)

LOCAL_RETRY_MS = 5_000
_FailedMessage = tuple[MessageExt, MessageExt]
"""A message as a listener has left it, and as it was delivered."""

_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


AcknowledgeFunction = Callable[[PullRequest, Sequence[MessageExt]], bool]
"""Acknowledges messages of a queue; returns False if it was dropped.

It moves the offset to be committed, and resumes pulling where that was throttled.
"""


@dataclass(slots=True, eq=False)
class ConsumeMessageConcurrentlyService:
    """Calls a concurrent listener, and sends back to brokers what it could not consume."""

    is_orderly: ClassVar = False

    listener: MessageListenerConcurrently
    threads: Scheduler
    retry_executor: PerBrokerExecutor
    """Sends messages back, so that no listener waits for a broker."""
    retries: Redelivery | None
    """None in BROADCASTING: what fails is logged and not retried."""
    acknowledge: AcknowledgeFunction
    batch_size: int

    def submit(self, request: PullRequest, messages: Sequence[MessageExt]) -> None:
        """Submit messages to the listener, in batches."""
        for start in range(0, len(messages), self.batch_size):
            batch = messages[start : start + self.batch_size]
            self.threads.schedule(partial(self._consume, request, batch))

    def _consume(self, request: PullRequest, batch: Sequence[MessageExt]) -> None:
        # Some may have been given back before this retry, as they had taken too long.
        batch = [message for message in batch if request.process_queue.is_waiting(message)]
        if not batch or request.process_queue.is_dropped:
            return
        request.process_queue.start_consuming(batch)
        properties = [dict(message.properties) for message in batch]
        failed_from, delay_level = self.call_listener(request, batch)
        if request.process_queue.is_dropped:  # also in a process that the listener has forked
            return
        if done := batch[:failed_from]:
            self.acknowledge(request, done)
        if failed := batch[failed_from:]:
            sent = restore_properties(failed, properties[failed_from:])
            pairs = list(zip(failed, sent, strict=True))
            self.retry_executor.for_broker(request.queue.broker_name).schedule(
                lambda: self._retry_failed(request, pairs, delay_level)
            )

    def _retry_failed(
        self, request: PullRequest, failed: Sequence[_FailedMessage], delay_level: int
    ) -> None:
        """Give failed messages back to a broker, or else have them tried again here."""
        if request.process_queue.is_dropped:
            return
        kept: list[_FailedMessage] = []
        for message, sent in failed:
            if self.retries is None:
                _log.warning("BROADCASTING: %s failed, and is not tried again", message.message_id)
            elif request.process_queue.is_waiting(message) and not self.retries.send_back(
                sent, delay_level
            ):
                kept.append((message, sent))
        again = [replace(sent, reconsume_times=sent.reconsume_times + 1) for _, sent in kept]
        here = [message for message, _ in kept]
        request.process_queue.replace_messages(list(zip(here, again, strict=True)))
        given = [message for message, _ in failed if message not in here]
        if self.acknowledge(request, given) and again:
            self.threads.schedule(lambda: self._consume(request, again), LOCAL_RETRY_MS)

    def call_listener(self, request: PullRequest, batch: Sequence[MessageExt]) -> tuple[int, int]:
        """Call the listener; return the index of the first failure, and the retry's delay level."""
        context = ConsumeConcurrentlyContext(request.queue)
        status = call_listener(self.listener, batch, context, _SUCCESS)
        name, level = "delay_level_when_next_consume", context.delay_level_when_next_consume
        delay_level = clamp_listener_value(name, level, 0, DEAD_LETTER, INT32_MAX)
        if status is not _SUCCESS:
            return 0, delay_level
        if context.ack_index is None:
            return len(batch), delay_level
        last = clamp_listener_value("ack_index", context.ack_index, -1, -1, len(batch) - 1)
        return last + 1, delay_level

    def clean_expired(self, requests: Sequence[PullRequest], timeout_ms: int) -> None:
        """Send back what listeners have had for too long, because it holds the offset back."""
        for request in requests:
            for message in request.process_queue.pop_expired(timeout_ms):
                self.retry_executor.for_broker(request.queue.broker_name).schedule(
                    partial(self._send_back_expired, request, message, timeout_ms)
                )

    def _send_back_expired(
        self, request: PullRequest, message: MessageExt, timeout_ms: int
    ) -> None:
        cache = request.process_queue
        if cache.is_dropped or not cache.is_waiting(message):
            return
        if self.retries is None:  # nobody would give it again, should the listener not end
            text = "BROADCASTING: %s takes longer than %d ms, and its offset waits for it"
            _log.warning(text, message.message_id, timeout_ms)
        elif self.retries.send_back(message, FIRST_DELAY_LEVEL):
            _log.warning("%s took longer than %d ms", message.message_id, timeout_ms)
            self.acknowledge(request, (message,))
            return
        cache.start_consuming((message,))
