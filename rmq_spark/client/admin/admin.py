"""Admin: what an operator does with a whole cluster, by names instead of addresses.

Topics, consumer groups, their offsets and lag, resets, single messages. `Admin` asks each
broker that a topic or a cluster has, and combines the answers; a broker that does not answer is an
error, as half an answer would look like a whole one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import NoneType, TracebackType
from typing import Final, NamedTuple

from rmq_spark.client.admin.cluster_lookups import ClusterLookups
from rmq_spark.client.admin.config_checks import check_group_config, check_topic_config
from rmq_spark.client.admin.message_lookups import ADMIN_TIMEOUT_MS
from rmq_spark.client.admin.shown import Lags
from rmq_spark.client.admin.topic_sizes import TopicSize, topic_size
from rmq_spark.client.arguments import (
    INT32_MAX,
    check_flag,
    check_kind,
    check_name,
    check_number,
    check_queue,
    check_range,
    check_text,
    check_timestamp_ms,
)
from rmq_spark.client.errors import (
    BrokerNotFound,
    BrokerRefused,
    ConsumerNotOnline,
    MessageRejected,
    NotSupported,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import MessageExt, received
from rmq_spark.client.names import check_group, check_topic
from rmq_spark.errors import RecordError
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.bodies.stats import TopicOffset
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.operators import (
    CloneGroupOffsetRequestHeader,
    ResetOffsetRequestHeader,
)
from rmq_spark.wire.message_id import decode_offset_message_id
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import dlq_topic, retry_topic
from rmq_spark.wire.record import decode_record

LATEST_MS: Final = -1
"""Passed as a time: the end of each queue, behind its last message."""

_VERSION_5: Final = 413
_CLUSTER: Final = "DefaultCluster"


class Lag(NamedTuple):
    """Progress of a consumer group in one queue.

    Attributes:
        queue: The queue.
        broker_offset: Offset behind the last message of the queue.
        consumer_offset: Offset at which the group goes on; None if it has committed nothing.
        last_timestamp: Milliseconds since the epoch at which the last consumed message was stored,
            or 0 if the broker does not say.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int | None
    last_timestamp: int

    @property
    def messages(self) -> int:
        """Number of messages still to be consumed; all of the queue's, if nothing was committed."""
        return max(self.broker_offset - (self.consumer_offset or 0), 0)


class Admin(ClusterLookups):
    """Administers topics, consumer groups and their offsets, and looks up messages.

    All methods may be called from any thread, within the ``with`` statement. Besides the errors
    that they list, they raise a `ClientError` if a name server or a broker that has to be asked
    does not answer, or refuses.

    Example:
        with Admin("localhost:9876") as admin:
            admin.create_topic("orders", queue_nums=4)
            print(sum(each.messages for each in admin.lag("billing", "orders")))

    Args:
        name_servers: Addresses of the name servers, as ``"host:port;host:port"`` or an iterable of
            ``"host:port"``. Defaults to the environment variable NAMESRV_ADDR.
        instance: A `ClientInstance` to share with producers and consumers; ``name_servers`` is then
            ignored. Without it, this object has an instance of its own.

    Raises:
        TypeError: An argument has the wrong type.
    """

    def __init__(
        self,
        name_servers: str | Iterable[str] | None = None,
        *,
        instance: ClientInstance | None = None,
    ) -> None:
        example = "ClientInstance('localhost:9876')"
        check_kind("instance", instance, (ClientInstance, NoneType), "a ClientInstance", example)
        super().__init__(
            instance or ClientInstance(name_servers, request_timeout_ms=ADMIN_TIMEOUT_MS)
        )

    def __enter__(self) -> Admin:
        self.instance.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.instance.stop()

    # ---- topics

    def topics(self, cluster: str | None = None) -> frozenset[str]:
        """Return the names of all topics.

        Args:
            cluster: Name of the cluster; None for all clusters.
        """
        check_name("cluster", cluster, _CLUSTER)
        return self.instance.name_servers.admin.topics(cluster)

    def create_topic(
        self,
        topic: str,
        queue_nums: int = 8,
        *,
        cluster: str | None = None,
        broker_name: str | None = None,
        config: TopicConfig | None = None,
    ) -> None:
        """Create a topic on all masters, or change it where it exists.

        Args:
            topic: Name of the topic.
            queue_nums: Number of queues on each master, for reading and for writing.
            cluster: Name of the cluster; None for the masters of all clusters.
            broker_name: Name of the only broker to create it on; None for all masters.
            config: Full settings, instead of ``queue_nums``; its ``topic_name`` is ignored.

        Raises:
            MessageRejected: The name is not valid, or ``queue_nums`` is less than 1.
            BrokerNotFound: There are no masters, or none of that name.
        """
        check_topic(topic)
        check_name("broker_name", broker_name, "broker-a")
        check_range("queue_nums", queue_nums, 1, INT32_MAX)
        check_topic_config(config)
        config = config or TopicConfig(
            topic_name=topic, read_queue_nums=queue_nums, write_queue_nums=queue_nums
        )
        masters = self.masters(cluster)
        if broker_name is not None:
            if broker_name not in masters:
                raise BrokerNotFound(broker_name, "the name servers know no such master")
            masters = {broker_name: masters[broker_name]}
        for address in masters.values():
            self._api.admin.create_topic(address, replace(config, topic_name=topic))

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic, with its messages, from all masters and name servers.

        Args:
            topic: Name of the topic.
            cluster: Name of the cluster; None for all clusters.
        """
        check_text("topic", topic, "orders")
        for address in self.masters(cluster).values():
            self._api.admin.delete_topic(address, topic)
        self.instance.name_servers.admin.delete_topic(topic, cluster)
        self.instance.routes.forget(topic)

    def topic_offsets(self, topic: str) -> Mapping[MessageQueue, TopicOffset]:
        """Return the offsets that each queue of a topic begins and ends at, and its last write.

        Raises:
            RouteNotFound: No name server knows the topic, or none of its brokers has a master.
        """
        check_text("topic", topic, "orders")
        return dict(
            pair
            for _, address in self._brokers_of(topic)
            for pair in sorted(self._api.admin.topic_stats(address, topic).offset_table.items())
        )

    def topic_size(self, topic: str) -> TopicSize:
        """Return how much a topic holds: its messages, and an estimate of their bytes in the log.

        Raises:
            RouteNotFound: No name server knows the topic, or none of its brokers has a master.
        """
        return topic_size(self.instance, self.topic_offsets(topic))

    # ---- groups

    def create_group(
        self,
        group: str,
        *,
        cluster: str | None = None,
        config: SubscriptionGroupConfig | None = None,
    ) -> None:
        """Create a consumer group on all masters, or change it where it exists.

        Args:
            group: Name of the group.
            cluster: Name of the cluster; None for the masters of all clusters.
            config: Settings of the group; its ``group_name`` is ignored.

        Raises:
            MessageRejected: The name is not valid.
        """
        check_group(group)
        check_group_config(config)
        config = replace(config or SubscriptionGroupConfig(group_name=group), group_name=group)
        for address in self.masters(cluster).values():
            self._api.admin.create_group(address, config)

    def delete_group(
        self, group: str, *, cluster: str | None = None, with_offsets: bool = True
    ) -> None:
        """Delete a consumer group, with its retry topic and its dead letters.

        Args:
            group: Name of the group.
            cluster: Name of the cluster; None for the masters of all clusters.
            with_offsets: Whether to delete its committed offsets as well.
        """
        check_text("group", group, "billing")
        check_flag("with_offsets", with_offsets)
        for address in self.masters(cluster).values():
            self._api.admin.delete_group(address, group, with_offsets=with_offsets)
        known = self.topics()
        for topic in (retry_topic(group), dlq_topic(group)):
            if topic in known:
                self.delete_topic(topic, cluster)

    def groups(self) -> frozenset[str]:
        """Return the names of all consumer groups."""
        return frozenset(
            group
            for address in self.masters().values()
            for group in self._api.admin.group_configs(address)
        )

    def groups_of_topic(self, topic: str) -> frozenset[str]:
        """Return the names of the groups that consume a topic, or have consumed it.

        Raises:
            RouteNotFound: No name server knows the topic, or none of its brokers has a master.
        """
        check_text("topic", topic, "orders")
        return frozenset(
            group
            for _, address in self._brokers_of(topic)
            for group in self._api.admin.groups_of_topic(address, topic)
        )

    # ---- offsets

    def lag(self, group: str, topic: str) -> Lags:
        """Return the progress of a group in each queue of a topic, whether it is online or not.

        Raises:
            RouteNotFound: No name server knows the topic, or none of its brokers has a master.
        """
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

    def progress(self, group: str) -> Lags:
        """Return the progress of a group in all topics that it has offsets of, by one request each.

        Where the group has committed nothing, ``consumer_offset`` is 0: brokers do not tell the two
        apart here, but `lag` does.
        """
        check_text("group", group, "billing")
        return Lags(
            Lag(queue, found.broker_offset, found.consumer_offset, found.last_timestamp)
            for address in self.masters().values()
            for queue, found in sorted(
                self._api.admin.consume_stats(address, group).offset_table.items()
            )
        )

    def set_offset(self, group: str, queue: MessageQueue, queue_offset: int) -> None:
        """Have a consumer group go on at an offset of one queue, whether it is online or not.

        Online members are told to; for all others the offset is stored.

        Args:
            group: Name of the group.
            queue: The queue.
            queue_offset: Offset of the next message to consume.

        Raises:
            MessageRejected: The queue does not have that offset.
            NotSupported: The group is online at a broker of RocketMQ 4.9, which can tell members
                only of times.
        """
        check_text("group", group, "billing")
        check_queue("queue", queue)
        check_number("queue_offset", queue_offset, 42)
        address = self._address_of(queue)
        low, high = self._api.min_offset(address, queue), self._api.max_offset(address, queue)
        if not low <= queue_offset <= high:
            raise MessageRejected("queue_offset", f"one from {low} to {high}", queue_offset)
        if self._api.consumer_ids(address, group):
            self._tell(group, address, queue, queue_offset)
        self._api.update_consumer_offset(address, group, queue, queue_offset)

    def reset_to_time(
        self, group: str, topic: str, timestamp_ms: int, *, is_force: bool = True
    ) -> Mapping[MessageQueue, int]:
        """Have a consumer group go on at a time, in all queues of a topic.

        Args:
            group: Name of the group.
            topic: Name of the topic.
            timestamp_ms: Milliseconds since the epoch, or `LATEST_MS` for the end of each queue.
            is_force: Whether queues may go forward; otherwise they only go back.

        Returns:
            The offset at which the group goes on, by queue.

        Raises:
            MessageRejected: The time is before 1970, or must be seconds.
            RouteNotFound: No name server knows the topic, or none of its brokers has a master.
        """
        check_text("group", group, "billing")
        check_text("topic", topic, "orders")
        check_number("timestamp_ms", timestamp_ms, 1_750_000_000_000)
        if timestamp_ms != LATEST_MS:
            check_timestamp_ms("timestamp_ms", timestamp_ms)
        check_flag("is_force", is_force)
        found: dict[MessageQueue, int] = {}
        for name, address in self._brokers_of(topic):
            header = ResetOffsetRequestHeader(topic, group, timestamp_ms, is_force)
            is_online = bool(self._api.consumer_ids(address, group))
            reset = self._reset_online if is_online else self._reset_offline
            found.update(reset(group, name, address, header))
        return found

    def clone_offsets(self, source: str, target: str, *, topic: str | None = None) -> None:
        """Give a consumer group the offsets of another, so that it goes on where that one is.

        Args:
            source: Name of the group whose offsets are copied.
            target: Name of the group that gets them; its members should be offline.
            topic: Name of the only topic to copy; None copies all that the source has offsets of.

        Raises:
            MessageRejected: A name is not valid.
            BrokerRefused: The source has no offsets there.
        """
        check_group(source, "source")
        check_group(target, "target")
        if topic is None:
            addresses = list(self.masters().values())
        else:
            check_text("topic", topic, "orders")
            addresses = [address for _, address in self._brokers_of(topic)]
        header = CloneGroupOffsetRequestHeader(source, target, topic, offline=True)
        refusals = []
        for address in addresses:
            try:
                self._api.admin.clone_group_offset(address, header)
            except BrokerRefused as error:  # noqa: PERF203  # the other brokers may have some
                if "has no offsets" not in (error.remark or ""):
                    raise
                refusals.append(error)
        if len(refusals) == len(addresses):
            raise refusals[0]

    def _reset_online(
        self, group: str, broker_name: str, address: str, header: ResetOffsetRequestHeader
    ) -> Mapping[MessageQueue, int]:
        """Tell the members, which store their offsets themselves."""
        try:
            return self._api.admin.reset_offset(address, header)
        except ConsumerNotOnline:  # the last has just left
            return self._reset_offline(group, broker_name, address, header)

    def _reset_offline(
        self, group: str, broker_name: str, address: str, header: ResetOffsetRequestHeader
    ) -> Mapping[MessageQueue, int]:
        """Store the offsets at which members begin that come later."""
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
        """Tell the members to go on at an offset of one queue; needs a 5.x or rocketpoll."""
        version = self.instance.connections.peer_version(address)
        if not self._api.agreement(address).extensions and version < _VERSION_5:
            # 4.9 would ignore queue and offset, and send the group to the beginning of time.
            remark = "RocketMQ 4.9 can tell members only of times: stop the group's consumers first"
            raise NotSupported(3, remark, address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
        header = ResetOffsetRequestHeader(
            topic=queue.topic,
            group=group,
            timestamp=0,
            is_force=True,
            queue_id=queue.queue_id,
            offset=queue_offset,
        )
        self._api.admin.reset_offset(address, header)

    # ---- messages

    def message_by_offset_id(self, offset_message_id: str) -> MessageExt:
        """Return the message with an id given by its broker, from the broker that the id names.

        Args:
            offset_message_id: The id, as in ``SendResult.offset_message_id``.

        Raises:
            MessageRejected: The text is not an id of that kind.
            BrokerRefused: The broker does not have the message any more.
        """
        check_text("offset_message_id", offset_message_id, "7F00000100002A9F0000000000000000")
        try:
            host, commit_log_offset = decode_offset_message_id(offset_message_id)
        except RecordError as error:
            raise MessageRejected(
                "message id", "32 or 56 hexadecimal digits", offset_message_id
            ) from error
        address = str(host)
        record = self._api.admin.view_message(address, commit_log_offset)
        names = {each: name for name, each in self.masters().items()}
        return self._decoded(
            address, lambda: received(decode_record(record), names.get(address, ""))
        )

    # ---- within

    def _queues_of(self, broker_name: str, topic: str) -> list[MessageQueue]:
        route = self.instance.routes.route(topic)
        every = {*route.subscribe_queues, *route.publish_queues}
        return sorted(queue for queue in every if queue.broker_name == broker_name)

    def _address_of(self, queue: MessageQueue) -> str:
        self.instance.routes.refresh(queue.topic)
        return self.instance.routes.master_address(queue.broker_name)
