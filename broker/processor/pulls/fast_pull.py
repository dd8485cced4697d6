"""FastPull: the fast path of pulls that look like earlier ones of their client.

                         ┌───────────────── the normal path ──────────────────┐
    bytes of one read    │ frame ─> command ─> typed header ─> checks, filter ┤
       [P][P][S][P]──────┤             └─ learn: the header's shape           ├─> store ─> answer,
        │                │                                                    │         or held
        └────────────────┴─ cut by shape ─> cached pull, three new numbers ───┘

The headers of a consumer's pulls of one queue differ in three numbers. The first pull takes the
normal path, which checks everything; then the template of its header is cached with the result of
the checks. From the store on, both paths are the same.

A cached pull is valid while topic and group keep the configurations with which it was made. If a
pull leaves its subscription to heartbeats, its filter is looked up each time. Everything else takes
the normal path, including filters that read messages; the fast path itself refuses nothing. With
authentication, the signature is cut from each header and verified, as in `FastSend`.

FastPull parses frames itself: comparing the header's bytes is faster than any frame reader.

    {"code":11,"extFields":{"queueId":"3", ... "commitOffset":"0","topic":"T","queueOffset":"17", ..
    |--------------------- first -----------------------------||-|------- second --------||--|------

                        ... },"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC": ... }
                        ------------- third ---------------------||------------ last ---------------

The order of the three numbers depends on the client. A header with the same bytes around them has
the same content otherwise: two of the numbers are in strings, which a quote ends, and one is a
plain number. A new template is tested with other numbers: the codec must find these in their
fields, and all else unchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.codes import PullSysFlag, RequestCode, SerializeType
from rmq_spark.wire.headers.members import PullMessageRequestHeader
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import PREFIX_BYTES, Buffer

from ...auth.signatures import SignedTemplate, UnsignedTemplate
from ...common.channel import Channel
from ..fast_paths import LearningBudget, PerClientCache, cut_signature, is_changed_header
from ..processor import BrokerParts
from ..request import Handler, HandlerResult, RequestRejected, header_of
from .pull_message import PullMessageProcessor
from .subscription_filters import SubscriptionFilter

# ---- Cached pulls.

_FIELDS = ("queueOffset", "commitOffset")
_SIGNED_ORDER: Final = ("commitOffset", "queueOffset")
_MARKS: Final = (*(f'"{name}":"'.encode() for name in _FIELDS), b'"opaque":')
_PROBE_VALUES: Final = (b"1234567890123456", b"6543210987654321", b"1234567890")
_DIGITS = b"0123456789"
_DIGITS_MAX = 18
"""Longer numbers may be too large for their field, so the codec decodes them on the normal path."""
_OPAQUE_END = 1 << 31
_HEADER_BYTES_MAX = 2_048
"""The maximum bytes of a cached header, because it is kept until its client disconnects."""


class PullHeaderTemplate(NamedTuple):
    """The bytes that headers of one shape have in common, and the order of the numbers."""

    pieces: tuple[bytes, bytes, bytes, bytes]
    order: tuple[int, int, int]
    """The positions of queue offset, commit offset and opaque among the three numbers."""

    @property
    def marks(self) -> tuple[bytes, bytes]:
        """The marks before the first and the second number."""
        return _MARKS[self.order.index(0)], _MARKS[self.order.index(1)]

    def match(self, header: bytes) -> tuple[int, int, int] | None:
        """Return queue offset, commit offset and opaque of a header of this shape, or None.

        The caller has compared the header's first piece already.
        """
        (first, second, third, last), (queue_offset, commit_offset, opaque) = self
        start = len(first)
        end = header.find(second, start)
        next_start = end + len(second)
        next_end = header.find(third, next_start)
        numbers = (
            header[start:end],
            header[next_start:next_end],
            header[next_end + len(third) : -len(last)],
        )
        if (
            end < 0
            or next_end < 0
            or not header.endswith(last)
            or not all(map(bytes.isdigit, numbers))
            or max(map(len, numbers)) > _DIGITS_MAX
        ):
            return None
        text = numbers[opaque]
        found = int(text)
        if found >= _OPAQUE_END or (len(text) > 1 and text.startswith(b"0")):
            return None
        return int(numbers[queue_offset]), int(numbers[commit_offset]), found


def header_prefix(header: bytes, marks: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
    """Return the text before a header's first number, and the text between the first two.

    Headers of one client that agree in both nearly always have the same template.
    """
    before, _, rest = header.partition(marks[0])
    return before, rest.partition(marks[1])[0].lstrip(_DIGITS)


def build_template(header: bytes, request: RemotingCommand) -> PullHeaderTemplate | None:
    """Return the template of a request's header, or None if it cannot be cut safely."""
    if request.serialize_type is not SerializeType.JSON or len(header) > _HEADER_BYTES_MAX:
        return None
    numbers = (
        *(request.ext_fields.get(name, "").encode() for name in _FIELDS),
        b"%d" % request.opaque,
    )
    positions = sorted((header.find(mark), n) for n, mark in enumerate(_MARKS))
    pieces: list[bytes] = []
    at = 0
    for position, n in positions:
        start = position + len(_MARKS[n])
        if position < at or not numbers[n] or not header.startswith(numbers[n], start):
            return None
        pieces.append(header[at:start])
        at = start + len(numbers[n])
    field_order = [n for _, n in positions]
    first, second, third = pieces
    order = field_order.index(0), field_order.index(1), field_order.index(2)
    shape = PullHeaderTemplate((first, second, third, header[at:]), order)
    others = [_PROBE_VALUES[n] for n in field_order]
    return shape if _is_safe(shape, others, request) else None


def _is_safe(template: PullHeaderTemplate, probes: list[bytes], request: RemotingCommand) -> bool:
    """Return whether other numbers at the cuts change those numbers and nothing else."""
    first, second, third, last = template.pieces
    other = b"".join((first, probes[0], second, probes[1], third, probes[2], last))
    changed = dict(zip(_FIELDS, map(bytes.decode, _PROBE_VALUES[:2]), strict=True))
    opaque = int(_PROBE_VALUES[2])
    return is_changed_header(other, request, opaque, changed) and template.match(other) is not None


CACHED_PULLS_MAX: Final = 4_096
"""The maximum cached pulls of a client, one for each queue; past it, its cache is cleared."""
CACHED_PULLS_TOTAL_MAX: Final = 2 * CACHED_PULLS_MAX
"""The maximum for all clients, which takes 12 MiB, or 40 MiB if all headers have maximum length."""
_SAME_PREFIX_MAX = 8
"""The maximum number of cached pulls with the same prefix, which are tried one by one."""
_PULLS_PER_LEARNED = 4

_new_header: Callable[[type[PullMessageRequestHeader], tuple[Any, ...]], PullMessageRequestHeader]
_new_header = tuple.__new__


class CachedPull(NamedTuple):
    """The common part of a group's pulls from one queue, and the template of their headers."""

    header_template: PullHeaderTemplate
    header: PullMessageRequestHeader
    request: RemotingCommand
    """One of these requests, with only what a response needs."""
    topic_config: TopicConfig
    group_config: SubscriptionGroupConfig
    message_filter: SubscriptionFilter
    """The filter, if these pulls carry their own subscription."""
    signed: SignedTemplate | UnsignedTemplate | None = None
    """The check of their signatures; None without authentication."""

    def header_with(self, queue_offset: int, commit_offset: int) -> PullMessageRequestHeader:
        """Return the header of another pull, in a quarter of the time of `_replace`."""
        header = self.header
        fields = (*header[:3], queue_offset, *header[4:6], commit_offset, *header[7:])
        return _new_header(PullMessageRequestHeader, fields)


class ClientPullCache:
    """The cached pulls of one client."""

    def __init__(self) -> None:
        self.learning_budget = LearningBudget(_PULLS_PER_LEARNED, CACHED_PULLS_MAX)
        self._marks = b"", b""
        """The marks before the first two numbers, in headers of this client."""
        self._by_prefix: dict[tuple[bytes, bytes], list[CachedPull]] = {}
        """The cached pulls by the prefix of their headers, which is nearly always unique."""
        self._count = 0
        self.access_version = 0
        """The version of users and access lists with which the cached pulls were checked."""

    def __len__(self) -> int:
        return self._count

    def clear(self, access_version: int) -> None:
        """Discard all cached pulls; pulls cached later were checked with ``access_version``."""
        self._by_prefix.clear()
        self._count = 0
        self.access_version = access_version

    def find(self, header: bytes) -> tuple[CachedPull, tuple[int, int, int]] | None:
        """Return the cached pull for a header, and its queue offset, commit offset and opaque."""
        if not self._count:
            return None
        for cached_pull in self._by_prefix.get(header_prefix(header, self._marks), ()):
            numbers = cached_pull.header_template.match(header)
            if numbers is not None:
                return cached_pull, numbers
        return None

    def put(self, cached_pull: CachedPull, header: bytes) -> None:
        """Cache a pull that was parsed from a header, in place of one with the same template."""
        shape = cached_pull.header_template
        if shape.marks != self._marks or self._count >= CACHED_PULLS_MAX:
            self._by_prefix.clear()
            self._count = 0
        self._marks = shape.marks
        beginning = header_prefix(header, self._marks)
        before = self._by_prefix.get(beginning, [])
        others = [each for each in before if each.header_template != shape]
        after = self._by_prefix[beginning] = [cached_pull, *others[: _SAME_PREFIX_MAX - 1]]
        self._count += len(after) - len(before)


class PullCache(PerClientCache[ClientPullCache]):
    """The cached pulls of all clients, up to a fixed number."""

    def __init__(self) -> None:
        super().__init__(CACHED_PULLS_TOTAL_MAX)

    def may_learn(self, connection: Channel) -> bool:
        """Return whether a client may cache one more pull, and charge its budget."""
        if connection.is_closed:  # its entries were discarded already
            return False
        return self._clients.setdefault(connection, ClientPullCache()).learning_budget.spend()

    def require_version(self, connection: Channel, access_version: int) -> None:
        """Discard the cached pulls of a client if users or lists have changed since."""
        client_cache = self._clients[connection]
        if client_cache.access_version == access_version:
            return
        before = len(client_cache)
        client_cache.clear(access_version)
        self.add_count(-before)

    def put(self, connection: Channel, cached_pull: CachedPull, header: bytes) -> None:
        """Cache a pull of a client, which was parsed from ``header``."""
        client_cache = self._clients[connection]
        before = len(client_cache)
        client_cache.put(cached_pull, header)
        self.add_count(len(client_cache) - before)


_CODES = frozenset((RequestCode.PULL_MESSAGE.value, RequestCode.LITE_PULL_MESSAGE.value))
_JSON = SerializeType.JSON
_SUBSCRIPTION = PullSysFlag.SUBSCRIPTION.value
_LENGTH_WORD_BYTES = 4
_read_words = struct.Struct(">iI").unpack_from

RunHandler: TypeAlias = Callable[[Handler, Channel, RemotingCommand], HandlerResult]
"""Runs a handler and turns its exceptions into responses; the dispatcher's function."""


class FastPull:
    """The fast path of all clients."""

    def __init__(
        self, broker: BrokerParts, pulls: PullMessageProcessor, run_handler: RunHandler
    ) -> None:
        self._length_max = broker.config.server.frame_bytes_max - _LENGTH_WORD_BYTES
        self._header_bytes_max = broker.config.server.header_bytes_max
        self._access = broker.access
        self._pulls = pulls
        self._topic_config_of, self._group_config_of = broker.topics.get, broker.groups.get
        self._run_handler = run_handler
        self._cache = PullCache()

    def connection_closed(self, connection: Channel) -> None:
        """Discard the cached pulls of a client that is gone."""
        self._cache.discard(connection)

    def learn(self, connection: Channel, header: Buffer, request: RemotingCommand) -> bool:
        """Cache a pull that took the normal path, if possible; return whether it is cached."""
        if (
            request.code not in _CODES
            or request.serialize_type is not _JSON
            or request.flag  # a pull without a response may have been refused
            or request.body
            or not self._cache.may_learn(connection)
        ):
            return False
        data = bytes(header)
        if self._access.is_enabled:
            self._cache.require_version(connection, self._access.version)
            data, _ = cut_signature(data)
        shape = build_template(data, request)
        if shape is None:
            return False
        typed: PullMessageRequestHeader = header_of(request)
        topic_config = self._topic_config_of(typed.topic)
        group_config = self._group_config_of(typed.consumer_group)
        own = typed.sys_flag & _SUBSCRIPTION
        message_filter = self._pulls.message_filter(typed) if own else None
        if topic_config is None or group_config is None:
            return False
        signed = None
        if self._access.is_enabled:
            signed = self._access.template_of(connection, request, _SIGNED_ORDER)
            if signed is None:
                return False
        bare = request.without_content()
        cached_pull = CachedPull(
            shape, typed, bare, topic_config, group_config, message_filter, signed
        )
        self._cache.put(connection, cached_pull, data)
        return True

    def process(self, connection: Channel, data: bytes, start: int) -> int:
        """Answer the pull that begins at ``start`` of ``data``; return its end.

        Return ``start`` if the fast path does not apply.
        """
        client_cache = self._cache.get(connection)
        length, word = _read_words(data, start)
        end: int = start + _LENGTH_WORD_BYTES + length
        if (
            client_cache is None
            or word != length - _LENGTH_WORD_BYTES  # it has a body, or is not JSON
            or end > len(data)
            or word > self._header_bytes_max
            or length > self._length_max
        ):
            return start
        head = data[start + PREFIX_BYTES : end]
        is_checked = self._access.is_enabled
        found = self._find_signed(client_cache, head) if is_checked else client_cache.find(head)
        if found is None:
            return start
        cached_pull, (queue_offset, commit_offset, opaque) = found
        header = cached_pull.header_with(queue_offset, commit_offset)
        if (
            self._topic_config_of(header.topic) is not cached_pull.topic_config
            or self._group_config_of(header.consumer_group) is not cached_pull.group_config
        ):
            return start
        message_filter = cached_pull.message_filter
        if not header.sys_flag & _SUBSCRIPTION:
            try:
                message_filter = self._pulls.message_filter(header)
            except RequestRejected:
                return start
        if message_filter is not None and message_filter.needs_messages:
            return start
        client_cache.learning_budget.repay(1)
        handler = partial(self._pulls.process, header=header, message_filter=message_filter)
        response = self._run_handler(handler, connection, cached_pull.request.with_opaque(opaque))
        if isinstance(response, RemotingCommand):
            connection.send(response)
        return end

    def _find_signed(
        self, client_cache: ClientPullCache, header: bytes
    ) -> tuple[CachedPull, tuple[int, int, int]] | None:
        """Find a cached pull, if the signature is valid and users and access lists are unchanged.

        The signature covers the numbers as received: one with leading zeros takes the normal path.
        """
        if client_cache.access_version != self._access.version:
            return None
        unsigned, signature = cut_signature(header)
        found = client_cache.find(unsigned)
        if found is None:
            return None
        cached_pull, (queue_offset, commit_offset, _) = found
        signed, numbers = cached_pull.signed, (b"%d" % commit_offset, b"%d" % queue_offset)
        if signed is None or not signed.is_valid_signature(*numbers, b"", signature):
            return None
        return found
