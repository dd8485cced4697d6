"""PopCounters: messages popped, acknowledged, redelivered and in flight."""

from __future__ import annotations

from typing import Final, TypeAlias

PopQueue: TypeAlias = tuple[str, str, int]
"""Topic, group and queue of a pop; the topic may be the group's retry topic."""


class PopCounters:
    """Counters of popped messages, since the start of the broker."""

    def __init__(self, started_ms: int) -> None:
        """Begin with nothing in flight; messages popped before ``started_ms`` are not counted."""
        self._started_ms: Final = started_ms
        self._in_flight: dict[PopQueue, int] = {}
        self.popped_total = 0
        self.acknowledged_total = 0
        self.changed_total = 0
        self.revived_total = 0
        self.dead_letters_total = 0

    def pop(self, queue: PopQueue, count: int) -> None:
        """Count popped messages."""
        self.popped_total += count
        self._in_flight[queue] = self._in_flight.get(queue, 0) + count

    def acknowledge(self, queue: PopQueue, count: int, pop_time: int) -> None:
        """Count acknowledged messages."""
        self.acknowledged_total += count
        self._leave(queue, count, pop_time)

    def revive(self, queue: PopQueue, pop_time: int, *, is_dead: bool) -> None:
        """Count a message that goes to the retry topic, or to the dead letters."""
        if is_dead:
            self.dead_letters_total += 1
        else:
            self.revived_total += 1
        self._leave(queue, 1, pop_time)

    @property
    def in_flight_total(self) -> int:
        """The number of popped messages of all groups that are not acknowledged yet."""
        return sum(tuple(self._in_flight.values()))

    def in_flight(self, queue: PopQueue) -> int:
        """Return how many messages of a queue a group has not acknowledged yet."""
        return self._in_flight.get(queue, 0)

    def in_flight_by_group(self) -> dict[tuple[str, str], int]:
        """Return the number of messages in flight, by topic and group."""
        groups: dict[tuple[str, str], int] = {}
        for (topic, group, _), count in tuple(self._in_flight.items()):
            groups[topic, group] = groups.get((topic, group), 0) + count
        return groups

    def _leave(self, queue: PopQueue, count: int, pop_time: int) -> None:
        known = self._in_flight.get(queue)
        if known is None or pop_time < self._started_ms:
            return
        if known > count:
            self._in_flight[queue] = known - count
        else:
            del self._in_flight[queue]
