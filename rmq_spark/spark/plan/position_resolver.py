"""PositionResolver: turns the positions that users write into offsets, once, when a read starts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from rmq_spark.spark.brokers.queue_client import QueueClient, TimestampQuery
from rmq_spark.spark.errors import (
    BrokersAway,
    BrokersGone,
    OptionError,
    report_losses,
)
from rmq_spark.spark.options.options import ReadOptions
from rmq_spark.spark.options.start_positions import (
    ANY,
    EARLIEST,
    LATEST,
    CountPosition,
    GroupPosition,
    OffsetPosition,
    Position,
    Positions,
    RelativeTimePosition,
    TimePosition,
)
from rmq_spark.wire.message_queue import MessageQueue

_SHOWN_MAX: Final = 5


class LoadSnapshot(NamedTuple):
    """The moment at which a batch read was loaded; all its actions read up to these ends.

    Attributes:
        ends: The offset of the next message of each queue whose broker answered at `load()`.
        now_ms: The time on this machine, in milliseconds since the epoch.
    """

    ends: Mapping[MessageQueue, int]
    now_ms: int

    def clamp_ends(
        self, found: Mapping[MessageQueue, int], *, is_failure: bool
    ) -> dict[MessageQueue, int]:
        """Return the ends of queues, given the present ones: no queue is read past the snapshot.

        A queue that is new, or whose broker did not answer at `load()`, ends where it ends now.
        """
        losses = [
            f"{queue} ended at {self.ends[queue]} when load() ran, and ends at "
            f"{end} now: messages are lost, or the topic was deleted and recreated. Call load() "
            "again"
            for queue, end in found.items()
            if end < self.ends.get(queue, 0)
        ]
        report_losses(losses, is_failure=is_failure)
        return {queue: min(end, self.ends.get(queue, end)) for queue, end in found.items()}


class PositionResolver:
    """Resolves positions by the offset bounds of each queue, which it asks for once."""

    def __init__(
        self,
        options: ReadOptions,
        queues: QueueClient,
        readable: Iterable[MessageQueue],
        snapshot: LoadSnapshot | None = None,
    ) -> None:
        """Ask for the bounds; with a snapshot, queues end where they ended then."""
        self._options = options
        self._queues = queues
        self.queues = sorted(readable)
        try:
            self._current_ends = self.ends = queues.ends(self.queues)
        except (BrokersAway, BrokersGone) as error:
            wrong = queues.assignment_error(error.unknown_brokers)
            if wrong is None:
                raise
            raise wrong from None
        queues.refresh_unrouted_queues()
        if snapshot is not None:
            self.ends = snapshot.clamp_ends(
                self._current_ends, is_failure=options.fail_on_data_loss
            )
        self.starts = {
            queue: min(start, self.ends[queue])
            for queue, start in queues.starts(self.queues).items()
        }
        self._now_ms = time.time_ns() // 1_000_000 if snapshot is None else snapshot.now_ms

    def starting_offsets(self, default: int) -> dict[MessageQueue, int]:
        """Return the offset at which each queue starts."""
        positions = self._options.starting
        if positions is None:
            return dict(self.starts if default == EARLIEST else self.ends)
        return self._resolve(positions, is_start=True)

    def ending_offsets(self, *, is_bound: bool = False) -> dict[MessageQueue, int]:
        """Return the offset before which each queue ends.

        ``is_bound`` accepts offsets outside of the present queue; those past its end become that
        end.
        """
        positions = self._options.ending
        if positions is None:
            return dict(self.ends)
        return self._resolve(positions, is_start=False, is_bound=is_bound)

    def _resolve(
        self, positions: Positions, *, is_start: bool, is_bound: bool = False
    ) -> dict[MessageQueue, int]:
        self._check_names(positions, is_start=is_start)
        wanted = {
            queue: position
            for queue in self.queues
            if (position := positions.position_of(queue.topic, queue.broker_name, queue.queue_id))
            is not None
        }
        missing = [queue for queue in self.queues if queue not in wanted]
        if missing:
            named = ", ".join(
                f"{q.topic} > {q.broker_name} > {q.queue_id}" for q in missing[:_SHOWN_MAX]
            )
            more = f" and {len(missing) - _SHOWN_MAX} more" if len(missing) > _SHOWN_MAX else ""
            raise OptionError(
                positions.option,
                f"it has no position for {named}{more}. Name every queue, or give all others with "
                '"*": -2 (earliest) or -1 (latest)',
            )
        by_time = self._by_time(positions.option, wanted, is_start=is_start)
        by_group = self._by_group(positions.option, wanted)
        return {
            queue: by_time[queue]
            if queue in by_time
            else by_group[queue]
            if queue in by_group
            else self._by_offset(positions.option, queue, position, is_bound=is_bound)
            for queue, position in wanted.items()
        }

    def _check_names(self, positions: Positions, *, is_start: bool) -> None:
        """Refuse topics and queues that do not exist, so that a typo is not ignored."""
        topics: dict[str, list[MessageQueue]] = {}
        for queue in self.queues:
            topics.setdefault(queue.topic, []).append(queue)
        unread = sorted(positions.topics - topics.keys())
        if self._options.waits_for_topic:
            awaited = set(self._options.selection.topics).intersection(unread)
            if is_start:
                for topic in sorted(awaited):
                    _check_awaited_topic(positions, topic)
            unread = [topic for topic in unread if topic not in awaited]
        if unread:
            known = ", ".join(sorted(topics)) or "none"
            raise OptionError(
                positions.option,
                f"it names {', '.join(unread)}, but the topics read are {known}",
            )
        for topic, queues in topics.items():
            self._check_queues(positions, topic, queues)
            brokers = {queue.broker_name for queue in queues}
            if len(brokers) > 1 and not positions.has_broker_level(topic):
                raise OptionError(
                    positions.option,
                    f"topic {topic} is on brokers {', '.join(sorted(brokers))}. Name them",
                )

    def _check_queues(self, positions: Positions, topic: str, queues: list[MessageQueue]) -> None:
        brokers = sorted({queue.broker_name for queue in queues})
        for broker, number in positions.named_queues(topic):
            if broker not in (ANY, *brokers):
                raise OptionError(
                    positions.option,
                    f"it names broker {broker} of {topic}, but the brokers read are "
                    f"{', '.join(brokers)}",
                )
            queue_ids = sorted(
                {queue.queue_id for queue in queues if broker in (ANY, queue.broker_name)}
            )
            if number != ANY and int(number) not in queue_ids:
                raise OptionError(
                    positions.option,
                    f"it names queue {number} of {topic}, but the queues read are "
                    f"{', '.join(map(str, queue_ids))}",
                )

    def _by_offset(
        self, option: str, queue: MessageQueue, position: Position, *, is_bound: bool
    ) -> int:
        start, end = self.starts[queue], self.ends[queue]
        if isinstance(position, CountPosition):
            return max(start, end - position.messages)
        offset = position.offset if isinstance(position, OffsetPosition) else LATEST
        if offset in (EARLIEST, LATEST):
            return start if offset == EARLIEST else end
        last = self._current_ends[queue]
        if is_bound:
            return min(offset, last)
        return offset if start <= offset <= last else self._nearest_offset(option, queue, offset)

    def _by_time(
        self, option: str, wanted: Mapping[MessageQueue, Position], *, is_start: bool
    ) -> dict[MessageQueue, int]:
        times = {
            queue: each.timestamp_ms if isinstance(each, TimePosition) else self._now_ms - each.ms
            for queue, each in wanted.items()
            if isinstance(each, (TimePosition, RelativeTimePosition))
        }
        found = self._queues.offsets_for_times(
            {
                queue: TimestampQuery(ms, self.starts[queue], self.ends[queue])
                for queue, ms in times.items()
            }
        )
        is_strict = is_start and not self._options.starts_at_end_without_match
        for queue, ms in times.items():
            if (
                is_strict
                and found[queue] == self.ends[queue]
                and isinstance(wanted[queue], TimePosition)
            ):
                raise OptionError(
                    option,
                    f"no message of {queue} was stored at {ms} ms or later; set "
                    "startingOffsetsByTimestampStrategy to latest to begin at its end",
                )
        return found

    def _by_group(
        self, option: str, wanted: Mapping[MessageQueue, Position]
    ) -> dict[MessageQueue, int]:
        otherwise = {
            queue: each.fallback
            for queue, each in wanted.items()
            if isinstance(each, GroupPosition)
        }
        if not otherwise:
            return {}
        group = self._options.consumer_group
        if group is None:
            raise OptionError(
                "consumerGroup", f"{option}=group needs the name of a group. Set this option"
            )
        found: dict[MessageQueue, int] = {}
        for queue, offset in self._queues.committed_offsets(otherwise, group).items():
            if offset is None:
                found[queue] = (
                    self.starts[queue] if otherwise[queue] == EARLIEST else self.ends[queue]
                )
            elif self.starts[queue] <= offset <= self._current_ends[queue]:
                found[queue] = offset
            else:
                found[queue] = self._nearest_offset(option, queue, offset)
        return found

    def _nearest_offset(self, option: str, queue: MessageQueue, offset: int) -> int:
        start, end = self.starts[queue], self._current_ends[queue]
        if self._options.fail_on_data_loss:
            raise OptionError(
                option,
                f"{queue} has the offsets from {start} to {end}, not {offset}. "
                "Correct the offset, or set failOnDataLoss to false to use the nearest",
            )
        return end if offset > end else start


def _check_awaited_topic(positions: Positions, topic: str) -> None:
    """Refuse an offset in a topic that does not exist yet, and will be read from its start."""
    for each in positions.positions_of_topic(topic):
        if isinstance(each, OffsetPosition) and each.offset > 0:
            raise OptionError(
                positions.option,
                f"topic {topic} does not exist yet, and will be read from its first message: "
                f"needed 0, earliest or latest for it, found {each.offset}",
            )
