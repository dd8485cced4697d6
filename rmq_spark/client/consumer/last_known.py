"""LastKnown: the last message that came of a queue, by whose time the queue is found again.

    the broker says that the topic is gone       it may be made again: lost
    the queue ends before what was asked for     made again, or its end is lost: lost
    a pull failed, or none was made for a while  in doubt: the last message is looked at again
    another message stands in its place          made again, or an older copy: lost
    messages come                                not lost (any more)

Who is lost goes on with the first message stored at the time of the last one, or later. Without a
last message that is not known: at the first there is if the topic was gone, else where the broker
says. Who chooses an offset, a user or an operator, begins with a `LastKnown` of its own. This
module asks nobody by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from rmq_spark.client.consumer.clock import monotonic_ms
from rmq_spark.client.consumer.group_brokers import Pulled
from rmq_spark.client.consumer.process_queue import Clock
from rmq_spark.client.errors import BrokerRefused
from rmq_spark.client.message import MessageExt
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)


DOUBT_MS: Final = 500
"""Milliseconds without a pull after which the queue may be another one: nobody has told of it."""


class LastKnown:
    """Knowledge of one queue, for one pull at a time."""

    def __init__(self, clock: Clock = monotonic_ms) -> None:
        self._clock = clock
        self._offset: int | None = None
        self._store_ms: int | None = None
        self._heard_ms = clock()
        self._is_doubted = False
        self._is_lost = False

    @property
    def must_be_found(self) -> bool:
        """True while `find` is to tell where the queue goes on."""
        return self._is_lost and self._store_ms is not None

    @property
    def is_in_doubt(self) -> bool:
        """True if `look` would ask whether the last message is still where it was."""
        is_late = self._is_doubted or self._clock() - self._heard_ms >= DOUBT_MS
        return self._offset is not None and is_late

    def came(self, messages: Sequence[MessageExt]) -> None:
        """Note the answer to a pull, with or without messages: the queue is the one that it was."""
        self._is_lost = self._is_doubted = False
        self._heard_ms = self._clock()
        if messages:
            self._offset = messages[-1].queue_offset
            self._store_ms = messages[-1].store_timestamp

    def paused(self) -> None:
        """Note that nothing is asked for: nobody would be told if the topic was made again."""
        self._is_doubted = True

    def failed(self, error: BaseException) -> None:
        """Note the failure of a pull."""
        self._is_doubted = True
        if isinstance(error, BrokerRefused) and error.code == ResponseCode.TOPIC_NOT_EXIST:
            self._is_lost = True

    def look(
        self, queue: MessageQueue, stored_ms: Callable[[MessageQueue, int], int | None]
    ) -> None:
        """Find out whether the queue is the one that it was, if that is in doubt.

        ``stored_ms`` returns when the message at an offset was stored, None if it is not there.
        Then nothing is known: it may have been old enough to go.
        """
        if self._offset is None or not self.is_in_doubt:
            return
        found = stored_ms(queue, self._offset)
        self._is_doubted = False
        self._heard_ms = self._clock()
        if found is not None and found != self._store_ms:
            self._is_lost = True

    def legal_offset(self, queue: MessageQueue, asked: int, outcome: Pulled) -> int | None:
        """Return the offset to go on at after OFFSET_ILLEGAL; None if the queue must be found."""
        self._offset = None
        if asked > outcome.max_offset and self._store_ms is not None:
            self._is_lost = True
            return None
        # Of a topic that was gone nothing is passed over: all that is there now is new.
        legal = outcome.min_offset if self._is_lost else outcome.legal_offset(asked)
        self._is_lost = False
        _log.warning(
            "%s has offsets %d to %d, not %d: going on at %d",
            *(queue, outcome.min_offset, outcome.max_offset, asked, legal),
        )
        return legal

    def find(
        self, queue: MessageQueue, asked: int, offset_since: Callable[[MessageQueue, int], int]
    ) -> int:
        """Return the offset to go on at; ``offset_since`` finds messages by their time."""
        # One earlier: releases of RocketMQ differ in which of several messages of a time they find.
        found = offset_since(queue, (self._store_ms or 0) - 1)
        self._is_lost = False
        self._offset = None
        if found != asked:
            _log.warning(
                "%s may be another one now: going on at offset %d, not %d, by the time of the last "
                "message",
                *(queue, found, asked),
            )
        return found
