"""MemberOffsets: how a member stores the offsets of its queues, and where it begins a queue.

    consumed ──> offset store ──> a lane for each broker ──> UPDATE_CONSUMER_OFFSET

What is known of a queue is looked at before its offset is stored: by now it may be another queue of
that name (see `last_known`). A broker that cannot be reached keeps no other waiting. Which
queues the member has, and what of them counts as consumed, is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from rmq_spark.client.consumer.asked_ahead import AskedAhead
from rmq_spark.client.consumer.clock import monotonic_ms
from rmq_spark.client.consumer.first_offset import FirstOffset
from rmq_spark.client.consumer.group_brokers import GroupBrokers, by_broker
from rmq_spark.client.consumer.last_known import LastKnown, those_known
from rmq_spark.client.consumer.offset_table import OffsetStore, ReadOffsetType
from rmq_spark.client.message import MessageExt
from rmq_spark.client.threads.lanes import Lanes
from rmq_spark.wire.message_queue import MessageQueue

PERSIST_WAIT_MS = 500
"""Milliseconds that brokers are waited for when offsets are persisted."""


class MemberOffsets:
    """The offsets of one member's queues."""

    def __init__(
        self,
        store: OffsetStore,
        brokers: GroupBrokers,
        lanes: Lanes,
        first_offset: FirstOffset,
        last_known: Callable[[], Mapping[MessageQueue, LastKnown]],
        message_at: Callable[[MessageQueue, int], MessageExt | None],
    ) -> None:
        """Take what stores them; ``last_known`` returns what is known of each queue now.

        ``message_at`` is the member's own: what it hears beside a message is not lost.
        """
        self._store = store
        self._brokers = brokers
        self._lanes = lanes
        self._first_offset = first_offset
        self._ahead = AskedAhead(self._first_of, monotonic_ms)
        self._last_known = last_known
        self._message_at = message_at

    def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Store offsets: each broker is told in its lane, and waited for a moment."""
        of_broker = by_broker(queues)
        self._lanes.at_each(
            of_broker, lambda broker: self.persist_now(of_broker[broker]), PERSIST_WAIT_MS
        )

    def persist_now(self, queues: Iterable[MessageQueue]) -> None:
        """Store the offsets of those queues that are still the ones that were pulled."""
        all_known = self._last_known()
        known = {queue: all_known[queue] for queue in queues if queue in all_known}
        for queue in those_known(known, self._message_at):
            self._store.persist_all((queue,))

    def persist_soon(self, queue: MessageQueue) -> None:
        """Store the offset of one queue, after all earlier requests to its broker."""
        self._lanes.of(queue.broker_name).schedule(lambda: self.persist_now((queue,)))

    def forget(self, queue: MessageQueue, last_known: LastKnown) -> None:
        """Store the offset of a queue that is given up, and then forget it here."""
        self._ahead.forget(queue)

        def forget() -> None:
            self._store.persist_all([*those_known({queue: last_known}, self._message_at)])
            self._store.remove_offset(queue)

        self._lanes.of(queue.broker_name).schedule(forget)

    def take_back(self, queue: MessageQueue, offset: int) -> None:
        """Move the group's offset in a queue that is another one now back to an offset of that."""
        known = self._store.read_offset(queue, ReadOffsetType.READ_FROM_MEMORY)
        if known is not None and offset < known:
            self._store.update_offset(queue, offset, increase_only=False)
            self.persist_soon(queue)

    def begin_together(self, queues: Iterable[MessageQueue]) -> None:
        """Have brokers asked at once where these queues begin, as soon as one of them does.

        They are expected behind what was given up before: that is stored first.
        """
        for broker, own in by_broker(queues).items():
            self._lanes.of(broker).schedule(partial(self.expect, own))

    def expect(self, queues: Iterable[MessageQueue]) -> None:
        """Note in the lane of a broker that these queues of it begin soon."""
        self._ahead.expect(queues)

    def begin_at(self, queue: MessageQueue) -> int:
        """Return the offset to begin a queue at, which another member may have moved."""
        return self._ahead.of(queue)

    def _first_of(self, queue: MessageQueue) -> int:
        self._store.remove_offset(queue)
        return self._first_offset.of(queue, self._store, self._brokers)
