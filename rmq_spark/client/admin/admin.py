"""Admin: an operator's view of a whole cluster, with names instead of addresses.

`Admin` asks every broker that has the topic, or that belongs to the cluster, and merges the
responses. If one broker does not answer, the call fails, because a partial result would look
complete.

Topics and groups are created and deleted here. Offsets, lag and resets are in `group_offsets`;
users and access lists in `access_lists`; lookups of brokers, routes and messages in `lookups`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import fields, replace
from types import NoneType
from typing import TYPE_CHECKING, Final, NamedTuple

from rmq_spark.client.admin.access_lists import AccessLists
from rmq_spark.client.admin.group_offsets import GroupOffsets
from rmq_spark.client.admin.lookups import ADMIN_TIMEOUT_MS, DEFAULT_CLUSTER
from rmq_spark.client.admin.table_display import MessageTable
from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.arguments import (
    check_flag,
    check_group,
    check_kind,
    check_name,
    check_range,
    check_text,
    check_topic,
    explain_all_keywords,
    explain_keywords,
    wrong_kind,
)
from rmq_spark.client.errors import (
    AccessDenied,
    MessageRejected,
    NotSupported,
    ProtocolError,
    RouteNotFound,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import MessageExt
from rmq_spark.client.namespace import Namespace
from rmq_spark.client.reading.read_bounds import READER_GROUP, Bound, ReadRange
from rmq_spark.client.results import PullStatus, SendResult
from rmq_spark.client.serializers import Serializer
from rmq_spark.client.times import EARLIEST, LATEST
from rmq_spark.errors import RecordError, excerpt
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig, TopicFilterType
from rmq_spark.wire.bodies.operators import TopicOffset
from rmq_spark.wire.bodies.staged_batches import SinkState
from rmq_spark.wire.compression import PLAIN_BYTES_MAX
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.message.message_id import decode_offset_message_id, is_unique_id
from rmq_spark.wire.message.record import record_size
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import dlq_topic, retry_topic
from rmq_spark.wire.remoting.java_numbers import INT32_MAX, INT64_MAX

if TYPE_CHECKING:
    import pyarrow as pa

# ---- Topic sizes: no request of RocketMQ returns the bytes of a topic, because the messages of all
# topics share one log. `topic_sizes` samples the first and the last messages of each queue and
# applies their mean size to all.

_RESEND_GROUP: Final = "rocketpoll-dlq"
_SAMPLED: Final = 32
"""Messages sampled at each end of a queue."""


class TopicSize(NamedTuple):
    """The number of messages in a topic, and their estimated size."""

    messages: int
    stored_bytes: int  # estimated bytes of the messages in the commit log
    last_timestamp: int  # store time of the last message, in ms since the epoch; 0 if there is none


def estimate_topic_size(
    instance: ClientInstance, offsets: Mapping[MessageQueue, TopicOffset]
) -> TopicSize:
    """Estimate the size of a topic from some messages at the ends of each queue."""
    messages = stored_bytes = last = 0
    for queue, held in offsets.items():
        count = max(held.max_offset - held.min_offset, 0)
        if not count:
            continue
        means = list(_mean_record_sizes(instance, queue, held))
        messages += count
        stored_bytes += round(count * sum(means) / len(means)) if means else 0
        last = max(last, held.last_update_timestamp)
    return TopicSize(messages, stored_bytes, last)


def _mean_record_sizes(
    instance: ClientInstance, queue: MessageQueue, offsets: TopicOffset
) -> Iterator[float]:
    """Yield the mean length of the first records of a queue, and of its last ones.

    The first and the last messages are averaged separately, because a broker returns fewer messages
    per pull where they are long.
    """
    address = instance.routes.address_for_read(queue.broker_name)
    first_sample_end = offsets.min_offset + _SAMPLED
    starts = [offsets.min_offset]
    if offsets.max_offset > first_sample_end:
        starts.append(max(offsets.max_offset - _SAMPLED, first_sample_end))
    for start in starts:
        pulled = instance.api.peek(address, READER_GROUP, queue, start, _SAMPLED)
        if pulled.pull_status is PullStatus.FOUND:
            sizes = list(_record_sizes(memoryview(pulled.records)))
            if sizes:
                yield sum(sizes) / len(sizes)


def _record_sizes(records: memoryview) -> Iterator[int]:
    at = 0
    try:
        while at < len(records):
            size = record_size(records, at)
            yield size
            at += size
    except RecordError:  # readers of the queue report the damage
        return


# ---- Config checks: settings of topics and groups, checked before they are sent to a broker.

_INT64_FIELDS: Final = frozenset({"broker_id", "which_broker_when_consume_slowly"})
_OTHER_FIELDS: Final[Mapping[str, tuple[type | tuple[type, ...], str, str]]] = {
    "topic_filter_type": (TopicFilterType, "a TopicFilterType", "TopicFilterType.SINGLE_TAG"),
    "group_retry_policy": (Mapping, "a mapping, as in RocketMQ's JSON", '{"type": "CUSTOMIZED"}'),
    "subscription_data_set": ((list, tuple), "a list of mappings", '[{"topic": "orders"}]'),
    "attributes": (Mapping, "a mapping of strings", '{"message.type": "NORMAL"}'),
}
"""Settings that are neither numbers nor booleans: types, description and example for errors."""


def check_topic_config(config: TopicConfig | None) -> None:
    """Raise an error if a setting of a topic has an invalid value."""
    if config is not None:
        example = 'TopicConfig(topic_name="orders", perm=6)'
        check_kind("config", config, TopicConfig, "a TopicConfig", example)
        _check_settings(config)


def check_group_config(config: SubscriptionGroupConfig | None) -> None:
    """Raise an error if a setting of a group has an invalid value."""
    if config is not None:
        example = 'SubscriptionGroupConfig(group_name="billing", retry_max_times=3)'
        check_kind("config", config, SubscriptionGroupConfig, "a SubscriptionGroupConfig", example)
        _check_settings(config)


def _check_settings(config: TopicConfig | SubscriptionGroupConfig) -> None:
    for each in fields(config):
        name, value = f"{each.name} of config", getattr(config, each.name)
        types = str(each.type).split(" | ")
        if value is None and ("None" in types or "Any" in types):
            continue
        if "bool" in types:
            check_flag(name, value)
        elif "int" in types:
            most = INT64_MAX if each.name in _INT64_FIELDS else INT32_MAX
            check_range(name, value, -most - 1, most)
        elif each.name in _OTHER_FIELDS:
            kinds, needed, example = _OTHER_FIELDS[each.name]
            check_kind(name, value, kinds, needed, example)
            parts: Iterable[object] = ()
            kind: type = Mapping
            if each.name == "subscription_data_set":
                parts = value
            elif each.name == "attributes":
                parts, kind = (*value, *value.values()), str
            for part in parts:
                check_kind(f"one of {name}", part, kind, needed, example)


# ---- Topic creation: many topics on one broker, with few requests and few flushes of its disk.
#
# RocketMQ from 5.3 on, and our broker, accept lists of topics (UPDATE_AND_CREATE_TOPIC_LIST). Other
# brokers get a request for each topic, many at a time. If a topic of a list exists with the same
# settings, RocketMQ changes nothing, and reports success. So `create_topics` reads a broker's
# topics after the lists, and sends those again that were not created or changed.

_LIST_BYTES_MAX: Final = 200_000
"""Most bytes of a list; our broker accepts 262,144 (maxJsonBodyBytes)."""
_REQUESTS_MAX: Final = 32
"""Most pending requests at one broker, which takes some 20 ms for each if it has many topics."""


def create_topics(api: BrokerApi, address: str, configs: Sequence[TopicConfig]) -> None:
    """Create topics on a broker, or change those that exist."""
    left = configs
    with suppress(NotSupported):
        while len(left) > 1:
            for part in _lists(left):
                api.admin.create_topic_list(address, part)
            if api.agreement(address).extensions:
                return
            unchanged = _configs_to_update(left, api.admin.topic_configs(address))
            if len(unchanged) == len(left):
                break
            left = unchanged
    _create_each(api, address, left)


def _lists(configs: Iterable[TopicConfig]) -> Iterator[list[TopicConfig]]:
    part: list[TopicConfig] = []
    part_bytes = 0
    for config in configs:
        config_bytes = len(encode_body(config)) + 1
        if part and part_bytes + config_bytes > _LIST_BYTES_MAX:
            yield part
            part, part_bytes = [], 0
        part.append(config)
        part_bytes += config_bytes
    yield part


def _configs_to_update(
    configs: Iterable[TopicConfig], known: Mapping[str, TopicConfig]
) -> list[TopicConfig]:
    """Return the topics that the broker does not have, or has with other settings."""
    return [
        config
        for config in configs
        if (found := known.get(config.topic_name)) is None
        or replace(found, attributes=None) != replace(config, attributes=None)
        or not (config.attributes or {}).items() <= (found.attributes or {}).items()
    ]


def _create_each(api: BrokerApi, address: str, configs: Iterable[TopicConfig]) -> None:
    pending: deque[Future[None]] = deque()
    for config in configs:
        if len(pending) == _REQUESTS_MAX:
            pending.popleft().result()
        pending.append(api.admin.create_topic_async(address, config))
    while pending:
        pending.popleft().result()


@explain_all_keywords
class Admin(GroupOffsets, AccessLists):
    """Administers topics, consumer groups with their offsets, and users, and looks up messages.

    Use it in a ``with`` statement, or call `close` at the end. All methods may be called from any
    thread. Besides the errors that they list, they raise `RouteNotFound` if no name server knows a
    topic or the topic has no master, `BrokerNotFound` if no master is known, another `ClientError`
    if a required name server or broker refuses or does not answer, and TypeError for an argument of
    the wrong type. A change goes to one broker after the other, in the order of their names: after
    an error, the brokers before the failed one have it, and the others do not. Any call but
    `resend` may be repeated: it changes nothing twice.

    Topics: `topics`, `create_topic`, `create_topics`, `delete_topic`, `find_topic`,
    `topic_configs`, `all_topic_configs`, `topic_offsets`, `topic_size`, `timer_count`,
    `timer_counts`, `route`, `groups_of_topic`.

    Consumer groups: `groups`, `create_group`, `delete_group`, `members`, `queue_owners`,
    `queue_reports`.

    Offsets of groups: `lag`, `describe_group`, `progress`, `set_offset`, `reset_to_time`,
    `clone_offsets`.

    Dead letters of groups: `dead_letters`, `resend`.

    Messages: `messages_by_key`, `messages_by_unique_id`, `message_by_offset_id`, `message_at`,
    `message_traces`, `read_table`, `read_committed`.

    Users and access lists: `users`, `user`, `create_user`, `update_user`, `delete_user`, `acls`,
    `create_acl`, `delete_acl`.

    Brokers: `cluster_info`, `masters`, `broker_info`, `runtime_info`.

    Ending: `close`.

    Example:
        with Admin("localhost:9876") as admin:
            admin.create_topic("orders", queues=4)
            print(sum(each.messages for each in admin.lag("billing", "orders")))

    Args:
        namesrv: Addresses of the name servers, as ``"host:port;host:port"`` or an iterable of
            ``"host:port"``. Defaults to the environment variable NAMESRV_ADDR.
        instance: A `ClientInstance` to share with producers and consumers; ``namesrv`` is then
            ignored. Without it, this object has an instance of its own.
        namespace: Namespace of the names of topics and groups: a topic ``orders`` is ``eu%orders``
            for brokers, and topics and groups outside of the namespace are not listed. A shared
            instance has its own. Names in access lists include the namespace.
    """

    def __init__(
        self,
        namesrv: str | Iterable[str] | None = None,
        *,
        instance: ClientInstance | None = None,
        namespace: str | None = None,
    ) -> None:
        example = "ClientInstance('localhost:9876')"
        check_kind("instance", instance, (ClientInstance, NoneType), "a ClientInstance", example)
        Namespace.check_unshared(namespace, instance, "instance")
        self._is_instance_shared = instance is not None
        super().__init__(
            instance
            or ClientInstance(namesrv, request_timeout_ms=ADMIN_TIMEOUT_MS, namespace=namespace)
        )

    def __enter__(self) -> Admin:
        self.instance.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.instance.stop()

    def close(self) -> None:
        """Close all connections of this object; a shared instance stays open.

        Call it if the `Admin` is used without a ``with`` statement, such as in a notebook.
        """
        if not self._is_instance_shared:
            self.instance.close()

    # ---- topics

    def topics(self, cluster: str | None = None) -> frozenset[str]:
        """Return the names of all topics.

        Args:
            cluster: Name of the cluster; None for all clusters. An unknown cluster has no topics.
        """
        cluster = check_name("cluster", cluster, DEFAULT_CLUSTER)
        return self._names.own(self.instance.name_servers.admin.topics(cluster))

    def create_topic(
        self,
        topic: str,
        queues: int = 8,
        *,
        cluster: str | None = None,
        broker_name: str | None = None,
        config: TopicConfig | None = None,
    ) -> None:
        """Create a topic on all masters, or change it where it exists.

        Args:
            topic: Name of the topic.
            queues: Number of queues on each master, for reading and for writing.
            cluster: Name of the cluster; None for the masters of all clusters.
            broker_name: Name of the only broker to create it on; None for all masters.
            config: Full settings, instead of ``queues``; its ``topic_name`` is ignored.

        Raises:
            MessageRejected: The name is not valid, or ``queues`` is less than 1.
            BrokerNotFound: There are no masters, or none of that name.
        """
        self.create_topics(
            [check_topic(topic)],
            queues,
            cluster=cluster,
            broker_name=broker_name,
            config=config,
        )

    def create_topics(
        self,
        topics: Iterable[str],
        queues: int = 8,
        *,
        cluster: str | None = None,
        broker_name: str | None = None,
        config: TopicConfig | None = None,
    ) -> None:
        """Create topics with the same settings on all masters, or change those that exist.

        A broker that accepts lists of topics (RocketMQ from 5.3 on, and rocketpoll) gets a few
        requests, any other broker one request per topic. After an error, some topics may have been
        created.

        Args:
            topics: Names of the topics.
            queues: Number of queues of each on each master, for reading and for writing.
            cluster: Name of the cluster; None for the masters of all clusters.
            broker_name: Name of the only broker to create them on; None for all masters.
            config: Full settings, instead of ``queues``; its ``topic_name`` is ignored.

        Raises:
            MessageRejected: A name is not valid, or ``queues`` is less than 1. Nothing is created.
            BrokerNotFound: There are no masters, or none of that name.
        """
        example = '["orders", "bills"]'
        if isinstance(topics, str):
            raise wrong_kind("topics", "several names", f"str {excerpt(topics)}", example)
        check_kind("topics", topics, Iterable, "several names", example)
        names = dict.fromkeys(self._names.wrap(check_topic(each)) for each in topics)
        check_range("queues", queues, 1, INT32_MAX)
        check_topic_config(config)
        settings = config or TopicConfig(
            topic_name="", read_queue_nums=queues, write_queue_nums=queues
        )
        configs = [replace(settings, topic_name=name) for name in names]
        for address in self._selected_masters(cluster, broker_name).values():
            create_topics(self._api, address, configs)

    def delete_topic(
        self, topic: str, cluster: str | None = None, *, missing_ok: bool = False
    ) -> None:
        """Delete a topic, with its messages, from all masters and name servers.

        Args:
            topic: Name of the topic.
            cluster: Name of the cluster; None for all clusters.
            missing_ok: Whether to accept that the topic does not exist.

        Raises:
            RouteNotFound: There is no such topic, unless ``missing_ok``.
        """
        check_flag("missing_ok", missing_ok)
        is_known = missing_ok or bool(self.find_topic(topic, cluster))
        topic = self._names.wrap(check_text("topic", topic, "orders"))
        if not is_known:
            self._brokers_of(topic)  # raises unless an unavailable broker has the topic
        for address in self.masters(cluster).values():
            self._api.admin.delete_topic(address, topic)
        self.instance.name_servers.admin.delete_topic(topic, cluster)
        self.instance.routes.discard(topic)

    def topic_size(self, topic: str) -> TopicSize:
        """Return the number of messages in a topic, and an estimate of their bytes in the log."""
        topic = self._names.wrap(check_text("topic", topic, "orders"))
        return estimate_topic_size(self.instance, self._queue_ends(topic))

    def timer_count(self, topic: str) -> int | None:
        """Return the number of messages of a topic that wait for their time of delivery.

        None if a broker does not report it (RocketMQ 4.9), or denies it because this client has no
        right on the cluster.
        """
        topic = check_topic(topic)
        counts = self.timer_counts()
        return None if counts is None else counts.get(self._names.strip(topic), 0)

    def timer_counts(self) -> Mapping[str, int] | None:
        """Return the number of messages that wait for their time of delivery, by topic.

        Topics without any are left out. None if a broker does not report it (RocketMQ 4.9), or
        denies it because this client has no right on the cluster.
        """
        try:
            tables = [self._api.admin.timer_metrics(each) for each in self.masters().values()]
        except (NotSupported, AccessDenied):
            return None
        counts: Counter[str] = Counter()
        for table in tables:
            counts.update({topic: count for topic, count in table.items() if count > 0})
        return {short: counts[self._names.wrap(short)] for short in self._names.own(counts)}

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
        group = self._names.wrap(check_group(group))
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
        """
        group = self._names.wrap(check_text("group", group, "billing"))
        check_flag("with_offsets", with_offsets)
        for address in self.masters(cluster).values():
            self._api.admin.delete_group(address, group, with_offsets=with_offsets)
        known = self.instance.name_servers.admin.topics()
        for topic in (retry_topic(group), dlq_topic(group)):
            if topic in known:
                self.delete_topic(topic, cluster, missing_ok=True)

    def groups(self) -> frozenset[str]:
        """Return the names of all consumer groups."""
        return self._names.own(
            group
            for address in self.masters().values()
            for group in self._api.admin.group_configs(address)
        )

    def groups_of_topic(self, topic: str) -> frozenset[str]:
        """Return the names of the groups that consume a topic, or have consumed it."""
        topic = self._names.wrap(check_text("topic", topic, "orders"))
        return self._names.own(
            group
            for _, address in self._brokers_of(topic)
            for group in self._api.admin.groups_of_topic(address, topic)
        )

    # ---- messages

    def dead_letters(self, group: str, messages_max: int = 1_000) -> MessageTable:
        """Return the dead letters of a consumer group, the oldest first.

        These are the messages that still failed after all retries of the group. A letter's
        ``real_topic`` is its original topic; a letter that cannot be read has a ``fault``.

        Args:
            group: Name of the group.
            messages_max: Most messages to return: the newest ones.

        Raises:
            GroupNotFound: No broker knows the group.
        """
        from rmq_spark.client.reading.bulk_pull import stored_messages  # noqa: PLC0415  # brings numpy

        group = self._names.wrap(check_group(group))
        check_range("messages_max", messages_max)
        letters: list[MessageExt] = []
        try:
            offsets = self._queue_ends(dlq_topic(group))
        except RouteNotFound:  # the topic is created for the first dead letter
            self._check_group_exists(group, tuple(self.masters().values()))
            return MessageTable()
        for queue, held in offsets.items():
            start = max(held.min_offset, held.max_offset - messages_max)
            address = self.instance.routes.address_for_read(queue.broker_name)
            letters += stored_messages(self._api, ReadRange(queue, address, start, held.max_offset))
        letters.sort(key=lambda each: (each.store_timestamp, each.queue, each.queue_offset))
        return MessageTable(map(self._names.strip_message, letters[-messages_max:]))

    def resend(self, letters: Iterable[MessageExt], to: str | None = None) -> list[SendResult]:
        """Send the original messages of dead letters again, one by one, and return the results.

        Each has the body, tag, keys and properties of the original, and all groups of the topic
        receive it. The dead letter stays until the broker deletes it by age.

        Args:
            letters: Dead letters, such as some of `dead_letters`.
            to: The topic to send to; by default the original topic of each.

        Raises:
            NotResendable: A letter does not name its original topic, or its body is damaged.
                Nothing was sent.
            ClientError: A message could not be sent. Those before it were sent.
        """
        from rmq_spark.client.forwarding import message_of_dead_letter  # noqa: PLC0415  # rarely needed
        from rmq_spark.client.producer.prepared_message import SendRules  # noqa: PLC0415  # rarely needed
        from rmq_spark.client.producer.producer import Producer  # noqa: PLC0415  # rarely needed

        check_kind(
            "letters", letters, Iterable, "several messages", "admin.dead_letters('billing')"
        )
        letters = list(letters)
        for each in letters:
            check_kind("one of letters", each, MessageExt, "a MessageExt", "dead_letters('g')[0]")
            found = each.properties
            check_kind("properties of a letter", found, Mapping, "a mapping", "{'colour': 'red'}")
        to = None if to is None else check_topic(to, "to")
        originals = [message_of_dead_letter(each, to) for each in letters]
        rules = SendRules(_RESEND_GROUP, max_message_bytes=PLAIN_BYTES_MAX)  # accepted once already
        with Producer(_RESEND_GROUP, instance=self.instance, rules=rules) as producer:
            return [producer.send(each) for each in originals]

    def message_by_offset_id(self, offset_message_id: str) -> MessageExt:
        """Return the message with an offset message id, from the broker that the id names.

        A message that cannot be read has a ``fault``, and its body as it is stored.

        Args:
            offset_message_id: The id in ``SendResult.offset_message_id``.

        Raises:
            MessageRejected: The text is not an offset message id; a producer's id is not one.
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
                "an offset message id, such as SendResult.offset_message_id; for the unique id of "
                "a producer, call messages_by_unique_id(topic, message_id)",
                offset_message_id,
            )
        address = str(host)
        record = self._api.admin.view_message(address, commit_log_offset)
        names = {each: name for name, each in self.masters().items()}
        found = next(self._messages(address, record, names.get(address, "")), None)
        if found is None:
            raise ProtocolError(address, "its response contains no message")
        return self._names.strip_message(found)


# ---- Sinks that stage their batches on our brokers; RocketMQ's brokers are skipped.


class BrokerSink(NamedTuple):
    """A sink, with its state at one broker: the last batch that it has committed."""

    name: str
    broker_name: str
    state: SinkState


def broker_sinks(admin: Admin, topic: str | None = None) -> list[BrokerSink]:
    """Return the sinks that have committed staged batches on our brokers."""
    return [
        BrokerSink(name, broker_name, state)
        for broker_name, address in _staging_brokers(admin)
        for name, state in sorted(admin.instance.api.admin.sinks(address).items())
        if topic is None or topic in state.topics
    ]


def remove_sink(admin: Admin, name: str) -> list[str]:
    """Remove a sink and its staged rows from all brokers; return the names of those that had it."""
    return [
        broker_name
        for broker_name, address in _staging_brokers(admin)
        if admin.instance.api.admin.forget_sink(address, name)
    ]


def _staging_brokers(admin: Admin) -> Iterator[tuple[str, str]]:
    """Yield the names and addresses of the masters on which batches can be staged."""
    for name, address in admin.masters().items():
        if Extension.STAGED_BATCHES in admin.instance.api.agreement(address).extensions:
            yield name, address


# ---- Tables for notebooks: each function makes an `Admin`, reads a topic with it, and closes it.


@explain_keywords
def read_table(
    topic: str,
    namesrv: str | Iterable[str] | None = None,
    *,
    start: Bound = EARLIEST,
    end: Bound = LATEST,
    columns: Iterable[str] | None = None,
    tags: str | None = None,
    body: str | Serializer | None = None,
    on_bad_record: str = "fail",
    bytes_max: int = 2 << 30,
    instance: ClientInstance | None = None,
    namespace: str | None = None,
) -> pa.Table:
    """Return the messages of a topic as a pyarrow Table; no group's offsets change.

        columns = ["body", "storeTimestamp"]
        orders = rocketpoll.read_table("orders", "localhost:9876", columns=columns)
        orders.to_pandas()

    Args:
        topic: The topic to read.
        namesrv: Addresses as ``host:port;host:port``; by default those in ``NAMESRV_ADDR``.
        start: The first messages to read: ``"earliest"``, ``"latest"``, ``"-1h"`` (an hour ago), a
            time (such as ``"2026-01-31T12:00:00Z"``, in UTC if it has no zone, a datetime with a
            zone, or milliseconds since 1970), or ``{queue: offset}``.
        end: A bound of the same kinds, before which to end.
        columns: Names of columns; nothing else is decoded.
        tags: ``"a || b"`` for messages with one of these tags.
        body: ``"json"``, ``"msgpack"``, ``"text"`` or a serializer such as `avro` makes: the fields
            of the bodies are columns in place of ``body``, with the types that their values
            have; a body without fields cannot be read. By default, bodies are bytes.
        on_bad_record: Handling of a message that cannot be read: ``"fail"`` ends the read,
            ``"null"`` returns a row without its body, ``"skip"`` omits it.
        bytes_max: The most bytes that the table may take, with bodies inflated.
        instance: A client to read with, as for TLS and credentials, instead of ``namesrv``.
        namespace: Namespace of the topic's name. A shared instance has its own.

    Raises:
        RouteNotFound: There is no such topic.
        TableTooLarge: The table would take more than ``bytes_max``.
        MessageUnreadable: A message cannot be read, and ``on_bad_record`` is ``"fail"``.
    """
    with Admin(namesrv, instance=instance, namespace=namespace) as admin:
        return admin.read_table(
            topic,
            start=start,
            end=end,
            columns=columns,
            tags=tags,
            body=body,
            on_bad_record=on_bad_record,
            bytes_max=bytes_max,
        )


@explain_keywords
def read_committed(
    topic: str,
    namesrv: str | Iterable[str] | None = None,
    *,
    start: Bound = EARLIEST,
    end: Bound = LATEST,
    columns: Iterable[str] | None = None,
    tags: str | None = None,
    bytes_max: int = 2 << 30,
    instance: ClientInstance | None = None,
    namespace: str | None = None,
) -> pa.Table:
    """Return the rows of a topic that Spark sinks have committed, as a pyarrow Table.

        bills = rocketpoll.read_committed("bills", "localhost:9876", columns=["body"])
        bills.to_pandas()

    Args:
        topic: The topic to read, written to with ``delivery=exactly_once``.
        namesrv: Addresses as ``host:port;host:port``; by default those in ``NAMESRV_ADDR``.
        start: The first batches to read, by when they were committed: ``"earliest"``,
            ``"latest"``, ``"-1h"`` (an hour ago), or a time (such as ``"2026-01-31T12:00:00Z"``, a
            datetime with a zone, or milliseconds since 1970).
        end: A bound of the same kinds, before which to end.
        columns: Names of columns; nothing else is decoded.
        tags: ``"a || b"`` for messages with one of these tags.
        bytes_max: The most bytes that the table may take, with bodies inflated.
        instance: A client to read with, as for TLS and credentials, instead of ``namesrv``.
        namespace: Namespace of the topic's name. A shared instance has its own.

    Raises:
        RouteNotFound: There is no such topic, or nothing was committed to it yet.
        TableTooLarge: The table would take more than ``bytes_max``.
    """
    with Admin(namesrv, instance=instance, namespace=namespace) as admin:
        return admin.read_committed(
            topic, start=start, end=end, columns=columns, tags=tags, bytes_max=bytes_max
        )
