"""PopRequest: a held pop, and PopWaiters, which find the pops that an arrival may answer.

The hold service holds a pop like a pull, under a polling key for each topic, group and queue id:

    topic@group, -1        pops from all queues
    topic@group, 3         pops from queue 3
    topic@group@, -1       notifications, which take no message

An arrival wakes one pop of a key, because one member is to get the message; a pop that leaves
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
_REGISTERED_MIN: Final = 10_000
"""The number of registrations after which unused keys are removed, unless more are in use."""


def polling_key(
    topic: str, group: str, queue_id: int, *, is_notification: bool = False
) -> QueueKey:
    """Return the key of pops, or of notifications, for a queue of a group."""
    mark = _SEPARATOR if is_notification else ""
    return f"{topic}{_SEPARATOR}{group}{mark}", max(queue_id, ANY_QUEUE)


@dataclass(frozen=True, slots=True, eq=False)
class PopRequest(PullRequest):
    """A pop or a notification that found nothing."""

    header: PopHeader  # type: ignore[assignment]  # not a pull's header, but has what a hold needs
    is_notification: bool = False
    is_released: bool = False
    """True if its client has left the group: it must not get a message any more."""

    is_pop: ClassVar[bool] = True

    @property
    def queue(self) -> QueueKey:
        """The key under which the pop waits."""
        header = self.header
        return polling_key(
            header.topic,
            header.consumer_group,
            header.queue_id,
            is_notification=self.is_notification,
        )

    @property
    def topic(self) -> str:
        """The topic from which messages are popped."""
        return self.header.topic

    @property
    def texts(self) -> tuple[object, ...]:
        """The texts of unlimited length, which count for the quota."""
        return self.header.exp, self.header.exp_type, self.header.attempt_id


class PopWaiters:
    """The polling keys of pops by the topics whose messages they get.

    Each arrival gets a number, which the hold service compares as it compares offsets: an arrival
    wakes the pops that were registered before it.
    """

    def __init__(
        self,
        notify: Callable[[str, int, int, Collection[int] | None], None],
        waiting: Callable[[QueueKey], int],
    ) -> None:
        """Store the hold service's functions: report an arrival, and count held requests."""
        self._notify = notify
        self._waiting = waiting
        self._keys: dict[str, dict[QueueKey, None]] = {}
        """Keys by topic; unused ones are removed when a message arrives, or when there are many."""
        self._registered = 0
        self._registered_max = _REGISTERED_MIN
        self.arrivals = 0

    def register(self, held: PopRequest) -> None:
        """Register a pop for messages of its topic and of its group's retry topics."""
        self._registered += 1
        if self._registered > self._registered_max:
            self._discard_unused_keys()
        topic, group = held.header.topic, held.header.consumer_group
        for name in (
            topic,
            pop_retry_topic(topic, group),
            pop_retry_topic(topic, group, is_v2=True),
        ):
            self._keys.setdefault(name, {})[held.queue] = None

    def _discard_unused_keys(self) -> None:
        """Remove the keys under which nothing waits, and set when to do so again."""
        for topic, keys in tuple(self._keys.items()):
            kept = {key: None for key in keys if self._waiting(key)}
            if kept:
                self._keys[topic] = kept
            else:
                del self._keys[topic]
        self._registered = 0
        self._registered_max = max(_REGISTERED_MIN, 2 * sum(map(len, self._keys.values())))

    def arriving(
        self, topic: str, queue_id: int, tags_codes: Collection[int] | None = None
    ) -> None:
        """Report new messages of a topic, or of a retry topic."""
        keys = self._keys.get(topic)
        if keys is None:
            return
        self.arrivals += 1
        for key in tuple(keys):
            if not self._waiting(key):
                del keys[key]
                continue
            is_normal = key[0].startswith(f"{topic}{_SEPARATOR}")
            if is_normal and key[1] not in (ANY_QUEUE, queue_id):
                continue
            # redelivered messages have passed the filter already
            self._notify(*key, self.arrivals, tags_codes if is_normal else None)
        if not keys:
            del self._keys[topic]

    def wake_next(self, topic: str, group: str, queue_id: int) -> None:
        """Wake another pop of a key, because messages are left or a queue is free again."""
        self.arrivals += 1
        for polled_queue_id in {queue_id, ANY_QUEUE}:
            for is_notification in (False, True):
                key = polling_key(topic, group, polled_queue_id, is_notification=is_notification)
                if self._waiting(key):
                    self._notify(*key, self.arrivals, None)

    def waiting(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many pops of a group wait for a queue."""
        return self._waiting(polling_key(topic, group, queue_id))
