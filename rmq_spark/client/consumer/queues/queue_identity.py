"""QueueFingerprint: recognizes a queue by its last message, and detects that it was recreated.

A topic may be deleted and recreated under its name; offsets of the old queue mean nothing in the
new one. "Lost" below means that the consumer has to find its place again.

    nothing was pulled yet                       the message before the first offset counts
    the broker says that the topic is gone       it may be recreated: lost
    the queue ends before the requested offset   recreated, or its end is lost: lost
    a pull failed, or none was made for a while  in doubt: the last message is checked again
    a pull was held for a while by a broker that
    keeps holding it if the topic is recreated   in doubt: checked before its response counts
    another message has the last one's offset    recreated, or an older copy: lost
    the queue begins again at an offset from this
    machine's file, but its last message is gone lost
    messages arrive                              not lost (any more)

A message is another one if two of these differ: its store time, its position in the log, and its
content. If only one differs, transport may have damaged the response, and nothing moves.

`unchanged_queues` also protects stored offsets: if an offset may belong to another queue, it is not
stored, because a member that begins there would skip earlier messages of the new queue.

A lost consumer resumes at the first message stored at the time of its last one or later, and never
past its old offset, because that time may be damaged. Without a last message, it resumes at the
first message if the topic was gone or the queue may be new; otherwise at the offset that the broker
suggests. When a user or an operator chooses an offset, a new `QueueFingerprint` begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rmq_spark.client.consumer.brokers.broker_client import DecodedPull
from rmq_spark.client.consumer.queues.process_queue import Clock, monotonic_ms
from rmq_spark.client.errors import BrokerRefused
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import RocketPollError
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.isa_l import crc32
from rmq_spark.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMessage:
    """Offset of a message and three marks that identify it; a flipped bit changes only one."""

    queue_offset: int
    store_timestamp: int
    commit_log_offset: int
    message_id: str
    born_timestamp: int
    body_crc: int

    @classmethod
    def from_message(cls, message: MessageExt) -> LastMessage:
        """Return the marks of a message."""
        # without a unique id, message_id only repeats the position in the log
        is_unique = message.message_id != message.offset_message_id
        return cls(
            queue_offset=message.queue_offset,
            store_timestamp=message.store_timestamp,
            commit_log_offset=message.commit_log_offset,
            message_id=message.message_id if is_unique else "",
            born_timestamp=message.born_timestamp,
            body_crc=crc32(message.body),
        )

    def differs_from(self, message: MessageExt) -> bool:
        """Return whether a message differs in two of these marks or more; one may be damaged."""
        pairs = zip(self._marks, LastMessage.from_message(message)._marks, strict=True)
        return sum(own != its for own, its in pairs) > 1

    @property
    def _marks(self) -> tuple[int, int, tuple[str, int, int]]:
        content = self.message_id, self.born_timestamp, self.body_crc
        return self.store_timestamp, self.commit_log_offset, content


_log = logging.getLogger(__name__)


UNVERIFIED_MS_MAX: Final = 500
"""Milliseconds without a pull after which the queue counts as unverified."""


MessageAt = Callable[[MessageQueue, int], MessageExt | None]
"""Returns the message at an offset of a queue, None if it is not there."""


class QueueFingerprint:
    """The known identity of one queue, for one pull at a time."""

    def __init__(
        self, clock: Clock = monotonic_ms, last_message: LastMessage | None = None
    ) -> None:
        """Begin with the last known message; ``clock`` returns milliseconds that only grow."""
        self._clock = clock
        self._offset = last_message.queue_offset if last_message else None
        self.last_message = last_message
        """The last message that was pulled, or the one at the start position; None without any."""
        self._verified_at_ms = clock()
        self._is_suspect = False
        self._is_missing = False
        self.must_relocate = False
        """True while `relocate` must find where to resume."""

    @property
    def may_be_recreated(self) -> bool:
        """True if the last check did not find the last message: no offset may be stored yet."""
        return self.must_relocate or (self._is_missing and self._offset is not None)

    @property
    def is_unverified(self) -> bool:
        """True if `verify` would check that the last message is still at its offset."""
        is_late = self._is_suspect or self._clock() - self._verified_at_ms >= UNVERIFIED_MS_MAX
        return self._offset is not None and is_late

    def record_start(self, queue: MessageQueue, offset: int, message_at: MessageAt) -> None:
        """Record the message at the start position, unless a message was pulled already.

        It is the message before the offset, or, if that is gone, the one at the offset. If the
        broker does not answer, the queue has no fingerprint until messages arrive.
        """
        if not offset:
            return  # recreated or not, the queue starts at its first message
        try:
            found = message_at(queue, offset - 1) or message_at(queue, offset)
        except RocketPollError as error:
            _log.info("%s: a recreated topic goes unnoticed until messages come: %s", queue, error)
            return
        if found is not None and self._offset is None:
            self._remember(found)

    def _remember(self, message: MessageExt) -> None:
        self.last_message = LastMessage.from_message(message)
        self._offset = message.queue_offset
        self._is_missing = False

    def observe(self, messages: Sequence[MessageExt]) -> None:
        """Record a pull's response, with or without messages: the queue is unchanged."""
        self.must_relocate = self._is_suspect = self._is_missing = False
        self._verified_at_ms = self._clock()
        if messages:
            self._remember(messages[-1])

    def record_pause(self) -> None:
        """Note a pause in pulling, during which a recreated topic would go unnoticed."""
        self._is_suspect = True

    def record_failure(self, error: BaseException) -> None:
        """Note the failure of a pull."""
        self._is_suspect = True
        if isinstance(error, BrokerRefused) and error.code == ResponseCode.TOPIC_NOT_EXIST:
            self.must_relocate = True

    def needs_verification(self, outcome: DecodedPull | BaseException) -> bool:
        """Return whether a response needs a check first, because its pull was held for a while.

        The broker may have held the pull while the topic was recreated and got as many messages.
        """
        may_be_recreated = isinstance(outcome, DecodedPull) and outcome.may_be_recreated
        return may_be_recreated and self.is_unverified

    def verify_outcome(
        self, queue: MessageQueue, message_at: MessageAt, outcome: DecodedPull | BaseException
    ) -> DecodedPull | BaseException:
        """Check that the queue is unchanged; return the outcome, or the error of the check.

        If the queue was recreated, it `must_relocate`, and the response is ignored.
        """
        try:
            self.verify(queue, message_at)
        except Exception as error:  # noqa: BLE001  # no error may stop the queue for good
            return error
        return outcome

    def verify(self, queue: MessageQueue, message_at: MessageAt) -> None:
        """Check that the queue is unchanged, if that is in doubt.

        If the last message is missing, the doubt remains until the next response to a pull, because
        retention may have deleted the message.
        """
        if self._offset is None or self.last_message is None or not self.is_unverified:
            return
        found = message_at(queue, self._offset)
        self._is_suspect = False
        self._verified_at_ms = self._clock()
        self._is_missing = found is None
        if found is not None and self.last_message.differs_from(found):
            self.must_relocate = True

    def is_same_queue(self, queue: MessageQueue, message_at: MessageAt) -> bool:
        """Return whether the queue is the one that was pulled; a doubt about it remains.

        Unlike `verify`, this treats a missing message as a sign of another queue.
        """
        if self.may_be_recreated:
            return False
        offset, last_message = self._offset, self.last_message
        if offset is None or last_message is None or not self.is_unverified:
            return True
        found = message_at(queue, offset)
        return found is not None and not last_message.differs_from(found)

    def legal_offset(self, queue: MessageQueue, requested: int, outcome: DecodedPull) -> int | None:
        """Return the offset to resume at after OFFSET_ILLEGAL; None if `relocate` must find it."""
        self._offset = None
        # Where nothing is known, a queue that still has its first message may be a new one.
        if requested > outcome.max_offset and (self.last_message or outcome.min_offset <= 0):
            self.must_relocate = True
            return None
        legal = outcome.legal_offset(requested)
        _log.warning(
            "%s has offsets %d to %d, not %d: resuming at %d",
            *(queue, outcome.min_offset, outcome.max_offset, requested, legal),
        )
        return legal

    def relocate(
        self, queue: MessageQueue, requested: int, offset_since: Callable[[MessageQueue, int], int]
    ) -> int:
        """Return where to resume, ``requested`` at most; ``offset_since`` finds it by time."""
        # Search one millisecond earlier: of several messages with the same time, RocketMQ's
        # releases find different ones.
        stored_ms = self.last_message.store_timestamp if self.last_message else 0
        since_ms = max(1, stored_ms) - 1
        found = min(requested, offset_since(queue, since_ms))
        self.must_relocate = False
        self._offset = None
        if found != requested:
            _log.warning(
                "%s may have been recreated: resuming at offset %d, not %d, by the store time of "
                "the last known message",
                *(queue, found, requested),
            )
        return found


class StartPosition(NamedTuple):
    """An offset at which a queue begins, and the queue's fingerprint there."""

    offset: int
    fingerprint: QueueFingerprint

    @classmethod
    def resolve(
        cls,
        queue: MessageQueue,
        offset: int,
        message_at: MessageAt,
        last_message: LastMessage | None = None,
    ) -> StartPosition:
        """Return a start position at an offset, with the fingerprint read from its broker.

        ``last_message`` is the last one pulled before the queue was left.
        """
        known = QueueFingerprint(last_message=last_message)
        if last_message is None:
            known.record_start(queue, offset, message_at)
        else:  # if missing, the queue may be a new one that has grown past that offset
            known.record_pause()
            known.must_relocate = not known.is_same_queue(queue, message_at)
        return cls(offset, known)


def unchanged_queues(
    queues: Mapping[MessageQueue, QueueFingerprint], message_at: MessageAt
) -> Iterator[MessageQueue]:
    """Yield the queues that are unchanged, after checking those in doubt.

    Queues in doubt come last; if a broker cannot be asked, the remaining ones are omitted.
    """
    for queue in sorted(queues, key=lambda queue: queues[queue].is_unverified):
        try:
            is_known = queues[queue].is_same_queue(queue, message_at)
        except RocketPollError as error:
            # Each commit tries again; the log of pulls says when this begins and ends.
            _log.debug("%s cannot be verified, so its offsets are not stored: %s", queue, error)
            return
        if is_known:
            yield queue
