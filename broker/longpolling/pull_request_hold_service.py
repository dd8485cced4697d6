"""PullRequestHoldService: holds pulls until a message for them arrives or their time is over.

    suspend_pull_request      a pull found nothing: into the table, by topic and queue; where too many wait
                              already it is put off, for a short while in which nobody wakes it
    notify_message_arriving   a queue has new messages: pulls that may want one of them leave the table
    expire                    those whose deadline has come leave it, at their exact millisecond
    check_hold_request        every few seconds: whoever should have left already leaves now, and is counted
    forget, release_all       a client has gone; the broker stops

A pull that leaves is handed to ``wake``, once: it is taken out first, so that nothing that happens in
``wake`` can find it again. Whatever it does there, each of the others gets its turn.

Nothing can arrive between a pull's look at its queue and its suspension: both happen in one turn of the one
thread on which arrivals are told as well. Hence the sweep never has anything to rescue; ``rescued`` counts,
so that somebody notices if that ever changes.

It knows no clock: what time it is comes in. It knows no store: two callables look there.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from typing import TypeAlias

from broker.connection import Connection
from broker.longpolling.hold_limits import HoldLimits
from broker.longpolling.many_pull_request import ManyPullRequest
from broker.longpolling.pull_request import HoldFilter, PullRequest

_log = logging.getLogger(__name__)
_DEAD_DEADLINES_MIN = 1_024

_Matched: TypeAlias = "dict[tuple[str, int, HoldFilter, int], bool]"
"""Whether there is a message for this filter of this group from an offset on."""


class PullRequestHoldService:
    """The table of waiting pulls."""

    def __init__(
        self,
        limits: HoldLimits,
        max_offset_in_queue: Callable[[str, int], int],
        is_matched_by_commit_log: Callable[[PullRequest, int], bool],
        wake: Callable[[PullRequest], None],
    ) -> None:
        """``is_matched_by_commit_log`` looks for a match among the messages from a queue offset on."""
        self._limits = limits
        self._max_offset_in_queue = max_offset_in_queue
        self._is_matched_by_commit_log = is_matched_by_commit_log
        self._wake = wake
        self._pull_request_table: dict[tuple[str, int], ManyPullRequest] = {}
        self._of_connection: dict[Connection, set[PullRequest]] = {}
        self._deadlines: list[tuple[int, int, PullRequest]] = []
        self._number = count()
        self._held = 0
        self._put_off: set[PullRequest] = set()
        self.put_offs = 0
        self.rescued = 0

    @property
    def held(self) -> int:
        """How many pulls wait."""
        return self._held

    @property
    def queues(self) -> int:
        """For how many queues."""
        return len(self._pull_request_table)

    @property
    def next_deadline_ms(self) -> int | None:
        """When to call `expire`."""
        while self._deadlines and not self._holds(self._deadlines[0][2]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def suspend_pull_request(self, request: PullRequest) -> bool:
        """Let it wait; False if it has to be refused, as too many are even put off.

        An answer at once would bring the same pull back at once.
        """
        many = self._pull_request_table.get(request.queue)
        if self._held >= self._limits.holds_max or (
            many is not None
            and many.count_of(request.connection) >= self._limits.holds_per_connection_and_queue
        ):
            return self._put_it_off(request)
        if many is None:
            many = self._pull_request_table[request.queue] = ManyPullRequest()
        many.add(request)
        self._held += 1
        self._expect(request)
        return True

    def notify_message_arriving(
        self, topic: str, queue_id: int, max_offset: int, tags_codes: Iterable[int] | None = None
    ) -> int:
        """The queue now ends there, and these are the codes of what is new; how many pulls have left.

        With short polling none does: each waits for its deadline.
        """
        many = self._pull_request_table.get((topic, queue_id))
        if many is None or not self._limits.long_polling_enable:
            return 0
        codes = None if tags_codes is None else frozenset(tags_codes)
        matched: _Matched = {}
        ready = [
            request
            for request in many.requests()
            if self._is_ready(many, request, max_offset, codes, matched)
        ]
        return self._wake_all(ready)

    def check_hold_request(self, now_ms: int) -> int:
        """Look at every queue, and at every deadline, as if nobody had told of anything."""
        rescued = self.expire(now_ms - 1)  # those of this very millisecond are on their way
        for topic, queue_id in list(self._pull_request_table):
            max_offset = self._max_offset_in_queue(topic, queue_id)
            rescued += self.notify_message_arriving(topic, queue_id, max_offset)
        self.rescued += rescued
        if rescued:
            _log.warning("%d waiting pulls were overlooked, and are answered late", rescued)
        return rescued

    def expire(self, now_ms: int) -> int:
        """Those whose time is over leave; how many."""
        ready = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            request = heapq.heappop(self._deadlines)[2]
            if self._holds(request):
                ready.append(request)
        return self._wake_all(ready)

    def forget(self, connection: Connection) -> None:
        """The client has gone: nobody wants an answer."""
        for request in list(self._of_connection.get(connection, ())):
            self._remove(request)

    def release_all(self) -> None:
        """All leave, to be answered with whatever there is."""
        held = [request for many in self._pull_request_table.values() for request in many.requests()]
        self._wake_all([*held, *self._put_off])

    def _put_it_off(self, request: PullRequest) -> bool:
        if len(self._put_off) >= self._limits.holds_max:
            return False
        soon = replace(request, timeout_ms=min(request.timeout_ms, self._limits.short_polling_time_ms))
        self._put_off.add(soon)
        self.put_offs += 1
        self._expect(soon)
        return True

    def _expect(self, request: PullRequest) -> None:
        """Note its deadline, and whose it is."""
        self._of_connection.setdefault(request.connection, set()).add(request)
        heapq.heappush(self._deadlines, (request.deadline_ms, next(self._number), request))
        if len(self._deadlines) > 2 * (self._held + len(self._put_off)) + _DEAD_DEADLINES_MIN:
            self._deadlines = [entry for entry in self._deadlines if self._holds(entry[2])]
            heapq.heapify(self._deadlines)

    def _is_ready(
        self,
        many: ManyPullRequest,
        request: PullRequest,
        max_offset: int,
        codes: frozenset[int] | None,
        matched: _Matched,
    ) -> bool:
        looked_at = many.looked_at(request)
        if max_offset <= looked_at:
            return False
        if request.may_want(codes):
            if request.message_filter is None or not request.message_filter.needs_messages:
                return True
            # Members of a group that wait for the same messages are told by one look at them.
            header = request.header
            same = header.consumer_group, header.sys_flag, request.message_filter, looked_at
            if same not in matched:
                matched[same] = self._look_for_match(request, looked_at)
            if matched[same]:
                return True
        many.note(request, max_offset)
        return False

    def _look_for_match(self, request: PullRequest, from_queue_offset: int) -> bool:
        try:
            return self._is_matched_by_commit_log(request, from_queue_offset)
        except Exception:  # noqa: BLE001  # whatever it is, its replay will say so to the client
            _log.exception("looking for a match of a waiting pull of %s failed", request.queue)
            return True

    def _wake_all(self, requests: list[PullRequest]) -> int:
        for request in requests:
            self._remove(request)
        for request in requests:
            try:
                self._wake(request)
            except Exception:  # noqa: BLE001, PERF203  # one that fails must not keep the others waiting
                _log.exception("replaying a pull of %s failed", request.queue)
                request.connection.close("its pull could not be answered")
        return len(requests)

    def _remove(self, request: PullRequest) -> None:
        if request in self._put_off:
            self._put_off.remove(request)
        else:
            many = self._pull_request_table[request.queue]
            many.remove(request)
            self._held -= 1
            if not many:
                del self._pull_request_table[request.queue]
        of_connection = self._of_connection[request.connection]
        of_connection.remove(request)
        if not of_connection:
            del self._of_connection[request.connection]

    def _holds(self, request: PullRequest) -> bool:
        many = self._pull_request_table.get(request.queue)
        return (many is not None and request in many) or request in self._put_off
