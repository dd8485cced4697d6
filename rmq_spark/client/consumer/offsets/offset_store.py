"""OffsetStore: a group's offsets in memory; RemoteBrokerOffsetStore keeps them at the brokers.

`local_offset_store` keeps them in a file, for groups in BROADCASTING. An offset in memory moves
forward only, unless the caller asks explicitly for a move back.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection

from rmq_spark.client.consumer.brokers.broker_client import GroupBrokerClient
from rmq_spark.client.consumer.queues.queue_identity import LastMessage
from rmq_spark.client.errors import ClientShutDown
from rmq_spark.client.failure_log import OutageLog
from rmq_spark.errors import RocketPollError
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)


class OffsetStore(ABC):
    """Offsets by queue, in memory and in persistent storage. Methods may be called from any thread.

    A failure raises an error, and is never returned as an offset.
    """

    last_messages: dict[MessageQueue, LastMessage] | None = None
    """The last message pulled from each queue, where the store keeps it; brokers do not."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._offsets: dict[MessageQueue, int] = {}

    # ---- in memory

    def update_offset(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Remember an offset; with ``increase_only``, ignore one that is not greater."""
        _check(queue, offset)
        with self._mutex:
            known = self._offsets.get(queue)
            if known is None or not increase_only or offset > known:
                self._offsets[queue] = offset

    def set_initial_offset(self, queue: MessageQueue, offset: int) -> None:
        """Set where a queue begins, unless its offset is known."""
        _check(queue, offset)
        with self._mutex:
            self._offsets.setdefault(queue, offset)

    def known_offset(self, queue: MessageQueue) -> int | None:
        """Return the offset of a queue in memory, or None."""
        return self._offsets.get(queue)

    def offsets(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return the offsets in memory, of one topic or of all."""
        with self._mutex:
            return {
                queue: offset
                for queue, offset in self._offsets.items()
                if topic in (None, queue.topic)
            }

    def remove_offset(self, queue: MessageQueue) -> None:
        """Drop a queue's offset from memory: another member has the queue."""
        with self._mutex:
            self._offsets.pop(queue, None)

    # ---- persistent storage

    def load(self) -> None:  # noqa: B027  # where brokers keep them, there is nothing to load
        """Load the persisted offsets, if this store keeps them itself."""

    def read_offset(self, queue: MessageQueue) -> int | None:
        """Return the group's offset of a queue: in memory or else stored; None if it has none.

        A stored offset is not kept in memory, because it would be stored again, though the topic
        may be recreated by then.
        """
        known = self.known_offset(queue)
        return self.stored_offset(queue) if known is None else known

    @abstractmethod
    def stored_offset(self, queue: MessageQueue) -> int | None:
        """Return the persisted offset, or None; the offsets in memory do not change."""

    @abstractmethod
    def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Persist the offsets of these queues; a failure of one does not stop the others.

        Raises:
            ClientShutDown: The client has stopped, so that no offset can be persisted.
        """

    def persist(self, queue: MessageQueue, offset: int) -> None:
        """Set an offset, persist it, and wait until it is stored."""
        self.update_offset(queue, offset, increase_only=False)
        self.store_offset(queue, offset)

    @abstractmethod
    def store_offset(self, queue: MessageQueue, offset: int) -> None:
        """Persist this offset and wait until it is stored; the offset in memory does not matter.

        An operator's reset, or the queue's start, may have set another one in memory meanwhile.
        """

    def stop_overwriting(self) -> None:  # noqa: B027  # nothing else changes offsets in a file
        """Stop storing offsets of queues whose stored offset another process may change."""


def _check(queue: MessageQueue, offset: int) -> None:
    if offset < 0:
        raise ValueError(f"offset of {queue}: needed 0 or more, found {offset}")


class RemoteBrokerOffsetStore(OffsetStore):
    """An `OffsetStore` that keeps offsets with the brokers, for groups in CLUSTERING."""

    def __init__(self, brokers: GroupBrokerClient) -> None:
        super().__init__()
        self._brokers = brokers
        self._last_stored: dict[MessageQueue, int | None] = {}
        self._is_leaving = False
        self._outage_log = OutageLog("storing the offset of")

    def read_offset(self, queue: MessageQueue) -> int | None:
        """Return an offset from memory or else from the broker, and remember the broker's."""
        known = self.known_offset(queue)
        if known is None:
            self._last_stored[queue] = stored = self._brokers.consumer_offset(queue)
            known = None if stored is None or stored < 0 else stored
        return known

    def stored_offset(self, queue: MessageQueue) -> int | None:
        """Return the offset that the broker has stored, or None.

        The broker's last known offset stays as it is, because `stop_overwriting` needs it to detect
        an operator's reset.
        """
        stored = self._brokers.consumer_offset(queue)
        return None if stored is None or stored < 0 else stored

    def persist_all(self, queues: Collection[MessageQueue]) -> None:
        """Send the offsets one-way: the next persist soon sends the same offsets or later ones."""
        with self._mutex:
            known = {queue: self._offsets[queue] for queue in queues if queue in self._offsets}
        for queue, offset in known.items():
            try:
                if self._is_leaving and self._is_reset_elsewhere(queue):
                    continue
                self._brokers.update_consumer_offset(queue, offset, is_one_way=True)
                self._last_stored[queue] = offset
            except ClientShutDown:
                raise
            except RocketPollError as error:
                self._outage_log.record_failure(queue, error)
            else:
                self._outage_log.record_success(queue)

    def store_offset(self, queue: MessageQueue, offset: int) -> None:
        """Send this offset, and wait until the broker has stored it."""
        self._brokers.update_consumer_offset(queue, offset, is_one_way=False)
        self._last_stored[queue] = offset

    def stop_overwriting(self) -> None:
        """From now on, keep an offset that an operator has set at the broker.

        A member that has left its group is not notified of a reset.
        """
        self._is_leaving = True

    def _is_reset_elsewhere(self, queue: MessageQueue) -> bool:
        """Return whether the broker's offset differs from the one last known here."""
        if queue not in self._last_stored:
            return False
        before, now = self._last_stored[queue], self._brokers.consumer_offset(queue)
        if now == before:
            return False
        _log.warning(
            "the stored offset of %s was changed elsewhere, from %s to %s: keeping the new one",
            queue,
            before,
            now,
        )
        return True

    def remove_offset(self, queue: MessageQueue) -> None:
        """Drop an offset here; the broker keeps it."""
        self._last_stored.pop(queue, None)
        super().remove_offset(queue)
