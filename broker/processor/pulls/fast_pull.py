"""FastPull: the fast path of pulls that look like earlier ones of their client.

                         ┌───────────────── the normal path ──────────────────┐
    bytes of one read    │ frame ─> command ─> typed header ─> checks, filter ┤
       [P][P][S][P]──────┤             └─ learn: the header's shape           ├─> store ─> answer,
        │                │                                                    │         or held
        └────────────────┴─ cut by shape ─> cached pull, three new numbers ───┘

The headers of a consumer's pulls of one queue differ in three numbers (`pull_header`). The first
pull takes the normal path, which checks everything; then the template of its header is cached with
the result of the checks (`cached_pull`). From the store on, both paths are the same.

A cached pull is valid while topic and group keep the configurations with which it was made. If a
pull leaves its subscription to heartbeats, its filter is looked up each time. Everything else takes
the normal path, including filters that read messages; the fast path itself refuses nothing.

It parses frames itself, because no frame reader is as fast as a comparison.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from rmq_spark.wire.codes import RequestCode, SerializeType
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.flags import PullSysFlag
from rmq_spark.wire.framing import PREFIX_BYTES, Buffer
from rmq_spark.wire.headers.pull import PullMessageRequestHeader

from ...common.channel import Channel, ResponseSteps
from ..processor import BrokerParts
from ..request import Handler, RequestRejected, header_of
from .cached_pull import CachedPull, PullCache
from .pull_header import build_template
from .pull_message import PullMessageProcessor

_CODES = frozenset((RequestCode.PULL_MESSAGE.value, RequestCode.LITE_PULL_MESSAGE.value))
_JSON = SerializeType.JSON
_SUBSCRIPTION = PullSysFlag.SUBSCRIPTION.value
_LENGTH_WORD_BYTES = 4
_read_words = struct.Struct(">iI").unpack_from

RunHandler: TypeAlias = Callable[
    [Handler, Channel, RemotingCommand], "RemotingCommand | ResponseSteps | None"
]
"""The function that has a handler answer a request, and says in its place why it cannot."""


class FastPull:
    """The fast path of all clients."""

    def __init__(
        self, broker: BrokerParts, pulls: PullMessageProcessor, run_handler: RunHandler
    ) -> None:
        """Prepare with what the normal path uses, and with what precedes it in the dispatcher."""
        self._length_max = broker.config.server.frame_bytes_max - _LENGTH_WORD_BYTES
        self._header_bytes_max = broker.config.server.header_bytes_max
        self._pulls = pulls
        self._topic_config_of, self._group_config_of = broker.topics.get, broker.groups.get
        self._run_handler = run_handler
        self._cache = PullCache()

    def connection_closed(self, connection: Channel) -> None:
        """Discard the cached pulls of a client that is gone."""
        self._cache.discard(connection)

    def learn(self, connection: Channel, header: Buffer, request: RemotingCommand) -> bool:
        """Learn from a pull that the usual way has answered; return whether that was of use."""
        if (
            request.code not in _CODES
            or request.serialize_type is not _JSON
            or request.flag  # one that wants no answer may have been refused
            or request.body
            or not self._cache.may_learn(connection)
        ):
            return False
        data = bytes(header)
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
        bare = request.without_content()
        plan = CachedPull(shape, typed, bare, topic_config, group_config, message_filter)
        self._cache.put(connection, plan, data)
        return True

    def process(self, connection: Channel, data: bytes, start: int) -> int:
        """Answer the pull that starts at a position in the data; return where it ends.

        If the fast path does not apply, that is where it starts.
        """
        plans = self._cache.get(connection)
        length, word = _read_words(data, start)
        end: int = start + _LENGTH_WORD_BYTES + length
        if (
            plans is None
            or word != length - _LENGTH_WORD_BYTES  # it has a body, or is no JSON
            or end > len(data)
            or word > self._header_bytes_max
            or length > self._length_max
        ):
            return start
        found = plans.find(data[start + PREFIX_BYTES : end])
        if found is None:
            return start
        plan, (queue_offset, commit_offset, opaque) = found
        header = plan.header_with(queue_offset, commit_offset)
        if (
            self._topic_config_of(header.topic) is not plan.topic_config
            or self._group_config_of(header.consumer_group) is not plan.group_config
        ):
            return start
        message_filter = plan.message_filter
        if not header.sys_flag & _SUBSCRIPTION:
            try:
                message_filter = self._pulls.message_filter(header)
            except RequestRejected:
                return start
        if message_filter is not None and message_filter.needs_messages:
            return start
        plans.learning_budget.earn(1)
        handler = partial(self._pulls.process, header=header, message_filter=message_filter)
        answer = self._run_handler(handler, connection, plan.request.with_opaque(opaque))
        if isinstance(answer, RemotingCommand):
            connection.send(answer)
        return end
