"""MicroBatches: one query's batches, from where it starts to what is next, and what was lost on the way.

    initial      where a new query begins
    latest       where the next batch ends: what is new, within the limits; where nothing is, it waits a
                 little, so that brokers hold its pulls and the first new message starts a batch at once
    pieces       what the tasks of a batch read
    commit       tells brokers how far a group has come

A start that this object has not made itself, since it comes from a checkpoint, is held against the brokers
before anything is read: offsets that are gone, a topic that was made again. What is gone ends the query, or
with failOnDataLoss=false is logged and passed over. It knows neither Spark nor connections.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from rmq_spark.spark.errors import CheckpointError, lost, named, report_losses
from rmq_spark.spark.options import Limits, ReadOptions
from rmq_spark.spark.planning import Backlog, Piece, pieces, rows_within_bytes, share_rows
from rmq_spark.spark.positions import LATEST
from rmq_spark.spark.queues import Queues
from rmq_spark.spark.source_offset import QueuePosition, SourceOffset
from rmq_spark.spark.start_and_end import Span
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

NO_LIMITS: Final = Limits()
_LOOKS_AT_A_LOSS: Final = 3
_RECORD_BYTES: Final = 300.0
"""How long a message is taken to be before the first was seen."""


class MicroBatches:
    """See the module. For one thread."""

    def __init__(self, options: ReadOptions, queues: Queues, clock: Callable[[], float]) -> None:
        """``clock`` gives seconds."""
        self._options = options
        self._queues = queues
        self._clock = clock
        self._initial: SourceOffset | None = None
        self._mine: SourceOffset | None = None  # the last that was made or checked here
        self._newest: SourceOffset | None = None
        self._target: Mapping[MessageQueue, int] | None = None
        self._was_empty_at: SourceOffset | None = None
        self._last_batch_at: float | None = None
        self._sizes: dict[MessageQueue, float] = {}
        self._committed: Mapping[MessageQueue, int] = {}

    # ---- where

    def initial(self) -> SourceOffset:
        """Where a query begins that has no checkpoint yet.

        Spark asks again and again until there is a first batch: the end of the queues must not move on
        meanwhile, or what comes between two questions would never be read.
        """
        if self._initial is None:
            found = self._queues.discover(now=True)
            begin = Span(self._options, self._queues, found).starting(default=LATEST)
            self._initial = self._mine = self._with_times(begin)
        return self._initial

    def prepare_available_now(self) -> None:
        """From now on, nothing counts that arrives later."""
        self._target = self._queues.ends(self._queues.discover(now=True), every=True)

    @property
    def newest(self) -> SourceOffset | None:
        """Where the queues end, as `latest` last saw it."""
        return self._newest

    @property
    def sizes(self) -> Mapping[MessageQueue, float]:
        """How long the messages of each queue are, as far as they were seen."""
        return self._sizes

    def look(self, known: SourceOffset) -> SourceOffset:
        """Where the queues end now that an offset knows."""
        ends = self._queues.ends(known.positions, every=True)
        return self._with_times(ends, known)

    def latest(self, start: SourceOffset, limits: Limits) -> SourceOffset:
        """Where the next batch ends; ``start`` itself if there is none yet.

        Raises:
            DataLoss: Messages behind the start are gone.
            CheckpointError: The start is of other topics.
        """
        is_known = start == self._mine
        ends = self._ends(start)
        found = self._batch(start, ends, limits, is_known=is_known)
        self.commit(start)
        may_wait = self._target is None and start == self._was_empty_at
        if found is None and may_wait:
            self._queues.wait(ends, self._options.suspend_ms)
            found = self._batch(start, self._ends(start), limits, is_known=True)
        self._mine = start if found is None else found
        self._was_empty_at = start if found is None else None
        return self._mine

    def _ends(self, start: SourceOffset) -> dict[MessageQueue, int]:
        """Where queues end, or are to end: those that there are, and those that the query knows."""
        readable = self._queues.discover()
        queues = readable if self._target is None else frozenset(self._target)
        self._check_topics(start)
        every = self._target is not None
        ends = self._queues.ends({*queues, *start.positions}, every=every)
        for _ in range(_LOOKS_AT_A_LOSS):
            if all(
                ends.get(queue, each.next_offset) >= each.next_offset
                for queue, each in start.positions.items()
            ):
                break
            self._queues.pause()  # a broker that has just started may not have counted all yet
            ends = self._queues.ends({*queues, *start.positions}, every=every)
        self._newest = self._with_times(ends, self._newest, start)
        ends = self._readable(start, ends, readable)
        if self._target is not None:
            # Spark asks for the target before it asks where to begin: that may already lie behind it.
            at = {queue: position.next_offset for queue, position in start.positions.items()}
            ends = {
                queue: min(end, max(self._target.get(queue, 0), at.get(queue, 0)))
                for queue, end in ends.items()
            }
        return ends

    def _readable(
        self, start: SourceOffset, ends: dict[MessageQueue, int], queues: frozenset[MessageQueue]
    ) -> dict[MessageQueue, int]:
        """What may not be read any more stays as it is: a topic that has fewer queues now."""
        losses = []
        for queue, position in start.positions.items():
            if queue in queues or ends.get(queue, 0) <= position.next_offset:
                continue
            losses.append(
                f"{named(queue)} may not be read any more: its offsets from {position.next_offset} to "
                f"{ends[queue] - 1} were not read"
            )
            ends[queue] = position.next_offset
        self._report(losses)
        return ends

    # ---- a batch

    def _batch(
        self, start: SourceOffset, ends: Mapping[MessageQueue, int], limits: Limits, *, is_known: bool
    ) -> SourceOffset | None:
        """The end of a batch; None if there is nothing new, or not enough yet."""
        at = {queue: position.next_offset for queue, position in start.positions.items()}
        changed = [queue for queue, end in ends.items() if at.get(queue, 0) != end]
        if not changed and is_known:
            return None
        began = self._begun(start, ends, changed if is_known else ends)
        first = {queue: began.get(queue, at.get(queue, 0)) for queue in {*at, *began}}
        backlogs = {
            queue: Backlog(end - first[queue], start.positions.get(queue, (0, 0))[1] or 0)
            for queue, end in ends.items()
            if queue in first and end > first[queue]
        }
        if not self._is_enough(backlogs, began, limits):
            return None
        rows = self._rows(backlogs, first, limits)
        taken = share_rows(
            backlogs, sum(each.messages for each in backlogs.values()) if rows is None else rows
        )
        end = {queue: offset + taken.get(queue, 0) for queue, offset in first.items()}
        if end == at and not began:
            return None
        self._last_batch_at = self._clock()
        found = self._with_times(end, self._newest, start, but=began)
        if start == self._initial:
            # Where the first batch begins is in no log of Spark's: after a crash it asks for it once more.
            began = {**{queue: at[queue] for queue in taken if queue in at}, **began}
        return SourceOffset(found.positions, MappingProxyType(began))

    def _is_enough(
        self, backlogs: Mapping[MessageQueue, Backlog], began: Mapping[MessageQueue, int], limits: Limits
    ) -> bool:
        """Whether a batch is worth its while, or has been waited for long enough."""
        if not backlogs:
            return bool(began)
        if limits.rows_min is None or self._target is not None or self._last_batch_at is None:
            return True
        if sum(backlog.messages for backlog in backlogs.values()) >= limits.rows_min:
            return True
        return self._clock() - self._last_batch_at >= limits.delay_ms / 1000

    def _rows(
        self, backlogs: Mapping[MessageQueue, Backlog], first: Mapping[MessageQueue, int], limits: Limits
    ) -> int | None:
        """How many messages a batch may have in all; None for any number."""
        rows = limits.rows
        if limits.bytes is not None and backlogs:
            unseen = {queue: first[queue] for queue in backlogs if queue not in self._sizes}
            self._measure(unseen)
            sizes = {queue: self._sizes.get(queue, _RECORD_BYTES) for queue in backlogs}
            within = rows_within_bytes(backlogs, sizes, limits.bytes)
            rows = within if rows is None else min(rows, within)
        return rows

    # ---- what tasks read

    def pieces(self, start: SourceOffset, end: SourceOffset) -> list[Piece]:
        """The ranges between two offsets, cut for tasks: always the same for the same two."""
        if start == end:
            return []
        ranges = {}
        for queue, position in end.positions.items():
            before = start.positions.get(queue)
            first = end.began.get(queue, position.next_offset if before is None else before.next_offset)
            ranges[queue] = (first, position.next_offset)
        if end != self._mine:
            gone = self._check_replay(start, end, ranges)
            ranges = {queue: each for queue, each in ranges.items() if queue not in gone}
        return pieces(ranges, self._options.pieces_min, self._options.piece_rows_max)

    def _check_replay(
        self, start: SourceOffset, end: SourceOffset, ranges: Mapping[MessageQueue, tuple[int, int]]
    ) -> set[MessageQueue]:
        """A batch that was planned before a restart: everything it takes has to be there still.

        Returns:
            The queues of which nothing is there any more, if the query may go on without.
        """
        self._check_topics(start)
        self._check_topics(end)
        self._queues.discover()
        moving = {queue: each for queue, each in ranges.items() if each[1] > each[0]}
        ends = self._queues.ends(moving, every=True)
        starts = self._queues.starts(moving, every=True)
        losses = {
            queue: _gone(queue, first, last, starts[queue], ends[queue])
            for queue, (first, last) in moving.items()
            if not starts[queue] <= first <= last <= ends[queue]
        }
        gone = {queue for queue, (_, last) in moving.items() if not starts[queue] < last <= ends[queue]}
        there = moving.keys() - gone
        went_on = there & start.positions.keys() - end.began.keys()
        others = {
            **self._made_again(start, {queue: moving[queue][0] for queue in went_on}),
            **self._made_again(end, {queue: moving[queue][1] for queue in there}),
        }
        self._report([*losses.values(), *others.values()])
        return gone | set(others)

    def commit(self, reached: SourceOffset) -> None:
        """Tell brokers how far the group has come, if one was named."""
        group = self._options.consumer_group
        if group is None or not reached.positions:
            return
        offsets = {queue: position.next_offset for queue, position in reached.positions.items()}
        news = {queue: offset for queue, offset in offsets.items() if self._committed.get(queue) != offset}
        if news:
            self._committed = {**self._committed, **self._queues.commit(group, news)}

    # ---- what is gone

    def _begun(
        self, start: SourceOffset, ends: Mapping[MessageQueue, int], which: Iterable[MessageQueue]
    ) -> dict[MessageQueue, int]:
        """Queues that begin anew: those that were not there before, and those that lost messages."""
        starts = self._queues.starts(which)
        began: dict[MessageQueue, int] = {}
        losses: list[str] = []
        for queue in sorted(starts):
            position = start.positions.get(queue)
            first, last = min(starts[queue], ends[queue]), ends[queue]
            if position is None:
                if first < last:
                    began[queue] = first
            elif not first <= position.next_offset <= last:
                losses.append(_gone(queue, position.next_offset, None, first, last))
                began[queue] = first
        waiting = {
            queue: position.next_offset
            for queue, position in start.positions.items()
            if queue in starts and queue not in began
        }
        for queue, loss in self._made_again(start, waiting).items():
            losses.append(loss)
            began[queue] = min(starts[queue], ends[queue])
        self._report(losses)
        return began

    def _made_again(self, offset: SourceOffset, which: Mapping[MessageQueue, int]) -> dict[MessageQueue, str]:
        """Queues whose message before the offset is not the one that was there: another topic's now."""
        before = {
            queue: next_offset - 1
            for queue, next_offset in which.items()
            if next_offset and offset.positions[queue].stored_ms is not None
        }
        losses = {}
        for queue, message in self._queues.stored(before).items():
            known_ms = offset.positions[queue].stored_ms
            if message.timestamp_ms != known_ms:
                losses[queue] = (
                    f"{named(queue)} is not the one that was read: its message at offset {before[queue]} was "
                    f"stored at {message.timestamp_ms} ms, and at {known_ms} ms when it was read; the topic "
                    "was deleted and made again"
                )
        return losses

    def _check_topics(self, start: SourceOffset) -> None:
        """A checkpoint of other topics is a mistake; one of more topics would lose what is left in them."""
        if start == self._mine or self._options.selection.pattern is not None:
            return
        option, chosen = self._options.selection.option, frozenset(self._options.selection.topics)
        others = sorted(start.topics - chosen)
        if not others:
            return
        if not start.topics & chosen:
            raise CheckpointError(
                f"the checkpoint is of {', '.join(others)}, and option {option} names "
                f"{', '.join(sorted(chosen))}: give this query a checkpointLocation of its own, or name the "
                "topics that it has read so far"
            )
        self._report(
            [f"the checkpoint also is of {', '.join(others)}, which option {option} does not name any more"]
        )

    def _report(self, losses: Sequence[str]) -> None:
        report_losses(losses, is_failure=self._options.fail_on_data_loss)

    # ---- times

    def _with_times(
        self,
        offsets: Mapping[MessageQueue, int],
        *known: SourceOffset | None,
        but: Container[MessageQueue] = (),
    ) -> SourceOffset:
        """These offsets with the times when the messages before them were stored.

        What is known stays, the last having the last word; ``but`` of these queues nothing is known.
        """
        positions = {queue: QueuePosition(offset) for queue, offset in offsets.items()}
        for each in known:
            if each is not None:
                positions.update(
                    (queue, position)
                    for queue, position in each.positions.items()
                    if offsets.get(queue) == position.next_offset and queue not in but
                )
        unknown = {
            q: p.next_offset - 1 for q, p in positions.items() if p.next_offset and p.stored_ms is None
        }
        for queue, stored_ms in self._measure(unknown).items():
            positions[queue] = QueuePosition(positions[queue].next_offset, stored_ms)
        return SourceOffset(positions)

    def _measure(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """When these messages were stored; how long they are is taken into the mean of each queue."""
        times = {}
        for queue, message in self._queues.stored(offsets).items():
            times[queue] = message.timestamp_ms
            mean = self._sizes.get(queue)
            self._sizes[queue] = message.size if mean is None else (mean * 3 + message.size) / 4
        return times


def _gone(queue: MessageQueue, first: int, last: int | None, start: int, end: int) -> str:
    if first > end or (last or 0) > end:
        reached = max(first, last or 0)
        return f"{named(queue)} ends at offset {end}, and was read, or to be read, to {reached} before"
    return lost(queue, first, start)
