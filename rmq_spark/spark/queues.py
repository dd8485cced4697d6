"""Queues: what brokers know of the queues that a query reads, asked for many queues at once.

    discover     which queues there are; a name server that knows nothing at the moment changes nothing
    ends         where each ends; starts: where each begins
    stored       when single messages were stored, and how long they are
    first_since  the first message from a time on
    wait         until a queue has something new: pulls that the broker holds, so that waiting costs nothing

A broker that cannot be reached is waited for, by `retry_timeout_ms`; until then its queues just have no
answer. It knows neither Spark nor what offsets mean to a query.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for_futures
from typing import Any, Final, NamedTuple

from rmq_spark.client.calls import checked, command_of, header_of
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    BrokerNotFound,
    BrokerRefused,
    ClientError,
    NotFound,
    RouteNotFound,
    SystemBusy,
    TopicNotFound,
)
from rmq_spark.client.instance import ClientInstance
from rmq_spark.client.results import PullResult, PullStatus
from rmq_spark.spark.access import Access
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options import ReadOptions, Selection
from rmq_spark.wire.bodies.clients import TAG_EXPRESSION
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.flags import PullSysFlag
from rmq_spark.wire.headers.offsets import GetMaxOffsetRequestHeader, GetMinOffsetRequestHeader
from rmq_spark.wire.headers.pull import PullMessageRequestHeader
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS
from rmq_spark.wire.record import decode_record, record_size

_log = logging.getLogger(__name__)

_SUBSCRIPTION: Final = PullSysFlag.SUBSCRIPTION.value
_SUSPEND: Final = PullSysFlag.SUSPEND.value
_MESSAGE_BYTES: Final = 1 << 20
_PAUSE_SECONDS: Final = 0.2
_HOLD_AGAIN_SECONDS: Final = 0.1
"""A pull that comes back empty sooner is not asked again at once: this broker does not hold."""

_NO_SUCH_QUEUE: Final = "is illegal"
"""What brokers say of a queue's number that a topic has not, or no more and without any message."""

AWAY: Final = (*CONNECTION_FAULTS, BrokerNotFound, SystemBusy)
"""Brokers that may do better later."""

_NOT_THE_USERS: Final = (
    *SYSTEM_TOPICS,
    SYSTEM_TOPIC_PREFIX,
    *("%", "RMQ_SYS_", "DefaultCluster", "DefaultHeartBeatSyncerTopic"),
)
"""How topics begin that no pattern matches."""


class Stored(NamedTuple):
    """One message: when it was stored, and how long it is as it lies in the log."""

    timestamp_ms: int
    size: int


class _Held(NamedTuple):
    """A pull at a queue's end that its broker may be holding."""

    queue_offset: int
    sent_at: float
    answer: Future[PullResult]


def instance_for(access: Access) -> ClientInstance:
    """A client that runs no threads of its own: what is known is asked for when it is needed."""
    return ClientInstance(
        access.name_servers,
        credentials=access.credentials,
        tls=access.tls,
        request_timeout_ms=access.request_timeout_ms,
    )


def is_gone(error: BrokerRefused) -> bool:
    """Whether a broker says so because it has no such topic, or no such queue."""
    return isinstance(error, TopicNotFound) or _NO_SUCH_QUEUE in (error.remark or "")


def masters(instance: ClientInstance) -> dict[str, str]:
    """The brokers' addresses by name, also of those to which no route leads."""
    brokers = instance.name_servers.admin.cluster_info().broker_addr_table
    return {
        name: min(broker.broker_addrs.items())[1] for name, broker in brokers.items() if broker.broker_addrs
    }


class Queues:
    """See the module. For one thread."""

    def __init__(
        self, options: ReadOptions, instance: ClientInstance, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` gives seconds."""
        self._options = options
        self._instance = instance
        self._clock = clock
        self._known: frozenset[MessageQueue] = frozenset()
        self._unknown: set[str] = set()  # topics that no name server knew the last time
        self._discovered_at: float | None = None
        self._away_since: float | None = None
        self._masters: Mapping[str, str] = {}
        self._held: dict[MessageQueue, _Held] = {}

    # ---- which there are

    def discover(self, *, now: bool = False) -> frozenset[MessageQueue]:
        """All queues that may be read; looked for again when it is time, or ``now``."""
        at = self._discovered_at
        if not now and at is not None and self._clock() - at < self._options.discovery_ms / 1000:
            return self._known
        try:
            found = self._found(self._options.selection)
        except (*CONNECTION_FAULTS, BrokerRefused) as error:
            if at is None:
                raise
            _log.warning("no name server says where the queues are now: %s", error)
            return self._known
        self._discovered_at = self._clock()
        self._known = frozenset(found)
        return self._known

    def _found(self, selection: Selection) -> list[MessageQueue]:
        topics: Iterable[str] = selection.topics
        if selection.pattern is not None:
            pattern = re.compile(selection.pattern)
            every = self._instance.name_servers.admin.topics()
            matching = {t for t in every if pattern.fullmatch(t) and not t.startswith(_NOT_THE_USERS)}
            topics = sorted(matching | {queue.topic for queue in self._known})
        found: list[MessageQueue] = []
        unknown: set[str] = set()
        for topic in topics:
            try:
                queues = self._instance.routes.refresh(topic).subscribe_queues
            except RouteNotFound:
                # A name server that has just started knows nothing: its broker says whether it is gone.
                before = [queue for queue in self._known if queue.topic == topic]
                if not before and selection.pattern is None:
                    raise
                if topic not in self._unknown:
                    _log.warning("no name server knows topic %s at the moment", topic)
                unknown.add(topic)
                found += before
                continue
            found += [queue for queue in queues if _is_assigned(selection, queue)]
        self._unknown = unknown
        if selection.assigned and self._discovered_at is None:
            _check_assigned(selection, found)
        elif selection.assigned:  # of a broker that is away no name server tells
            found += self._known.difference(found)
        return found

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
            address = self._address(queue)

            def interpret(answer: RemotingCommand) -> int:
                found: int = header_of(address, code, checked(address, code, answer)).offset
                return max(found, 0)  # 4.9 says -1 of a queue that has no file yet

            command = command_of(code, header(queue.topic, queue.queue_id))
            timeout_ms = self._options.access.request_timeout_ms
            return self._instance.connections.request_async(address, command, timeout_ms, interpret)

        return self._each(queues, ask, gone=0, every=every)

    # ---- single messages

    def stored(
        self, offsets: Mapping[MessageQueue, int], *, every: bool = False
    ) -> dict[MessageQueue, Stored]:
        """The messages at these offsets, one of each queue; none where there is none there any more.

        ``every``: wait until all brokers have answered.
        """
        asked = {queue: offset for queue, offset in offsets.items() if offset >= 0}
        results = self._each(asked, lambda queue: self._pull(queue, asked[queue]), gone=None, every=every)
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
            hint = self._instance.api.search_offset(self._address(queue), queue, timestamp_ms)
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
        address = self._address(queue)
        return self._instance.api.query_consumer_offset(address, group, queue, zero_if_young=False)

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Store a group's progress. It is for people who watch: after a failure the query goes on.

        Returns:
            What brokers were told of it.
        """
        told: dict[MessageQueue, int] = {}
        for queue, offset in offsets.items():
            try:
                address = self._address(queue)
                self._instance.api.update_consumer_offset(address, group, queue, offset, one_way=True)
                told[queue] = offset
            except ClientError as error:  # noqa: PERF203  # the other brokers are to hear of it
                _log.warning("group %s has no new offset for %s: %s", group, queue, error)
        return told

    # ---- waiting

    def wait(self, ends: Mapping[MessageQueue, int], timeout_ms: int) -> None:
        """Until a queue has a message at its end, or the time is over; brokers hold what is asked."""
        deadline = self._clock() + timeout_ms / 1000
        self._held = {queue: held for queue, held in self._held.items() if queue in ends}
        while (left := deadline - self._clock()) > 0:
            for queue, offset in ends.items():
                self._hold(queue, offset, left)
            answers = {held.answer for held in self._held.values()}
            if not answers:
                time.sleep(min(left, _PAUSE_SECONDS))
                continue
            wait_for_futures(answers, left, FIRST_COMPLETED)
            if any(_brings_news(held.answer) for held in self._held.values()):
                return

    def _hold(self, queue: MessageQueue, offset: int, seconds: float) -> None:
        """Have a pull waiting at this offset."""
        held = self._held.get(queue)
        now = self._clock()
        if held is not None and held.queue_offset == offset:
            if not held.answer.done():
                return
            early = held.sent_at + _HOLD_AGAIN_SECONDS - now
            if early > 0:
                time.sleep(min(early, seconds))
        self._held.pop(queue, None)
        try:
            answer = self._pull(queue, offset, suspend_ms=max(int(seconds * 1000), 1))
        except AWAY:
            return
        self._held[queue] = _Held(offset, now, answer)

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
        return self._instance.api.pull_async(self._address(queue), header, timeout_ms)

    def pause(self) -> None:
        """A little time for brokers to get ready."""
        time.sleep(_PAUSE_SECONDS)

    # ---- asking

    def _address(self, queue: MessageQueue) -> str:
        try:
            return self._instance.routes.address_for_read(queue.broker_name)
        except BrokerNotFound:
            if queue.broker_name not in self._masters:
                self._masters = masters(self._instance)
            if queue.broker_name not in self._masters:
                raise
            return self._masters[queue.broker_name]

    def _each(
        self,
        queues: Iterable[MessageQueue],
        ask: Callable[[MessageQueue], Future[Any]],
        *,
        gone: Any,
        every: bool,
    ) -> dict[MessageQueue, Any]:
        """What is answered for each queue, all asked before the first answer is waited for."""
        missing = list(queues)
        found: dict[MessageQueue, Any] = {}
        while missing:
            fault = self._asked_once(missing, ask, gone, found)
            missing = [queue for queue in missing if queue not in found]
            if fault is None:
                self._away_since = None
            elif every or not found:
                self._is_away(fault)
            if not every:
                break
            if missing:
                self.pause()
        return found

    def _asked_once(
        self,
        queues: Iterable[MessageQueue],
        ask: Callable[[MessageQueue], Future[Any]],
        gone: Any,
        found: dict[MessageQueue, Any],
    ) -> ClientError | None:
        asked: list[tuple[MessageQueue, Future[Any]]] = []
        fault: ClientError | None = None
        for queue in queues:
            try:
                asked.append((queue, ask(queue)))
            except AWAY as error:  # noqa: PERF203  # the other brokers are to be asked all the same
                fault = error
        for queue, answer in asked:
            try:
                found[queue] = answer.result()
            except AWAY as error:  # noqa: PERF203  # the same
                fault = error
            except BrokerRefused as error:
                if not is_gone(error):
                    raise
                found[queue] = gone
        if fault is not None:
            self._look_again()
        return fault

    def _is_away(self, error: ClientError) -> None:
        """Wait for whoever does not answer, but not for ever."""
        now = self._clock()
        if self._away_since is None:
            self._away_since = now
            _log.warning("waiting for a broker: %s", error)
        if now - self._away_since > self._options.access.retry_timeout_ms / 1000:
            raise error

    def _look_again(self) -> None:
        """A broker that comes back may have another address."""
        self._masters = {}
        self._discovered_at = None if self._discovered_at is None else float("-inf")


def _brings_news(answer: Future[PullResult]) -> bool:
    if not answer.done() or answer.exception() is not None:
        return False
    return answer.result().pull_status is not PullStatus.NO_NEW_MSG


def _is_assigned(selection: Selection, queue: MessageQueue) -> bool:
    if not selection.assigned:
        return True
    brokers = selection.assigned[queue.topic]
    return queue.queue_id in brokers.get(queue.broker_name, brokers.get("*", ()))


def _check_assigned(selection: Selection, found: Iterable[MessageQueue]) -> None:
    there = {(queue.topic, queue.broker_name, queue.queue_id) for queue in found}
    anywhere = {(queue.topic, queue.queue_id) for queue in found}
    for topic, brokers in selection.assigned.items():
        for broker, numbers in brokers.items():
            for number in sorted(numbers):
                is_there = (topic, number) in anywhere if broker == "*" else (topic, broker, number) in there
                if not is_there:
                    where = "" if broker == "*" else f" on broker {broker}"
                    raise OptionError("assign", f"topic {topic} has no queue {number}{where}")
