"""SeekableConsumerImpl: adds commit, seek, pause and resume to `LitePullConsumerImpl`.

    commit      stores the group's offset at its broker
    seek        continues at another offset; what was pulled ahead is dropped
    pause       keeps messages where they are

Each of them works on single queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rmq_spark.client.arguments import (
    check_kind,
    check_number,
    check_offset,
    check_queue,
    check_queues,
    check_timestamp_ms,
)
from rmq_spark.client.consumer.lite_pull_consumer_impl import LitePullConsumerImpl
from rmq_spark.client.consumer.offsets.commit import CommitRequest, store_offsets
from rmq_spark.client.consumer.queues.assigned_queues import AssignedQueue
from rmq_spark.client.errors import NotAssigned, OffsetOutOfRange
from rmq_spark.wire.message_queue import MessageQueue


class SeekableConsumerImpl(LitePullConsumerImpl):
    """The whole implementation of `LitePullConsumer`, with commit, seek and pause."""

    # ---- offsets

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store the group's offsets, and wait until the brokers have them.

        Args:
            offsets: The offset to resume at, by queue; by default past all that `poll` has
                returned.

        Raises:
            ClientShutDown: The consumer is not running.
            NotAssigned: One of the queues is not this consumer's.
            MessageRejected: An offset is negative.
            TypeError: ``offsets`` is no mapping of queues to offsets.
            ClientError: A broker does not answer. Its offsets are sent again later; the others have
                theirs.
        """
        self._store_commit(self._new_commit(offsets))

    def _new_commit(self, offsets: Mapping[MessageQueue, int] | None) -> CommitRequest:
        self._check_running()
        if offsets is None:
            return CommitRequest.from_returned(self._assigned_queues.all())
        check_kind("offsets", offsets, Mapping, "a mapping of queues to offsets", "{queue: 42}")
        moves: dict[MessageQueue, int] = {}
        for queue, offset in offsets.items():
            moves[queue] = self._get_assigned(queue, "a key of offsets").reset_count
            check_offset("offset", offset)
        return CommitRequest(dict(offsets), moves)

    def _store_commit(self, commit: CommitRequest) -> None:
        with self._tasks_lock:  # a queue is moved before, or what the operator stores comes later
            offsets = commit.current_offsets(self._assigned_queues.all())
            for queue, offset in offsets.items():  # remembered, should its broker fail
                self._offset_store.update_offset(queue, offset, increase_only=False)
        known = self._fingerprints()
        self._offset_manager.save_last_messages(known)

        def is_known(queue: MessageQueue) -> bool:
            return queue not in known or known[queue].is_same_queue(queue, self.message_at)

        store_offsets(self._offset_store, commit, offsets, self._reset_count_of, is_known)

    def _reset_count_of(self, queue: MessageQueue) -> int:
        assigned = self._assigned_queues.get(queue)
        return 0 if assigned is None else assigned.reset_count

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset that this group has stored for a queue, or None.

        Its broker is asked, or in BROADCASTING this member's file is read: what `poll` has returned
        since the last commit does not count.

        Args:
            queue: The queue, which may be another member's.

        Raises:
            ClientShutDown: The consumer is not running.
            RouteNotFound, BrokerNotFound: The queue's topic or its broker is not known.
            ClientError: The queue's broker does not answer, or refuses.
            TypeError: The queue is no `MessageQueue`.
        """
        self._check_running()
        check_queue("queue", queue)
        return self._offset_store.stored_offset(queue)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset of a queue; messages pulled from elsewhere are dropped.

        Args:
            queue: A queue of this consumer.
            offset: Offset of the next message to return.

        Raises:
            ClientShutDown: The consumer is not running.
            NotAssigned: The queue is not this consumer's.
            OffsetOutOfRange: The queue has no such offset.
            ClientError: The queue's broker does not answer, or refuses.
            TypeError: The queue is no `MessageQueue`, or the offset no int.
        """
        self._get_assigned(queue)
        check_number("offset", offset, 42)
        least, most = self._brokers.min_offset(queue), self._brokers.max_offset(queue)
        if not least <= offset <= most:
            raise OffsetOutOfRange(queue, offset, least, most)
        self._seek(queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the first offset that a queue holds; what was pulled ahead is dropped.

        Args:
            queue: A queue of this consumer.

        Raises:
            ClientShutDown: The consumer is not running.
            NotAssigned: The queue is not this consumer's.
            ClientError: The queue's broker does not answer, or refuses.
            TypeError: The queue is no `MessageQueue`.
        """
        self._get_assigned(queue)
        self._seek(queue, self._brokers.min_offset(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue past the last message of a queue; what was pulled ahead is dropped.

        Args:
            queue: A queue of this consumer.

        Raises:
            ClientShutDown: The consumer is not running.
            NotAssigned: The queue is not this consumer's.
            ClientError: The queue's broker does not answer, or refuses.
            TypeError: The queue is no `MessageQueue`.
        """
        self._get_assigned(queue)
        self._seek(queue, self._brokers.max_offset(queue))

    def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Continue in a queue at the first message stored at a time or later, else at its end.

        Args:
            queue: A queue of this consumer.
            timestamp_ms: The time, in milliseconds since 1970.

        Raises:
            ClientShutDown: The consumer is not running.
            NotAssigned: The queue is not this consumer's.
            MessageRejected: The time is before 1970, or must be seconds.
            ClientError: The queue's broker does not answer, or refuses.
            TypeError: The queue is no `MessageQueue`, or the time no int.
        """
        self._get_assigned(queue)
        check_timestamp_ms("timestamp_ms", timestamp_ms)
        self._seek(queue, self._brokers.search_offset(queue, timestamp_ms))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset in a queue of the first message stored at a time or later, or its end.

        Args:
            queue: The queue, which may be another member's.
            timestamp_ms: The time, in milliseconds since 1970.

        Raises:
            ClientShutDown: The consumer is not running.
            MessageRejected: The time is before 1970, or must be seconds.
            RouteNotFound: The queue's topic does not exist.
            BrokerNotFound: The topic is not on the queue's broker.
            ClientError: The queue's broker does not answer, or refuses.
            TypeError: The queue is no `MessageQueue`, or the time no int.
        """
        self._check_running()
        check_queue("queue", queue)
        check_timestamp_ms("timestamp_ms", timestamp_ms)
        return self._brokers.search_offset(queue, timestamp_ms)

    def _seek(self, queue: MessageQueue, offset: int) -> None:
        if not self._change_position(queue, lambda assigned: assigned.seek(offset)):
            raise NotAssigned(queue)
        self._offset_manager.record_start(queue, offset)

    def _reset_queue(self, queue: MessageQueue, offset: int) -> bool:
        def move(assigned: AssignedQueue) -> None:  # no commit comes in between
            assigned.reset(offset)
            self._offset_store.update_offset(queue, offset, increase_only=False)

        return self._change_position(queue, move)

    def _change_position(
        self, queue: MessageQueue, change: Callable[[AssignedQueue], None]
    ) -> bool:
        with self._tasks_lock:
            assigned, task = self._assigned_queues.get(queue), self._tasks.get(queue)
            if assigned is None:
                return False
            change(assigned)
            self._request_cache.discard_stale()
            if task is not None:
                task.wake()
            return True

    def _get_assigned(self, queue: MessageQueue, name: str = "queue") -> AssignedQueue:
        self._check_running()
        check_queue(name, queue)
        assigned = self._assigned_queues.get(queue)
        if assigned is None:
            raise NotAssigned(queue)
        return assigned

    # ---- pausing

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return and pull no messages of these queues until `resume`.

        Args:
            queues: Queues of this consumer.

        Raises:
            ClientShutDown: The consumer is not running.
            NotAssigned: One of the queues is not this consumer's. None is paused.
            TypeError: ``queues`` is not several queues.
        """
        for assigned in [self._get_assigned(queue) for queue in check_queues("queues", queues)]:
            assigned.is_paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return and pull messages of paused queues again; of others, nothing changes.

        Args:
            queues: Queues of this consumer.

        Raises:
            ClientShutDown: The consumer is not running.
            NotAssigned: One of the queues is not this consumer's.
            TypeError: ``queues`` is not several queues.
        """
        for queue in sorted(check_queues("queues", queues)):
            if (task := self._tasks.get(queue)) is not None:
                task.assigned.fingerprint.record_pause()  # its lane may have noticed no pause
            self._get_assigned(queue).is_paused = False
            if task is not None:
                task.wake()
        self._request_cache.wake()
