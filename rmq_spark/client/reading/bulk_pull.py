"""BulkPull: the records of one queue between two offsets, as they lie in the log, at bulk speed.

    asked for      [o, o+n) [o+n, o+2n) [o+2n, ...      several at once, as offsets have no gaps
    answered       the whole span, or its first part: then the rest is asked for before what follows
    handed out     in order, each offset once

How many messages a broker gives at once (RocketMQ: 32, or 256 KiB) is learnt from its answers. One
of ours is asked for chunks of megabytes, with the records' sizes in front: how many messages those
are, the first answer says, and until it is there nothing more is asked for. A filter is applied by
the broker, and makes the spans unknown: then one pull is under way while the last answer is worked
on.

Where the caller lets files be read, and the broker has proven that this machine has its files, it
names places instead of records (`log_files`). What is not found there is pulled, as is the rest.

This module knows one broker's address and no routes: choosing the broker is left to the caller. A
connection that fails is made again, and the pulls that were under way are asked again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rmq_spark.client.api.broker_api import HOLD_MARGIN_MS, BrokerApi
from rmq_spark.client.concurrency.fork_aware import ProcessBound
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    ClientError,
    OffsetMoved,
    ProtocolError,
    RequestTimeout,
)
from rmq_spark.client.results import PullResult, PullStatus
from rmq_spark.errors import RecordError
from rmq_spark.wire import record_layout as layout
from rmq_spark.wire.bodies.clients import TAG_EXPRESSION
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.flags import PullSysFlag
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.headers.pull import PullMessageRequestHeader
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.record import record_size
from rmq_spark.wire.tags import BLANKS

if TYPE_CHECKING:
    from rmq_spark.client.reading.log_files import LocalFiles, ProvenLog
    from rmq_spark.wire.chunk import RecordChunk

IN_FLIGHT: Final = 4
CHUNKS_IN_FLIGHT: Final = 2
"""Chunks pulled at once: one is worked on and one arrives.

More would be cold in the cache by their turn, and need fresh memory.
"""

CHUNK_BYTES: Final = 8 * 1024 * 1024
CHUNK_MESSAGES: Final = 100_000
FIRST_MESSAGES: Final = 32
"""Messages that a RocketMQ broker gives at once, if nobody has changed its settings."""

PATIENCE_MAX: Final = 256
TRIES: Final = 3
WAIT_MS: Final = 5_000
_ALL: Final = "*"
_SUBSCRIPTION: Final = PullSysFlag.SUBSCRIPTION.value
_SUSPEND: Final = PullSysFlag.SUSPEND.value
_PATIENCE_SECONDS: Final = 2.0


class RawChunk(NamedTuple):
    """Records that lie back to back, as `BulkPull` yields them.

    Attributes:
        records: The stored records.
        sizes: Array (of Python's or numpy's) of their lengths in bytes, if the broker has sent
            them, else None.
        next_offset: Queue offset of the message behind them.
        decoded: The same as a `RecordChunk`, where they were read from files; else None.
    """

    records: Buffer
    sizes: Any
    next_offset: int
    decoded: RecordChunk | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRules:
    """Settings of a `BulkPull`."""

    subscription: str = _ALL
    """Filter that the broker applies: tags (``"red || blue"``) or a condition; ``"*"`` for all."""

    expression_type: str = TAG_EXPRESSION
    """Kind of the filter: TAG or SQL92."""

    in_flight: int = IN_FLIGHT
    """Most pulls under way at once; of chunks, at most two."""
    chunk_bytes: int = CHUNK_BYTES
    """Most bytes of one chunk; for rocketpoll's brokers."""

    chunk_messages: int = CHUNK_MESSAGES
    """Most messages of one chunk; for rocketpoll's brokers."""

    wait_ms: int = WAIT_MS
    """Milliseconds to wait for messages, where the queue ends before the end offset."""

    timeout_ms: int = HOLD_MARGIN_MS
    """Milliseconds to wait for each response, besides ``wait_ms``."""

    tries: int = TRIES
    """Number of faults in a row of the connection after which to give up."""

    local_files: LocalFiles | None = None
    """Finds the files of brokers that run on this machine, to read them; None to pull."""


class _Span(NamedTuple):
    """Offsets that were asked for, and the answer to come."""

    start: int
    end: int
    answer: Future[PullResult]
    log: ProvenLog | None
    """The files that places in the answer are in."""


class BulkPull(ProcessBound):
    """The records of one queue between two offsets, at bulk speed: an iterable of `RawChunk`.

    Iterate over it once, in one thread. Several pulls are under way at once; where a connection
    fails, it is made again and the pulls are repeated. Each offset is yielded once, in order.

    Example:
        from rmq_spark.client.message import decode_pulled

        for chunk in BulkPull(instance.api, address, "reader", queue, start=0, end=1_000):
            for message in decode_pulled(chunk.records, queue):
                print(message.queue_offset, message.body)

    Args:
        api: Requests to brokers, as a `ClientInstance` has them in ``api``.
        address: The broker that has the queue, as ``host:port``.
        group: Name of the consumer group that pulls; its offsets are not changed.
        queue: The queue to read.
        start: Offset of the first message.
        end: Offset behind the last message; the queue must reach it within ``rules.wait_ms``.
        rules: Settings; `PullRules()` by default.
    """

    def __init__(
        self,
        api: BrokerApi,
        address: str,
        group: str,
        queue: MessageQueue,
        start: int,
        end: int,
        rules: PullRules | None = None,
    ) -> None:
        self._api = api
        self._address = address
        self._queue = queue
        self._end = end
        self._rules = rules or PullRules()
        is_all = self._rules.subscription.strip(BLANKS) in ("", _ALL)
        self._is_filtered = not is_all
        self._next_offset = start  # offset of the next record to yield
        self._asked_to = start
        self._spans: deque[_Span] = deque()
        self._per_pull = 0
        self._knows_how_many = False  # messages that the broker gives at once
        self._cap = 0  # the last number that was less than asked for
        self._patience = 1  # so many full answers before more is asked for
        self._full_answers = 0
        self._faults = 0
        self._local_files = self._rules.local_files  # None once something was not there
        self._header = PullMessageRequestHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=start,
            max_msg_nums=0,
            sys_flag=_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription=_ALL if is_all else self._rules.subscription,
            expression_type=TAG_EXPRESSION if is_all else self._rules.expression_type,
            max_msg_bytes=self._rules.chunk_bytes,
        )
        ProcessBound.__init__(self)

    def _forked(self) -> None:
        """Repeat the pulls that are under way: their answers come to the parent process."""
        self._ask_from_here()

    def __iter__(self) -> Iterator[RawChunk]:
        """Yield all chunks, in order; none of them is empty.

        Raises:
            OffsetMoved: The queue does not hold these offsets any more, or not yet and none came in
                time.
            BrokerRefused: The broker does not let the queue be read.
            ClientError: The connection has failed several times in a row.
        """
        while self._next_offset < self._end:
            try:
                self._ask()
                chunk = self._taken(self._answer_to(self._spans[0]))
            except CONNECTION_FAULTS as error:
                self._ask_all_again(error)
                continue
            self._faults = 0
            if chunk is not None:
                yield chunk

    # ---- asking

    def _ask(self) -> None:
        """Have as many pulls under way as may be."""
        is_chunk = self._api.takes_chunks(self._address)
        if not self._per_pull:
            self._per_pull = self._rules.chunk_messages if is_chunk else FIRST_MESSAGES
            self._knows_how_many = not is_chunk
        at_once = 1
        if self._knows_how_many and not self._is_filtered:
            at_once = (
                min(self._rules.in_flight, CHUNKS_IN_FLIGHT) if is_chunk else self._rules.in_flight
            )
        while len(self._spans) < at_once and self._asked_to < self._end:
            end = min(self._asked_to + self._per_pull, self._end)
            self._spans.append(self._pull(self._asked_to, end, is_chunk=is_chunk))
            self._asked_to = end

    def _ask_ahead(self, next_offset: int, span: _Span) -> None:
        """Pull on while an answer is worked on; first the rest of its span, if there is one.

        An answer that leads beyond its span, as there are offsets without messages, has brought
        some of what was asked for behind it: that must not come twice.
        """
        if next_offset > span.end:
            self._spans.clear()
        if not self._spans:
            self._asked_to = self._next_offset
            self._ask()
        elif next_offset < span.end:
            is_chunk = self._api.takes_chunks(self._address)
            self._spans.appendleft(self._pull(next_offset, span.end, is_chunk=is_chunk))

    def _pull(self, start: int, end: int, *, is_chunk: bool, suspend_ms: int = 0) -> _Span:
        header = self._header._replace(
            queue_offset=start,
            max_msg_nums=self._per_pull if self._is_filtered else end - start,
            sys_flag=_SUBSCRIPTION | (_SUSPEND if suspend_ms else 0),
            suspend_timeout_millis=suspend_ms,
        )
        timeout_ms = self._rules.timeout_ms + suspend_ms
        log = None
        if is_chunk and self._local_files is not None:
            log = self._local_files.log_of(self._api.connections, self._address)
        over = None if log is None else log.connection
        answer = self._api.pull_async(
            self._address, header, timeout_ms, is_chunk=is_chunk, places_over=over
        )
        return _Span(start, end, answer, log)

    def _answer_to(self, span: _Span) -> PullResult:
        patience = (self._rules.timeout_ms + self._rules.wait_ms) / 1000 + _PATIENCE_SECONDS
        try:
            return span.answer.result(patience)
        except FutureTimeout as error:
            raise RequestTimeout(
                self._address, RequestCode.PULL_MESSAGE, self._rules.timeout_ms
            ) from error

    def _ask_all_again(self, error: ClientError) -> None:
        self._faults += 1
        if self._faults >= self._rules.tries:
            raise error
        self._ask_from_here()

    def _ask_from_here(self) -> None:
        """Drop all pulls that are under way: they are repeated from the next offset to yield."""
        self._spans.clear()
        self._asked_to = self._next_offset

    # ---- answers

    def _taken(self, result: PullResult) -> RawChunk | None:
        """Return the chunk in the answer to the first span, and pull on; None if there is none."""
        span = self._spans.popleft()
        # A broker whose log has just lost what was asked for may lead on behind it: through a
        # filter, nothing else tells that from messages that do not match.
        if result.pull_status is PullStatus.OFFSET_ILLEGAL or result.min_offset > span.start:
            raise self._moved(span.start, result)
        if result.pull_status is PullStatus.NO_NEW_MSG:
            self._wait_for(span)
            return None
        next_offset = result.next_begin_offset
        if next_offset <= span.start:
            why = f"a pull at offset {span.start} of {self._queue} goes on at {next_offset}"
            raise ProtocolError(self._address, why)
        decoded = None
        if result.places is not None:
            decoded = self._read(span, result)
            if decoded is None:
                self._pull_from_here()
                return None
            result = result._replace(records=decoded.data.data, places=None)
        if not self._is_filtered and result.pull_status is PullStatus.FOUND:
            self._learn(next_offset - span.start, span, result)
        self._next_offset = min(next_offset, self._end)
        try:
            self._ask_ahead(next_offset, span)
        except CONNECTION_FAULTS:
            self._ask_from_here()  # in the next turn; the records at hand are yielded first
        if result.pull_status is not PullStatus.FOUND:
            return None
        records, sizes = result.records, result.sizes
        if next_offset > self._end:
            (records, sizes), decoded = self._before_the_end(result), None
        return RawChunk(records, sizes, self._next_offset, decoded) if len(records) else None

    def _read(self, span: _Span, result: PullResult) -> RecordChunk | None:
        """Return the records that are at the places in an answer; None if they are not there."""
        if span.log is None:
            return None
        queue_offsets = range(span.start, result.next_begin_offset)
        return span.log.files.records(self._queue, result.places, result.sizes, queue_offsets)

    def _pull_from_here(self) -> None:
        """Read no more files, and pull what they do not hold."""
        if self._local_files is not None:
            self._local_files.missed(self._address)
        self._local_files = None
        self._ask_from_here()

    def _learn(self, given: int, span: _Span, result: PullResult) -> None:
        """Ask for no more at once than the broker gives.

        Whether it gives more is tried again and again, as messages are of different lengths; and
        seldom, if it is always as many as before: what is missing of a span costs a pull of its
        own.
        """
        wanted = span.end - span.start
        self._full_answers += 1
        if given < wanted:
            self._full_answers = 0
            self._patience = min(2 * self._patience, PATIENCE_MAX) if given == self._cap else 1
            self._cap = self._per_pull = max(given, 1)
        elif given == self._per_pull and self._full_answers >= self._patience:
            self._full_answers = 0
            more = min(given + given // 4 + 1, self._rules.chunk_messages)
            if result.sizes is not None:
                fits = given * self._rules.chunk_bytes // max(len(result.records), 1)
                more = min(more, max(fits * 15 // 16, 1))  # the next ones may be a little longer
            self._per_pull = more
        self._knows_how_many = True

    def _wait_for(self, span: _Span) -> None:
        """Wait for messages where the queue ends before the offsets that were asked for."""
        self._spans.clear()
        held = self._pull(
            span.start,
            span.end,
            is_chunk=self._api.takes_chunks(self._address),
            suspend_ms=max(self._rules.wait_ms, 1),
        )
        again = self._answer_to(held)
        if again.pull_status is PullStatus.NO_NEW_MSG:
            raise self._moved(span.start, again)
        self._asked_to = span.end
        answered: Future[PullResult] = Future()
        answered.set_result(again)
        self._spans.append(held._replace(answer=answered))

    def _before_the_end(self, result: PullResult) -> tuple[Buffer, Any]:
        """Return the records before the end, where a filter has led beyond it."""
        records = memoryview(result.records)
        at = count = 0
        try:
            while at < len(records):
                size = record_size(records, at)
                offset_at = at + layout.QUEUE_OFFSET_AT
                if int.from_bytes(records[offset_at : offset_at + 8], "big") >= self._end:
                    break
                at += size
                count += 1
        except RecordError as error:
            raise ProtocolError(self._address, str(error)) from error
        return records[:at], None if result.sizes is None else result.sizes[:count]

    def _moved(self, queue_offset: int, result: PullResult) -> OffsetMoved:
        return OffsetMoved(
            f"queue {self._queue.queue_id} of {self._queue.topic} on {self._queue.broker_name}",
            queue_offset,
            result.min_offset,
            result.max_offset,
            result.next_begin_offset,
        )
