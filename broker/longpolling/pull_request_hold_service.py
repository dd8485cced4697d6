"""PullRequestHoldService: holds pulls until a message for them arrives or their deadline passes.

    suspend_pull_request      a pull found nothing: add it to the table, by topic and queue. If
                              too many are held already, one is deferred for a short while in
                              which no arrival wakes it: the oldest of a client that has more than
                              its share, or otherwise the new one
    notify_message_arriving   a queue has new messages: wake the pulls that may want one of them
    expire                    wake the pulls whose deadline has passed, at their exact millisecond
    check_hold_request        every few seconds: wake the pulls that should have been woken, and
                              count them
    discard, release_all      a client has gone; the broker stops
    release_pops              a client leaves a group

The service removes a pull from the table before it passes it to ``wake``, once, so that nothing in
``wake`` can find it again. An error in ``wake`` does not affect the other pulls.

One arrival may wake thousands of pulls, so the work is queued and done in steps, between which the
event loop serves other clients. Three kinds of work take turns, one step each:

    wakes       by turns of addresses and connections; one is served between any two other steps
    checks      a queue with new messages: one of its pulls, then one of the next queue. It takes a
                microsecond; only the tags codes are compared
    searches    of new messages for a filter that has to read them, which takes a third of a
                millisecond or more: by turns of addresses and connections

So a client with thousands of pulls and expensive filters mostly delays itself: it delays others by
at most one step for each client. A pull has at most one search, which includes messages that arrive
meanwhile. The arrivals of one queue are processed in order, or a match would be missed.

Nothing can arrive between a pull's read of its queue and its suspension: both happen in one turn of
the loop, whose thread also reports arrivals. Hence the sweep never has anything to rescue;
``rescued_total`` shows if that ever changes.
"""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

from rmq_spark.wire.message_queue import QueueKey

from ..common.channel import Channel
from .hold_limits import HoldLimits
from .pop_request import PopRequest
from .pull_request import FairTurns, HoldFilter, ManyPullRequest, PullRequest

# ---- Quota: the units that held pulls use.


class HoldQuota:
    """The units that the pulls of one kind use, with the pulls in order of acquisition.

    A long subscription uses several units. A large filter uses units once for each client that
    waits with it. Every operation takes constant time.
    """

    def __init__(self) -> None:
        self._count = 0
        self.used = 0
        self._requests: dict[Channel, dict[PullRequest, None]] = {}
        self._used_by: dict[Channel, int] = {}
        self._filter_users: dict[tuple[Channel, HoldFilter], int] = {}
        """The number of a client's pulls with the same filter, if the filter uses units."""
        self._connections_by_use: dict[int, dict[Channel, None]] = {}
        self.used_max = 0
        """The units of the client that uses most."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, request: PullRequest) -> bool:
        return request in self._requests.get(request.connection, ())

    def __iter__(self) -> Iterator[PullRequest]:
        return (request for requests in self._requests.values() for request in requests)

    def used_by(self, connection: Channel) -> int:
        """Return the units that a client uses."""
        return self._used_by.get(connection, 0)

    def of(self, connection: Channel) -> tuple[PullRequest, ...]:
        """Return the pulls of a client, the oldest first."""
        return tuple(self._requests.get(connection, ()))

    def oldest_of(self, connection: Channel) -> PullRequest | None:
        """Return the oldest pull of a client, or None if it has none."""
        return next(iter(self._requests.get(connection, ())), None)

    def oldest_of_largest(self) -> PullRequest:
        """Return the oldest pull of the client that uses most units; at least one must be held."""
        largest = next(iter(self._connections_by_use[self.used_max]))
        return next(iter(self._requests[largest]))

    def cost_of(self, request: PullRequest) -> int:
        """Return the units that a pull would use if it were acquired."""
        filter_cost = request.filter_quota_cost
        if filter_cost and (request.connection, request.message_filter) in self._filter_users:
            filter_cost = 0
        return request.quota_cost + filter_cost

    def acquire(self, request: PullRequest) -> None:
        """Acquire the units of a pull."""
        for _ in range(self.cost_of(request)):
            self._adjust(request.connection, 1)
        self._count += 1
        self._requests.setdefault(request.connection, {})[request] = None
        if request.message_filter is not None and request.filter_quota_cost:
            key = request.connection, request.message_filter
            self._filter_users[key] = self._filter_users.get(key, 0) + 1

    def release(self, request: PullRequest) -> None:
        """Release the units of a pull."""
        if request.message_filter is not None and request.filter_quota_cost:
            key = request.connection, request.message_filter
            self._filter_users[key] -= 1
            if not self._filter_users[key]:
                del self._filter_users[key]
        for _ in range(self.cost_of(request)):
            self._adjust(request.connection, -1)
        self._count -= 1
        requests = self._requests[request.connection]
        del requests[request]
        if not requests:
            del self._requests[request.connection]

    def _adjust(self, connection: Channel, by: int) -> None:
        """Change the units of a client by one, so that `used_max` is known without a search."""
        before = self._used_by.get(connection, 0)
        after = before + by
        self.used += by
        if after:
            self._used_by[connection] = after
        else:
            del self._used_by[connection]
        if before:
            del self._connections_by_use[before][connection]
            if not self._connections_by_use[before]:
                del self._connections_by_use[before]
        if after:
            self._connections_by_use.setdefault(after, {})[connection] = None
        if after > self.used_max or self.used_max not in self._connections_by_use:
            self.used_max = after


_log = logging.getLogger(__name__)

EXPIRED_MAX: Final = 250
"""The maximum number of pulls that one call expires, which take a millisecond."""

LATE_MS: Final = 1_000
"""Milliseconds by which a busy loop may wake a pull late; a later one counts as overlooked."""

_Codes: TypeAlias = "frozenset[int] | None"
_SameSearch: TypeAlias = "tuple[QueueKey, str, int, HoldFilter | None, int]"
"""Queue, group, flags, filter and first offset, which are equal in pulls that share a search."""
_END: Final = object()


class _Arrival(NamedTuple):
    """The new end of a queue and the tags codes of its new messages, or a check by the sweep."""

    max_offset: int
    codes: _Codes
    is_sweep: bool


class _Search:
    """A search of new messages, shared by pulls that wait for the same messages."""

    def __init__(self, key: _SameSearch, request: PullRequest, begin: int) -> None:
        self.key = key
        self.request = request
        self.requests: dict[PullRequest, None] = {}
        self.clients: set[Channel] = set()
        self.begin = self.end = begin
        self.is_sweep = True
        """True if only the sweep has asked for it: a match was then overlooked."""
        self.is_over = False
        self.steps: Iterator[None] = iter(())


_ClientSearch: TypeAlias = tuple[Channel, _Search]


class PullRequestHoldService:
    """The table of held pulls."""

    def __init__(
        self,
        limits: HoldLimits,
        max_offset_in_queue: Callable[[str, int], int],
        is_matched_by_commit_log: Callable[[PullRequest, int], Generator[None, None, bool]],
        wake: Callable[[PullRequest], None],
        run_steps: Callable[[Iterator[None]], None],
    ) -> None:
        """Begin with an empty table.

        ``is_matched_by_commit_log`` searches the messages from a queue offset on for a match, in
        steps. ``run_steps`` runs a generator of steps to its end, at once or over several turns.
        """
        self._limits = limits
        self._max_offset_in_queue = max_offset_in_queue
        self._is_matched_by_commit_log = is_matched_by_commit_log
        self._wake = wake
        self._run_steps = run_steps
        self._pull_request_table: dict[QueueKey, ManyPullRequest] = {}
        self._holds = HoldQuota()
        self._deferred = HoldQuota()
        self._deadlines: dict[int, dict[PullRequest, None]] = {}
        self._deadline_heap: list[int] = []
        """The keys of `_deadlines` as a heap; some may have no pulls left."""
        self._is_working = False
        self._wake_queue = FairTurns[PullRequest]()
        self._closed_connections: deque[Channel] = deque()
        self._arrivals: dict[QueueKey, _Arrival] = {}
        """The arrivals of each queue whose check has not begun."""
        self._checks: dict[QueueKey, Iterator[None] | None] = {}
        """The remaining steps of each check, the next one first; None if it has not begun."""
        self._searches = FairTurns[_ClientSearch]()
        """The searches that have not ended, once for each client that waits for one."""
        self._search_by_key: dict[_SameSearch, _Search] = {}
        self._search_of: dict[PullRequest, _Search] = {}
        self.deferred_total = 0
        self._deferred_at_sweep = 0
        self._deferred_before: int | None = None
        """`deferred_total` before the current period of deferrals; None if there is none."""
        self.rescued_total = 0

    @property
    def hold_count(self) -> int:
        """The number of held pulls."""
        return len(self._holds)

    @property
    def queue_count(self) -> int:
        """The number of queues for which pulls are held."""
        return len(self._pull_request_table)

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next call of `expire`, in milliseconds, or None.

        It may be too early if very many pulls with earlier deadlines were removed.
        """
        for _ in range(EXPIRED_MAX):
            if not self._deadline_heap or self._deadlines[self._deadline_heap[0]]:
                break
            del self._deadlines[heapq.heappop(self._deadline_heap)]
        return self._deadline_heap[0] if self._deadline_heap else None

    def waiting(self, queue: QueueKey) -> int:
        """Return how many requests are held for a queue."""
        return len(self._pull_request_table.get(queue, ()))

    def suspend_pull_request(self, request: PullRequest) -> bool:
        """Hold or defer a pull; return False if too many pulls are deferred, too.

        An immediate response would bring the same pull back immediately.
        """
        limits, many = self._limits, self._pull_request_table.get(request.queue)
        of_owner = many.of_owner(request) if many is not None else []
        if len(of_owner) >= (
            limits.pops_per_connection_and_queue
            if request.is_pop
            else limits.holds_per_connection_and_queue
        ):
            # A client that exceeds its limit for a queue has probably given up the oldest pull.
            self._evict(of_owner[0], request.suspend_timestamp_ms)
        while not self._has_room(self._holds, request):
            used_after = self._holds.used_by(request.connection) + self._holds.cost_of(request)
            if used_after >= self._holds.used_max:
                return self._defer(request, request.suspend_timestamp_ms)
            self._evict(self._holds.oldest_of_largest(), request.suspend_timestamp_ms)
        self._pull_request_table.setdefault(request.queue, ManyPullRequest()).add(request)
        self._holds.acquire(request)
        self._add_deadline(request)
        return True

    def notify_message_arriving(
        self, topic: str, queue_id: int, max_offset: int, tags_codes: Iterable[int] | None = None
    ) -> None:
        """Report that a queue now ends at ``max_offset``, with the tags codes of new messages.

        With short polling this wakes no pull: each waits for its deadline.
        """
        queue = topic, queue_id
        if queue not in self._pull_request_table or not self._limits.long_polling_enable:
            return
        codes = None if tags_codes is None else frozenset(tags_codes)
        before = self._arrivals.get(queue)
        if before is not None:
            codes = None if codes is None or before.codes is None else codes | before.codes
        self._add_arrival(queue, _Arrival(max_offset, codes, is_sweep=False))

    def check_hold_request(self, now_ms: int) -> Iterator[None]:
        """Check every deadline and every queue, in steps, as if no arrival had been reported."""
        # reported arrivals are queued already: this finds those that were missed
        self._report_rescued(self.expire(now_ms - LATE_MS), "passed deadlines")
        self._log_deferred()
        for queue in list(self._pull_request_table if self._limits.long_polling_enable else ()):
            many = self._pull_request_table.get(queue)
            # pops wait for no offset, so the sweep cannot find one that was overlooked
            if queue not in self._checks and many is not None and not many.is_of_pops:
                max_offset = self._max_offset_in_queue(*queue)
                self._add_arrival(queue, _Arrival(max_offset, None, is_sweep=True))
            yield

    def expire(self, now_ms: int) -> int:
        """Wake at most `EXPIRED_MAX` pulls whose deadline has passed, and return their number."""
        expired = 0
        while (
            (next_ms := self.next_deadline_ms) is not None
            and next_ms <= now_ms
            and expired < EXPIRED_MAX
        ):
            request = next(iter(self._deadlines[next_ms]), None)
            if request is None:
                break
            self._schedule_wake(request)
            expired += 1
        self._start_steps()
        return expired

    def discard(self, connection: Channel) -> None:
        """Drop all pulls of a disconnected client."""
        self._closed_connections.append(connection)
        self._start_steps()

    def release(self, topic: str) -> Iterator[None]:
        """Answer all pulls of a topic with the current state of its queues, in steps."""
        for quota in (self._holds, self._deferred):
            for request in tuple(quota):
                # it may have been removed meanwhile
                if request.topic == topic and request in quota:
                    self._remove(request)
                    self._replay(request)
                yield

    def release_pops(self, connection: Channel, group: str) -> Iterator[None]:
        """Answer the pops of a client that leaves a group, in steps: it wants no more messages."""
        for quota in (self._holds, self._deferred):
            for request in quota.of(connection):
                if (
                    isinstance(request, PopRequest)
                    and request.header.consumer_group == group
                    and request in quota  # it may have been removed meanwhile
                ):
                    self._remove(request)
                    self._replay(replace(request, timeout_ms=0, is_released=True))
                yield

    def release_all(self) -> None:
        """Answer all pulls with the current state of their queues before returning."""
        for request in (*self._holds, *self._deferred):
            self._schedule_wake(request)
        while self._wake_queue:
            self._wake_next()

    # ---- the table of held pulls

    def _evict(self, request: PullRequest, now_ms: int) -> None:
        """Defer a held pull, or answer it now if too many pulls are deferred."""
        self._remove(request)
        if not self._defer(request, now_ms):
            self._wake_queue.append(request.connection, request)
            self._start_steps()

    def _has_room(self, quota: HoldQuota, request: PullRequest) -> bool:
        """Return whether the quota has room for a pull.

        A pull that needs more units than the limit has room if no other pull is held.
        """
        return not quota.used or quota.used + quota.cost_of(request) <= self._limits.holds_max

    def _defer(self, request: PullRequest, now_ms: int) -> bool:
        if not self._has_room(self._deferred, request):
            return False
        until_ms = min(request.deadline_ms, now_ms + self._limits.short_polling_time_ms)
        deferred = replace(request, timeout_ms=until_ms - request.suspend_timestamp_ms)
        self._deferred.acquire(deferred)
        self.deferred_total += 1
        self._add_deadline(deferred)
        return True

    def _add_deadline(self, request: PullRequest) -> None:
        requests = self._deadlines.get(request.deadline_ms)
        if requests is None:
            requests = self._deadlines[request.deadline_ms] = {}
            heapq.heappush(self._deadline_heap, request.deadline_ms)
        requests[request] = None

    def _schedule_wake(self, request: PullRequest) -> None:
        self._remove(request)
        self._wake_queue.append(request.connection, request)

    def _remove(self, request: PullRequest) -> None:
        del self._deadlines[request.deadline_ms][request]
        if request in self._deferred:
            self._deferred.release(request)
            return
        many = self._pull_request_table[request.queue]
        many.remove(request)
        self._holds.release(request)
        if not many:
            del self._pull_request_table[request.queue]

    # ---- queued work, done in steps

    def _add_arrival(self, queue: QueueKey, arrival: _Arrival) -> None:
        self._arrivals[queue] = arrival
        self._checks.setdefault(queue, None)
        self._start_steps()

    def _start_steps(self) -> None:
        has_work = self._wake_queue or self._closed_connections or self._checks
        if has_work and not self._is_working:
            self._is_working = True
            self._run_steps(self._steps())

    def _steps(self) -> Iterator[None]:
        wakes = self._wake_queue
        kinds = (
            (self._closed_connections, self._discard_next),
            (self._checks, self._check_next),
            (self._searches, self._search_next),
        )
        try:
            has_work = True
            while has_work:
                has_work = False
                for queued, do_step in kinds:
                    if wakes:
                        self._wake_next()
                        has_work = True
                        yield
                    if queued:
                        do_step()
                        has_work = True
                        yield
        finally:
            self._is_working = False

    def _wake_next(self) -> None:
        self._replay(self._wake_queue.popleft())

    def _replay(self, request: PullRequest) -> None:
        if request.connection.is_closed and not request.is_pop:
            return
        try:
            self._wake(request)
        except Exception:  # noqa: BLE001  # an error in one must not keep the others waiting
            _log.exception("replaying a pull of %s failed", request.queue)
            request.connection.close("its pull could not be answered")

    def _discard_next(self) -> None:
        connection = self._closed_connections[0]
        for table in (self._holds, self._deferred):
            request = table.oldest_of(connection)
            if request is not None:
                self._remove(request)
                return
        self._closed_connections.popleft()

    def _check_next(self) -> None:
        queue = next(iter(self._checks))
        check = self._checks.pop(queue)
        if check is None:
            check = self._check_arrival(queue, self._arrivals.pop(queue))
        if next(check, _END) is not _END:
            self._checks[queue] = check
        elif queue in self._arrivals:
            self._checks[queue] = None

    def _check_arrival(self, queue: QueueKey, arrival: _Arrival) -> Iterator[None]:
        """Wake the pulls that match new messages, and begin searches for those that need one."""
        many = self._pull_request_table.get(queue, ManyPullRequest())
        searches: list[_ClientSearch] = []
        leaving = 0
        for request in many.by_turns():
            if request in many and self._is_ready(many, request, arrival, searches):
                self._schedule_wake(request)
                leaving += 1
                if request.is_pop:
                    break
            yield
        for client, search in searches:  # all pulls that can share one have joined by now
            self._searches.append(client, (client, search))
            yield
        if arrival.is_sweep:
            self._report_rescued(leaving, queue)

    def _report_rescued(self, rescued: int, where: object) -> None:
        self.rescued_total += rescued
        if rescued:
            _log.warning(
                "%d held pulls of %s were overlooked, and are answered late", rescued, where
            )

    def _log_deferred(self) -> None:
        since_sweep = self.deferred_total - self._deferred_at_sweep
        self._deferred_at_sweep = self.deferred_total
        if since_sweep and self._deferred_before is None:
            self._deferred_before = self.deferred_total - since_sweep
            _log.warning(
                "%d pulls are held (maxHolds): others are answered after %d ms. Raise maxHolds, "
                "or find the client that pulls from so many queues",
                self.hold_count,
                self._limits.short_polling_time_ms,
            )
        elif not since_sweep and self._deferred_before is not None:
            _log.warning(
                "all pulls can be held again; %d were answered early",
                self.deferred_total - self._deferred_before,
            )
            self._deferred_before = None

    def _is_ready(
        self,
        many: ManyPullRequest,
        request: PullRequest,
        arrival: _Arrival,
        searches: list[_ClientSearch],
    ) -> bool:
        """Return whether to wake a pull now; add a search that it needs to ``searches``."""
        scanned_to = many.scanned_to(request)
        if arrival.max_offset <= scanned_to:
            return False
        search = self._search_of.get(request)
        if search is None and request.may_match(arrival.codes):
            if request.message_filter is None or not request.message_filter.needs_messages:
                return True
            search = self._join_search(request, scanned_to, searches)
        if search is None:
            many.set_scanned_to(request, arrival.max_offset)
        else:
            search.end = max(search.end, arrival.max_offset)
            search.is_sweep = search.is_sweep and arrival.is_sweep
        return False

    # ---- searches, for filters that read messages

    def _join_search(
        self, request: PullRequest, begin: int, searches: list[_ClientSearch]
    ) -> _Search:
        """Return the search of a pull; members of a group that wait for the same share one."""
        header = request.header
        key = (
            request.queue,
            header.consumer_group,
            header.sys_flag,
            request.message_filter,
            begin,
        )
        search = self._search_by_key.get(key)
        if search is None:
            search = self._search_by_key[key] = _Search(key, request, begin)
            search.steps = self._search_steps(search)
        if request.connection not in search.clients:
            search.clients.add(request.connection)
            searches.append((request.connection, search))
        search.requests[request] = None
        self._search_of[request] = search
        return search

    def _search_next(self) -> None:
        connection, search = self._searches.popleft()
        # clients share a search, so it may have ended in the turn of another client
        if not search.is_over and next(search.steps, _END) is not _END:
            self._searches.append(connection, (connection, search))

    def _search_steps(self, search: _Search) -> Iterator[None]:
        """Search all messages, also those that arrive meanwhile; wake the pulls on a match."""
        is_match, begin = False, search.begin
        while begin < search.end and not is_match:
            if all(request not in self._holds for request in search.requests):
                break  # they were deferred, or their clients have disconnected
            end = search.end
            is_match = yield from self._find_match(search.request, begin)
            begin = end
        search.is_over = True
        del self._search_by_key[search.key]
        leaving = 0
        for request in search.requests:
            del self._search_of[request]
            if request in self._holds:
                if is_match:
                    self._schedule_wake(request)
                    leaving += 1
                else:
                    self._pull_request_table[request.queue].set_scanned_to(request, search.end)
        if search.is_sweep:
            self._report_rescued(leaving, search.request.queue)

    def _find_match(
        self, request: PullRequest, from_queue_offset: int
    ) -> Generator[None, None, bool]:
        try:
            return (yield from self._is_matched_by_commit_log(request, from_queue_offset))
        except Exception:  # noqa: BLE001  # the replay reports the error to the client
            _log.exception("searching messages for a held pull of %s failed", request.queue)
            return True


class NotifyMessageArrivingListener:
    """Passes arrivals on to the hold service and to another listener."""

    def __init__(
        self,
        hold_service: PullRequestHoldService,
        on_arrival: Callable[[str, int, Collection[int] | None], None],
    ) -> None:
        """Store the listeners; ``on_arrival`` is called with topic, queue id and tags codes."""
        self._hold_service = hold_service
        self._on_arrival = on_arrival

    def arriving(
        self, topic: str, queue_id: int, max_offset: int, tags_codes: Collection[int] | None
    ) -> None:
        """Report the new end of a queue, and the tags codes of its new messages; None for any."""
        self._hold_service.notify_message_arriving(topic, queue_id, max_offset, tags_codes)
        self._on_arrival(topic, queue_id, tags_codes)
