"""ConsumeMessageConcurrentlyService: calls the listener from many threads, in no order.

Messages that the listener failed to consume, or has had for too long, are sent back to the broker.
If no broker accepts them, they stay in this process and are retried. The committed offset is that
of the first message that is not finished.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

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
from rmq_spark.client.consumer.pull.pull_message_service import BrokerSchedulers, PullRequest
from rmq_spark.client.message import MessageExt

_log = logging.getLogger(__name__)

LOCAL_RETRY_MS = 5_000
_LEVEL_MAX = (1 << 31) - 1
_FailedMessage = tuple[MessageExt, MessageExt]
"""A message as a listener has left it, and as it was delivered."""

_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


class AcknowledgeFunction(Protocol):
    """Acknowledges messages of a queue; returns False if it was dropped."""

    def __call__(self, request: PullRequest, messages: Sequence[MessageExt], /) -> bool:
        """Move the offset to be committed, and let pulling go on where it was throttled."""


class ConsumeMessageConcurrentlyService:
    """Calls a concurrent listener, and sends back to brokers what it could not consume."""

    is_orderly = False

    def __init__(
        self,
        listener: MessageListenerConcurrently,
        threads: Scheduler,
        broker_schedulers: BrokerSchedulers,
        retries: Redelivery | None,
        acknowledge: AcknowledgeFunction,
        batch_size: int,
    ) -> None:
        """Send messages back in the executors of ``broker_schedulers``, so that no listener waits.

        Without ``retries`` (BROADCASTING) what fails is logged and not retried.
        """
        self._listener = listener
        self._threads = threads
        self._broker_schedulers = broker_schedulers
        self._retries = retries
        self._acknowledge = acknowledge
        self._batch_size = batch_size

    def submit(self, request: PullRequest, messages: Sequence[MessageExt]) -> None:
        """Submit messages to the listener, in batches."""
        for start in range(0, len(messages), self._batch_size):
            self._submit_batch(request, messages[start : start + self._batch_size], 0)

    def _submit_batch(
        self, request: PullRequest, batch: Sequence[MessageExt], delay_ms: int
    ) -> None:
        self._threads.schedule(lambda: self._consume(request, batch), delay_ms)

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
            self._acknowledge(request, done)
        if failed := batch[failed_from:]:
            pairs = list(
                zip(failed, restore_properties(failed, properties[failed_from:]), strict=True)
            )
            self._broker_scheduler(request).schedule(
                lambda: self._retry_failed(request, pairs, delay_level)
            )

    def _broker_scheduler(self, request: PullRequest) -> Scheduler:
        return self._broker_schedulers.for_broker(request.queue.broker_name)

    def _retry_failed(
        self, request: PullRequest, failed: Sequence[_FailedMessage], delay_level: int
    ) -> None:
        """Give failed messages back to a broker, or else have them tried again here."""
        if request.process_queue.is_dropped:
            return
        kept = self._send_back(request, failed, delay_level)
        again = [replace(sent, reconsume_times=sent.reconsume_times + 1) for _, sent in kept]
        here = [message for message, _ in kept]
        request.process_queue.replace_messages(list(zip(here, again, strict=True)))
        given = [message for message, _ in failed if message not in here]
        if self._acknowledge(request, given) and again:
            self._submit_batch(request, again, LOCAL_RETRY_MS)

    def call_listener(self, request: PullRequest, batch: Sequence[MessageExt]) -> tuple[int, int]:
        """Call the listener; return the index of the first failure, and the retry's delay level."""
        context = ConsumeConcurrentlyContext(request.queue)
        status = call_listener(self._listener, batch, context, _SUCCESS)
        level = context.delay_level_when_next_consume
        delay_level = clamp_listener_value(
            "delay_level_when_next_consume", level, 0, DEAD_LETTER, _LEVEL_MAX
        )
        if status is not _SUCCESS:
            return 0, delay_level
        if context.ack_index is None:
            return len(batch), delay_level
        return clamp_listener_value(
            "ack_index", context.ack_index, -1, -1, len(batch) - 1
        ) + 1, delay_level

    def _send_back(
        self, request: PullRequest, failed: Sequence[_FailedMessage], delay_level: int
    ) -> list[_FailedMessage]:
        """Give messages back to their broker; return those that none has taken."""
        if self._retries is None:
            for message, _ in failed:
                _log.warning("BROADCASTING: %s failed, and is not tried again", message.message_id)
            return []
        waiting = [each for each in failed if request.process_queue.is_waiting(each[0])]
        return [each for each in waiting if not self._retries.send_back(each[1], delay_level)]

    def clean_expired(self, requests: Sequence[PullRequest], timeout_ms: int) -> None:
        """Send back what listeners have had for too long, because it holds the offset back."""
        for request in requests:
            late = request.process_queue.pop_expired(timeout_ms)
            for message in late:
                self._broker_scheduler(request).schedule(
                    partial(self._send_back_expired, request, message, timeout_ms)
                )

    def _send_back_expired(
        self, request: PullRequest, message: MessageExt, timeout_ms: int
    ) -> None:
        cache = request.process_queue
        if cache.is_dropped or not cache.is_waiting(message):
            return
        if self._retries is None:  # nobody would give it again, should the listener not end
            text = "BROADCASTING: %s takes longer than %d ms, and its offset waits for it"
            _log.warning(text, message.message_id, timeout_ms)
        elif self._retries.send_back(message, FIRST_DELAY_LEVEL):
            _log.warning("%s took longer than %d ms", message.message_id, timeout_ms)
            self._acknowledge(request, (message,))
            return
        cache.start_consuming((message,))
