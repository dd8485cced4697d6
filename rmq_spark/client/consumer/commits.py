"""Commits: offsets of a member stored at once, where the queues are still the ones that were read.

A queue that is another one now, as its topic was made again, has had none of what was read: an
offset of the old one would pass over as many of its messages. What is stored now and then is not
decided here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from rmq_spark.client.consumer.assigned_queues import AssignedQueue
from rmq_spark.client.consumer.group_brokers import by_broker
from rmq_spark.client.consumer.last_known import LastKnown, MessageAt
from rmq_spark.client.consumer.offset_table import OffsetStore
from rmq_spark.client.errors import CONNECTION_FAULTS
from rmq_spark.client.threads.at_once import for_each, raise_first
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 16
"""Most queues of a broker whose offsets are stored at a time."""

_QUEUES_OF_A_THREAD: Final = 4
"""So few are stored one after the other, sooner than another thread is started."""


class Commit(NamedTuple):
    """Offsets that a user wants stored, and how often operators had moved each queue by then."""

    offsets: Mapping[MessageQueue, int]
    moves: Mapping[MessageQueue, int]

    @classmethod
    def of_all_returned(cls, all_assigned: Iterable[AssignedQueue]) -> Commit:
        """Return how far each queue has come with all that was returned, which is dealt with."""
        offsets: dict[MessageQueue, int] = {}
        moves = {assigned.queue: assigned.moves for assigned in all_assigned}
        for assigned in all_assigned:
            assigned.confirm_delivered()
            assigned.publish_consumed(offsets.__setitem__)
        return cls(offsets, moves)

    def still_wanted(self, all_assigned: Iterable[AssignedQueue]) -> dict[MessageQueue, int]:
        """Return the offsets of queues but for those that an operator has moved since."""
        moved = {each.queue for each in all_assigned if each.moves > self.moves.get(each.queue, 0)}
        return {queue: offset for queue, offset in self.offsets.items() if queue not in moved}


def store_offsets(
    store: OffsetStore,
    offsets: Mapping[MessageQueue, int],
    known: Mapping[MessageQueue, LastKnown],
    message_at: MessageAt,
) -> None:
    """Wait until all brokers have the offsets; one that fails keeps none from the others.

    They are remembered by the store already. What an operator has it remember meanwhile, while a
    broker that is away is waited for, is stored in place of them.

    Of each broker some queues are stored at a time, as its network may take milliseconds for each.

    Args:
        store: Where offsets are kept.
        offsets: The offset to go on at, by queue.
        known: Knowledge of the queues that are read; of others there is none.
        message_at: Returns a message of a queue, to look whether it is still the one that was read.

    Raises:
        RocketPollError: A broker has not answered. Its offsets are remembered, and stored later.
    """

    def persist(queue: MessageQueue) -> None:
        if queue not in known or known[queue].is_known(queue, message_at):
            store.persist_newest(queue, offsets[queue])
        else:
            _log.warning("%s is another queue now: no offset is stored for it", queue)

    outcomes: list[Exception | None] = []
    for own in by_broker(offsets).values():
        most = max(1, min(len(own) // _QUEUES_OF_A_THREAD, AT_ONCE_MAX))
        found = for_each(own, persist, most=most, name="commits", last=CONNECTION_FAULTS)
        outcomes += found.values()
    raise_first(outcomes)
