"""Acknowledger: answers sends when their messages are stored, all that one flush covers together.

With ASYNC_FLUSH that is at once. With SYNC_FLUSH whoever waits is kept here in the order of the log; at the
end of a turn the store is asked, once, to flush up to the last of them, and tells it from its own thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

from broker.processor.runtime_info import SendQueue
from broker.store.errors import StoreError
from broker.store.message_store import MessageStore
from broker.store.results import PutMessageResult, PutMessageStatus

_log = logging.getLogger(__name__)

Then = Callable[[PutMessageResult], None]


class _Waiting(NamedTuple):
    result: PutMessageResult
    since: float
    then: Then


class Acknowledger:
    """One for each store."""

    def __init__(
        self,
        store: MessageStore,
        *,
        is_sync: bool,
        loop: asyncio.AbstractEventLoop,
        timeout_ms: int,
        capacity: int,
        wait_max_ms: int,
        took_ms: Callable[[int], None],
    ) -> None:
        """``capacity`` and ``wait_max_ms`` say from when on the disk is too slow for more.

        ``took_ms`` is told how long each send has waited.
        """
        self.is_sync = is_sync
        self._store = store
        self._loop = loop
        self._timeout_seconds = timeout_ms / 1000
        self._capacity = capacity
        self._wait_max_seconds = wait_max_ms / 1000
        self._took_ms = took_ms
        self._waiting: deque[_Waiting] = deque()
        self._asked = False
        self._timer: asyncio.TimerHandle | None = None
        self._all_settled: asyncio.Event | None = None

    def queue(self) -> SendQueue:
        """How many sends wait for the disk, and for how long."""
        if not self._waiting:
            return SendQueue(0, 0)
        return SendQueue(len(self._waiting), int((self._loop.time() - self._waiting[0].since) * 1000))

    def why_busy(self) -> str | None:
        """Why no more sends should be taken now, if so."""
        if not self._waiting:
            return None
        if len(self._waiting) >= self._capacity:
            return f"[REJECTREQUEST]system busy, {len(self._waiting)} sends wait for the disk"
        waits = self._loop.time() - self._waiting[0].since
        if waits > self._wait_max_seconds:
            return f"[PCBUSY_CLEAN_QUEUE]broker busy, the disk has kept a send waiting for {waits:.1f} s"
        return None

    def when_stored(self, result: PutMessageResult, then: Then) -> None:
        """Call ``then`` with what has become of a message that was appended."""
        self._waiting.append(_Waiting(result, self._loop.time(), then))
        if not self._asked:
            self._asked = True
            self._loop.call_soon(self._ask)
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_seconds, self._time_out)

    async def settled(self, seconds: float) -> None:
        """Return when nobody waits any more; whoever still does after some time is told that it is late."""
        if self._waiting:
            self._all_settled = asyncio.Event()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._all_settled.wait(), seconds)
            while self._waiting:
                self._tell_late()

    def _ask(self) -> None:
        """Let everything that has been appended in this turn be covered by the same flush."""
        if not self._waiting:  # their time was over before the turn was
            self._asked = False
            return
        future = self._store.flushed(self._waiting[-1].result.end_offset)
        future.add_done_callback(self._in_another_thread)

    def _in_another_thread(self, future: Future[None]) -> None:
        self._loop.call_soon_threadsafe(self._flushed, future)

    def _flushed(self, future: Future[None]) -> None:
        self._asked = False
        error = future.exception()
        if error is not None:
            self._fail(error)
            return
        flushed_offset = self._store.confirm_offset()
        while self._waiting and self._waiting[0].result.end_offset <= flushed_offset:
            waiting = self._waiting.popleft()
            self._tell(waiting, waiting.result)
        if self._waiting:
            self._asked = True
            self._ask()
        else:
            self._tell_settled()

    def _fail(self, error: BaseException) -> None:
        waiting, self._waiting = self._waiting, deque()
        remark = str(error) if isinstance(error, StoreError) else f"the flush failed: {error}"
        for each in waiting:
            status = PutMessageStatus.SERVICE_NOT_AVAILABLE
            self._tell(each, each.result._replace(status=status, remark=remark))
        self._tell_settled()

    def _time_out(self) -> None:
        """In the log, but whether on the disk is not known: clients have to be told so."""
        self._timer = None
        oldest = self._loop.time() - self._timeout_seconds
        while self._waiting and self._waiting[0].since <= oldest:
            self._tell_late()
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0].since + self._timeout_seconds, self._time_out)
        else:
            self._tell_settled()

    def _tell_late(self) -> None:
        """Tell the first."""
        waiting = self._waiting.popleft()
        self._tell(waiting, waiting.result._replace(status=PutMessageStatus.FLUSH_DISK_TIMEOUT))

    def _tell_settled(self) -> None:
        """Nobody waits any more."""
        if self._all_settled is not None:
            self._all_settled.set()

    def _tell(self, waiting: _Waiting, known: PutMessageResult) -> None:
        self._took_ms(int((self._loop.time() - waiting.since) * 1000))
        try:
            waiting.then(known)
        except Exception:  # noqa: BLE001  # one that fails must not keep the others waiting
            _log.exception("a send that ended at %d could not be answered", known.end_offset)
