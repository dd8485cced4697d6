"""Admin: what an operator does with a whole cluster, by names instead of addresses.

Topics, consumer groups, their offsets and lag, resets, messages by key or id. It asks each broker that a
topic or a cluster has, and puts the answers together; a broker that does not answer is an error, as half an
answer would look like a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from rmq_spark.client.arguments import check_number, check_queue, check_range, check_text
from rmq_spark.client.broker_api import BrokerApi
from rmq_spark.client.errors import (
    BrokerNotFound,
    ConsumerNotOnline,
    MessageRejected,
    NotFound,
    NotSupported,
    ProtocolError,
    RouteNotFound,
)
from rmq_spark.client.instance import ClientInstance
from rmq_spark.client.message import MessageExt, decode_messages, received
from rmq_spark.client.names import check_group, check_topic
from rmq_spark.client.read_bounds import EARLIEST, LATEST, Bound
from rmq_spark.client.routes import MASTER_ID
from rmq_spark.client.shown import Lags
from rmq_spark.errors import RecordError, WireError
from rmq_spark.wire.bodies.client_info import Connection
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.bodies.lists import ClusterInfo
from rmq_spark.wire.bodies.routes import TopicRouteData
from rmq_spark.wire.bodies.stats import TopicOffset
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.framing import Buffer
from rmq_spark.wire.headers.operators import QueryMessageRequestHeader, ResetOffsetRequestHeader
from rmq_spark.wire.message_id import decode_offset_message_id
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import dlq_topic, retry_topic
from rmq_spark.wire.properties import UNIQ_KEY
from rmq_spark.wire.record import decode_record

if TYPE_CHECKING:
    import pyarrow as pa

ADMIN_TIMEOUT_MS: Final = 5_000
LATEST_MS: Final = -1
"""As a time: behind the last message."""

FOREVER_MS: Final = (1 << 63) - 1
QUERY_MESSAGES_MAX: Final = 64
_VERSION_5: Final = 413

_Found = TypeVar("_Found")


class Lag(NamedTuple):
    """How far a group is in one queue; ``consumer_offset`` is None where it has stored nothing."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int | None
    last_timestamp: int

    @property
    def messages(self) -> int:
        """How many it has not consumed yet; all that there are, if it has stored nothing."""
        return max(self.broker_offset - (self.consumer_offset or 0), 0)


class Admin:
    """See the module. All methods may be called from any thread."""

    def __init__(
        self, name_servers: str | Iterable[str] | None = None, *, instance: ClientInstance | None = None
    ) -> None:
        """``instance`` is shared with producers and consumers; without it this one has its own."""
        self.instance = instance or ClientInstance(name_servers, request_timeout_ms=ADMIN_TIMEOUT_MS)
        self._api = BrokerApi(self.instance.connections, ADMIN_TIMEOUT_MS)

    def __enter__(self) -> Admin:
        self.instance.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.instance.stop()

    # ---- the cluster

    def cluster_info(self) -> ClusterInfo:
        """All brokers, by name and by cluster."""
        return self.instance.name_servers.admin.cluster_info()

    def route(self, topic: str) -> TopicRouteData:
        """Where a topic lives."""
        check_text("topic", topic, "orders")
        return self.instance.name_servers.route(topic)

    def masters(self, cluster: str | None = None) -> Mapping[str, str]:
        """The addresses of all masters, or of those of a cluster, by name.

        Raises:
            BrokerNotFound: There are none.
        """
        info = self.cluster_info()
        names = info.broker_addr_table if cluster is None else info.cluster_addr_table.get(cluster, ())
        found = {
            name: info.broker_addr_table[name].broker_addrs[MASTER_ID]
            for name in sorted(names)
            if name in info.broker_addr_table and MASTER_ID in info.broker_addr_table[name].broker_addrs
        }
        if not found:
            raise BrokerNotFound(cluster or "any", "the cluster has no master that the name servers know")
        return found

    def runtime_info(self) -> Mapping[str, Mapping[str, str]]:
        """What each broker says of itself, by name."""
        return {name: self._api.admin.runtime_info(address) for name, address in self.masters().items()}

    # ---- topics

    def topics(self, cluster: str | None = None) -> frozenset[str]:
        """All topics, or those of a cluster."""
        return self.instance.name_servers.admin.topics(cluster)

    def create_topic(
        self,
        topic: str,
        queue_nums: int = 8,
        *,
        cluster: str | None = None,
        config: TopicConfig | None = None,
    ) -> None:
        """Create a topic on all masters, or on those of a cluster, or change it there."""
        check_topic(topic)
        check_range("queue_nums", queue_nums)
        config = config or TopicConfig(
            topic_name=topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums
        )
        for address in self.masters(cluster).values():
            self._api.admin.create_topic(address, replace(config, topic_name=topic))

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic, with its messages, from all brokers and name servers."""
        check_text("topic", topic, "orders")
        for address in self.masters(cluster).values():
            self._api.admin.delete_topic(address, topic)
        self.instance.name_servers.admin.delete_topic(topic, cluster)
        self.instance.routes.forget(topic)

    def topic_offsets(self, topic: str) -> Mapping[MessageQueue, TopicOffset]:
        """What each queue of a topic holds."""
        check_text("topic", topic, "orders")
        return dict(
            pair
            for _, address in self._brokers_of(topic)
            for pair in sorted(self._api.admin.topic_stats(address, topic).offset_table.items())
        )

    # ---- groups

    def create_group(
        self, group: str, *, cluster: str | None = None, config: SubscriptionGroupConfig | None = None
    ) -> None:
        """Create a consumer group on all masters, or on those of a cluster, or change it there."""
        check_group(group)
        config = replace(config or SubscriptionGroupConfig(group_name=group), group_name=group)
        for address in self.masters(cluster).values():
            self._api.admin.create_group(address, config)

    def delete_group(self, group: str, *, cluster: str | None = None, with_offsets: bool = True) -> None:
        """Forget a consumer group, with its retry topic and its dead letters."""
        check_text("group", group, "billing")
        for address in self.masters(cluster).values():
            self._api.admin.delete_group(address, group, with_offsets=with_offsets)
        known = self.topics()
        for topic in (retry_topic(group), dlq_topic(group)):
            if topic in known:
                self.delete_topic(topic, cluster)

    def groups(self) -> frozenset[str]:
        """All consumer groups."""
        return frozenset(
            group for address in self.masters().values() for group in self._api.admin.group_configs(address)
        )

    def groups_of_topic(self, topic: str) -> frozenset[str]:
        """Who consumes a topic, or has."""
        check_text("topic", topic, "orders")
        return frozenset(
            group
            for _, address in self._brokers_of(topic)
            for group in self._api.admin.groups_of_topic(address, topic)
        )

    def members(self, group: str) -> tuple[Connection, ...]:
        """Who is in a consumer group now; nobody, if it is offline."""
        check_text("group", group, "billing")
        found: dict[str, Connection] = {}
        for address in self.masters().values():
            try:
                connection = self._api.admin.consumer_connection(address, group)
            except ConsumerNotOnline:
                continue
            found.update({each.client_id: each for each in connection.connection_set})
        return tuple(found[client_id] for client_id in sorted(found))

    # ---- offsets

    def lag(self, group: str, topic: str) -> Lags:
        """How far a group is in each queue of a topic, whether it is online or not."""
        check_text("group", group, "billing")
        check_text("topic", topic, "orders")
        found: list[Lag] = []
        for name, address in self._brokers_of(topic):
            times = {
                queue.queue_id: wrapper.last_timestamp
                for queue, wrapper in self._api.admin.consume_stats(
                    address, group, topic
                ).offset_table.items()
            }
            for queue in self._queues_of(name, topic):
                stored = self._api.query_consumer_offset(address, group, queue, zero_if_young=False)
                end = self._api.max_offset(address, queue)
                found.append(Lag(queue, end, stored, times.get(queue.queue_id, 0)))
        return Lags(found)

    def set_offset(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        """Have a group go on at an offset of one queue.

        Who is online is told, and others find it stored.

        Raises:
            MessageRejected: The queue does not have that offset.
            NotSupported: The group is online at a broker of 4.9, which can tell members only of times.
        """
        check_text("group", group, "billing")
        check_queue("queue", queue)
        check_number("offset", queue_offset, 42)
        address = self._address_of(queue)
        low, high = self._api.min_offset(address, queue), self._api.max_offset(address, queue)
        if not low <= queue_offset <= high:
            raise MessageRejected("offset", f"one from {low} to {high}", queue_offset)
        if self._api.consumer_ids(address, group):
            self._tell(group, address, queue, queue_offset)
        self._api.update_consumer_offset(address, group, queue, queue_offset)

    def reset_to_time(
        self, group: str, topic: str, timestamp_ms: int, *, is_force: bool = True
    ) -> Mapping[MessageQueue, int]:
        """Have a group go on at a time, in all queues of a topic; `LATEST_MS`: behind the last message.

        Without ``is_force`` no queue goes forward. Gives the offsets.
        """
        check_text("group", group, "billing")
        check_text("topic", topic, "orders")
        check_number("timestamp_ms", timestamp_ms, 1_750_000_000_000)
        found: dict[MessageQueue, int] = {}
        for name, address in self._brokers_of(topic):
            header = ResetOffsetRequestHeader(topic, group, timestamp_ms, is_force)
            is_online = bool(self._api.consumer_ids(address, group))
            reset = self._reset_online if is_online else self._reset_offline
            found.update(reset(group, name, address, header))
        return found

    def _reset_online(
        self, group: str, broker_name: str, address: str, header: ResetOffsetRequestHeader
    ) -> Mapping[MessageQueue, int]:
        """The members are told, and store their offsets themselves."""
        try:
            return self._api.admin.reset_offset(address, header)
        except ConsumerNotOnline:  # the last has just left
            return self._reset_offline(group, broker_name, address, header)

    def _reset_offline(
        self, group: str, broker_name: str, address: str, header: ResetOffsetRequestHeader
    ) -> Mapping[MessageQueue, int]:
        """Nobody is there to be told: what is stored is where they begin."""
        chosen: dict[MessageQueue, int] = {}
        for queue in self._queues_of(broker_name, header.topic):
            if header.timestamp == LATEST_MS:
                target = self._api.max_offset(address, queue)
            else:
                target = self._api.search_offset(address, queue, header.timestamp)
            stored = self._api.query_consumer_offset(address, group, queue, zero_if_young=False)
            is_back = stored is None or target < stored
            chosen[queue] = target if header.is_force or is_back or stored is None else stored
        for queue, queue_offset in chosen.items():
            self._api.update_consumer_offset(address, group, queue, queue_offset)
        return chosen

    def _tell(self, group: str, address: str, queue: MessageQueue, queue_offset: int) -> None:
        """Have the members go to an offset of one queue: what only 5.x and ours can be asked for."""
        version = self.instance.connections.peer_version(address)
        if not self._api.agreement(address).extensions and version < _VERSION_5:
            # It would pass over the queue and the offset, and send the group to the beginning of time.
            remark = "RocketMQ 4.9 can tell members only of times: stop the group's consumers first"
            raise NotSupported(3, remark, address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
        header = ResetOffsetRequestHeader(
            queue.topic, group, 0, is_force=True, queue_id=queue.queue_id, offset=queue_offset
        )
        self._api.admin.reset_offset(address, header)

    # ---- messages

    def message_by_offset_id(self, offset_message_id: str) -> MessageExt:
        """The message with the id that its broker gave it, from the broker that the id names.

        Raises:
            MessageRejected: That is no such id.
            BrokerRefused: The broker has no such message any more.
        """
        check_text("offset_message_id", offset_message_id, "7F00000100002A9F0000000000000000")
        try:
            host, commit_log_offset = decode_offset_message_id(offset_message_id)
        except RecordError as error:
            raise MessageRejected("message id", "32 or 56 hexadecimal digits", offset_message_id) from error
        address = str(host)
        record = self._api.admin.view_message(address, commit_log_offset)
        names = {each: name for name, each in self.masters().items()}
        return self._decoded(address, lambda: received(decode_record(record), names.get(address, "")))

    def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        messages_max: int = QUERY_MESSAGES_MAX,
    ) -> tuple[MessageExt, ...]:
        """The newest messages of a topic with a key, at most so many of each broker."""
        check_text("topic", topic, "orders")
        check_text("key", key, "order-42")
        header = QueryMessageRequestHeader(topic, key, messages_max, begin_ms, end_ms, unique_key_query=False)
        return tuple(message for message in self._query(header) if key in message.keys)

    def messages_by_unique_id(self, topic: str, message_id: str) -> tuple[MessageExt, ...]:
        """The messages with the id that their producer gave them: several, if one was sent again.

        Raises:
            NotFound: There are none.
        """
        check_text("topic", topic, "orders")
        check_text("message_id", message_id, "7F000001669DC9819DE26ECF4EE40062")
        header = QueryMessageRequestHeader(
            topic, message_id, QUERY_MESSAGES_MAX // 2, 0, FOREVER_MS, unique_key_query=True
        )
        found = tuple(m for m in self._query(header) if m.properties.get(UNIQ_KEY) == message_id)
        if not found:
            raise NotFound(22, f"no message of {topic} has the id {message_id}", "", 12)
        return found

    def read_table(
        self,
        topic: str,
        *,
        start: Bound = EARLIEST,
        end: Bound = LATEST,
        columns: Iterable[str] | None = None,
        tags: str | None = None,
    ) -> pa.Table:
        """Return the messages of a topic as a pyarrow Table; no group's offsets change.

        Names and types of the columns are those of the Spark source. Rows come queue by queue, in
        the order of their offsets. The whole table is held in memory: choose ``columns`` and a
        range where a topic is large.

        Args:
            topic: The topic to read.
            start: ``"earliest"``, ``"latest"``, a time (a datetime with a zone, or milliseconds
                since 1970) from which messages were stored, or ``{queue: offset}``, which also says
                which queues are read.
            end: A bound of the same kinds, before which to end. Brokers are asked for ``"latest"``
                once, when the read begins: so it ends on a topic that others write to.
            columns: Names of columns, as ``["body", "tags"]``; nothing else is decoded. Without
                them: topic, brokerName, queueId, queueOffset, keys, tags, body, bornTimestamp,
                storeTimestamp.
            tags: ``"a || b"`` for messages with one of these tags.

        Raises:
            RouteNotFound: There is no such topic.
            MessageRejected: An argument means nothing.
            OffsetOutOfRange: A queue does not hold an offset that is given for it.
            OffsetMoved: The broker has deleted messages before they were read.
            ProtocolError: A message cannot be read; the error names it.
        """
        from rmq_spark.client.arrow_reads import table_of  # noqa: PLC0415  # brings pyarrow

        return table_of(self.instance, topic, start, end, columns, tags)

    def _query(self, header: QueryMessageRequestHeader) -> Iterator[MessageExt]:
        for name, address in self._brokers_of(header.topic):
            records = self._api.admin.query_message(address, header)
            found = self._decoded(address, partial(_messages, records, name))
            yield from (message for message in found if message.topic == header.topic)

    # ---- within

    def _decoded(self, address: str, decode: Callable[[], _Found]) -> _Found:
        try:
            return decode()
        except WireError as error:
            raise ProtocolError(address, str(error)) from error

    def _brokers_of(self, topic: str) -> list[tuple[str, str]]:
        """The masters that have a topic, by name, and their addresses; the route is asked for anew."""
        route = self.instance.routes.refresh(topic)
        found = [
            (name, broker.broker_addrs[MASTER_ID])
            for name, broker in sorted(route.brokers.items())
            if MASTER_ID in broker.broker_addrs
        ]
        if not found:
            raise RouteNotFound(topic, "none of its brokers has a master")
        return found

    def _queues_of(self, broker_name: str, topic: str) -> list[MessageQueue]:
        route = self.instance.routes.route(topic)
        every = {*route.subscribe_queues, *route.publish_queues}
        return sorted(queue for queue in every if queue.broker_name == broker_name)

    def _address_of(self, queue: MessageQueue) -> str:
        self.instance.routes.refresh(queue.topic)
        return self.instance.routes.master_address(queue.broker_name)


def _messages(records: Buffer, broker_name: str) -> list[MessageExt]:
    return list(decode_messages(records, broker_name))
