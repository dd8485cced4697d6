"""QueueClient: asks brokers about the queues that a query reads, for many queues at once.

    discover                  which queues there are (`discovery`)
    wait_for_named_brokers    the queues, once the brokers that positions name are known
    ends, starts              where each queue ends, and where it starts
    fingerprints              store time, size and mark of single messages
    offsets_for_times         the first message of each queue stored at or after a time
    committed_offsets         what a group has committed; `commit` commits offsets
    wait                      until a queue has a new message (`HeldPulls`)

`fan_out` decides how long to wait for brokers that are away.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for_futures
from typing import Any, Final, NamedTuple

from rmq_spark.client.concurrency.retry_timer import TRANSIENT_ERRORS
from rmq_spark.client.errors import ClientError
from rmq_spark.client.failure_log import OutageLog
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.reading.read_bounds import TimeSearch
from rmq_spark.client.results import PullResult, PullStatus
from rmq_spark.client.transport.remoting_client import (
    build_request,
    check_response,
    response_header,
)
from rmq_spark.spark.brokers.discovery import QueueDiscovery
from rmq_spark.spark.brokers.fan_out import BrokerFanOut
from rmq_spark.spark.options.options import ReadOptions
from rmq_spark.spark.options.start_positions import Positions
from rmq_spark.wire.bodies.clients import TAG_EXPRESSION
from rmq_spark.wire.codes import PullSysFlag, RequestCode, ResponseCode
from rmq_spark.wire.headers.members import (
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
)
from rmq_spark.wire.isa_l import crc32
from rmq_spark.wire.message.record import record_size
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand

# ---- Held pulls at the ends of queues, so that an idle query costs nothing.

_UNAVAILABLE_PAUSE_SECONDS: Final = 0.2
_REPULL_SECONDS: Final = 0.1
"""Seconds after which a pull counts as held; brokers that return empty sooner do not hold."""

PullFunction = Callable[[MessageQueue, int, int], "Future[PullResult]"]
"""A function that pulls a queue at an offset, and lets the broker hold the pull for some ms.

It does not wait for connections: a broker that is not connected counts as away."""


class _HeldPull(NamedTuple):
    queue_offset: int
    sent_at: float
    response: Future[PullResult]


class HeldPulls:
    """The held pulls by which a query waits for new messages; for use by one thread."""

    def __init__(self, pull: PullFunction, clock: Callable[[], float], suspend_ms: int) -> None:
        self._pull = pull
        self._clock = clock
        self._suspend_ms = suspend_ms
        self._pulls: dict[MessageQueue, _HeldPull] = {}

    def wait(self, ends: Mapping[MessageQueue, int], timeout_ms: int) -> bool:
        """Return True as soon as a queue has a message at its end, or False after a timeout.

        After a timeout, brokers keep holding the pulls, and the next wait continues with them.
        """
        deadline = self._clock() + timeout_ms / 1000
        self._pulls = {queue: held for queue, held in self._pulls.items() if queue in ends}
        while (left := deadline - self._clock()) > 0:
            for queue, offset in ends.items():
                self._ensure_pull(queue, offset, left)
            if len(self._pulls) < len(ends):  # a broker is away, or has just come back
                left = min(left, _UNAVAILABLE_PAUSE_SECONDS)
            responses = [held.response for held in self._pulls.values()]
            if not responses:
                time.sleep(left)
                continue
            wait_for_futures(responses, left, FIRST_COMPLETED)
            if any(_has_messages(held.response) for held in self._pulls.values()):
                return True
        return False

    def _ensure_pull(self, queue: MessageQueue, offset: int, seconds: float) -> None:
        held = self._pulls.get(queue)
        now = self._clock()
        if held is not None and held.queue_offset == offset:
            if not held.response.done():
                return
            early = held.sent_at + _REPULL_SECONDS - now
            if early > 0:
                time.sleep(min(early, seconds))
        self._pulls.pop(queue, None)
        try:
            response = self._pull(queue, offset, self._suspend_ms)
        except TRANSIENT_ERRORS:
            return
        self._pulls[queue] = _HeldPull(offset, now, response)


def _has_messages(response: Future[PullResult]) -> bool:
    if not response.done() or response.exception() is not None:
        return False
    return response.result().pull_status is not PullStatus.NO_NEW_MSG


_log = logging.getLogger(__name__)

_SUBSCRIPTION: Final = PullSysFlag.SUBSCRIPTION.value
_SUSPEND: Final = PullSysFlag.SUSPEND.value
_MESSAGE_BYTES: Final = 1 << 20
_PAUSE_SECONDS: Final = 0.2
_TIMES_MS: Final = range(1 << 42)
"""Store times up to the year 2109; others come from a flipped bit and identify no queue."""

_MARK_STRUCT: Final = struct.Struct(">iq")

_SEPARATE_REQUESTS_MAX: Final = 16
"""The number of requests that are sent one by one, so that the first response comes soonest."""


class MessagePosition(NamedTuple):
    """The queue and the queue offset of one message."""

    queue: MessageQueue
    queue_offset: int


class MessageFingerprint(NamedTuple):
    """The store time of one message, its size in the commit log, and its mark (`mark_of`)."""

    timestamp_ms: int
    size: int
    mark: int


class TimestampQuery(NamedTuple):
    """A search for the first message stored at or after a time, within a range of offsets."""

    timestamp_ms: int
    start: int
    end: int


def mark_of(body_crc: int, born_timestamp: int) -> int:
    """Return a 32-bit number that distinguishes messages with the same store time.

    It is made from the body's CRC and the producer's clock, which are the same wherever a broker
    keeps the message. The physical offset is not: RocketMQ's tiered storage writes another one.
    """
    return crc32(_MARK_STRUCT.pack(body_crc, born_timestamp))


class QueueClient(QueueDiscovery):
    """A query's queues, and its requests to brokers about them; for use by one thread."""

    def __init__(
        self,
        options: ReadOptions,
        instance: ClientInstance,
        clock: Callable[[], float] | None = None,
    ) -> None:
        clock = clock or time.monotonic
        super().__init__(options, instance, clock)
        self._fan_out = BrokerFanOut(instance, options.access, self.invalidate)
        self._held_pulls = HeldPulls(
            lambda queue, *more: self._pull(self._fan_out.connected_address(queue), queue, *more),
            clock,
            options.suspend_ms,
        )
        self._commit_outages = OutageLog("committing the group's offset of")

    def wait_for_named_brokers(self, *positions: Positions | None) -> frozenset[MessageQueue]:
        """Return all queues that may be read, once name servers know the brokers in positions."""
        timer = self._fan_out.retry_timer()
        self.discover(is_forced=True)
        while unknown := self.unknown_brokers(*positions):
            if not timer.sleep_or_expire():
                raise unknown[min(unknown)]
            self.discover(is_forced=True)
        return self.discover()

    def refresh_unrouted_queues(self) -> None:
        """Refresh the queues if routes lack some of them, because their brokers have answered."""
        if self.unrouted_queues():
            self.discover(is_forced=True)

    # ---- starts and ends of queues

    def ends(
        self, queues: Iterable[MessageQueue], *, required: Container[MessageQueue] | None = None
    ) -> dict[MessageQueue, int]:
        """Return the offset of each queue's next message; 0 if its broker no longer knows it.

        The call waits only for the ``required`` queues, by default for all.
        """
        return self._query_offsets(
            queues,
            RequestCode.GET_MAX_OFFSET,
            lambda queue: GetMaxOffsetRequestHeader(
                queue.topic, queue.queue_id, broker_name=queue.broker_name
            ),
            required,
        )

    def starts(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the first offset that each queue still has; 0 if its broker does not know it."""
        return self._query_offsets(
            queues,
            RequestCode.GET_MIN_OFFSET,
            lambda queue: GetMinOffsetRequestHeader(queue.topic, queue.queue_id, queue.broker_name),
        )

    def _query_offsets(
        self,
        queues: Iterable[MessageQueue],
        code: int,
        header: Callable[[MessageQueue], Any],
        required: Container[MessageQueue] | None = None,
        refusal_codes: frozenset[int] = frozenset(),
    ) -> dict[MessageQueue, int]:
        """Query one offset of each queue; -1 if the response code is in ``refusal_codes``."""
        about = {queue: queue for queue in queues}
        may_gather = len(about) > _SEPARATE_REQUESTS_MAX

        def ask(address: str, queue: MessageQueue) -> Future[int]:
            def interpret(response: RemotingCommand) -> int:
                if response.code in refusal_codes:
                    return -1
                found: int = response_header(
                    address, code, check_response(address, code, response)
                ).offset
                return found

            command = build_request(code, header(queue))
            timeout_ms = self._options.access.request_timeout_ms
            return self._instance.connections.request_async(
                address, command, timeout_ms, interpret, may_batch=may_gather
            )

        found = self._fan_out.query_all(about, ask, unknown_value=0, required=required)
        if refusal_codes:
            return found
        # RocketMQ 4.9 answers -1 for a queue that has no file yet.
        return {queue: max(number, 0) for queue, number in found.items()}

    # ---- single messages

    def fingerprints(
        self, positions: Iterable[MessagePosition]
    ) -> dict[MessagePosition, MessageFingerprint]:
        """Return the fingerprint of each message that still exists at these positions."""
        found = {}
        for position, result in self._pull_each(
            position for position in positions if position.queue_offset >= 0
        ).items():
            message = None if result is None else result.first_message(position.queue)
            if (
                result is not None
                and message is not None
                and message.queue_offset == position.queue_offset
                and message.store_timestamp in _TIMES_MS
            ):
                found[position] = MessageFingerprint(
                    message.store_timestamp,
                    record_size(result.records, 0),
                    mark_of(message.body_crc or 0, message.born_timestamp),
                )
        return found

    def first_at_or_after(self, positions: Iterable[MessagePosition]) -> dict[MessagePosition, int]:
        """Return the offset of the first message at or after each position in its queue."""
        found = {}
        pending = {position: position for position in positions}
        while pending:
            results = self._pull_each(pending.values())
            next_pending = {}
            for position, at in pending.items():
                result = results[at]
                message = None if result is None else result.first_message(position.queue)
                if message is not None:
                    found[position] = message.queue_offset
                elif result is not None and result.next_begin_offset > at.queue_offset:
                    next_pending[position] = MessagePosition(
                        position.queue, result.next_begin_offset
                    )
            pending = next_pending
        return found

    def offsets_for_times(
        self, queries: Mapping[MessageQueue, TimestampQuery]
    ) -> dict[MessageQueue, int]:
        """Return the offset of the first message stored at or after a time, or the range's end.

        Releases of brokers answer differently if times are equal or past the last message, so their
        answer is only the hint with which the search starts. All queues are searched together.
        """
        hints = self._query_offsets(
            queries,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            lambda queue: SearchOffsetRequestHeader(
                queue.topic,
                queue.queue_id,
                queries[queue].timestamp_ms,
                broker_name=queue.broker_name,
            ),
            refusal_codes=_ALL_ERROR_CODES,
        )
        searches = {queue: TimeSearch(*each, hint=hints[queue]) for queue, each in queries.items()}
        while probes := {
            MessagePosition(queue, probe): search
            for queue, search in searches.items()
            if (probe := search.next_probe()) is not None
        }:
            for position, result in self._pull_each(probes).items():
                message = None if result is None else result.first_message(position.queue)
                if message is not None:
                    probes[position].record_result(message.queue_offset, message.store_timestamp)
                else:
                    probes[position].record_result(
                        0 if result is None else result.next_begin_offset, None
                    )
        return {queue: search.low for queue, search in searches.items()}

    def _pull_each(
        self, positions: Iterable[MessagePosition]
    ) -> dict[MessagePosition, PullResult | None]:
        """Pull one message at or after each position; None if the queue is gone.

        A record that contradicts its request does not prove that the message is gone: the request
        is repeated for `retry_timeout_ms`, and the last response is used.
        """
        found: dict[MessagePosition, PullResult | None] = {}
        timer = self._fan_out.retry_timer()
        pending = {position: position.queue for position in positions}
        while pending:
            found |= self._fan_out.query_all(
                pending,
                lambda address, position: self._pull(address, *position),
                unknown_value=None,
            )
            pending = {
                position: position.queue
                for position in pending
                if _is_suspect(position, found[position])
            }
            if pending and not timer.sleep_or_expire():
                for position in pending:
                    _log.warning(
                        "the message at offset %d of %s cannot be read, and counts as missing",
                        *(position.queue_offset, str(position.queue)),
                    )
                break
        return found

    # ---- groups

    def committed_offsets(
        self, queues: Iterable[MessageQueue], group: str
    ) -> dict[MessageQueue, int | None]:
        """Return the offset that a group has committed for each queue, or None."""
        found = self._query_offsets(
            queues,
            RequestCode.QUERY_CONSUMER_OFFSET,
            lambda queue: QueryConsumerOffsetRequestHeader(
                group,
                queue.topic,
                queue.queue_id,
                set_zero_if_not_found=False,
                broker_name=queue.broker_name,
            ),
            refusal_codes=_NOT_FOUND_CODES,
        )
        return {queue: None if offset < 0 else offset for queue, offset in found.items()}

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Commit a group's offsets, for observers only: a failure does not fail the query.

        Returns:
            The offsets that were sent to their brokers.
        """
        committed: dict[MessageQueue, int] = {}
        addresses, faults = self._fan_out.connect(offsets)
        for queue, offset in offsets.items():
            if queue.broker_name in faults:
                self._commit_outages.record_failure(queue, faults[queue.broker_name])
                continue
            address = addresses[queue.broker_name]
            try:
                self._instance.api.update_consumer_offset(
                    address, group, queue, offset, is_one_way=True
                )
                committed[queue] = offset
            except ClientError as error:  # the other brokers still get their offsets
                self._commit_outages.record_failure(queue, error)
            else:
                self._commit_outages.record_success(queue)
        return committed

    # ---- waiting

    def wait(self, ends: Mapping[MessageQueue, int], timeout_ms: int) -> bool:
        """Return True as soon as a queue has a message at its end; False after a timeout."""
        return self._held_pulls.wait(ends, timeout_ms)

    def pause(self) -> None:
        """Pause briefly, to let brokers become ready."""
        time.sleep(_PAUSE_SECONDS)

    def _pull(
        self, address: str, queue: MessageQueue, offset: int, suspend_ms: int = 0
    ) -> Future[PullResult]:
        """Pull one message; if the broker holds the pull, the message must pass the filter."""
        options = self._options
        header = PullMessageRequestHeader(
            consumer_group=options.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=1,
            sys_flag=_SUBSCRIPTION | (_SUSPEND if suspend_ms else 0),
            commit_offset=0,
            suspend_timeout_millis=suspend_ms,
            sub_version=0,
            subscription=options.expression if suspend_ms else "*",
            expression_type=options.expression_type if suspend_ms else TAG_EXPRESSION,
            max_msg_bytes=_MESSAGE_BYTES,
            broker_name=queue.broker_name,
        )
        timeout_ms = options.access.request_timeout_ms + suspend_ms
        return self._instance.api.pull_async(address, header, timeout_ms)


def _is_suspect(position: MessagePosition, result: PullResult | None) -> bool:
    """Return whether a pull found a record that cannot be the first one at or after a position."""
    if result is None or result.pull_status is not PullStatus.FOUND:
        return False
    message = result.first_message(position.queue)
    return (
        message is None
        or not position.queue_offset <= message.queue_offset < result.next_begin_offset
    )


_ALL_ERROR_CODES: Final = frozenset(
    code.value for code in ResponseCode if code != ResponseCode.SUCCESS
)
_NOT_FOUND_CODES: Final = frozenset({ResponseCode.QUERY_NOT_FOUND.value})
