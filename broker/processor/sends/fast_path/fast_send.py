"""FastSend: the fast path of sends that look like earlier ones of their client.

                         ┌──────────────── the normal path ──────────────────┐
    bytes of one read    │ frame ─> command ─> handler ─> cache ─> buffer ───┤ one by one
      [S][S][S][P][S]────┤             └─ learn: the header's shape          ├─> the turn ends:
       └──┬──┘           │                                                   │   write, answer
          └──────────────┴ cut by shape ─> a run ─> one write ───────────────┘ all at once

The headers of a producer's sends differ in three places (`cached_send`). The first send takes the
normal path, which checks everything; then the template of its header is cached with the result.
Successive sends with such headers form a run: they are cut, appended by one write with one lock and
one time, and answered when the turn ends, or, with SYNC_FLUSH, after the flush that covers them. A
single send is cut, too, and then appended as on the normal path.

With authentication, the signature is cut from each header before it is compared, and verified over
the bytes of the run. A wrong one takes the normal path, which refuses it; so does the first send
after each change of users or lists.

Everything else takes the normal path: other requests, new shapes, invalid cached sends, empty or
long bodies, properties with instructions or anything that JSON escapes, a queue's first message,
the end of a log file. The sends after it may take the fast path again. The fast path itself refuses
nothing, except after a failed write. The order of a client's messages is that of its requests,
whichever path they take.

FastSend parses frames itself: comparing the header's bytes is faster than any frame reader.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from rmq_spark.wire.codes import CommandFlag, RequestCode, SerializeType
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import PREFIX_BYTES, Buffer

from ....common.channel import Channel
from ....store.append.record_encoding import RecordRun, UniformParts
from ....store.records.recent_writes import RecentRecord
from ....store.results import PhysicalOffset, PutMessageResult, PutMessageStatus, QueueOffset
from ...fast_paths import ResponseTemplate, cut_signature
from ...processor import BrokerParts
from ..acknowledger import Acknowledger
from ..stored_properties import PropertyRewriter
from .cached_send import (
    BORN_DIGITS,
    BORN_MARK,
    QUOTE,
    CachedHeader,
    CachedSend,
    ClientSendCache,
    SendCache,
    unescape,
    unescape_all,
)

_log = logging.getLogger(__name__)
RUN_MAX: Final = 64
"""The maximum number of sends in a run; more save nothing."""
RUN_BYTES_MAX: Final = 1 << 15
"""The maximum bytes of requests in a run, so that its data stays in the CPU's cache."""

_SEND = RequestCode.SEND_MESSAGE_V2.value
_JSON = SerializeType.JSON
_ONE_WAY = CommandFlag.ONE_WAY.value
_PUT_OK = PutMessageStatus.PUT_OK
_JSON_HEADER_END = 1 << 24
"""A frame's second word below this is the length of a JSON header."""
_LENGTH_WORD_BYTES = 4
_NOT_STORED = RecentRecord(("", 0), QueueOffset(-1), PhysicalOffset(-1), 0, b"")
_read_words = struct.Struct(">iI").unpack_from

_ParsedSend: TypeAlias = tuple[CachedHeader, int, bytes, Buffer, int, int]
"""Template, birth timestamp, properties as in the header, body, opaque, end of the request."""


AcknowledgeSend: TypeAlias = Callable[
    [Channel, RemotingCommand, CachedSend, Sequence[int], PutMessageResult], None
]
"""Acknowledges one send; the sizes are empty, because it is not a batch."""


Send: TypeAlias = tuple[Channel, RemotingCommand, CachedSend, bool]
"""Sender, request and cached send of a message; whether the sender waits for the disk."""
PutOne: TypeAlias = Callable[[Send, Buffer, bytes, int], None]
"""Stores one message, given its body, the properties to store, and its birth timestamp."""


class _RunMessage(NamedTuple):
    cached: CachedHeader
    opaque: int
    physical_offset: PhysicalOffset
    queue_offset: QueueOffset
    size: int


class _UnacknowledgedRun(NamedTuple):
    connection: Channel
    result: PutMessageResult
    messages: Sequence[_RunMessage]


class FastSend:
    """The fast path of all clients."""

    def __init__(
        self,
        broker: BrokerParts,
        cache: SendCache,
        properties: PropertyRewriter,
        acknowledger: Acknowledger,
        response_template: ResponseTemplate,
        acknowledge_send: AcknowledgeSend,
        put_one: PutOne,
    ) -> None:
        """Store the parts, which the normal path shares, so that both answer in the same way.

        ``response_template`` encodes many success responses, ``acknowledge_send`` one response of
        any kind; ``put_one`` stores one message as on the normal path.
        """
        self._length_max = broker.config.server.frame_bytes_max - _LENGTH_WORD_BYTES
        self._header_bytes_max = broker.config.server.header_bytes_max
        self._access = broker.access
        self._store = broker.store
        self._cache = cache
        self._properties = properties
        self._acknowledger = acknowledger
        self._stats = broker.stats
        self._busy_reason = broker.busy_reason
        self._response_template = response_template
        self._acknowledge_send = acknowledge_send
        self._put_one = put_one
        self._count_max = RUN_MAX
        """The maximum sends of the next run: few after a run that was cut short, then more."""
        self._unacknowledged: list[_UnacknowledgedRun] = []

    def learn(self, connection: Channel, header: Buffer, request: RemotingCommand) -> bool:
        """Cache the template of a send that took the normal path; return whether it is known."""
        if request.code != _SEND or request.serialize_type is not _JSON:
            return False
        client_cache = self._cache.get(connection)
        if client_cache is None:
            return False
        if not self._access.is_enabled:
            return client_cache.learn(bytes(header), request)
        if client_cache.access_version != self._access.version:
            client_cache.discard_headers(self._access.version)
        unsigned, _ = cut_signature(bytes(header))
        return client_cache.learn(
            unsigned, request, partial(self._access.template_of, connection, request)
        )

    def process(self, connection: Channel, data: bytes, start: int) -> int:
        """Process the run of sends that begins at ``start`` of ``data``; return its end.

        Return ``start`` if the fast path does not apply to the first frame.
        """
        if self._busy_reason() is not None:
            return start
        client_cache = self._cache.get(connection)
        if client_cache is None or not client_cache.headers:
            return start
        if self._access.is_enabled and client_cache.access_version != self._access.version:
            return start
        cuts = list(self._parse_run(client_cache, data, start))
        if not cuts:
            return start
        properties = self._rewrite_properties(cuts)
        count = len(properties)
        is_cut_short = count < len(cuts)
        self._count_max = max(2 * count, 1) if is_cut_short else min(2 * self._count_max, RUN_MAX)
        if not count:
            return start
        if count == 1:
            return self._put_single(connection, client_cache, cuts[0], properties[0])
        shapes, born_timestamps, _, bodies, opaques, ends = zip(*cuts[:count], strict=True)
        templates = [cached.cached_send.template for cached in shapes]
        parts = UniformParts([template.flag for template in templates], bodies, properties)
        run = RecordRun(templates, parts, born_timestamps)
        result = self._store.put_run(run)
        if result is None:
            return start
        client_cache.learning_budget.repay(count)
        records = run.recent.records if result.status is _PUT_OK else [_NOT_STORED] * count
        puts = list(map(_run_message, shapes, opaques, records))
        self._unacknowledged.append(_UnacknowledgedRun(connection, result, puts))
        end: int = ends[-1]
        return end

    def _put_single(
        self,
        connection: Channel,
        client_cache: ClientSendCache,
        cut: _ParsedSend,
        properties: bytes,
    ) -> int:
        """Process a single send, for which a run would cost more than it saves."""
        cached_header, born_timestamp, _, body, opaque, end = cut
        client_cache.learning_budget.repay(1)
        request = cached_header.request.with_opaque(opaque)
        send = connection, request, cached_header.cached_send, True
        self._put_one(send, body, properties, born_timestamp)
        return end

    @property
    def has_unacknowledged(self) -> bool:
        """True if sends of this turn are not answered yet."""
        return bool(self._unacknowledged)

    def acknowledge_all(self) -> None:
        """Answer the sends of a turn, now or when they are on the disk."""
        unacknowledged, self._unacknowledged = self._unacknowledged, []
        for connection, result, puts in unacknowledged:
            acknowledge = partial(self._acknowledge, connection, puts)
            self._acknowledger.when_stored(result, acknowledge, sends=len(puts))

    def _parse_run(
        self, client_cache: ClientSendCache, data: bytes, start: int
    ) -> Iterator[_ParsedSend]:
        """Cut the sends that begin at ``start`` of ``data``, up to the first of unknown shape."""
        end, stop = len(data), start + RUN_BYTES_MAX
        cached_header_of, config_of, leaving = (
            client_cache.headers.get,
            self._cache.config_of,
            self._cache.deleting,
        )
        view = memoryview(data)
        is_signed = self._access.is_enabled
        signature = b""
        for _ in range(self._count_max):
            header_at = start + PREFIX_BYTES
            if header_at > end:
                return
            length, word = _read_words(data, start)
            start += _LENGTH_WORD_BYTES + length
            body_at = header_at + word
            if (
                word >= _JSON_HEADER_END
                or start > end
                or start > stop
                or word > self._header_bytes_max
                or body_at >= start
                or length > self._length_max
            ):
                return
            header = data[header_at:body_at]
            if is_signed:
                header, signature = cut_signature(header)
            before, _, rest = header.partition(BORN_MARK)
            cached_header = cached_header_of(before)
            if cached_header is None:
                return
            cached_send = cached_header.cached_send
            cut = cached_header.header_template.match(rest)
            if (
                cut is None
                or config_of(cached_send.topic) is not cached_send.topic_config
                or cached_send.topic in leaving
            ):
                return
            born_timestamp, text, opaque = cut
            if cached_header.signed is not None and not cached_header.signed.is_valid_signature(
                rest[:BORN_DIGITS], unescape(text), data[body_at:start], signature
            ):
                return
            yield cached_header, born_timestamp, text, view[body_at:start], opaque, start

    def _rewrite_properties(self, cuts: Sequence[_ParsedSend]) -> list[bytes]:
        """Return the properties to store of the first sends, up to one for the normal path."""
        texts = [text for _, _, text, _, _, _ in cuts]
        rewritten = self._rewrite_all(texts)
        if rewritten is not None:
            return rewritten
        stored: list[bytes] = []
        for text in texts:
            own = self._rewrite_all([text])
            if own is None:
                break
            stored += own
        return stored

    def _rewrite_all(self, texts: Sequence[bytes]) -> list[bytes] | None:
        plain = unescape_all(texts)
        return None if plain is None else self._properties.rewrite_all(plain, QUOTE.decode())

    def _acknowledge(
        self, connection: Channel, puts: Sequence[_RunMessage], result: PutMessageResult
    ) -> None:
        try:
            if result.status is _PUT_OK:
                self._acknowledge_stored(connection, puts)
            else:
                self._acknowledge_each(connection, puts, result)
        except Exception:  # noqa: BLE001  # an error in one must not keep the others waiting
            _log.exception("%d sends could not be answered", len(puts))
            connection.close("its sends could not be answered")

    def _acknowledge_stored(self, connection: Channel, puts: Sequence[_RunMessage]) -> None:
        sizes_of: dict[str, list[int]] = {}
        rows: list[tuple[object, ...]] = []
        for cached_header, opaque, physical_offset, queue_offset, size in puts:
            cached_send = cached_header.cached_send
            sizes_of.setdefault(cached_send.topic, []).append(size)
            if not cached_header.request.flag & _ONE_WAY:
                queue_id = cached_send.template.queue[1]
                rows.append((cached_send.id_start, physical_offset, queue_id, queue_offset, opaque))
        for topic, sizes in sizes_of.items():
            self._stats.record_put(topic, len(sizes), sum(sizes), calls=len(sizes))
        self._response_template.send_all(connection, rows)

    def _acknowledge_each(
        self, connection: Channel, puts: Sequence[_RunMessage], result: PutMessageResult
    ) -> None:
        """Answer messages that were not stored, or not in time, as the normal path does."""
        for cached_header, opaque, physical_offset, queue_offset, size in puts:
            own = result._replace(
                physical_offset=physical_offset,
                queue_offset=queue_offset,
                end_offset=physical_offset + size if size else physical_offset,
                message_count=1,
            )
            request = cached_header.request.with_opaque(opaque)
            self._acknowledge_send(connection, request, cached_header.cached_send, (), own)


def _run_message(cached: CachedHeader, opaque: int, record: RecentRecord) -> _RunMessage:
    return _RunMessage(cached, opaque, record.physical_offset, record.queue_offset, record.size)
