"""LatestOffsets: where the queues of a query end, and which brokers and queues are gone for good.

    a broker does not answer        the query waits for it, or continues without it (onBrokerAway)
    no name server knows a broker   a loss; its queues keep their offsets, in case it returns
    a topic of a pattern is deleted its queues leave the offset; a loss unless all was read
    a queue is withdrawn            its topic has fewer queues now; a loss if messages are unread

A loss fails the query, or is logged with failOnDataLoss=false.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.errors import BrokersGone, report_losses
from rmq_spark.spark.options.options import ReadOptions
from rmq_spark.spark.plan.position_resolver import PositionResolver
from rmq_spark.spark.plan.queue_identity import StoreTimeLookup
from rmq_spark.spark.plan.source_offset import SourceOffset
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

_LOSS_CHECKS: Final = 3
_SHOWN_MAX: Final = 5


class LatestOffsets:
    """Tracks the end offsets of a query's queues, and reports queues that lost messages.

    For use by one thread.
    """

    def __init__(
        self, options: ReadOptions, queues: QueueClient, store_times: StoreTimeLookup
    ) -> None:
        self._options = options
        self._queues = queues
        self._store_times = store_times
        self._newest: SourceOffset | None = None
        self._target: Mapping[MessageQueue, int] | None = None
        self._reported_ends: dict[MessageQueue, int] = {}
        """The ends of withdrawn queues when their losses were reported."""

    @property
    def newest(self) -> SourceOffset | None:
        """The ends of the queues as last seen; for brokers that are away, the previous ones."""
        return self._newest

    @property
    def is_closed(self) -> bool:
        """True if messages that arrive from now on are not read."""
        return self._target is not None

    def close(self) -> None:
        """Ignore messages that arrive from now on, or that are past the given end."""
        found = sorted(self._queues.wait_for_named_brokers(self._options.ending))
        if self._options.ending is None:
            # Queues known only from the user's options are read once their broker answers, like all
            # queues that no name server knows at the moment.
            by_name = self._queues.unrouted_queues()
            found = [queue for queue in found if queue not in by_name]
            self._target = self._queues.ends(
                found, required=() if self._options.skips_unavailable else None
            )
        else:
            self._target = self._ending_offsets(found)

    def refresh_store_times(self, queues: Collection[MessageQueue]) -> None:
        """Ask again for the store times at these queues' ends, because their messages changed."""
        if self._newest is not None and queues:
            ends = {queue: at.next_offset for queue, at in self._newest.positions.items()}
            self._newest = self._store_times.positions_at(ends, self._newest, excluding=queues)

    def fetch(self, start: SourceOffset) -> tuple[SourceOffset, dict[MessageQueue, int]]:
        """Return the start without queues that are gone for good, and the ends of the others."""
        base, ends = self._query_ends(start)
        for _ in range(_LOSS_CHECKS):
            if all(
                ends.get(queue, at.next_offset) >= at.next_offset
                for queue, at in base.positions.items()
            ):
                break
            self._queues.pause()  # a broker that has just started may not have counted all yet
            base, ends = self._query_ends(base)
        base = self._drop_deleted(base, ends)
        before = self._newest.positions if self._newest is not None else {}
        previous_ends = {
            queue: before[queue].next_offset for queue in base.positions if queue in before
        }
        # If a queue's start has no store time, a recreated queue cannot be detected.
        without_store_time = {
            queue
            for queue in ends
            if queue not in base.positions or base.positions[queue].stored_ms is None
        }
        self._newest = self._store_times.positions_at(
            {**previous_ends, **ends}, self._newest, base, excluding=without_store_time
        )
        self._clamp_withdrawn(base, ends)
        if self._target is not None:
            # Spark requests the target before the start. The start may already be past it, or have
            # queues of a broker that no name server knew at the time.
            brokers = {queue.broker_name for queue in self._target}
            arrived = [
                queue
                for queue in ends
                if queue in base.positions and queue.broker_name not in brokers
            ]
            if arrived and self._options.ending is None:
                self._target = {**self._target, **{queue: ends[queue] for queue in arrived}}
            elif arrived:  # resolve all, because the ending option may name any
                given = self._ending_offsets([*self._target, *arrived])
                self._target = {**self._target, **{queue: given[queue] for queue in arrived}}
            at = {queue: position.next_offset for queue, position in base.positions.items()}
            ends = {
                queue: self.clamp_to_target(queue, at.get(queue, 0), end)
                for queue, end in ends.items()
            }
        return base, ends

    def clamp_to_target(self, queue: MessageQueue, start: int, end: int) -> int:
        """Return the end up to which a queue is read, given its offset and its current end."""
        return end if self._target is None else min(end, max(self._target.get(queue, 0), start))

    def _ending_offsets(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
        return PositionResolver(self._options, self._queues, queues).ending_offsets(is_bound=True)

    def _query_ends(self, start: SourceOffset) -> tuple[SourceOffset, dict[MessageQueue, int]]:
        """Return the start, with the brokers recorded that are gone, and the ends of the queues."""
        readable = self._queues.discover()
        known = [
            queue for queue in start.positions if queue.broker_name not in start.missing_brokers
        ]
        new = {
            queue
            for queue in self._queues.unrouted_queues()
            if queue not in start.positions and queue.broker_name not in start.missing_brokers
        }
        wanted = readable if self._target is None else self._target
        queues = dict.fromkeys([*known, *sorted(new.union(wanted))])
        try:
            ends = self._queues.ends(
                queues, required=() if self._options.skips_unavailable else new.union(known)
            )
        except BrokersGone as error:
            names = {queue.broker_name for queue in new}
            wrong = self._queues.assignment_error(names.intersection(error.unknown_brokers))
            if wrong is not None:
                raise wrong from None
            shown = [
                f"{queue} to offset {start.positions[queue].next_offset}"
                for queue in known
                if queue.broker_name in error.broker_names
            ]
            more = f" and {len(shown) - _SHOWN_MAX} more" if len(shown) > _SHOWN_MAX else ""
            self._report(
                [f"{error}. Positions that were read: {', '.join(shown[:_SHOWN_MAX])}{more}"]
            )
            return self._query_ends(start.without_brokers(error.broker_names))
        return start.with_brokers({queue.broker_name for queue in ends}), ends

    def _drop_deleted(self, start: SourceOffset, ends: dict[MessageQueue, int]) -> SourceOffset:
        """Return an offset without topics that a pattern had matched and that were deleted."""
        if self._options.selection.pattern is None:
            return start
        deleted = [
            queue
            for queue, end in ends.items()
            if not end and not self._queues.is_routed(queue.topic)
        ]
        if not deleted:
            return start
        before = self._newest.positions if self._newest is not None else {}
        losses = []
        for queue in sorted(deleted):
            del ends[queue]
            reached = start.positions[queue].next_offset if queue in start.positions else 0
            last = before[queue].next_offset if queue in before else None
            if reached and (last is None or reached < last):
                unread = "it is unknown what followed" if last is None else f"and ended at {last}"
                losses.append(f"{queue} is gone: it was read to offset {reached}, {unread}")
        self._report(losses)
        self._queues.discard(deleted)
        known = start.positions.keys() & frozenset(deleted)
        return start.without_queues(known) if known else start  # an unequal offset makes a batch

    def _clamp_withdrawn(self, start: SourceOffset, ends: dict[MessageQueue, int]) -> None:
        """Stop reading withdrawn queues; report the loss of their unread messages once."""
        losses, unread = [], {}
        for queue, position in start.positions.items():
            end = ends.get(queue, 0)
            if end > position.next_offset and self._queues.is_withdrawn(queue):
                if self._reported_ends.get(queue) != end:
                    losses.append(
                        f"{queue} is no longer readable (perm): its offsets from "
                        f"{position.next_offset} to {end - 1} were not read"
                    )
                    unread[queue] = end
                ends[queue] = position.next_offset
        self._report(losses)
        self._reported_ends.update(unread)

    def _report(self, losses: Sequence[str]) -> None:
        report_losses(losses, is_failure=self._options.fail_on_data_loss)
