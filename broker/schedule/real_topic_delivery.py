"""RealTopicDelivery: appends messages that waited in a system topic to their real topics.

    deliver    append one message; False if the store or the topic cannot take it for now
    target     the form in which `deliver` appends it
    confirm    start a flush of delivered messages, so that consumers see them
    flush      wait for that flush, before the caller saves its progress

A message that can never be delivered is dropped: it is logged with its id, counted, and stays in
the log. The caller saves its own progress, only after `flush`: delivery is then at least once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from typing import Final

from rmq_spark.wire.message.record import StoredMessage
from rmq_spark.wire.names import light_queue_fault, topic_fault

from ..common.recent_losses import LossKind, RecentLosses
from ..store.errors import TransientFailure
from ..store.message_store import MessageStore
from ..store.results import LOG_START, PhysicalOffset, PutMessageResult, PutMessageStatus
from .delayed_message import UndeliverableMessage

MESSAGES_PER_CALL: Final = 32
BYTES_PER_CALL: Final = 1 << 20
RETRY_MS: Final = 1_000
"""Milliseconds until the next attempt after the store has refused a message."""

_FLUSH_TIMEOUT_SECONDS = 5.0

_log = logging.getLogger(__name__)


@dataclass
class DeliveryBudget:
    """The number of messages and bytes that one call may still deliver."""

    messages: int = MESSAGES_PER_CALL
    bytes: int = BYTES_PER_CALL

    def __bool__(self) -> bool:
        return self.messages > 0 and self.bytes > 0

    def spend(self, size: int) -> None:
        """Count one delivered message of this size."""
        self.messages -= 1
        self.bytes -= size


class RealTopicDelivery:
    """Appends waiting messages of one kind to their real topics."""

    def __init__(
        self,
        store: MessageStore,
        queue_nums: Callable[[str], int | None],
        recreate_topic: Callable[[str, int], int | None],
        kind: LossKind,
        losses: RecentLosses,
    ) -> None:
        """Store the parts; ``kind`` names the messages in log lines and reported losses.

        ``queue_nums`` returns 0 if the topic does not exist, and None while that is undecided.
        ``recreate_topic`` creates a lost topic with at least the given number of queues, and
        returns the new result of ``queue_nums``.
        """
        self._store = store
        self._queue_nums = queue_nums
        self._recreate_topic = recreate_topic
        self._kind = kind
        self._losses = losses
        self.last_put = PutMessageResult(PutMessageStatus.PUT_OK, end_offset=LOG_START)
        """The result of the last message that was stored."""
        self._wait_reason: str | None = None
        self.dropped_total = 0
        """Messages that can never be delivered, such as those of deleted topics."""

    def deliver(
        self, message: StoredMessage, to_real_topic: Callable[[StoredMessage], StoredMessage]
    ) -> bool:
        """Deliver one message to its real topic; return False if it cannot be stored now.

        A message that can never be delivered is dropped, so that it does not delay the next ones.
        ``to_real_topic`` returns the form to append, or raises UndeliverableMessage.
        """
        try:
            target = self.target(message, to_real_topic)
        except UndeliverableMessage as error:
            self.drop(message, str(error))
            return True
        if target is None:
            return False
        result = self._store.put_message(target)
        if result.is_stored:
            self.last_put = result
            self._wait_reason = None
        elif result.status is PutMessageStatus.SERVICE_NOT_AVAILABLE:
            if result.remark != self._wait_reason:
                self._wait_reason = result.remark
                _log.warning("delivery of %ss waits: %s", self._kind.title, result.remark)
            return False
        else:
            self.drop(message, result.remark or result.status.name)
        return True

    def target(
        self, message: StoredMessage, to_real_topic: Callable[[StoredMessage], StoredMessage]
    ) -> StoredMessage | None:
        """Return a message in the form to append; None while its topic is being deleted.

        Raises:
            UndeliverableMessage: The message can never be delivered.
        """
        target = to_real_topic(message)
        if self._store.was_deleted(target.topic, PhysicalOffset(message.physical_offset)):
            raise UndeliverableMessage(f"its topic {target.topic} was deleted while it waited")
        queues = self._queue_nums(target.topic)
        if queues == 0:  # the table of topics may be older than the message
            fault = topic_fault(target.topic) or light_queue_fault(target.topic)
            if fault is not None:
                raise UndeliverableMessage(fault)
            queues = self._recreate_topic(target.topic, target.queue_id + 1)
        if queues is None:
            return None
        if target.queue_id >= queues:  # the topic lost queues while the message waited
            target = replace(target, queue_id=target.queue_id % queues)
        return target

    def drop(self, message: StoredMessage, reason: str) -> None:
        """Count and log a message that can never be delivered."""
        self.report_dropped(
            f"{self._kind.title} {message.offset_message_id} is not delivered: {reason}"
        )

    def report_dropped(self, *lines: str, count: int = 1, level: int = logging.ERROR) -> None:
        """Count and log messages that can never be delivered; the lines say which, and why."""
        self.dropped_total += count
        self._losses.report(self._kind, *lines, count=count, level=level)

    def confirm(self) -> None:
        """Start a flush of delivered messages: consumers do not see them before."""
        if self.last_put.end_offset > self._store.confirm_offset():
            self._store.flush_future(self.last_put.end_offset)

    def flush(self, end_offset: PhysicalOffset = LOG_START) -> None:
        """Wait until all delivered messages, and those before an offset, are flushed.

        Any thread may call this.

        Raises:
            TransientFailure: The disk is slow.
            StoreError, OSError: The disk refuses.
        """
        end_offset = max(end_offset, self.last_put.end_offset)
        if end_offset > self._store.state().flushed_offset:
            try:
                self._store.flush_future(end_offset).result(_FLUSH_TIMEOUT_SECONDS)
            except FutureTimeoutError:
                raise TransientFailure(
                    f"a flush takes longer than {_FLUSH_TIMEOUT_SECONDS} s"
                ) from None
