"""CachedSend: everything about a message except its body, properties and birth timestamp.

Nearly all messages of a producer have the rest in common. Parsing it, checking that such a message
may go to the topic and queue, and encoding the common part of the records is half of the cost of a
send. So this is done once, and cached while the client is connected and the topic is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.flags import MessageSysFlag
from rmq_spark.wire.headers.send import SendMessageRequestHeader
from rmq_spark.wire.headers.table import HEADERS
from rmq_spark.wire.hosts import Host
from rmq_spark.wire.java_numbers import parse_int64
from rmq_spark.wire.names import RETRY_PREFIX
from rmq_spark.wire.record import magic_of

from ....common.channel import Channel
from ....store.append.record_encoding import RecordDraft, RecordTemplate
from ...fast_path.per_client_cache import LearningBudget, PerClientCache
from ...request import header_of
from ..admission import TopicAdmission
from .send_header import SendHeaderTemplate, build_template, header_prefix

_BORN_V6 = MessageSysFlag.BORN_HOST_V6.value
_STORE_V6 = MessageSysFlag.STORE_HOST_V6.value
_CLIENT_FLAGS = ~(_BORN_V6 | _STORE_V6 | MessageSysFlag.TRANSACTION_MASK.value)
_BATCH = RequestCode.SEND_BATCH_MESSAGE.value

CACHED_SENDS_MAX: Final = 8_192
"""Plans of one client: enough for thousands of queues. One that has more starts over."""
CACHED_SENDS_TOTAL_MAX: Final = 2 * CACHED_SENDS_MAX
"""Plans of all clients: 25 MiB as a rule, 90 MiB if all are as long as may be remembered."""
_CACHED_CHARACTERS_MAX = 2_048

_SENDS_PER_LEARNED = 8


_Key: TypeAlias = tuple[int, tuple[str | None, ...]]
"""The code of a request, and all of its fields that do not differ from message to message."""


class CachedSend(NamedTuple):
    """The common part of messages of one kind to one queue."""

    header: SendMessageRequestHeader
    """The header of the first message, valid for all that does not differ."""
    topic: str
    topic_config: TopicConfig | None
    template: RecordTemplate
    is_batch: bool
    is_retry: bool
    id_start: str
    """The start of the ids of all messages that are stored at this address."""


class CachedHeader(NamedTuple):
    """A template of headers, and what is known of all requests that match it."""

    header_template: SendHeaderTemplate
    cached_send: CachedSend
    request: RemotingCommand
    """One of them, without what is not needed for an answer."""


class _Names(NamedTuple):
    """The names of the fields in one kind of request."""

    same: tuple[str, ...]
    born_timestamp: str
    properties: str


def _names_of(code: RequestCode) -> _Names:
    codec = HEADERS[code].request
    assert codec is not None  # noqa: S101  # all sends have one
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
        """Cache sends of messages that come from one host and are stored at the other.

        ``on_count_change`` gets the change of their number.
        """
        self._on_count_change = on_count_change
        self._admission = admission
        self._config_of, self._deleting = admission.config_of, admission.deleting
        self._born_host, self._store_host = born_host.encode(), store_host.encode()
        self._sys_flag = _BORN_V6 * born_host.is_v6 | _STORE_V6 * store_host.is_v6
        self._id_start = self._store_host.hex().upper()
        self._by_key: dict[_Key, CachedSend] = {}
        self.headers: dict[bytes, CachedHeader] = {}
        """The shapes of headers whose plan is known, by what they begin with."""
        self.learning_budget = LearningBudget(_SENDS_PER_LEARNED, CACHED_SENDS_MAX)

    def resolve(self, request: RemotingCommand) -> tuple[CachedSend, int, str | None]:
        """Return the cached send for a message, its birth timestamp and its properties.

        Raises:
            RequestRejected, HeaderError: The message cannot be taken.
        """
        get = request.ext_fields.get
        same, born_timestamp, properties = _NAMES[request.code]
        key = request.code, tuple(map(get, same))
        plan = self._by_key.get(key)
        if plan is not None and self._is_valid(plan):
            try:
                return plan, parse_int64(get(born_timestamp, "")), get(properties)
            except ValueError:
                pass  # what is wrong is best said by who reads it all
        header: SendMessageRequestHeader = header_of(request)
        plan = self._new_plan(request, header)
        is_short = sum(len(text or "") for text in key[1]) <= _CACHED_CHARACTERS_MAX
        if header.queue_id >= 0 and is_short and self._admission.is_cacheable(plan.topic):
            self._put(key, plan)
        return plan, header.born_timestamp, header.properties

    def learn(self, header: bytes, request: RemotingCommand) -> bool:
        """Learn the header of a send that was just put, if its send is cached.

        Return whether the header's shape is known. A client's learning budget covers as many
        headers as it may have shapes.
        """
        known = self.headers.get(header_prefix(header))
        if known is not None and self._is_valid(known.cached_send):
            return True
        same, _, _ = _NAMES[request.code]
        plan = self._by_key.get((request.code, tuple(map(request.ext_fields.get, same))))
        if plan is None or plan.is_batch or plan.is_retry or not self.learning_budget.spend():
            return False
        shape = build_template(header, request)
        if shape is None:
            return False
        before = len(self.headers)
        if before >= CACHED_SENDS_MAX:
            self.headers.clear()
        self.headers[shape.prefix] = CachedHeader(shape, plan, request.without_content())
        self._on_count_change(len(self.headers) - before)
        return True

    def _is_valid(self, plan: CachedSend) -> bool:
        """Return whether the topic of a cached send is unchanged, and stays."""
        return self._config_of(plan.topic) is plan.topic_config and plan.topic not in self._deleting

    def __len__(self) -> int:
        return len(self._by_key) + len(self.headers)

    def _put(self, key: _Key, plan: CachedSend) -> None:
        before = len(self)
        if len(self._by_key) >= CACHED_SENDS_MAX:
            self._by_key.clear()
            self.headers.clear()
        self._by_key[key] = plan
        self._on_count_change(len(self) - before)

    def _new_plan(self, request: RemotingCommand, header: SendMessageRequestHeader) -> CachedSend:
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
        """Start empty; ``store_host`` returns where a client's messages are stored."""
        super().__init__(CACHED_SENDS_TOTAL_MAX)
        self._admission = admission
        self.config_of, self.deleting = admission.config_of, admission.deleting
        """A plan is good while its topic has the plan's configuration, and is not leaving."""
        self._store_host = store_host

    def for_client(self, connection: Channel) -> ClientSendCache:
        """Return the cached sends of a client."""
        plans = self._clients.get(connection)
        return plans if plans is not None else self._new(connection)

    def check_admission(self, plan: CachedSend) -> None:
        """Check whether messages may still go where they were to, if their topic has changed since.

        Raises:
            RequestRejected: The messages may not go there.
            TopicNotSaved: The messages may go there as soon as the topic is saved.
        """
        admission = self._admission
        if (
            admission.config_of(plan.topic) is not plan.topic_config
            or plan.topic in admission.deleting
        ):
            header, queue_id = plan.header, plan.template.queue[1]
            nums = header.default_topic_queue_nums
            admission.admit(plan.topic, queue_id, header.default_topic, nums)

    def _new(self, connection: Channel) -> ClientSendCache:
        is_here = not connection.is_closed  # else it has been forgotten already
        count = self.add_count if is_here else _no_op
        plans = ClientSendCache(
            self._admission, connection.remote_host, self._store_host(connection), count
        )
        if is_here:
            self._clients[connection] = plans
        return plans


def _no_op(_: int) -> None:
    """Ignore the number of plans that are not remembered."""
