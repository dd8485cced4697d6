"""BulkPull: pulls the records of one queue between two offsets, as stored, at bulk speed.

    requested      [o, o+n) [o+n, o+2n) [o+2n, ...      several at once, as offsets have no gaps
    answered       the whole range, or its first part: then the rest is requested before the next
    yielded        in order, each offset once

How many messages a RocketMQ broker returns at once (32, or 256 KiB) is learned from its responses.
Our broker returns chunks of megabytes, with the records' sizes in front; nothing more is requested
until the first has shown how many messages fit. A filter runs at the broker, so nobody can predict
where a response ends: then only one pull is in flight while the caller works on the last response.

If the caller allows reading files, and the broker has proven that its files are on this machine, it
returns positions instead of records (`log_files`). Records missing from the files are pulled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rmq_spark.client.api.broker_api import HOLD_MARGIN_MS, BrokerApi
from rmq_spark.client.concurrency.fork_hooks import ForkAware
from rmq_spark.client.damaged_records import (
    decode_damaged_record,
    read_queue_offset,
    record_positions,
)
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    OffsetMoved,
    ProtocolError,
    RequestTimeout,
)
from rmq_spark.client.message import MessageExt, WrongQueueRecord, decode_pulled, unreadable_message
from rmq_spark.client.reading.read_bounds import READER_GROUP, ReadRange
from rmq_spark.client.results import PullResult, PullStatus
from rmq_spark.errors import RecordError
from rmq_spark.wire.bodies.clients import TAG_EXPRESSION
from rmq_spark.wire.codes import PullSysFlag, RequestCode
from rmq_spark.wire.headers.members import PullMessageRequestHeader
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.properties import BLANKS
from rmq_spark.wire.message.record import record_size
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import LIGHT_QUEUE_PREFIX
from rmq_spark.wire.remoting.framing import Buffer

if TYPE_CHECKING:
    from rmq_spark.client.reading.log_files import LocalLogFinder, ProvenLog
    from rmq_spark.wire.chunk import RecordChunk

IN_FLIGHT: Final = 4
CHUNKS_IN_FLIGHT: Final = 2
"""Chunks pulled at once: one is processed while the next arrives.

A third chunk would have left the processor's cache by its turn, and need memory of its own.
"""

CHUNK_BYTES: Final = 8 * 1024 * 1024
CHUNK_MESSAGES: Final = 100_000
FIRST_MESSAGES: Final = 32
"""Messages that a RocketMQ broker returns per pull with its default settings."""

FULL_RESPONSES_MAX: Final = 256
FAULTS_MAX: Final = 3
WAIT_MS: Final = 5_000
_ALL: Final = "*"
_SUBSCRIPTION: Final = PullSysFlag.SUBSCRIPTION.value
_SUSPEND: Final = PullSysFlag.SUSPEND.value
_RESPONSE_MARGIN_SECONDS: Final = 2.0


class RawChunk(NamedTuple):
    """Records that lie back to back, as `BulkPull` yields them.

    Attributes:
        records: The stored records.
        sizes: Array (of Python's or numpy's) of their lengths in bytes, if the broker has sent
            them, else None.
        next_offset: Queue offset past the last of them.
        decoded: The same as a `RecordChunk`, if they were read from files; else None.
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

    tries: int = FAULTS_MAX
    """Number of consecutive connection failures after which to give up."""

    local_files: LocalLogFinder | None = None
    """Finds the files of brokers that run on this machine, to read them; None to pull."""


class _PendingPull(NamedTuple):
    start: int
    end: int
    response: Future[PullResult]
    log: ProvenLog | None
    """The files to which the positions in the response refer."""


class BulkPull(ForkAware):
    """The records of one queue between two offsets, at bulk speed: an iterable of `RawChunk`.

    Iterate over it once, in one thread. Several pulls are in flight at once; if a connection fails,
    it is made again and the pulls are repeated. Each offset is yielded once, in order.

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
        end: Offset past the last message; the queue must reach it within ``rules.wait_ms``.
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
        self._requested_end = start
        self._pending_pulls: deque[_PendingPull] = deque()
        self._messages_per_pull = 0
        self._is_pull_size_known = False  # True once the broker has shown how many it returns
        self._last_short_count = 0  # the last count below the requested one
        self._growth_threshold = 1  # full responses to wait for before asking for more
        self._full_count = 0
        self._fault_count = 0
        self._local_files = self._rules.local_files  # None after a record was missing
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
            broker_name=queue.broker_name,
        )
        ForkAware.__init__(self)

    def _after_fork(self) -> None:
        """Repeat the pending pulls, because their responses go to the parent process."""
        self._restart_pipeline()

    def __iter__(self) -> Iterator[RawChunk]:
        """Yield all chunks, in order; none of them is empty.

        Raises:
            OffsetMoved: The queue does not hold these offsets any more, or has not reached them in
                time.
            BrokerRefused: The broker does not let the queue be read.
            ClientError: The connection has failed several times in a row.
        """
        while self._next_offset < self._end:
            try:
                self._fill_pipeline()
                chunk = self._process_result(self._await_result(self._pending_pulls[0]))
            except CONNECTION_FAULTS:
                self._fault_count += 1
                if self._fault_count >= self._rules.tries:
                    raise
                self._restart_pipeline()
                continue
            self._fault_count = 0
            if chunk is not None:
                yield chunk

    # ---- requests

    def _fill_pipeline(self) -> None:
        is_chunk = self._api.supports_chunks(self._address)
        if not self._messages_per_pull:
            self._messages_per_pull = self._rules.chunk_messages if is_chunk else FIRST_MESSAGES
            self._is_pull_size_known = not is_chunk
        at_once = (
            min(self._rules.in_flight, CHUNKS_IN_FLIGHT) if is_chunk else self._rules.in_flight
        )
        if self._is_filtered or not self._is_pull_size_known:
            at_once = 1
        while len(self._pending_pulls) < at_once and self._requested_end < self._end:
            end = min(self._requested_end + self._messages_per_pull, self._end)
            self._pending_pulls.append(self._pull(self._requested_end, end, is_chunk=is_chunk))
            self._requested_end = end

    def _prefetch(self, next_offset: int, pull: _PendingPull) -> None:
        """Send the next pulls while a response is processed; first the rest of its range, if any.

        If offsets have no messages, a response may reach past its range into ranges that are
        requested already; their messages must not be yielded twice.
        """
        if next_offset > pull.end:
            self._pending_pulls.clear()
        if not self._pending_pulls:
            self._requested_end = self._next_offset
            self._fill_pipeline()
        elif next_offset < pull.end:
            is_chunk = self._api.supports_chunks(self._address)
            self._pending_pulls.appendleft(self._pull(next_offset, pull.end, is_chunk=is_chunk))

    def _pull(self, start: int, end: int, *, is_chunk: bool, suspend_ms: int = 0) -> _PendingPull:
        header = self._header._replace(
            queue_offset=start,
            max_msg_nums=self._messages_per_pull if self._is_filtered else end - start,
            sys_flag=_SUBSCRIPTION | (_SUSPEND if suspend_ms else 0),
            suspend_timeout_millis=suspend_ms,
        )
        timeout_ms = self._rules.timeout_ms + suspend_ms
        log = None
        if is_chunk and self._local_files is not None:
            log = self._local_files.find_log(self._api.connections, self._address)
        connection = None if log is None else log.connection
        response = self._api.pull_async(
            self._address, header, timeout_ms, is_chunk=is_chunk, proven_connection=connection
        )
        return _PendingPull(start, end, response, log)

    def _await_result(self, pull: _PendingPull) -> PullResult:
        seconds = (self._rules.timeout_ms + self._rules.wait_ms) / 1000 + _RESPONSE_MARGIN_SECONDS
        try:
            return pull.response.result(seconds)
        except FutureTimeout as error:
            raise RequestTimeout(
                self._address, RequestCode.PULL_MESSAGE, self._rules.timeout_ms
            ) from error

    def _restart_pipeline(self) -> None:
        self._pending_pulls.clear()
        self._requested_end = self._next_offset

    # ---- responses

    def _process_result(self, result: PullResult) -> RawChunk | None:
        """Return the chunk in the response to the first pull, if it has one, and pull more."""
        pull = self._pending_pulls.popleft()
        # A broker whose log has just lost the requested messages may skip past them. With a filter,
        # nothing else distinguishes that from messages that do not match.
        if result.pull_status is PullStatus.OFFSET_ILLEGAL or result.min_offset > pull.start:
            raise self._offset_moved(pull.start, result)
        if result.pull_status is PullStatus.NO_NEW_MSG:
            self._wait_for_messages(pull)
            return None
        next_offset = result.next_begin_offset
        if next_offset <= pull.start:
            why = f"a pull at offset {pull.start} of {self._queue} resumes at {next_offset}"
            raise ProtocolError(self._address, why)
        decoded = None
        if result.physical_offsets is not None:
            decoded = self._read_log_files(pull, result)
            if decoded is None:
                return None
            result = result._replace(records=decoded.data.data, physical_offsets=None)
        if not self._is_filtered and result.pull_status is PullStatus.FOUND:
            self._adapt_pull_size(next_offset - pull.start, pull, result)
        self._next_offset = min(next_offset, self._end)
        try:
            self._prefetch(next_offset, pull)
        except CONNECTION_FAULTS:
            self._restart_pipeline()  # pulls in the next turn, after these records are yielded
        if result.pull_status is not PullStatus.FOUND:
            return None
        records, sizes = result.records, result.sizes
        if next_offset > self._end:
            (records, sizes), decoded = self._truncate_at_end(result), None
        return RawChunk(records, sizes, self._next_offset, decoded) if len(records) else None

    def _read_log_files(self, pull: _PendingPull, result: PullResult) -> RecordChunk | None:
        """Return the records at the positions in a response; if that fails, stop reading files."""
        found = None
        if pull.log is not None:
            queue_offsets, at = range(pull.start, result.next_begin_offset), result.physical_offsets
            found = pull.log.files.read_records(self._queue, at, result.sizes, queue_offsets)
        if found is None:
            if self._local_files is not None:
                self._local_files.on_missing_records(self._address)
            self._local_files = None
            self._restart_pipeline()
        return found

    def _adapt_pull_size(self, received_count: int, pull: _PendingPull, result: PullResult) -> None:
        """Adapt the size of pulls to what the broker returns.

        Larger pulls are tried repeatedly, because message sizes vary, but rarely if the broker
        keeps returning the same number: the missing part of a range costs another pull.
        """
        wanted = pull.end - pull.start
        self._full_count += 1
        if received_count < wanted:
            self._full_count = 0
            is_repeated = received_count == self._last_short_count
            slower = min(2 * self._growth_threshold, FULL_RESPONSES_MAX)
            self._growth_threshold = slower if is_repeated else 1
            self._last_short_count = self._messages_per_pull = max(received_count, 1)
        elif (
            received_count == self._messages_per_pull and self._full_count >= self._growth_threshold
        ):
            self._full_count = 0
            more = min(received_count + received_count // 4 + 1, self._rules.chunk_messages)
            if result.sizes is not None:
                count = received_count * self._rules.chunk_bytes // max(len(result.records), 1)
                more = min(more, max(count * 15 // 16, 1))  # the next messages may be longer
            self._messages_per_pull = more
        self._is_pull_size_known = True

    def _wait_for_messages(self, pull: _PendingPull) -> None:
        """Wait for messages where the queue ends before the offsets that were asked for."""
        self._pending_pulls.clear()
        held = self._pull(
            pull.start,
            pull.end,
            is_chunk=self._api.supports_chunks(self._address),
            suspend_ms=max(self._rules.wait_ms, 1),
        )
        result = self._await_result(held)
        if result.pull_status is PullStatus.NO_NEW_MSG:
            raise self._offset_moved(pull.start, result)
        self._requested_end = pull.end
        response: Future[PullResult] = Future()
        response.set_result(result)
        self._pending_pulls.append(held._replace(response=response))

    def _truncate_at_end(self, result: PullResult) -> tuple[Buffer, Any]:
        """Return the records up to the last one before the end; a filter may have led past it.

        In a response that is out of order, a record past the end may precede one before it: it
        stays, so that the response is refused and no record is lost. All records after an
        unreadable one stay as well, because decoding stops there.
        """
        records = memoryview(result.records)
        at = kept_bytes = kept_count = count = 0
        while at < len(records):
            try:
                size = record_size(records, at)
            except RecordError:
                if at > kept_bytes:  # damaged, but follows a record past the end
                    break
                return result.records, result.sizes
            offset_at = at + layout.QUEUE_OFFSET_AT
            queue_offset = int.from_bytes(records[offset_at : offset_at + 8], "big")
            at += size
            count += 1
            if queue_offset < self._end:
                kept_bytes, kept_count = at, count
        return records[:kept_bytes], None if result.sizes is None else result.sizes[:kept_count]

    def _offset_moved(self, queue_offset: int, result: PullResult) -> OffsetMoved:
        return OffsetMoved(
            f"queue {self._queue.queue_id} of {self._queue.topic} on {self._queue.broker_name}",
            queue_offset,
            result.min_offset,
            result.max_offset,
            result.next_begin_offset,
        )


# ---- Stored messages, one by one. A record with a damaged size hides where the next one begins. It
# becomes a message with a fault as well, and the queue is pulled again from the offset after it.
# The caller decides what to do with faults.


def stored_messages(
    api: BrokerApi, read_range: ReadRange, rules: PullRules | None = None
) -> Iterator[MessageExt]:
    """Yield the messages of a range, in order; a message that cannot be read has a ``fault``.

    Raises:
        WrongQueueRecord: The broker returns a message of another queue.
        OffsetMoved: The queue does not hold these offsets any more.
        ClientError: The broker does not answer, or refuses.
    """
    at = read_range.start
    while at < read_range.end:
        queue, address = read_range.queue, read_range.address
        for chunk in BulkPull(api, address, READER_GROUP, queue, at, read_range.end, rules):
            try:
                for message in _decode_chunk(api, queue, chunk, at):
                    yield message
                    at = message.queue_offset + 1
            except WrongQueueRecord:  # the broker is wrong, so its other records are not trusted
                raise
            except RecordError as error:
                damaged = _undecodable_message(chunk, queue, at, error)
                yield damaged
                at = damaged.queue_offset + 1
                break  # resume after the damaged record
            at = chunk.next_offset
        else:
            return


def _decode_chunk(
    api: BrokerApi, queue: MessageQueue, chunk: RawChunk, at: int
) -> Iterator[MessageExt]:
    """Yield the messages of a chunk; one with a fault keeps its place."""
    for message in decode_pulled(
        chunk.records, queue, max_body_bytes=api.max_body_bytes, with_faults=True
    ):
        found = message
        if message.fault is not None:
            is_possible = at <= message.queue_offset < chunk.next_offset
            offset = message.queue_offset if is_possible else at
            # records of a light queue state another queue and offset
            is_light = queue.topic.startswith(LIGHT_QUEUE_PREFIX)
            message_queue = message.queue if is_light else queue
            found = replace(
                message, topic=message_queue.topic, queue=message_queue, queue_offset=offset
            )
        yield found
        at = found.queue_offset + 1


def _undecodable_message(
    chunk: RawChunk, queue: MessageQueue, at: int, error: RecordError
) -> MessageExt:
    """Return a message for the record at which a chunk's decoding ended."""
    records = bytes(chunk.records)
    positions, _ = record_positions(records)
    rest = records[sum(positions[-1]) if positions else 0 :]
    offset = at
    if len(rest) >= layout.RECORD_BYTES_MIN:
        stated = read_queue_offset(rest, 0)
        offset = stated if at <= stated < chunk.next_offset else at
    stored = decode_damaged_record(rest.ljust(layout.RECORD_BYTES_MIN, b"\0"))
    message = unreadable_message(stored, queue.broker_name, str(error))
    return replace(message, topic=queue.topic, queue=queue, queue_offset=offset)
