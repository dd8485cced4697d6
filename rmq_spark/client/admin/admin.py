"""Admin: an operator's view of a whole cluster, with names instead of addresses.

This module creates and deletes topics and consumer groups. Offsets, lag and resets are in
`group_offsets`, brokers and routes in `cluster_lookups`, single messages in `message_lookups`.
`Admin` asks every broker that has the topic, or that belongs to the cluster, and merges the
answers. If one broker does not answer, the call fails: half an answer would look complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from types import NoneType, TracebackType
from typing import Final

from rmq_spark.client.admin.group_offsets import GroupOffsets
from rmq_spark.client.admin.reads.message_lookups import ADMIN_TIMEOUT_MS
from rmq_spark.client.admin.topic_sizes import TopicSize, estimate_topic_size
from rmq_spark.client.arguments import (
    INT32_MAX,
    INT64_MAX,
    check_flag,
    check_group,
    check_kind,
    check_name,
    check_range,
    check_text,
    check_topic,
)
from rmq_spark.client.errors import BrokerNotFound, MessageRejected, ProtocolError
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import RecordError
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig, TopicFilterType
from rmq_spark.wire.bodies.stats import TopicOffset
from rmq_spark.wire.message_id import decode_offset_message_id, is_unique_id
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import dlq_topic, retry_topic

# ---- Config checks: settings of topics and groups, checked before they are sent to a broker.

_NONE_TYPE: Final = "None"
_BOOL_TYPE: Final = "bool"
_INT_TYPE: Final = "int"
_INT64_FIELDS: Final = frozenset({"broker_id", "which_broker_when_consume_slowly"})


def check_topic_config(config: TopicConfig | None) -> None:
    """Raise an error if a setting of a topic has a value that it cannot have.

    Raises:
        MessageRejected: A number is too large for its field.
        TypeError: A setting has the wrong type; the error names it.
    """
    if config is None:
        return
    check_kind(
        "config", config, TopicConfig, "a TopicConfig", 'TopicConfig(topic_name="orders", perm=6)'
    )
    _check_settings(config)
    kind, example = config.topic_filter_type, "TopicFilterType.SINGLE_TAG"
    check_kind("topic_filter_type of config", kind, TopicFilterType, "a TopicFilterType", example)
    _check_attributes(config.attributes)


def check_group_config(config: SubscriptionGroupConfig | None) -> None:
    """Raise an error if a setting of a group has a value that it cannot have.

    Raises:
        MessageRejected: A number is too large for its field.
        TypeError: A setting has the wrong type; the error names it.
    """
    if config is None:
        return
    example = 'SubscriptionGroupConfig(group_name="billing", retry_max_times=3)'
    check_kind("config", config, SubscriptionGroupConfig, "a SubscriptionGroupConfig", example)
    _check_settings(config)
    policy, needed, example = (
        config.group_retry_policy,
        "a mapping, as in RocketMQ's JSON",
        '{"type": "CUSTOMIZED"}',
    )
    check_kind("group_retry_policy of config", policy, (Mapping, NoneType), needed, example)
    data, needed, example = (
        config.subscription_data_set,
        "a list of mappings",
        '[{"topic": "orders"}]',
    )
    check_kind("subscription_data_set of config", data, (list, tuple, NoneType), needed, example)
    for each in data or ():
        check_kind("one of subscription_data_set of config", each, Mapping, needed, example)
    _check_attributes(config.attributes)


def _check_settings(config: TopicConfig | SubscriptionGroupConfig) -> None:
    """Raise an error if a setting has not its kind: a number, or true or false."""
    for each in fields(config):
        name, value = f"{each.name} of config", getattr(config, each.name)
        kinds = str(each.type).split(" | ")
        if value is None and _NONE_TYPE in kinds:
            continue
        if _BOOL_TYPE in kinds:
            check_flag(name, value)
        elif _INT_TYPE in kinds:
            most = INT64_MAX if each.name in _INT64_FIELDS else INT32_MAX
            check_range(name, value, -most - 1, most)


def _check_attributes(attributes: Mapping[str, str] | None) -> None:
    needed, example = "a mapping of texts", '{"message.type": "NORMAL"}'
    check_kind("attributes of config", attributes, (Mapping, NoneType), needed, example)
    for each in (*(attributes or {}), *(attributes or {}).values()):
        check_kind("one of attributes of config", each, str, needed, example)


_CLUSTER: Final = "DefaultCluster"


class Admin(GroupOffsets):
    """Administers topics, consumer groups and their offsets, and looks up messages.

    All methods may be called from any thread, within the ``with`` statement. Besides the errors
    that they list, they raise a `ClientError` if a name server or a broker that has to be asked
    does not answer, or refuses. Changes are made on one broker after the other, in the order of
    their names. After such an error, the brokers before the failed one have the change, and the
    others do not. Any call may be repeated: it changes nothing twice.

    Topics: `topics`, `create_topic`, `delete_topic`, `topic_configs`, `all_topic_configs`,
    `topic_offsets`, `topic_size`, `route`, `groups_of_topic`.

    Consumer groups: `groups`, `create_group`, `delete_group`, `members`, `queue_owners`,
    `queue_reports`.

    Offsets of groups: `lag`, `progress`, `set_offset`, `reset_to_time`, `clone_offsets`.

    Messages: `messages_by_key`, `messages_by_unique_id`, `message_by_offset_id`, `message_at`,
    `read_table`, `read_committed`.

    Brokers: `cluster_info`, `masters`, `broker_info`, `runtime_info`.

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
        self.instance.__exit__(kind, error, traceback)

    # ---- topics

    def topics(self, cluster: str | None = None) -> frozenset[str]:
        """Return the names of all topics.

        Args:
            cluster: Name of the cluster; None for all clusters. An unknown cluster has no topics.

        Raises:
            NoNameServer: No name server answers.
            TypeError: The cluster's name is no text.
        """
        cluster = check_name("cluster", cluster, _CLUSTER)
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
            ClientError: A broker or name server does not answer, or refuses. The masters
                before it have the topic.
            TypeError: An argument has the wrong type.
        """
        topic = check_topic(topic)
        broker_name = check_name("broker_name", broker_name, "broker-a")
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

        Deleting a topic that does not exist is no error.

        Args:
            topic: Name of the topic.
            cluster: Name of the cluster; None for all clusters.

        Raises:
            BrokerNotFound: The name servers know no master, or none of that cluster.
            ClientError: A broker or name server does not answer, or refuses. The brokers
                before it have deleted the topic.
            TypeError: An argument has the wrong type.
        """
        topic = check_text("topic", topic, "orders")
        for address in self.masters(cluster).values():
            self._api.admin.delete_topic(address, topic)
        self.instance.name_servers.admin.delete_topic(topic, cluster)
        self.instance.routes.discard(topic)

    def topic_offsets(self, topic: str) -> Mapping[MessageQueue, TopicOffset]:
        """Return the first and last offset of each queue of a topic, and when it was last written.

        Raises:
            RouteNotFound: No name server knows the topic, or none of its brokers has a master.
        """
        topic = check_text("topic", topic, "orders")
        return dict(
            pair
            for _, address in self._brokers_of(topic)
            for pair in sorted(self._api.admin.topic_stats(address, topic).offset_table.items())
        )

    def topic_size(self, topic: str) -> TopicSize:
        """Return the number of messages in a topic, and an estimate of their bytes in the log.

        Raises:
            RouteNotFound: No name server knows the topic, or none of its brokers has a master.
        """
        return estimate_topic_size(self.instance, self.topic_offsets(topic))

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
            BrokerNotFound: The name servers know no master, or none of that cluster.
            ClientError: A broker or name server does not answer, or refuses. The masters
                before it have the group.
            TypeError: An argument has the wrong type.
        """
        group = check_group(group)
        check_group_config(config)
        config = replace(config or SubscriptionGroupConfig(group_name=group), group_name=group)
        for address in self.masters(cluster).values():
            self._api.admin.create_group(address, config)

    def delete_group(
        self, group: str, *, cluster: str | None = None, with_offsets: bool = True
    ) -> None:
        """Delete a consumer group, with its retry topic and its dead letters.

        Deleting a group that does not exist is no error.

        Args:
            group: Name of the group.
            cluster: Name of the cluster; None for the masters of all clusters.
            with_offsets: Whether to delete its committed offsets as well.

        Raises:
            BrokerNotFound: The name servers know no master, or none of that cluster.
            ClientError: A broker or name server does not answer, or refuses. The brokers
                before it have deleted the group.
            TypeError: An argument has the wrong type.
        """
        group = check_text("group", group, "billing")
        check_flag("with_offsets", with_offsets)
        for address in self.masters(cluster).values():
            self._api.admin.delete_group(address, group, with_offsets=with_offsets)
        known = self.topics()
        for topic in (retry_topic(group), dlq_topic(group)):
            if topic in known:
                self.delete_topic(topic, cluster)

    def groups(self) -> frozenset[str]:
        """Return the names of all consumer groups.

        Raises:
            BrokerNotFound: The name servers know no master.
            ClientError: A broker or name server does not answer, or refuses.
        """
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
        topic = check_text("topic", topic, "orders")
        return frozenset(
            group
            for _, address in self._brokers_of(topic)
            for group in self._api.admin.groups_of_topic(address, topic)
        )

    # ---- messages

    def message_by_offset_id(self, offset_message_id: str) -> MessageExt:
        """Return the message with an id given by its broker, from the broker that the id names.

        A message that cannot be read has a ``fault``, and its body as it is stored.

        Args:
            offset_message_id: The id that ``SendResult.offset_message_id`` has.

        Raises:
            MessageRejected: The text is not an id of that kind, as one given by a producer is not.
            BrokerRefused: The broker does not have the message any more.
        """
        offset_message_id = check_text(
            "offset_message_id", offset_message_id, "7F00000100002A9F0000000000000000"
        )
        try:
            host, commit_log_offset = decode_offset_message_id(offset_message_id)
        except RecordError as error:
            raise MessageRejected(
                "message id", "32 or 56 hexadecimal digits", offset_message_id
            ) from error
        if is_unique_id(offset_message_id):
            raise MessageRejected(
                "message id",
                "one of a broker, as SendResult.offset_message_id; this is its producer's: ask for "
                "messages_by_unique_id(topic, message_id)",
                offset_message_id,
            )
        address = str(host)
        record = self._api.admin.view_message(address, commit_log_offset)
        names = {each: name for name, each in self.masters().items()}
        found = self._messages(address, record, names.get(address, ""))
        if not found:
            raise ProtocolError(address, "its answer has no message")
        return found[0]
