"""PopRequest: a held pop, and PopWaiters, which find the pops that an arrival may answer.

The hold service holds a pop like a pull, in a line of its own for each topic, group and queue id:

    topic@group, -1        pops from all queues
    topic@group, 3         pops from queue 3
    topic@group@, -1       notifications, which take no message

An arrival wakes one pop of a line, because one member is to get the message; a pop that leaves
messages wakes the next. Messages of the group's retry topics wake the same pops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from rmq_spark.wire.headers.members import NotificationRequestHeader, PopMessageRequestHeader
from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.pop import ANY_QUEUE, pop_retry_topic

from .pull_request import PullRequest

PopHeader: TypeAlias = "PopMessageRequestHeader | NotificationRequestHeader"
_SEPARATOR: Final = "@"
_LINES_MIN: Final = 10_000
"""The minimum number of registrations after which empty lines are removed."""


def pop_line(topic: str, group: str, queue_id: int, *, takes_none: bool = False) -> QueueKey:
    """Return the line of pops, or with ``takes_none`` of notifications, for a queue of a group."""
    mark = _SEPARATOR if takes_none else ""
    return f"{topic}{_SEPARATOR}{group}{mark}", max(queue_id, ANY_QUEUE)


@dataclass(frozen=True, slots=True, eq=False)
class PopRequest(PullRequest):
    """A pop or a notification that found nothing, with the times and the filter of a held pull."""

    header: PopHeader  # type: ignore[assignment]  # has the fields that a hold needs, but a pull's
    takes_none: bool = False

    is_woken_alone: ClassVar[bool] = True

    @property
    def queue(self) -> QueueKey:
        """The line in which the pop waits."""
        header = self.header
        return pop_line(
            header.topic, header.consumer_group, header.queue_id, takes_none=self.takes_none
        )

    @property
    def topic(self) -> str:
        """The topic from which messages are popped."""
        return self.header.topic

    @property
    def texts(self) -> tuple[object, ...]:
        """The texts of unlimited length."""
        return self.header.exp, self.header.exp_type, self.header.attempt_id


class PopWaiters:
    """The lines of pops by the topics whose messages they get.

    Each arrival gets a number, which the hold service compares as it compares offsets: a pop waits
    for an arrival with a higher number than that at its start.
    """

    def __init__(
        self,
        notify: Callable[[str, int, int, Collection[int] | None], None],
        waiting: Callable[[QueueKey], int],
    ) -> None:
        """Store the hold service's functions: to report an arrival, and to count held requests."""
        self._notify = notify
        self._waiting = waiting
        self._lines: dict[str, dict[QueueKey, None]] = {}
        """Lines by topic; empty ones are removed when a message arrives, or when there are many."""
        self._registered = 0
        self._registered_max = _LINES_MIN
        self.arrivals = 0

    def register(self, held: PopRequest) -> None:
        """Note that a pop waits for messages of its topic and of its group's retry topics."""
        self._registered += 1
        if self._registered > self._registered_max:
            self._discard_empty_lines()
        topic, group = held.header.topic, held.header.consumer_group
        for name in (
            topic,
            pop_retry_topic(topic, group),
            pop_retry_topic(topic, group, is_v2=True),
        ):
            self._lines.setdefault(name, {})[held.queue] = None

    def _discard_empty_lines(self) -> None:
        """Remove the lines in which nothing waits, and set when to do so again."""
        for topic, lines in tuple(self._lines.items()):
            kept = {line: None for line in lines if self._waiting(line)}
            if kept:
                self._lines[topic] = kept
            else:
                del self._lines[topic]
        self._registered = 0
        self._registered_max = max(_LINES_MIN, 2 * sum(map(len, self._lines.values())))

    def arriving(
        self, topic: str, queue_id: int, tags_codes: Collection[int] | None = None
    ) -> None:
        """Report new messages of a topic, or of a retry topic."""
        lines = self._lines.get(topic)
        if lines is None:
            return
        self.arrivals += 1
        for line in tuple(lines):
            if not self._waiting(line):
                del lines[line]
                continue
            is_normal = line[0].startswith(f"{topic}{_SEPARATOR}")
            if is_normal and line[1] not in (ANY_QUEUE, queue_id):
                continue
            # a filter is for messages of the topic itself: redelivered ones have passed it
            self._notify(*line, self.arrivals, tags_codes if is_normal else None)
        if not lines:
            del self._lines[topic]

    def wake_next(self, topic: str, group: str, queue_id: int) -> None:
        """Wake another pop of a line, because messages are left or a queue is free again."""
        self.arrivals += 1
        for line_queue in {queue_id, ANY_QUEUE}:
            for takes_none in (False, True):
                line = pop_line(topic, group, line_queue, takes_none=takes_none)
                if self._waiting(line):
                    self._notify(*line, self.arrivals, None)

    def waiting(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many pops of a group wait for a queue."""
        return self._waiting(pop_line(topic, group, queue_id))
