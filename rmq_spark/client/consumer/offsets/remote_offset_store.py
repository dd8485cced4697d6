"""RemoteBrokerOffsetStore: keeps a group's offsets at the brokers, for groups in CLUSTERING.

It receives its two requests to brokers, to query and to update an offset, as callables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from rmq_spark.client.consumer.brokers.broker_client import OutageLog
from rmq_spark.client.consumer.offsets.offset_store import OffsetTable, ReadOffsetType
from rmq_spark.client.consumer.queues.queue_identity import LastMessage
from rmq_spark.client.errors import ClientShutDown
from rmq_spark.errors import RocketPollError
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)


class UpdateOffsetFunction(Protocol):
    """Sends the group's offset of a queue to its broker."""

    def __call__(self, queue: MessageQueue, offset: int, *, one_way: bool) -> None:
        """Store the offset; with ``one_way``, nobody learns whether it has arrived."""


class RemoteBrokerOffsetStore:
    """An `OffsetStore` that keeps offsets with the brokers."""

    def __init__(
        self, query: Callable[[MessageQueue], int | None], update: UpdateOffsetFunction
    ) -> None:
        """Make a store; ``query`` returns None without an offset, and raises without an answer."""
        self._query = query
        self._update = update
        self._offset_table = OffsetTable()
        self._last_stored: dict[MessageQueue, int | None] = {}
        self._is_leaving = False
        self._outage_log = OutageLog("cannot have its offset stored yet")

    def load(self) -> None:
        """Do nothing, because the brokers keep the offsets."""

    def update_offset(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Remember an offset until it is persisted."""
        self._offset_table.update(queue, offset, increase_only=increase_only)

    def set_initial_offset(self, queue: MessageQueue, offset: int) -> None:
        """Set where a queue begins, unless its offset is known."""
        self._offset_table.set_initial_offset(queue, offset)

    def read_offset(self, queue: MessageQueue, kind: ReadOffsetType) -> int | None:
        """Return an offset from memory or from the broker."""
        return self._offset_table.read(queue, kind, self._fetch)

    def stored_offset(self, queue: MessageQueue) -> int | None:
        """Return the offset that the broker has stored, or None.

        `stop_overwriting` still notices an operator's move that this read has seen.
        """
        stored = self._query(queue)
        return None if stored is None or stored < 0 else stored

    def _fetch(self, queue: MessageQueue) -> int | None:
        self._last_stored[queue] = stored = self._query(queue)
        return stored

    def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Send the offsets one-way: the next persist soon sends the same offsets or later ones.

        Raises:
            ClientShutDown: There is no next persist. This concerns all queues, and is logged once.
        """
        for queue, offset in self._offset_table.get_many(queues).items():
            self._send_offset(queue, offset)

    def set_last_message(self, queue: MessageQueue, message: LastMessage | None) -> None:
        """Do nothing, because a broker keeps only a group's offset of a queue."""

    def last_message(
        self,
        queue: MessageQueue,  # noqa: ARG002  # as above
    ) -> LastMessage | None:
        """Return None, because brokers do not keep it."""
        return None

    def stop_overwriting(self) -> None:
        """Note that brokers no longer notify this member when an operator moves the group."""
        self._is_leaving = True

    def _send_offset(self, queue: MessageQueue, offset: int) -> None:
        try:
            if self._is_leaving and self._is_reset_elsewhere(queue):
                return
            self._update(queue, offset, one_way=True)
            self._last_stored[queue] = offset
        except ClientShutDown:
            raise
        except RocketPollError as error:
            self._outage_log.record_failure(queue, error)
        else:
            self._outage_log.record_success(queue)

    def persist(self, queue: MessageQueue, offset: int) -> None:
        """Tell the broker, and wait until it has stored the offset.

        It gets this very offset, which may be dropped from memory meanwhile when the queue begins.
        """
        self._offset_table.update(queue, offset, increase_only=False)
        self._update(queue, offset, one_way=False)
        self._last_stored[queue] = offset

    def store_offset(self, queue: MessageQueue, offset: int) -> None:
        """Send this offset, and wait until the broker has stored it, whatever is in memory by now.

        An operator's move, or the queue's begin, may have set another offset meanwhile.
        """
        self._update(queue, offset, one_way=False)
        self._last_stored[queue] = offset

    def _is_reset_elsewhere(self, queue: MessageQueue) -> bool:
        """Return whether the broker has another offset by now than was last known here."""
        if queue not in self._last_stored:
            return False
        before, now = self._last_stored[queue], self._query(queue)
        if now == before:
            return False
        _log.warning("%s was moved behind this member, from %s to %s", queue, before, now)
        return True

    def remove_offset(self, queue: MessageQueue) -> None:
        """Drop an offset here; the broker keeps it."""
        self._last_stored.pop(queue, None)
        self._offset_table.remove(queue)

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the offsets of a topic that are in memory."""
        return self._offset_table.get_topic(topic)
