"""Queues: what brokers know of the queues that a query reads, asked for many queues at once.

    discover     which queues there are (`discovery`)
    ends         where each ends; starts: where each begins
    stored       when single messages were stored, and how long they are
    first_since  the first message from a time on
    wait         until a queue has something new (`holds`)

How long brokers that are away are waited for is `asking`'s business. It knows neither Spark nor what offsets
mean to a query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from rmq_spark.client.calls import checked, command_of, header_of
from rmq_spark.client.errors import ClientError, NotFound, SystemBusy
from rmq_spark.client.instance import ClientInstance
from rmq_spark.client.results import PullResult, PullStatus
from rmq_spark.spark.asking import Asker
from rmq_spark.spark.discovery import Discovery
from rmq_spark.spark.holds import Holds
from rmq_spark.spark.options import ReadOptions
from rmq_spark.wire.bodies.clients import TAG_EXPRESSION
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.flags import PullSysFlag
from rmq_spark.wire.headers.offsets import GetMaxOffsetRequestHeader, GetMinOffsetRequestHeader
from rmq_spark.wire.headers.pull import PullMessageRequestHeader
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.record import decode_record, record_size

_log = logging.getLogger(__name__)

_SUBSCRIPTION: Final = PullSysFlag.SUBSCRIPTION.value
_SUSPEND: Final = PullSysFlag.SUSPEND.value
_MESSAGE_BYTES: Final = 1 << 20
_PAUSE_SECONDS: Final = 0.2


class Stored(NamedTuple):
    """One message: when it was stored, and how long it is as it lies in the log."""

    timestamp_ms: int
    size: int


class Queues:
    """What a query asks of brokers. For one thread."""

    def __init__(
        self, options: ReadOptions, instance: ClientInstance, clock: Callable[[], float] | None = None
    ) -> None:
        """Take a clock that gives seconds, if it is another than Python's."""
        self._options = options
        self._instance = instance
        clock = clock or time.monotonic
        self._discovery = Discovery(options, instance, clock)
        self._asker = Asker(instance, options.access, self._discovery.look_again)
        self._holds = Holds(self._pull, clock)

    def discover(self, *, now: bool = False) -> frozenset[MessageQueue]:
        """Return all queues that may be read, looked for again when it is time, or ``now``."""
        return self._discovery.queues(now=now)

    # ---- where they begin and end

    def ends(self, queues: Iterable[MessageQueue], *, every: bool = False) -> dict[MessageQueue, int]:
        """The offset of each queue's next message; none for those that nobody answers for now.

        ``every``: wait until all have answered. What a broker does not know any more ends at 0.
        """
        return self._numbers(queues, RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader, every=every)

    def starts(self, queues: Iterable[MessageQueue], *, every: bool = False) -> dict[MessageQueue, int]:
        """The first offset that each queue still holds; likewise."""
        return self._numbers(queues, RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader, every=every)

    def _numbers(
        self, queues: Iterable[MessageQueue], code: int, header: Any, *, every: bool
    ) -> dict[MessageQueue, int]:
        def ask(queue: MessageQueue) -> Future[int]:
            address = self._asker.addresses.of(queue)

            def interpret(answer: RemotingCommand) -> int:
                found: int = header_of(address, code, checked(address, code, answer)).offset
                return max(found, 0)  # 4.9 says -1 of a queue that has no file yet

            command = command_of(code, header(queue.topic, queue.queue_id))
            timeout_ms = self._options.access.request_timeout_ms
            return self._instance.connections.request_async(address, command, timeout_ms, interpret)

        return self._asker.ask(queues, ask, gone=0, every=every)

    # ---- single messages

    def stored(
        self, offsets: Mapping[MessageQueue, int], *, every: bool = False
    ) -> dict[MessageQueue, Stored]:
        """The messages at these offsets, one of each queue; none where there is none there any more.

        ``every``: wait until all brokers have answered.
        """
        asked = {queue: offset for queue, offset in offsets.items() if offset >= 0}
        results = self._asker.ask(
            asked, lambda queue: self._pull(queue, asked[queue]), gone=None, every=every
        )
        return {
            queue: Stored(message.store_timestamp, record_size(result.records, 0))
            for queue, result in results.items()
            if result is not None and result.pull_status is PullStatus.FOUND
            for message in [decode_record(result.records, check_crc=False)]
            if message.queue_offset == asked[queue]
        }

    def first_since(self, queue: MessageQueue, timestamp_ms: int, start: int, end: int) -> int:
        """The offset of the first message stored at a time or later, of those in a range; else its end.

        What brokers answer to this differs between releases where times are equal or beyond the last, so
        their answer is where the search begins, not its result.
        """
        low, high = start, end
        try:
            hint = self._instance.api.search_offset(self._asker.addresses.of(queue), queue, timestamp_ms)
        except (NotFound, SystemBusy):
            hint = start
        probes = [hint - 1, hint]
        while low < high:
            middle = probes.pop(0) if probes else (low + high) // 2
            if not low <= middle < high:
                continue
            found = self.stored({queue: middle}, every=True).get(queue)
            if found is None or found.timestamp_ms < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        return low

    # ---- groups

    def committed(self, queue: MessageQueue, group: str) -> int | None:
        """What a group has stored; None for nothing."""
        address = self._asker.addresses.of(queue)
        return self._instance.api.query_consumer_offset(address, group, queue, zero_if_young=False)

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Store a group's progress. It is for people who watch: after a failure the query goes on.

        Returns:
            What brokers were told of it.
        """
        told: dict[MessageQueue, int] = {}
        for queue, offset in offsets.items():
            try:
                address = self._asker.addresses.of(queue)
                self._instance.api.update_consumer_offset(address, group, queue, offset, one_way=True)
                told[queue] = offset
            except ClientError as error:  # noqa: PERF203  # the other brokers are to hear of it
                _log.warning("group %s has no new offset for %s: %s", group, queue, error)
        return told

    # ---- waiting

    def wait(self, ends: Mapping[MessageQueue, int], timeout_ms: int) -> None:
        """Return when a queue has a message at its end, or the time is over."""
        self._holds.wait(ends, timeout_ms)

    def pause(self) -> None:
        """Give brokers a little time to get ready."""
        time.sleep(_PAUSE_SECONDS)

    def _pull(self, queue: MessageQueue, offset: int, suspend_ms: int = 0) -> Future[PullResult]:
        """One message; one that is waited for has to pass the filter."""
        options = self._options
        header = PullMessageRequestHeader(
            options.group,
            queue.topic,
            queue.queue_id,
            offset,
            1,
            _SUBSCRIPTION | (_SUSPEND if suspend_ms else 0),
            0,
            suspend_ms,
            0,
            options.expression if suspend_ms else "*",
            options.expression_type if suspend_ms else TAG_EXPRESSION,
            _MESSAGE_BYTES,
        )
        timeout_ms = options.access.request_timeout_ms + suspend_ms
        return self._instance.api.pull_async(self._asker.addresses.of(queue), header, timeout_ms)
