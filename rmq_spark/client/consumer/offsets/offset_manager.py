"""OffsetManager: stores the offsets of a member's queues, and finds where to begin a queue.

    consumed ──> offset store ──> an executor for each broker ──> UPDATE_CONSUMER_OFFSET

Before an offset is stored, the queue's fingerprint (`queue_identity`) is checked, because the topic
may have been recreated. A broker that cannot be reached delays no other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple

from rmq_spark.client.concurrency.scheduler import PerBrokerExecutor
from rmq_spark.client.concurrency.threads import parallel_map, raise_first
from rmq_spark.client.consumer.brokers.broker_client import GroupBrokerClient, group_by_broker
from rmq_spark.client.consumer.offsets.offset_store import OffsetStore
from rmq_spark.client.consumer.queues.assigned_queues import AssignedQueue, AssignedQueues
from rmq_spark.client.consumer.queues.process_queue import Clock, monotonic_ms
from rmq_spark.client.consumer.queues.queue_identity import (
    QueueFingerprint,
    StartPosition,
    unchanged_queues,
)
from rmq_spark.client.errors import CONNECTION_FAULTS, ClientError, ClientShutDown
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import format_count
from rmq_spark.wire.bodies.clients import ConsumeFromWhere
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import RETRY_PREFIX

_FROM_FIRST_OFFSET = frozenset(
    [ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, ConsumeFromWhere.CONSUME_FROM_MIN_OFFSET]
)


class InitialOffsetRule(NamedTuple):
    """Determines where a group starts in queues without a stored offset."""

    consume_from_where: ConsumeFromWhere
    consume_timestamp_ms: int

    def resolve(self, queue: MessageQueue, store: OffsetStore, brokers: GroupBrokerClient) -> int:
        """Return the offset at which to begin a queue.

        A lookup that fails raises an error, and never counts as "nothing stored": otherwise a group
        that has consumed much would start over, or skip everything.
        """
        stored = store.read_offset(queue)
        if stored is not None:
            return stored
        # none of the retry topic's messages may be skipped
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if is_retry or self.consume_from_where in _FROM_FIRST_OFFSET:
            return brokers.min_offset(queue)
        if self.consume_from_where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP:
            return brokers.search_offset(queue, self.consume_timestamp_ms)
        return brokers.max_offset(queue)


OFFSET_THREADS_MAX: Final = 16
"""Most first offsets looked up at a time."""

PREFETCH_MS_MAX: Final = 1_000
"""Milliseconds for which a prefetched offset is valid: another member may move it meanwhile."""


class OffsetPrefetcher:
    """Looks up, in parallel, the first offsets of queues that start together. Thread-safe."""

    def __init__(self, fetch: Callable[[MessageQueue], StartPosition], clock: Clock) -> None:
        """Make a prefetcher; ``fetch`` looks up the position of one queue at its broker."""
        self._fetch = fetch
        self._clock = clock
        self._mutex = threading.Lock()
        self._scheduled: dict[MessageQueue, None] = {}
        self._in_progress: dict[MessageQueue, object] = {}  # value: the token of the lookup
        self._prefetched: dict[MessageQueue, tuple[StartPosition | Exception, int]] = {}
        """Outcomes, and the time of each in ms."""

    def schedule(self, queues: Iterable[MessageQueue]) -> None:
        """Note that these queues begin soon, so that they can be looked up together."""
        with self._mutex:
            for queue in queues:
                self._discard(queue)
                self._scheduled[queue] = None

    def discard(self, queue: MessageQueue) -> None:
        """Discard what is known of a queue that was revoked."""
        with self._mutex:
            self._discard(queue)

    def _discard(self, queue: MessageQueue) -> None:
        for each in (self._scheduled, self._in_progress, self._prefetched):
            each.pop(queue, None)

    def get(self, queue: MessageQueue) -> StartPosition:
        """Return the position where a queue begins; raise an error if the lookup fails."""
        owner = object()
        with self._mutex:
            outcome, queues = self._pop_prefetched(queue), [queue]
            if outcome is None:
                expected = self._scheduled_at(queue.broker_name)
                queues += [each for each in expected if each != queue][: OFFSET_THREADS_MAX - 1]
                for each in queues:
                    self._discard(each)
                    self._in_progress[each] = owner
        if outcome is None:
            outcome = self._fetch_together(queues, owner)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _pop_prefetched(self, queue: MessageQueue) -> StartPosition | Exception | None:
        outcome, since_ms = self._prefetched.pop(queue, (None, 0))
        if outcome is None or self._clock() - since_ms > PREFETCH_MS_MAX:
            return None
        if isinstance(outcome, Exception):
            self._scheduled[queue] = None
        return outcome

    def _scheduled_at(self, broker_name: str) -> list[MessageQueue]:
        return [each for each in self._scheduled if each.broker_name == broker_name]

    def _fetch_together(
        self, queues: list[MessageQueue], token: object
    ) -> StartPosition | Exception:
        """Look up the offsets of one broker's queues together; return the first, keep the others.

        Results for queues that were revoked meanwhile are dropped.
        """

        def ask(queue: MessageQueue) -> tuple[StartPosition, int]:
            return self._fetch(queue), self._clock()

        name = "asks for first offsets"
        outcomes = parallel_map(
            queues, ask, threads_max=OFFSET_THREADS_MAX, name=name, stop_on=CONNECTION_FAULTS
        )
        first, now_ms = outcomes[queues[0]], self._clock()
        with self._mutex:
            if isinstance(first, CONNECTION_FAULTS):
                for each in self._scheduled_at(queues[0].broker_name):
                    del self._scheduled[each]
                    self._prefetched[each] = first, now_ms
            for queue, outcome in outcomes.items():
                if self._in_progress.get(queue) is not token:
                    continue
                del self._in_progress[queue]
                if queue != queues[0]:
                    kept = (outcome, now_ms) if isinstance(outcome, Exception) else outcome
                    self._prefetched[queue] = kept
                elif isinstance(outcome, Exception):
                    self._scheduled[queue] = None
        return first if isinstance(first, Exception) else first[0]


_log = logging.getLogger(__name__)

PERSIST_WAIT_MS = 500
"""Milliseconds to wait for brokers when offsets are persisted."""

LATE_NOTICE_MS = 5_000
"""Milliseconds after which a member has received all resets made before it left a queue."""


class _RecentQueues:
    """Queues of the last `LATE_NOTICE_MS`, with an offset each. All methods are thread-safe."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._entries: dict[MessageQueue, tuple[int | None, float]] = {}
        """Offset and expiry of each queue, the earliest expiry first."""

    def add(self, queue: MessageQueue, offset: int | None = None) -> None:
        now = monotonic_ms()
        with self._mutex:
            self._entries.pop(queue, None)
            self._entries[queue] = offset, now + LATE_NOTICE_MS
            for each in [*takewhile(lambda each: self._entries[each][1] <= now, self._entries)]:
                del self._entries[each]

    def __contains__(self, queue: MessageQueue) -> bool:
        return monotonic_ms() < self._entries.get(queue, (None, 0))[1]

    def pop(self, queue: MessageQueue) -> int | None:
        """Return a queue's offset once; None if it was added too long ago."""
        with self._mutex:
            offset, until_ms = self._entries.pop(queue, (None, 0))
        return offset if monotonic_ms() < until_ms else None


class OffsetManager:
    """The offsets of one member's queues."""

    def __init__(
        self,
        store: OffsetStore,
        brokers: GroupBrokerClient,
        executor: PerBrokerExecutor,
        initial_offset: InitialOffsetRule,
        fingerprints: Callable[[], Mapping[MessageQueue, QueueFingerprint]],
        message_at: Callable[[MessageQueue, int], MessageExt | None],
    ) -> None:
        """Make a manager; ``fingerprints`` returns the present fingerprint of each queue.

        ``message_at`` pulls the message at an offset. If an operator has reset the group, the
        broker's response says so, and ``message_at`` applies the reset.
        """
        self._store = store
        self._brokers = brokers
        self._executor = executor
        self._initial_offset = initial_offset
        self._prefetcher = OffsetPrefetcher(self._resolve_start, monotonic_ms)
        self._fingerprints = fingerprints
        self._message_at = message_at
        self._releasing: set[MessageQueue] = set()  # queues whose last offset is not stored yet
        self._unsaved_brokers: set[str] = set()  # brokers that did not get the last offsets
        self._recently_released = _RecentQueues()
        self._recently_reset = _RecentQueues()  # operators' offsets of other members' queues
        self._reset_offsets: dict[MessageQueue, int] = {}  # these override consumed offsets

    def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Store offsets in the brokers' executors, and wait for up to `PERSIST_WAIT_MS`."""
        of_broker = group_by_broker(queues)
        self._executor.run_for_each(
            of_broker, lambda broker: self.persist_now(of_broker[broker]), PERSIST_WAIT_MS
        )

    def persist_now(self, queues: Iterable[MessageQueue]) -> None:
        """Store the offsets of the queues that are unchanged since they were pulled."""
        all_known = self._fingerprints()
        self._persist_unchanged({queue: all_known[queue] for queue in queues if queue in all_known})

    def _persist_unchanged(self, fingerprints: Mapping[MessageQueue, QueueFingerprint]) -> None:
        self.save_last_messages(fingerprints)
        stored = 0
        try:
            for queue in unchanged_queues(fingerprints, self._message_at):
                if queue not in self._reset_offsets:
                    self._store.persist_all((queue,))
                stored += 1
                if (offset := self._reset_offsets.get(queue)) is not None:  # a reset came meanwhile
                    with suppress(ClientError):  # the reset also stores it, and reports failures
                        self._store.persist(queue, offset)
        except ClientShutDown:
            broker = next(iter(fingerprints)).broker_name
            is_known = broker in self._unsaved_brokers
            self._unsaved_brokers.add(broker)
            _log.log(
                logging.DEBUG if is_known else logging.WARNING,
                "the last offsets of %s of %s were not stored, because the client was shut down "
                "first: their messages since the last stored offsets will be delivered again",
                format_count(len(fingerprints) - stored, "queue"),
                broker,
            )

    def save_last_messages(self, fingerprints: Mapping[MessageQueue, QueueFingerprint]) -> None:
        """Save the last messages of these queues, if the store keeps offsets itself."""
        if (kept := self._store.last_messages) is not None:
            for queue, last_known in fingerprints.items():
                if last_known.last_message is not None:
                    kept[queue] = last_known.last_message

    def schedule_persist(self, queue: MessageQueue) -> None:
        """Store the offset of one queue, after all earlier requests to its broker."""
        self._executor.for_broker(queue.broker_name).schedule(lambda: self.persist_now((queue,)))

    def release(self, queue: MessageQueue, fingerprint: QueueFingerprint) -> None:
        """Store the offset of a revoked queue, and then drop it here."""
        self._prefetcher.discard(queue)
        self._releasing.add(queue)

        def discard() -> None:
            self._persist_unchanged({queue: fingerprint})
            self._store.remove_offset(queue)
            self._recently_released.add(queue)
            self._releasing.discard(queue)

        self._executor.for_broker(queue.broker_name).schedule(discard)

    def _is_recently_released(self, queue: MessageQueue) -> bool:
        """Return whether a queue was just released: its last offset may overwrite an operator's."""
        return queue in self._releasing or queue in self._recently_released

    def store_reset(self, queue: MessageQueue, offset: int) -> None:
        """Store the offset that an operator set for a queue, or the progress made since."""
        reached = self._store.known_offset(queue)
        self._store.store_offset(queue, offset if reached is None else reached)

    def store_released_reset(self, queue: MessageQueue, offset: int) -> None:
        """Store an operator's offset of a queue that was just revoked, in its broker's executor.

        The offset of any other queue is remembered for a while: if the queue is assigned to this
        member before its previous owner has stored the offset, it starts at the operator's.
        """
        if not self._is_recently_released(queue):
            self._recently_reset.add(queue, offset)
            return
        self._reset_offsets[queue] = offset

        def store() -> None:  # runs after `discard`, and before the queue may restart
            self._reset_offsets.pop(queue, None)
            try:
                self._store.persist(queue, offset)
            except ClientError as error:
                text = "storing the reset offset %d of %s failed: %s"
                _log.warning(text, offset, queue, error)
            self._store.remove_offset(queue)

        self._executor.for_broker(queue.broker_name).schedule(store)

    def store_reset_while_leaving(self, queue: MessageQueue, offset: int) -> bool:
        """Store an operator's offset of a queue while this member leaves the group.

        Messages that listeners finish later no longer move it. Return False for a queue that this
        member neither has nor has just released.
        """
        if queue not in self._fingerprints() and not self._is_recently_released(queue):
            return False
        self._reset_offsets[queue] = offset
        self._store.persist(queue, offset)
        return True

    def move_back(self, queue: MessageQueue, offset: int) -> None:
        """Move the group's offset back to an offset of a queue that was recreated."""
        known = self._store.known_offset(queue)
        if known is not None and offset < known:
            self._store.update_offset(queue, offset, increase_only=False)
            self.schedule_persist(queue)

    def record_start(self, queue: MessageQueue, offset: int) -> None:
        """Note the message where a queue resumes: its topic may be recreated before a pull."""
        last_known = self._fingerprints().get(queue)
        if last_known is not None:
            last_known.record_start(queue, offset, self._message_at)

    def schedule_prefetch(self, queues: Iterable[MessageQueue]) -> None:
        """Look up the initial offsets of these queues in parallel when the first of them starts.

        Offsets of queues that were revoked before are stored first.
        """
        for broker, own in group_by_broker(queues).items():
            self._executor.for_broker(broker).schedule(partial(self.prefetch, own))

    def prefetch(self, queues: Iterable[MessageQueue]) -> None:
        """Schedule one joint lookup of the offsets of a broker's queues that begin soon."""
        self._prefetcher.schedule(queues)

    def start_position(self, queue: MessageQueue) -> StartPosition:
        """Return the position at which to begin a queue; it becomes the group's offset at once.

        If the offset were stored later, and the member left before its first message, the next
        member would begin at the end again and skip what arrived in between. An offset that an
        operator or the user has stored meanwhile takes precedence. While a queue is paused before
        it begins, nothing is stored for it, because nothing would check whether it was recreated.
        """
        position = self._prefetcher.get(queue)
        reset_offset = self._recently_reset.pop(queue)
        if reset_offset is not None:
            position = StartPosition.resolve(queue, reset_offset, self._message_at)
        self._store.set_initial_offset(queue, position.offset)
        return position

    def _resolve_start(self, queue: MessageQueue) -> StartPosition:
        self._store.remove_offset(queue)
        first = self._initial_offset.resolve(queue, self._store, self._brokers)
        last_message = (self._store.last_messages or {}).get(queue)
        return StartPosition.resolve(queue, first, self._message_at, last_message)


class AutoCommit:
    """Counts returned messages as consumed when `poll` is called again. Thread-safe."""

    def __init__(self, queues: AssignedQueues, store: OffsetStore, *, is_enabled: bool) -> None:
        self._queues = queues
        self._store = store
        self._is_enabled = is_enabled
        self._mutex = threading.Lock()
        self._pending: dict[AssignedQueue, None] = {}

    def record_returned(self, assigned: AssignedQueue) -> None:
        """Note that `poll` returns messages of a queue, or that a message became a dead letter."""
        if self._is_enabled:
            with self._mutex:
                self._pending[assigned] = None

    def confirm_returned(self) -> None:
        """Count returned messages as consumed: the next `poll` confirms those of the last one."""
        if not self._is_enabled:
            return
        with self._mutex:
            for assigned in list(self._pending):
                assigned.confirm_delivered()
                del self._pending[assigned]

    def publish(self) -> None:
        """Put the offset of each queue into the store, from which it is persisted next."""
        if self._is_enabled:
            update = partial(self._store.update_offset, increase_only=False)
            with self._mutex:
                for assigned in self._queues.all():
                    assigned.publish_consumed(update)

    def release(self, assigned: AssignedQueue) -> None:
        """Release a revoked queue; its final offset is stored with the next ones."""
        consumed = assigned.drop()
        if self._is_enabled and consumed is not None:
            self._store.update_offset(assigned.queue, consumed, increase_only=False)


# ---- Commits: a member's offsets are stored at once, if their queues were not recreated since they
# were read. In a recreated topic, an old offset would skip as many new messages.

COMMIT_THREADS_MAX: Final = 16
"""Most brokers, and most queues of a broker, whose offsets are stored at a time."""

_QUEUES_PER_THREAD: Final = 4
"""Queues that a thread stores one by one, which is faster than starting another thread."""


class CommitRequest(NamedTuple):
    """Offsets that a user commits, and how often operators had reset each queue by then."""

    offsets: Mapping[MessageQueue, int]
    reset_counts: Mapping[MessageQueue, int]

    @classmethod
    def from_returned(cls, all_assigned: Iterable[AssignedQueue]) -> CommitRequest:
        """Count returned messages as consumed, and return the offset past them for each queue."""
        offsets: dict[MessageQueue, int] = {}
        moves = {assigned.queue: assigned.reset_count for assigned in all_assigned}
        for assigned in all_assigned:
            assigned.confirm_delivered()
            assigned.publish_consumed(offsets.__setitem__)
        return cls(offsets, moves)

    def current_offsets(self, all_assigned: Iterable[AssignedQueue]) -> dict[MessageQueue, int]:
        """Return the offsets, except for queues that an operator has moved since."""
        moved = {
            each.queue
            for each in all_assigned
            if each.reset_count > self.reset_counts.get(each.queue, 0)
        }
        return {queue: offset for queue, offset in self.offsets.items() if queue not in moved}


def store_offsets(
    store: OffsetStore,
    commit: CommitRequest,
    offsets: Mapping[MessageQueue, int],
    reset_count_of: Callable[[MessageQueue], int],
    is_same_queue: Callable[[MessageQueue], bool],
) -> None:
    """Wait until all brokers have the offsets; a failing broker does not stop the others.

    The store holds them in memory already. If an operator moves a queue while its broker is storing
    the offset, the operator's offset is sent after it, because this commit may have overwritten it.
    Any other change does not matter: it is stored with the next offsets.

    Raises:
        RocketPollError: A broker has not answered. Its offsets are remembered, and stored later.
    """

    def persist(queue: MessageQueue) -> None:
        if not is_same_queue(queue):
            _log.warning("%s was recreated: its offset is not stored", queue)
            return
        offset, before = offsets[queue], commit.reset_counts.get(queue, 0)
        while True:
            moves = reset_count_of(queue)
            if moves > before:
                moved_to = store.known_offset(queue)
                offset = offset if moved_to is None else moved_to
            store.store_offset(queue, offset)
            if reset_count_of(queue) <= moves:
                return

    queues = group_by_broker(offsets)

    def persist_at(broker_name: str) -> None:
        own = queues[broker_name]
        most = max(1, min(len(own) // _QUEUES_PER_THREAD, COMMIT_THREADS_MAX))
        found = parallel_map(
            own, persist, threads_max=most, name="commits", stop_on=CONNECTION_FAULTS
        )
        raise_first(found.values())

    raise_first(
        parallel_map(queues, persist_at, threads_max=COMMIT_THREADS_MAX, name="commits").values()
    )
