"""DeadLetters: the fate of messages that cannot be read, each of which says why (`fault`).

Their broker puts them among the dead letters of the group, as they are stored. One that its broker
cannot read either is sent there, with what came of it. A member makes one dead letter of a message,
however often it seeks back to it. Without retries (BROADCASTING), and in the groups of RocketMQ's
tools, which only look, they are passed over. No listener and no poll sees one, and none keeps
another message from being consumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rmq_spark.client.consumer.group_brokers import GroupBrokers
from rmq_spark.client.consumer.retries import DEAD_LETTER
from rmq_spark.client.errors import BrokerRefused
from rmq_spark.client.message import MessageExt
from rmq_spark.client.threads.lanes import Lanes
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import dlq_topic, is_system_group

_log = logging.getLogger(__name__)

AGAIN_MS = 5_000
REMEMBERED_MAX = 10_000
"""Messages that a member remembers to have made dead letters of."""


class DeadLetters:
    """Buries the unreadable messages of one consumer."""

    def __init__(
        self, group: str, brokers: GroupBrokers, lanes: Lanes, *, is_clustering: bool
    ) -> None:
        self._group = group
        self._brokers = brokers
        self._lanes = lanes
        self._makes_letters = is_clustering and not is_system_group(group)
        self._taken: dict[tuple[MessageQueue, int, str], None] = {}

    def bury(
        self, message: MessageExt, is_wanted: Callable[[], bool], done: Callable[[], object]
    ) -> None:
        """Make a dead letter of a message, trying until a broker takes it, and then call ``done``.

        Each try asks ``is_wanted`` first, and gives up if it returns False.
        """
        if _key(message) not in self._taken:
            letters = dlq_topic(self._group)
            becomes = f"it goes to {letters}" if self._makes_letters else "it is passed over"
            place = (message.queue_offset, message.queue, message.message_id)
            _log.error(
                "the message at offset %d of %s (%s) cannot be read, and %s: %s",
                *(*place, becomes, message.fault),
            )
        self._later(message, is_wanted, done, 0)

    def _later(
        self,
        message: MessageExt,
        is_wanted: Callable[[], bool],
        done: Callable[[], object],
        delay_ms: int,
    ) -> None:
        def bury() -> None:
            if is_wanted():
                if self._is_taken(message):
                    done()
                else:
                    self._later(message, is_wanted, done, AGAIN_MS)

        self._lanes.of(message.queue.broker_name).schedule(bury, delay_ms)

    def _is_taken(self, message: MessageExt) -> bool:
        if not self._makes_letters or _key(message) in self._taken:
            return True
        try:
            try:
                self._brokers.send_back(message, DEAD_LETTER, 0)
            except BrokerRefused as error:
                _log.info("%s is sent to the dead letters: %s", message.message_id, error)
                self._brokers.send_dead_letter(message)
        except Exception as error:  # noqa: BLE001  # one that was forgotten would keep its queue's offset for ever
            _log.warning("%s cannot be made a dead letter now: %s", message.message_id, error)
            return False
        while len(self._taken) >= REMEMBERED_MAX:
            del self._taken[next(iter(self._taken))]
        self._taken[_key(message)] = None
        return True


def _key(message: MessageExt) -> tuple[MessageQueue, int, str]:
    """Return the place of a message, with its id: a topic that is made again has other messages."""
    return message.queue, message.queue_offset, message.offset_message_id
