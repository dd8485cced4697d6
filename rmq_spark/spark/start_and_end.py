"""From positions, as users say them, to offsets, as brokers count them; once, where a read begins."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from rmq_spark.spark.errors import OptionError, named
from rmq_spark.spark.options import ReadOptions
from rmq_spark.spark.positions import (
    ANY,
    EARLIEST,
    LATEST,
    AtGroup,
    AtOffset,
    AtTime,
    BackByCount,
    Position,
    Positions,
)
from rmq_spark.spark.queues import Queues
from rmq_spark.wire.message_queue import MessageQueue

_SHOWN_MAX: Final = 5


class Span:
    """What the queues hold, from where to where: asked once, used for every position."""

    def __init__(self, options: ReadOptions, queues: Queues, which: Iterable[MessageQueue]) -> None:
        self._options = options
        self._queues = queues
        self.queues = sorted(which)
        self.ends = queues.ends(self.queues, every=True)
        self.starts = {
            queue: min(start, self.ends[queue])
            for queue, start in queues.starts(self.queues, every=True).items()
        }
        self._now_ms = time.time_ns() // 1_000_000

    def starting(self, default: int) -> dict[MessageQueue, int]:
        """Where each queue is to begin."""
        positions = self._options.starting
        if positions is None:
            return self._all(default)
        return self._resolved(positions, is_start=True)

    def ending(self) -> dict[MessageQueue, int]:
        """Before which offset each queue is to end."""
        positions = self._options.ending
        if positions is None:
            return self._all(LATEST)
        return self._resolved(positions, is_start=False)

    def _all(self, default: int) -> dict[MessageQueue, int]:
        return dict(self.starts if default == EARLIEST else self.ends)

    def _resolved(self, positions: Positions, *, is_start: bool) -> dict[MessageQueue, int]:
        self._check_names(positions)
        found: dict[MessageQueue, int] = {}
        for queue in self.queues:
            position = positions.of(queue.topic, queue.broker_name, queue.queue_id)
            if position is None:
                continue
            found[queue] = self._offset(positions.option, queue, position, is_start=is_start)
        missing = [queue for queue in self.queues if queue not in found]
        if missing:
            named = ", ".join(f"{q.topic} > {q.broker_name} > {q.queue_id}" for q in missing[:_SHOWN_MAX])
            more = f" and {len(missing) - _SHOWN_MAX} more" if len(missing) > _SHOWN_MAX else ""
            raise OptionError(
                positions.option,
                f'it does not say where {named}{more} are: name every queue, or the others by "*": -2 '
                "(earliest) or -1 (latest)",
            )
        return found

    def _check_names(self, positions: Positions) -> None:
        """Refuse topics and queues that are not there: a slip of the pen would be silence otherwise."""
        topics = {queue.topic for queue in self.queues}
        strangers = sorted(positions.topics - topics)
        if strangers:
            known = ", ".join(sorted(topics)) or "none"
            raise OptionError(
                positions.option, f"it names {', '.join(strangers)}, but the topics read are {known}"
            )
        for topic in topics:
            self._check_queues(positions, topic)
            brokers = {queue.broker_name for queue in self.queues if queue.topic == topic}
            if len(brokers) > 1 and not positions.names_brokers(topic):
                raise OptionError(
                    positions.option, f"topic {topic} is on brokers {', '.join(sorted(brokers))}: name them"
                )

    def _check_queues(self, positions: Positions, topic: str) -> None:
        queues = [queue for queue in self.queues if queue.topic == topic]
        brokers = sorted({queue.broker_name for queue in queues})
        for broker, number in positions.queues_named(topic):
            if broker not in (ANY, *brokers):
                raise OptionError(
                    positions.option,
                    f"it names broker {broker} of {topic}, but the brokers read are {', '.join(brokers)}",
                )
            there = sorted({queue.queue_id for queue in queues if broker in (ANY, queue.broker_name)})
            if number != ANY and int(number) not in there:
                raise OptionError(
                    positions.option,
                    f"it names queue {number} of {topic}, but the queues read are "
                    f"{', '.join(map(str, there))}",
                )

    def _offset(self, option: str, queue: MessageQueue, position: Position, *, is_start: bool) -> int:
        start, end = self.starts[queue], self.ends[queue]
        if isinstance(position, AtOffset):
            if position.offset == EARLIEST:
                return start
            if position.offset == LATEST:
                return end
            if not start <= position.offset <= end:
                return self._outside(option, queue, position.offset)
            return position.offset
        if isinstance(position, BackByCount):
            return max(start, end - position.messages)
        if isinstance(position, AtGroup):
            return self._committed(option, queue, position)
        ms = position.timestamp_ms if isinstance(position, AtTime) else self._now_ms - position.ms
        found = self._queues.first_since(queue, ms, start, end)
        is_strict = (
            is_start and isinstance(position, AtTime) and not self._options.starts_at_end_without_match
        )
        if found == end and is_strict:
            raise OptionError(
                option,
                f"no message of {named(queue)} was stored at {ms} ms or later; set "
                "startingOffsetsByTimestampStrategy to latest to begin at its end",
            )
        return found

    def _committed(self, option: str, queue: MessageQueue, position: AtGroup) -> int:
        group = self._options.consumer_group
        if group is None:
            raise OptionError("consumerGroup", f"{option} says group: name it")
        found = self._queues.committed(queue, group)
        if found is None:
            return self.starts[queue] if position.otherwise == EARLIEST else self.ends[queue]
        if self.starts[queue] <= found <= self.ends[queue]:
            return found
        return self._outside(option, queue, found)

    def _outside(self, option: str, queue: MessageQueue, offset: int) -> int:
        """An offset that a queue does not hold: an error, or the nearest one."""
        start, end = self.starts[queue], self.ends[queue]
        if self._options.fail_on_data_loss:
            raise OptionError(
                option,
                f"{named(queue)} has the offsets from {start} to {end}, not {offset}; correct it, or set "
                "failOnDataLoss to false to take the nearest",
            )
        return end if offset > end else start
