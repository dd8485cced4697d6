"""ConsumerOrderInfoManager: the messages that groups have popped in order, until acknowledged.

A queue that is popped in order gives messages only when all messages popped before are acknowledged
or visible again, and continues at the first unacknowledged one. The table is saved as
consumerOrderInfo.json, in RocketMQ's form: ``topic@group``, then queue. Times are times of day, as
in the receipts that clients hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from rmq_spark.wire.bodies.pop import ConsumerOrderInfoWrapper, OrderInfo

from .table import SavedTable, Table

UNKNOWN_MESSAGE: Final = -1
OTHER_POP: Final = -2
_UNUSED_MS: Final = 24 * 3_600_000

OrderQueue: TypeAlias = tuple[str, str, int]


class ConsumerOrderInfoManager(SavedTable[ConsumerOrderInfoWrapper]):
    """The popped messages of all queues. A change is durable after the next `save`."""

    def __init__(
        self,
        table: Table[ConsumerOrderInfoWrapper],
        *,
        now_ms: Callable[[], int],
        queue_nums: Callable[[str], int],
        has_group: Callable[[str], bool],
    ) -> None:
        """Load the table.

        ``queue_nums`` returns how many queues a topic has, and ``has_group`` whether a group
        exists: the next save leaves out entries of deleted queues and groups.
        """
        super().__init__(table, self._wrapper)
        self._now_ms = now_ms
        self._queue_nums = queue_nums
        self._has_group = has_group
        self._infos: dict[OrderQueue, OrderInfo] = {}
        for key, queues in table.load(ConsumerOrderInfoWrapper()).table.items():
            topic, _, group = key.partition("@")
            for queue_id, info in queues.items():
                self._infos[topic, group, queue_id] = info

    def __len__(self) -> int:
        return len(self._infos)

    def update(
        self,
        queue: OrderQueue,
        attempt_id: str | None,
        pop_time: int,
        invisible_time: int,
        queue_offsets: Sequence[int],
    ) -> Mapping[int, int]:
        """Record a pop; return how often its messages were delivered before, if they were."""
        first = queue_offsets[0]
        before = self._infos.get(queue)
        counts: dict[int, int] = {}
        if before is not None:
            known = dict(before.consumed_counts or {})
            if before.attempt_id is not None and before.attempt_id == attempt_id:
                counts = known
            else:
                redelivered = set(before.queue_offsets).intersection(queue_offsets)
                counts = {
                    each: known.get(each, 0) + 1 for each in queue_offsets if each in redelivered
                }
        self._set(
            queue,
            OrderInfo(
                pop_time=pop_time,
                invisible_time=invisible_time,
                offset_list=(first, *(each - first for each in queue_offsets[1:])),
                consumed_counts=counts or None,
                last_consume_timestamp=self._now_ms(),
                attempt_id=attempt_id,
            ),
        )
        return counts

    def is_blocked(self, queue: OrderQueue, attempt_id: str | None, invisible_time: int) -> bool:
        """Return whether a queue has messages that are neither acknowledged nor visible again.

        A pop with the attempt id of the previous pop repeats it, and gets the same messages.
        """
        info = self._infos.get(queue)
        if info is None or (info.attempt_id is not None and info.attempt_id == attempt_id):
            return False
        if (info.invisible_time or 0) <= 0:
            info = replace(info, invisible_time=invisible_time)
        free_ms = self._free_ms(info)
        return free_ms is not None and free_ms > self._now_ms()

    def free_ms(self, queue: OrderQueue) -> int | None:
        """Return the time of day at which a blocked queue is free; None if it is not blocked."""
        info = self._infos.get(queue)
        free_ms = None if info is None else self._free_ms(info)
        return free_ms if free_ms is not None and free_ms > self._now_ms() else None

    def commit_and_next(
        self, queue: OrderQueue, queue_offset: int, pop_time: int, stored: int | None
    ) -> int:
        """Acknowledge a message; return the first offset that is not acknowledged.

        Without a record of the pop, which a crash can lose, only the message at the group's
        ``stored`` offset can be acknowledged: messages before any other may be unacknowledged.

        Return `UNKNOWN_MESSAGE` if the pop did not return this message, and `OTHER_POP` if a later
        pop has returned it again.
        """
        info = self._infos.get(queue)
        if info is None:
            return queue_offset + 1 if queue_offset == stored else UNKNOWN_MESSAGE
        if not info.offset_list:
            return UNKNOWN_MESSAGE
        if pop_time != info.pop_time:
            return OTHER_POP
        offsets = info.queue_offsets
        if queue_offset not in offsets:
            return UNKNOWN_MESSAGE
        bits = info.committed_bits | 1 << offsets.index(queue_offset)
        self._set(queue, replace(info, committed_bits=bits))
        left = [each for at, each in enumerate(offsets) if not bits >> at & 1]
        return left[0] if left else offsets[-1] + 1

    def update_next_visible_time(
        self, queue: OrderQueue, queue_offset: int, pop_time: int, visible_ms: int
    ) -> bool:
        """Set when one message is visible again; return False if a later pop has it."""
        info = self._infos.get(queue)
        if info is None or info.pop_time != pop_time:
            return False
        times = {**(info.next_visible_times or {}), queue_offset: visible_ms}
        self._set(queue, replace(info, next_visible_times=times))
        return True

    def clear(self, queue: OrderQueue) -> None:
        """Discard the popped messages of a queue, because the group's offset was moved."""
        if self._infos.pop(queue, None) is not None:
            self.is_dirty = True

    def _set(self, queue: OrderQueue, info: OrderInfo) -> None:
        self._infos[queue] = info
        self.is_dirty = True

    @staticmethod
    def _free_ms(info: OrderInfo) -> int | None:
        """Return when all unacknowledged messages are visible; None if there are none."""
        visible_ms = info.pop_time + (info.invisible_time or 0)
        times = info.next_visible_times or {}
        return max(
            (
                times.get(each, visible_ms)
                for at, each in enumerate(info.queue_offsets)
                if not info.committed_bits >> at & 1
            ),
            default=None,
        )

    def _wrapper(self) -> ConsumerOrderInfoWrapper:
        table: dict[str, dict[int, OrderInfo]] = {}
        unused_since = self._now_ms() - _UNUSED_MS
        for (topic, group, queue_id), info in tuple(self._infos.items()):
            is_used = info.last_consume_timestamp >= unused_since
            if is_used and queue_id < self._queue_nums(topic) and self._has_group(group):
                table.setdefault(f"{topic}@{group}", {})[queue_id] = info
            elif self._infos.get((topic, group, queue_id)) is info:
                self._infos.pop((topic, group, queue_id), None)
        return ConsumerOrderInfoWrapper(table=table)
