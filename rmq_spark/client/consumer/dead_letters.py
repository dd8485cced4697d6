"""DeadLetters: the fate of messages that nobody can read, as they are damaged.

Their broker puts them among the dead letters of the group, as they are stored. One that its broker
cannot read either is sent there, with what came of it; without retries (BROADCASTING) they are
passed over. No listener and no poll sees one, and none keeps another
message from being consumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rmq_spark.client.consumer.group_brokers import GroupBrokers
from rmq_spark.client.consumer.retries import DEAD_LETTER
from rmq_spark.client.errors import BrokerRefused
from rmq_spark.client.message import MessageExt
from rmq_spark.client.threads.lanes import Lanes
from rmq_spark.wire.names import dlq_topic

_log = logging.getLogger(__name__)

AGAIN_MS = 5_000


class DeadLetters:
    """Buries the unreadable messages of one consumer."""

    def __init__(
        self, group: str, brokers: GroupBrokers, lanes: Lanes, *, is_clustering: bool
    ) -> None:
        self._group = group
        self._brokers = brokers
        self._lanes = lanes
        self._is_clustering = is_clustering

    def bury(
        self, message: MessageExt, is_wanted: Callable[[], bool], done: Callable[[], object]
    ) -> None:
        """Make a dead letter of a message, trying until a broker takes it, and then call ``done``.

        Each try asks ``is_wanted`` first, and gives up if it returns False.
        """
        becomes = (
            f"it goes to {dlq_topic(self._group)}" if self._is_clustering else "it is passed over"
        )
        _log.error(
            "the message at offset %d of %s (%s) cannot be read, as it is damaged: %s",
            *(message.queue_offset, message.queue, message.message_id, becomes),
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
        if not self._is_clustering:
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
        return True
