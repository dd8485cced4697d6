"""Acknowledger: answers sends when their messages are stored, all sends of one flush together.

With ASYNC_FLUSH that is immediately. With SYNC_FLUSH all sends of a turn of the loop wait together:
at the end of the turn the acknowledger requests one flush up to the end of the last message, which
the store reports from its own thread. A sender that does not wait for the disk is answered
immediately; its message is flushed as well, because consumers do not see it before.

Sends that wait too long are answered FLUSH_DISK_TIMEOUT.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from ...store.config import FlushDiskType
from ...store.errors import StoreError
from ...store.results import LOG_START, PhysicalOffset, PutMessageResult, PutMessageStatus
from ..admin.runtime_info import SendQueue
from ..processor import BrokerParts

_log = logging.getLogger(__name__)
_PUT_OK = PutMessageStatus.PUT_OK

StoredCallback = Callable[[PutMessageResult], None]

_Waiting: TypeAlias = tuple[PutMessageResult, StoredCallback, int]
"""The result of a put, its callback, and the number of sends that it stands for."""


@dataclass(slots=True)
class _FlushBatch:
    """The appends of one turn of the loop, and the sends that wait for them."""

    since: float
    end_offset: PhysicalOffset
    pending: list[_Waiting]
    sends: int = 0


class Acknowledger:
    """Answers sends once their messages are stored; one for each store."""

    def __init__(self, broker: BrokerParts) -> None:
        config = broker.config
        self.is_sync = config.store.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._store = broker.store
        self._loop = broker.loop
        self._timeout_seconds = config.sync_flush_timeout_ms / 1000
        self._capacity = config.send_queue_capacity
        self._wait_max_seconds = config.send_wait_max_ms / 1000
        self._record_wait = broker.stats.put_latency.add
        self._run_steps = broker.run_steps
        self._results: deque[tuple[PutMessageResult, StoredCallback, int, int]] = deque()
        """Results to be answered: with callback, number of sends, and milliseconds waited."""
        self._is_acknowledging = False
        self._open_batch: _FlushBatch | None = None
        self._closed_batches: deque[_FlushBatch] = deque()
        """Batches that wait for the disk, in the order in which they complete."""
        self._end_offset = LOG_START
        self._sends = 0
        self._is_flush_requested = False
        self._timer: asyncio.TimerHandle | None = None
        self._drained: asyncio.Event | None = None

    def queue(self) -> SendQueue:
        """Return the number of sends that wait for the disk, and how long the first has waited."""
        head = self._head
        waits_seconds = self._loop.time() - head.since if head is not None else 0
        return SendQueue(self._sends, int(waits_seconds * 1000))

    def busy_reason(self) -> str | None:
        """Return why sends should not be accepted now, or None."""
        head = self._head
        if head is None:
            return None
        if self._sends >= self._capacity:
            return f"[REJECTREQUEST]system busy, {self._sends} sends wait for the disk"
        waits = self._loop.time() - head.since
        if waits > self._wait_max_seconds:
            return (
                "[PCBUSY_CLEAN_QUEUE]broker busy, the disk has kept a send waiting for "
                f"{waits:.1f} s"
            )
        return None

    def when_stored(
        self,
        result: PutMessageResult,
        callback: StoredCallback,
        *,
        waits: bool = True,
        sends: int = 1,
    ) -> None:
        """Call ``callback`` with the final result of a put, which may stand for several sends.

        The call is immediate if the result is final, or if the sender does not wait for the disk.
        """
        if result.status is _PUT_OK:
            if self.is_sync:
                turn = self._open_batch or self._start_batch()
                turn.end_offset = max(turn.end_offset, result.end_offset)
                if waits:
                    turn.pending.append((result, callback, sends))
                    turn.sends += sends
                    self._sends += sends
                    return
            self._record_wait(0, sends)
        callback(result)

    async def drain(self, seconds: float) -> None:
        """Wait until no send waits; after ``seconds``, answer the rest with a timeout."""
        if self._sends or self._results:
            self._drained = asyncio.Event()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._drained.wait(), seconds)
            while self._closed_batches:
                self._complete(self._closed_batches.popleft(), PutMessageStatus.FLUSH_DISK_TIMEOUT)
            for _ in self._run_callbacks():
                pass

    @property
    def _head(self) -> _FlushBatch | None:
        return self._closed_batches[0] if self._closed_batches else self._open_batch

    def _start_batch(self) -> _FlushBatch:
        self._open_batch = _FlushBatch(self._loop.time(), self._end_offset, [])
        self._loop.call_soon(self._close_batch, self._open_batch)
        return self._open_batch

    def _close_batch(self, batch: _FlushBatch) -> None:
        self._open_batch = None
        batch.pending.sort(key=_end_of)
        self._end_offset = batch.end_offset
        self._closed_batches.append(batch)
        if not self._is_flush_requested:
            self._request_flush()
        if self._timer is None:
            self._timer = self._loop.call_at(batch.since + self._timeout_seconds, self._expire)

    def _request_flush(self) -> None:
        self._store.flush_future(self._end_offset).add_done_callback(self._flushed_in_thread)
        self._is_flush_requested = True

    def _flushed_in_thread(self, future: Future[None]) -> None:
        self._loop.call_soon_threadsafe(self._flushed, future)

    def _flushed(self, future: Future[None]) -> None:
        self._is_flush_requested = False
        error = future.exception()
        if error is not None:
            self._fail(error)
            return
        flushed_offset = self._store.confirm_offset()
        while self._closed_batches and self._closed_batches[0].end_offset <= flushed_offset:
            self._complete(self._closed_batches.popleft(), _PUT_OK)
        # Also for sends that have timed out: their messages are in the log, and stay invisible
        # until they are flushed.
        if flushed_offset < self._end_offset:
            self._request_flush()

    def _fail(self, error: BaseException) -> None:
        remark = str(error) if isinstance(error, StoreError) else f"the flush failed: {error}"
        while self._closed_batches:
            self._complete(
                self._closed_batches.popleft(), PutMessageStatus.SERVICE_NOT_AVAILABLE, remark
            )

    def _expire(self) -> None:
        """Answer the sends of an overdue turn; whether they are on the disk is unknown."""
        self._timer = None
        oldest = self._loop.time() - self._timeout_seconds
        while self._closed_batches and self._closed_batches[0].since <= oldest:
            self._complete(self._closed_batches.popleft(), PutMessageStatus.FLUSH_DISK_TIMEOUT)
        if self._closed_batches:
            self._timer = self._loop.call_at(
                self._closed_batches[0].since + self._timeout_seconds, self._expire
            )

    def _complete(
        self, batch: _FlushBatch, status: PutMessageStatus, remark: str | None = None
    ) -> None:
        """Queue the responses of a turn's sends, which no longer wait for the disk."""
        self._sends -= batch.sends
        elapsed_ms = int((self._loop.time() - batch.since) * 1000)
        for result, callback, sends in batch.pending:
            known = result if status is _PUT_OK else result._replace(status=status, remark=remark)
            self._results.append((known, callback, sends, elapsed_ms))
        self._start_callbacks()

    def _start_callbacks(self) -> None:
        if self._results and not self._is_acknowledging:
            self._is_acknowledging = True
            self._run_steps(self._run_callbacks())

    def _run_callbacks(self) -> Iterator[None]:
        """Answer one send or one run of sends in each step, because thousands may have waited."""
        while self._results:
            result, callback, sends, elapsed_ms = self._results.popleft()
            self._record_wait(elapsed_ms, sends)
            try:
                callback(result)
            except Exception:  # noqa: BLE001  # an error in one must not keep the others waiting
                _log.exception("a send that ended at %d could not be answered", result.end_offset)
            yield
        self._is_acknowledging = False
        if not self._sends and self._drained is not None:
            self._drained.set()


def _end_of(waiting: _Waiting) -> int:
    return waiting[0].end_offset
