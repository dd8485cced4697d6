"""Queues: what brokers know of the queues that a query reads, asked for many queues at once.

    discover     which queues there are (`discovery`); discover_those_named: once the brokers are
                 known that positions name
    ends         where each ends; starts: where each begins
    stored       when single messages were stored, and how long they are
    first_since  the first message of each queue from a time on
    committed    what a group has stored; commit: stores it
    wait         until a queue has something new (`holds`)

How long brokers that are away are waited for is the business of `asking`. This module knows neither
Spark nor what offsets mean to a query.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Container, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple
from zlib import crc32

from rmq_spark.client.consumer.brokers.broker_client import Outages
from rmq_spark.client.errors import ClientError
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.reading.time_search import Search
from rmq_spark.client.results import PullResult
from rmq_spark.client.transport.typed_requests import checked, command_of, header_of
from rmq_spark.spark.brokers.discovery import Discovery
from rmq_spark.spark.brokers.fan_out import Asker
from rmq_spark.spark.brokers.held_pulls import Holds
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.options import ReadOptions
from rmq_spark.spark.options.start_positions import Positions
from rmq_spark.wire.bodies.clients import TAG_EXPRESSION
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.flags import PullSysFlag
from rmq_spark.wire.headers.offsets import (
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
)
from rmq_spark.wire.headers.pull import PullMessageRequestHeader
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.record import record_size

_SUBSCRIPTION: Final = PullSysFlag.SUBSCRIPTION.value
_SUSPEND: Final = PullSysFlag.SUSPEND.value
_MESSAGE_BYTES: Final = 1 << 20
_PAUSE_SECONDS: Final = 0.2
_TIMES_MS: Final = range(1 << 42)
"""Store times up to the year 2109; a flipped bit makes others, by which no queue can be known."""

_MARKED: Final = struct.Struct(">iq")

_FEW: Final = 16
"""The number of questions that are asked one by one, so that the first answer comes soonest."""


class Place(NamedTuple):
    """The queue and the queue offset of one message."""

    queue: MessageQueue
    queue_offset: int


class Stored(NamedTuple):
    """The store time of one message, its size in the log, and its mark (`mark_of`)."""

    timestamp_ms: int
    size: int
    mark: int


class Since(NamedTuple):
    """A search for the first message stored at or after a time, within a range of offsets."""

    timestamp_ms: int
    start: int
    end: int


def mark_of(body_crc: int, born_timestamp: int) -> int:
    """Return a number that tells a message from others of the same store time, in 32 bits.

    Out of its body's CRC and its producer's clock: these stay, wherever a broker keeps it. Its
    place in the commit log does not: RocketMQ's tiered storage writes another.
    """
    return crc32(_MARKED.pack(body_crc, born_timestamp))


class Queues:
    """The questions that a query asks brokers about its queues; for use by one thread."""

    def __init__(
        self,
        options: ReadOptions,
        instance: ClientInstance,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Take a clock that gives seconds, if it is another than Python's."""
        self._options = options
        self._instance = instance
        clock = clock or time.monotonic
        self._discovery = Discovery(options, instance, clock)
        self._asker = Asker(instance, options.access, self._discovery.look_again)
        self._holds = Holds(self._held_pull, clock, options.suspend_ms)
        self._commits = Outages("takes no new offset of the group")

    def discover(self, *, now: bool = False) -> frozenset[MessageQueue]:
        """Return all queues that may be read, looked for again when it is time, or ``now``."""
        return self._discovery.queues(now=now)

    def discover_those_named(self, *positions: Positions | None) -> frozenset[MessageQueue]:
        """Return all queues that may be read, once name servers know the brokers of positions.

        Raises:
            OptionError: For `retry_timeout_ms` no name server has known one of them.
        """
        given = [each for each in positions if each is not None]
        patience = self._asker.patience()
        self.discover(now=True)
        while unknown := self._discovery.strangers(given):
            if not patience.pause():
                raise unknown[min(unknown)]
            self.discover(now=True)
        return self.discover()

    def is_routed(self, topic: str) -> bool:
        """Tell whether a name server knew a topic when it was last looked for."""
        return self._discovery.is_routed(topic)

    def is_withdrawn(self, queue: MessageQueue) -> bool:
        """Tell whether a queue is not to be read any more, see `Discovery.is_withdrawn`."""
        return self._discovery.is_withdrawn(queue)

    def known_by_name(self) -> frozenset[MessageQueue]:
        """Return the queues of which only option ``assign`` tells so far."""
        return self._discovery.known_by_name()

    def wrongly_assigned(self, brokers: Iterable[str]) -> OptionError | None:
        """Return the error for brokers that nobody knows, see `Discovery.wrongly_assigned`."""
        return self._discovery.wrongly_assigned(brokers)

    def look_for_strangers(self, *positions: Positions | None) -> None:
        """Log which brokers that positions name are not known just then."""
        self._discovery.strangers([each for each in positions if each is not None])

    def look_for_those_named(self) -> None:
        """Look for the queues that are known by name alone, as their brokers have answered.

        Raises:
            OptionError: A broker is there by now, and has no such queue.
        """
        if self.known_by_name():
            self.discover(now=True)

    def forget(self, queues: Iterable[MessageQueue]) -> None:
        """Look no more for queues that are gone, unless they turn up again."""
        self._discovery.forget(queues)

    # ---- where they begin and end

    def ends(
        self, queues: Iterable[MessageQueue], *, needed: Container[MessageQueue] | None = None
    ) -> dict[MessageQueue, int]:
        """Return the offset of each queue's next message; 0 where its broker no longer knows it.

        Args:
            queues: The queues to ask about.
            needed: The queues among them that are waited for; all by default.
        """
        return self._numbers(
            queues,
            RequestCode.GET_MAX_OFFSET,
            lambda queue: GetMaxOffsetRequestHeader(queue.topic, queue.queue_id),
            needed,
        )

    def starts(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return the first offset that each queue still holds; 0 if its broker does not know it."""
        return self._numbers(
            queues,
            RequestCode.GET_MIN_OFFSET,
            lambda queue: GetMinOffsetRequestHeader(queue.topic, queue.queue_id),
        )

    def _numbers(
        self,
        queues: Iterable[MessageQueue],
        code: int,
        header: Callable[[MessageQueue], Any],
        needed: Container[MessageQueue] | None = None,
        refused: frozenset[int] = frozenset(),
    ) -> dict[MessageQueue, int]:
        """Ask for one offset of each queue; -1 where the response code is in ``refused``."""
        about = {queue: queue for queue in queues}
        may_gather = len(about) > _FEW

        def ask(address: str, queue: MessageQueue) -> Future[int]:
            def interpret(answer: RemotingCommand) -> int:
                if answer.code in refused:
                    return -1
                found: int = header_of(address, code, checked(address, code, answer)).offset
                return found

            command = command_of(code, header(queue))
            timeout_ms = self._options.access.request_timeout_ms
            return self._instance.connections.request_async(
                address, command, timeout_ms, interpret, may_gather=may_gather
            )

        found = self._asker.ask(about, ask, gone=0, needed=needed)
        if refused:
            return found
        # 4.9 says -1 of a queue that has no file yet.
        return {queue: max(number, 0) for queue, number in found.items()}

    # ---- single messages

    def stored(self, places: Iterable[Place]) -> dict[Place, Stored]:
        """Return the messages at these places; none for a place where there is none any more."""
        found = {}
        for place, result in self._pulled(
            place for place in places if place.queue_offset >= 0
        ).items():
            message = None if result is None else result.first_message(place.queue)
            if (
                result is not None
                and message is not None
                and message.queue_offset == place.queue_offset
                and message.store_timestamp in _TIMES_MS
            ):
                found[place] = Stored(
                    message.store_timestamp,
                    record_size(result.records, 0),
                    mark_of(message.body_crc or 0, message.born_timestamp),
                )
        return found

    def first_at_or_behind(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return the offset of the first message at each place, or behind it in its queue."""
        found = {}
        asked = {place: place for place in places}
        while asked:
            results = self._pulled(asked.values())
            further = {}
            for place, at in asked.items():
                result = results[at]
                message = None if result is None else result.first_message(place.queue)
                if message is not None:
                    found[place] = message.queue_offset
                elif result is not None and result.next_begin_offset > at.queue_offset:
                    further[place] = Place(place.queue, result.next_begin_offset)
            asked = further
        return found

    def first_since(self, wanted: Mapping[MessageQueue, Since]) -> dict[MessageQueue, int]:
        """Return the offset of the first message stored at or after a time, or the range's end.

        Brokers' answers differ between releases where times are equal or beyond the last, so that
        they are where the search begins, not its result. All queues are searched together.
        """
        hints = self._numbers(
            wanted,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            lambda queue: SearchOffsetRequestHeader(
                queue.topic, queue.queue_id, wanted[queue].timestamp_ms
            ),
            refused=_ANY_REFUSAL,
        )
        searches = {queue: Search(*each, hint=hints[queue]) for queue, each in wanted.items()}
        while probes := {
            Place(queue, probe): search
            for queue, search in searches.items()
            if (probe := search.probe()) is not None
        }:
            for place, result in self._pulled(probes).items():
                message = None if result is None else result.first_message(place.queue)
                if message is not None:
                    probes[place].found(message.queue_offset, message.store_timestamp)
                else:
                    probes[place].found(0 if result is None else result.next_begin_offset, None)
        return {queue: search.low for queue, search in searches.items()}

    def _pulled(self, places: Iterable[Place]) -> dict[Place, PullResult | None]:
        """Pull one message from each place on; None where the queue is gone."""
        return self._asker.ask(
            {place: place.queue for place in places},
            lambda address, place: self._pull(address, *place),
            gone=None,
        )

    # ---- groups

    def committed(
        self, queues: Iterable[MessageQueue], group: str
    ) -> dict[MessageQueue, int | None]:
        """Return what a group has stored for each queue; None for nothing."""
        found = self._numbers(
            queues,
            RequestCode.QUERY_CONSUMER_OFFSET,
            lambda queue: QueryConsumerOffsetRequestHeader(
                group, queue.topic, queue.queue_id, set_zero_if_not_found=False
            ),
            refused=_NONE_STORED,
        )
        return {queue: None if offset < 0 else offset for queue, offset in found.items()}

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Store a group's progress, for observers only: a failure does not stop the query.

        Returns:
            The offsets that brokers were told.
        """
        told: dict[MessageQueue, int] = {}
        addresses, faults = self._asker.reach(offsets)
        for queue, offset in offsets.items():
            if queue.broker_name in faults:
                self._commits.failed(queue, faults[queue.broker_name])
                continue
            address = addresses[queue.broker_name]
            try:
                self._instance.api.update_consumer_offset(
                    address, group, queue, offset, one_way=True
                )
                told[queue] = offset
            except ClientError as error:  # the other brokers are to hear of it
                self._commits.failed(queue, error)
            else:
                self._commits.went_well(queue)
        return told

    # ---- waiting

    def wait(self, ends: Mapping[MessageQueue, int], timeout_ms: int) -> bool:
        """Return True as soon as a queue has a message at its end; False when the time is over."""
        return self._holds.wait(ends, timeout_ms)

    def pause(self) -> None:
        """Give brokers a little time to get ready."""
        time.sleep(_PAUSE_SECONDS)

    def _held_pull(self, queue: MessageQueue, offset: int, suspend_ms: int) -> Future[PullResult]:
        return self._pull(self._asker.at_hand(queue), queue, offset, suspend_ms)

    def _pull(
        self, address: str, queue: MessageQueue, offset: int, suspend_ms: int = 0
    ) -> Future[PullResult]:
        """Pull one message; one that is waited for has to pass the filter."""
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
        )
        timeout_ms = options.access.request_timeout_ms + suspend_ms
        return self._instance.api.pull_async(address, header, timeout_ms)


_ANY_REFUSAL: Final = frozenset(code.value for code in ResponseCode if code != ResponseCode.SUCCESS)
_NONE_STORED: Final = frozenset({ResponseCode.QUERY_NOT_FOUND.value})
