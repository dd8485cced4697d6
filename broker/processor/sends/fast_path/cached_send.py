"""CachedSend: everything about a message except its body, properties and birth timestamp.

Nearly all messages of a producer have everything else in common. Parsing that common part, checking
that such a message may go to the topic and queue, and encoding it are half of the cost of a send.
The result is cached while the client is connected and the topic is unchanged.

    {"code":310,"extFields":{"a":"G","b":"T", ... "g":"1700000000000","h":"0","i":"KEYS..","j":"0",
    |-------------------- prefix ----------------|mark|---- born ---|-- middle --|-texts-|-----

               ... },"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON", ... }
               ---------------- suffix -----------------|--|---------------- end -----------------|

Born is the birth timestamp in 13 digits, texts are the properties, and the last cut is the opaque.
A header with the same bytes around them has the same content otherwise: each value that is cut out
is a number, or is in a string that ends at its first quote. A new template is tested with other
values: the codec must find these in their fields, and all else unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import MessageSysFlag, RequestCode, SerializeType
from rmq_spark.wire.headers.members import SendMessageRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.hosts import Host
from rmq_spark.wire.message.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from rmq_spark.wire.message.record import magic_of
from rmq_spark.wire.names import RETRY_PREFIX
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.java_numbers import parse_int64

from ....auth.signatures import SignedTemplate, UnsignedTemplate
from ....common.channel import Channel
from ....store.append.record_encoding import RecordDraft, RecordTemplate
from ...fast_paths import LearningBudget, PerClientCache, is_changed_header
from ...request import header_of
from ..admission import TopicAdmission

BORN_MARK: Final = b'"g":"'
BORN_DIGITS: Final = 13
QUOTE: Final = b'"'
_NAME_VALUE_ESCAPED, _PROPERTY_ESCAPED = "\\u0001", "\\u0002"
_NAME_VALUE_BYTES = _NAME_VALUE_ESCAPED.encode(), NAME_VALUE_SEPARATOR.encode()
_PROPERTY_BYTES = _PROPERTY_ESCAPED.encode(), PROPERTY_SEPARATOR.encode()
_PROPERTIES_MARK = b'"i":"'
_OPAQUE_MARK = b'"opaque":'
_OPAQUE_END = 1 << 31
_HEADER_BYTES_MAX = 4_096
"""The maximum size of a cached template, which is kept until its client disconnects."""

_OTHER_BORN, _OTHER_OPAQUE = b"1234567890123", 1_234_567_890
_OTHER_TEXTS = b"KEYS\\u0001o\\u0002"


class SendHeaderTemplate(NamedTuple):
    """The bytes that headers of one shape have in common."""

    prefix: bytes
    middle: bytes
    suffix: bytes
    end: bytes

    def match(self, rest: bytes) -> tuple[int, bytes, int] | None:
        """Return birth timestamp, texts and opaque of a header of this shape, or None.

        ``rest`` follows `BORN_MARK`, before which the caller has compared the bytes. The texts are
        for `unescape_all`, which decodes those of many headers at once.
        """
        _, middle, behind, end = self
        texts, _, last = rest.partition(behind)
        texts_at = BORN_DIGITS + len(middle)
        born, opaque = texts[:BORN_DIGITS], last[: -len(end)]
        if (
            texts[BORN_DIGITS:texts_at] != middle
            or last[-len(end) :] != end
            or not (born.isdigit() and opaque.isdigit())
            or (len(opaque) > 1 and opaque.startswith(b"0"))
        ):
            return None
        number = int(opaque)
        return (int(born), texts[texts_at:], number) if number < _OPAQUE_END else None


def unescape(text: bytes) -> bytes:
    """Decode a JSON string that `unescape_all` accepts; for any other, the result is wrong."""
    return text.replace(*_NAME_VALUE_BYTES).replace(*_PROPERTY_BYTES)


def unescape_all(texts: Sequence[bytes]) -> str | None:
    """Decode the JSON strings of many headers at once; quotes separate them in the result.

    Return None if one of them needs the codec: it has a quote, an escape other than the separators
    of properties, or anything but printable ASCII.
    """
    joined = QUOTE.join(texts)
    if joined.count(QUOTE) != len(texts) - 1 or not joined.isascii():
        return None
    text = joined.decode()
    if not text.isprintable():
        return None
    text = text.replace(_NAME_VALUE_ESCAPED, NAME_VALUE_SEPARATOR)
    text = text.replace(_PROPERTY_ESCAPED, PROPERTY_SEPARATOR)
    return None if "\\" in text else text


def header_prefix(header: bytes) -> bytes:
    """Return the beginning of a header, which identifies its shape."""
    return header.partition(BORN_MARK)[0]


def build_template(header: bytes, request: RemotingCommand) -> SendHeaderTemplate | None:
    """Return the template of a request's header, or None if it cannot be cut safely."""
    if request.serialize_type is not SerializeType.JSON:
        return None
    before, _, rest = header.partition(BORN_MARK)
    middle, mark, others = rest[BORN_DIGITS:].partition(_PROPERTIES_MARK)
    _, quote, last = others.partition(QUOTE)
    behind, opaque_mark, opaque_and_end = last.rpartition(_OPAQUE_MARK)
    end = opaque_and_end[len(str(request.opaque)) :]
    shape = SendHeaderTemplate(before, middle + mark, quote + behind + opaque_mark, end)
    if not end or not opaque_mark or sum(map(len, shape)) > _HEADER_BYTES_MAX:
        return None
    return shape if _is_safe(shape, request) else None


def _is_safe(template: SendHeaderTemplate, request: RemotingCommand) -> bool:
    """Return whether other values at the cuts change those values and nothing else."""
    before, middle, behind, end = template
    opaque = str(_OTHER_OPAQUE).encode()
    other = b"".join((before, BORN_MARK, _OTHER_BORN, middle, _OTHER_TEXTS, behind, opaque, end))
    changed = {"g": _OTHER_BORN.decode(), "i": "KEYS\1o\2"}
    return is_changed_header(other, request, _OTHER_OPAQUE, changed)


_BORN_V6 = MessageSysFlag.BORN_HOST_V6.value
_STORE_V6 = MessageSysFlag.STORE_HOST_V6.value
_CLIENT_FLAGS = ~(_BORN_V6 | _STORE_V6 | MessageSysFlag.TRANSACTION_MASK.value)
_BATCH = RequestCode.SEND_BATCH_MESSAGE.value

CACHED_SENDS_MAX: Final = 8_192
"""The maximum for one client, enough for thousands of queues; past it, its cache is cleared."""
CACHED_SENDS_TOTAL_MAX: Final = 2 * CACHED_SENDS_MAX
"""The maximum for all clients, which takes 25 MiB, or 90 MiB if all headers have maximum length."""
_CACHED_CHARACTERS_MAX = 2_048

_SENDS_PER_LEARNED = 8


VARYING: Final = ("g", "i")
"""The fields that differ in headers of one shape, birth timestamp and properties."""

SignTemplate: TypeAlias = Callable[[tuple[str, str]], "SignedTemplate | UnsignedTemplate | None"]
"""Returns the verifier of later requests, which differ in these fields, or None without rights."""

_Key: TypeAlias = tuple[int, tuple[str | None, ...]]
"""The request code, and all fields that are the same in every message."""


class CachedSend(NamedTuple):
    """The common part of messages of one kind to one queue."""

    header: SendMessageRequestHeader
    """The header of the first message, valid for all common fields."""
    topic: str
    topic_config: TopicConfig | None
    template: RecordTemplate
    is_batch: bool
    is_retry: bool
    id_start: str
    """The beginning of the ids of all messages that are stored at this address."""


class CachedHeader(NamedTuple):
    """A template of headers, and what all requests that match it have in common."""

    header_template: SendHeaderTemplate
    cached_send: CachedSend
    request: RemotingCommand
    """One of these requests, with only what a response needs."""
    signed: SignedTemplate | UnsignedTemplate | None = None
    """The check of their signatures; None without authentication."""


class _Names(NamedTuple):
    same: tuple[str, ...]
    born_timestamp: str
    properties: str


def _names_of(code: RequestCode) -> _Names:
    codec = HEADERS[code].request
    assert codec is not None  # noqa: S101  # all sends have a header
    names = dict(zip(SendMessageRequestHeader._fields, codec.keys, strict=True))
    born_timestamp, properties = names.pop("born_timestamp"), names.pop("properties")
    return _Names(tuple(names.values()), born_timestamp, properties)


_NAMES: Mapping[int, _Names] = {
    int(code): _names_of(code)
    for code in (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
    )
}
CODES: Final = frozenset(_NAMES)


class ClientSendCache:
    """The cached sends of one client."""

    def __init__(
        self,
        admission: TopicAdmission,
        born_host: Host,
        store_host: Host,
        on_count_change: Callable[[int], None],
    ) -> None:
        """Create the cache for messages from ``born_host`` that are stored at ``store_host``.

        ``on_count_change`` gets each change of the number of cached sends.
        """
        self._on_count_change = on_count_change
        self._admission = admission
        self._config_of, self._deleting = admission.config_of, admission.deleting
        self._born_host, self._store_host = born_host.encode(), store_host.encode()
        self._sys_flag = _BORN_V6 * born_host.is_v6 | _STORE_V6 * store_host.is_v6
        self._id_start = self._store_host.hex().upper()
        self._by_key: dict[_Key, CachedSend] = {}
        self.headers: dict[bytes, CachedHeader] = {}
        """The templates of headers whose send is cached, by their prefix."""
        self.access_version = 0
        """The version of users and access lists with which these headers were checked."""
        self.learning_budget = LearningBudget(_SENDS_PER_LEARNED, CACHED_SENDS_MAX)

    def resolve(self, request: RemotingCommand) -> tuple[CachedSend, int, str | None]:
        """Return the cached send for a message, its birth timestamp and its properties."""
        get = request.ext_fields.get
        same, born_timestamp, properties = _NAMES[request.code]
        key = request.code, tuple(map(get, same))
        cached_send = self._by_key.get(key)
        if cached_send is not None and self._is_valid(cached_send):
            try:
                return cached_send, parse_int64(get(born_timestamp, "")), get(properties)
            except ValueError:
                pass  # the codec describes the error best
        header: SendMessageRequestHeader = header_of(request)
        cached_send = self._new_cached_send(request, header)
        is_short = sum(len(text or "") for text in key[1]) <= _CACHED_CHARACTERS_MAX
        if header.queue_id >= 0 and is_short and self._admission.is_cacheable(cached_send.topic):
            self._put(key, cached_send)
        return cached_send, header.born_timestamp, header.properties

    def learn(
        self, header: bytes, request: RemotingCommand, sign: SignTemplate | None = None
    ) -> bool:
        """Cache the header of a send that was just stored, if the send is cached.

        Return whether the header's shape is known. With authentication, the signature is cut from
        the header, and ``sign`` returns the verifier of later signatures.
        """
        known = self.headers.get(header_prefix(header))
        if known is not None and self._is_valid(known.cached_send):
            return True
        same, _, _ = _NAMES[request.code]
        cached_send = self._by_key.get((request.code, tuple(map(request.ext_fields.get, same))))
        if (
            cached_send is None
            or cached_send.is_batch
            or cached_send.is_retry
            or not self.learning_budget.spend()
        ):
            return False
        shape = build_template(header, request)
        if shape is None:
            return False
        signed = None if sign is None else sign(VARYING)
        if sign is not None and signed is None:
            return False
        before = len(self.headers)
        if before >= CACHED_SENDS_MAX:
            self.headers.clear()
        self.headers[shape.prefix] = CachedHeader(
            shape, cached_send, request.without_content(), signed
        )
        self._on_count_change(len(self.headers) - before)
        return True

    def discard_headers(self, access_version: int) -> None:
        """Discard the templates of headers, because users or lists have changed."""
        before = len(self.headers)
        self.headers.clear()
        self._on_count_change(-before)
        self.access_version = access_version

    def _is_valid(self, cached_send: CachedSend) -> bool:
        return (
            self._config_of(cached_send.topic) is cached_send.topic_config
            and cached_send.topic not in self._deleting
        )

    def __len__(self) -> int:
        return len(self._by_key) + len(self.headers)

    def _put(self, key: _Key, cached_send: CachedSend) -> None:
        before = len(self)
        if len(self._by_key) >= CACHED_SENDS_MAX:
            self._by_key.clear()
            self.headers.clear()
        self._by_key[key] = cached_send
        self._on_count_change(len(self) - before)

    def _new_cached_send(
        self, request: RemotingCommand, header: SendMessageRequestHeader
    ) -> CachedSend:
        topic = header.topic
        queue_id = self._admission.admit(
            topic, header.queue_id, header.default_topic, header.default_topic_queue_nums
        )
        common = RecordDraft(
            topic,
            queue_id,
            b"",
            b"",
            header.born_timestamp,
            self._born_host,
            self._store_host,
            header.flag,
            header.sys_flag & _CLIENT_FLAGS | self._sys_flag,
            header.reconsume_times or 0,
            0,
            magic_of(topic),
        )
        return CachedSend(
            header,
            topic,
            self._config_of(topic),
            RecordTemplate(common),
            header.batch or request.code == _BATCH,
            topic.startswith(RETRY_PREFIX),
            self._id_start,
        )


class SendCache(PerClientCache[ClientSendCache]):
    """The cached sends of all clients, up to a fixed number."""

    def __init__(self, admission: TopicAdmission, store_host: Callable[[Channel], Host]) -> None:
        """Create an empty cache; ``store_host`` returns where a client's messages are stored."""
        super().__init__(CACHED_SENDS_TOTAL_MAX)
        self._admission = admission
        self.config_of, self.deleting = admission.config_of, admission.deleting
        """A cached send is valid while its topic has the same configuration and is not deleted."""
        self._store_host = store_host

    def for_client(self, connection: Channel) -> ClientSendCache:
        """Return the cached sends of a client."""
        client_cache = self._clients.get(connection)
        return client_cache if client_cache is not None else self._new(connection)

    def check_admission(self, cached_send: CachedSend) -> None:
        """Check a cached send again if its topic has changed since; raise as `admit` does."""
        admission = self._admission
        if (
            admission.config_of(cached_send.topic) is not cached_send.topic_config
            or cached_send.topic in admission.deleting
        ):
            header, queue_id = cached_send.header, cached_send.template.queue[1]
            nums = header.default_topic_queue_nums
            admission.admit(cached_send.topic, queue_id, header.default_topic, nums)

    def _new(self, connection: Channel) -> ClientSendCache:
        is_connected = not connection.is_closed  # otherwise its cache was discarded already
        count = self.add_count if is_connected else lambda _: None
        client_cache = ClientSendCache(
            self._admission, connection.remote_host, self._store_host(connection), count
        )
        if is_connected:
            self._clients[connection] = client_cache
        return client_cache
