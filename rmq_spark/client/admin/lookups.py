"""Lookups: an operator's requests that read from a cluster and change nothing.

They return messages of a topic by key, id or offset, or all of them as a table; brokers, routes,
settings of topics, and members of groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rmq_spark.client.admin.lag import QueueReport
from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.arguments import (
    check_name,
    check_offset,
    check_queue,
    check_range,
    check_text,
    check_timestamp_ms,
    explain_all_keywords,
)
from rmq_spark.client.errors import (
    AccessDenied,
    BrokerNotFound,
    ClientError,
    ConsumerNotOnline,
    GroupNotFound,
    LookupTooLarge,
    NotFound,
    ProtocolError,
    RouteNotFound,
)
from rmq_spark.client.instance.instance import ClientInstance, suggest_similar_topics
from rmq_spark.client.message import MessageExt, decode_messages, decode_pulled
from rmq_spark.client.reading.read_bounds import READER_GROUP, Bound
from rmq_spark.client.results import PullStatus
from rmq_spark.client.serializers import Serializer
from rmq_spark.client.times import EARLIEST, LATEST
from rmq_spark.errors import WireError, nearest_name, sanitize
from rmq_spark.wire.bodies.clients import BrokerData, TopicRouteData
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.bodies.operators import (
    ClusterInfo,
    Connection,
    ConsumerConnection,
    TopicOffset,
)
from rmq_spark.wire.codes import MASTER_ID
from rmq_spark.wire.headers.operators import QueryMessageRequestHeader
from rmq_spark.wire.message.properties import UNIQ_KEY
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import TRACE_TOPIC
from rmq_spark.wire.remoting.framing import Buffer
from rmq_spark.wire.remoting.java_numbers import INT32_MAX, INT64_MAX
from rmq_spark.wire.trace import MessageTrace, decode_traces

if TYPE_CHECKING:
    import pyarrow as pa

ADMIN_TIMEOUT_MS: Final = 5_000
DEFAULT_CLUSTER: Final = "DefaultCluster"
FOREVER_MS: Final = (1 << 63) - 1
QUERY_MESSAGES_MAX: Final = 64
QUERY_BYTES_MAX: Final = 256 << 20
"""Default limit of the bodies of a lookup: `QUERY_MESSAGES_MAX` bodies of 4 MiB each, which is the
producers' default limit."""


@explain_all_keywords
class Lookups:
    """Read-only lookups of brokers, routes, topic settings, group members and messages."""

    def __init__(self, instance: ClientInstance) -> None:
        self.instance = instance
        self._names = instance.namespace
        self._api = BrokerApi(instance.connections, ADMIN_TIMEOUT_MS, instance.api.max_body_bytes)

    # ---- messages

    def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        messages_max: int = QUERY_MESSAGES_MAX,
        bytes_max: int = QUERY_BYTES_MAX,
    ) -> tuple[MessageExt, ...]:
        """Return the newest messages of a topic that have a key.

        A message that cannot be read has a ``fault``, and its body as it is stored.

        Args:
            topic: Name of the topic.
            key: One of the message's keys.
            begin_ms: Earliest store time, in milliseconds since the epoch.
            end_ms: Latest store time, in milliseconds since the epoch.
            messages_max: Most messages to return from each broker.
            bytes_max: Most bytes that the bodies of all messages may take, inflated.

        Raises:
            LookupTooLarge: The bodies take more than ``bytes_max``.
            MessageRejected: A time is before 1970, or is in seconds, or a number is out of range.
            ProtocolError: A broker's answer cannot be decoded; the error names the broker.
        """
        topic = self._names.wrap(check_text("topic", topic, "orders"))
        key = check_text("key", key, "order-42")
        check_timestamp_ms("begin_ms", begin_ms)
        check_timestamp_ms("end_ms", end_ms)
        check_range("messages_max", messages_max, 1, INT32_MAX)
        check_range("bytes_max", bytes_max, 1, INT64_MAX)
        header = QueryMessageRequestHeader(
            topic=topic,
            key=key,
            max_num=messages_max,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key_query=False,
        )
        brokers = self._brokers_of(topic)
        return self._query(header, brokers, lambda message: key in message.keys, bytes_max)

    def messages_by_unique_id(
        self, topic: str, message_id: str, *, bytes_max: int = QUERY_BYTES_MAX
    ) -> tuple[MessageExt, ...]:
        """Return the messages with a producer's message id; several if the message was sent again.

        A message that cannot be read has a ``fault``, and its body as it is stored.

        Args:
            topic: Name of the topic.
            message_id: The id in ``SendResult.message_id``.
            bytes_max: Most bytes that the bodies of all messages may take, inflated.

        Raises:
            LookupTooLarge: The bodies take more than ``bytes_max``.
            NotFound: No broker has such a message.
            ProtocolError: A broker's answer cannot be decoded; the error names the broker.
        """
        topic = self._names.wrap(check_text("topic", topic, "orders"))
        message_id = check_text("message_id", message_id, "7F000001669DC9819DE26ECF4EE40062")
        check_range("bytes_max", bytes_max, 1, INT64_MAX)
        header = QueryMessageRequestHeader(
            topic=topic,
            key=message_id,
            max_num=QUERY_MESSAGES_MAX // 2,
            begin_timestamp=0,
            end_timestamp=FOREVER_MS,
            unique_key_query=True,
        )
        brokers = self._brokers_of(topic)
        found = self._query(
            header, brokers, lambda each: each.properties.get(UNIQ_KEY) == message_id, bytes_max
        )
        if not found:
            addresses = ", ".join(address for _, address in brokers)
            raise NotFound(
                22, f"no message of {topic} has the id {sanitize(message_id)}", addresses, 12
            )
        return found

    def message_traces(
        self, message_id: str, trace_topic: str = TRACE_TOPIC
    ) -> tuple[MessageTrace, ...]:
        """Return what producers and consumers have recorded about a message, by time.

        Only clients with traces enabled record any: ``enable_trace=True`` here, enableMsgTrace in
        Java. They send traces in the background, so that these appear after a second or two.

        Args:
            message_id: The id in ``SendResult.message_id``.
            trace_topic: The topic of traces; RocketMQ's, RMQ_SYS_TRACE_TOPIC, by default.

        Raises:
            RouteNotFound: There is no such topic: nobody has recorded traces.
            LookupTooLarge: The messages with the traces take more than 256 MiB.
            ProtocolError: A broker's answer cannot be decoded; the error names the broker.
        """
        message_id = check_text("message_id", message_id, "7F000001669DC9819DE26ECF4EE40062")
        trace_topic = check_text("trace_topic", trace_topic, TRACE_TOPIC)
        found = self.messages_by_key(trace_topic, message_id)
        traces = (
            trace
            for message in found
            if message.fault is None
            for trace in decode_traces(message.body)
            if trace.message_id == message_id
        )
        return tuple(sorted(dict.fromkeys(traces), key=lambda trace: trace.timestamp_ms))

    def message_at(self, queue: MessageQueue, queue_offset: int) -> MessageExt | None:
        """Return the message at an offset of a queue; None if the queue has none there.

        A message that cannot be read has a ``fault``, and its body as it is stored.

        Args:
            queue: The queue.
            queue_offset: Offset of the message in the queue.

        Raises:
            RouteNotFound: There is no such topic.
            BrokerNotFound: The topic is not on that broker.
        """
        check_queue("queue", queue)
        check_offset("queue_offset", queue_offset)
        queue = self._names.wrap_queue(queue)
        self.instance.routes.refresh(queue.topic)
        address = self.instance.routes.address_for_read(queue.broker_name)
        pulled = self._api.peek(address, READER_GROUP, queue, queue_offset)
        if pulled.pull_status is not PullStatus.FOUND:
            return None
        limit = self._api.max_body_bytes
        found = next(
            _decode_or_fail(
                address,
                decode_pulled(pulled.records, queue, max_body_bytes=limit, with_faults=True),
            ),
            None,
        )
        if found is not None and found.fault is not None:
            found = replace(found, topic=queue.topic, queue=queue, queue_offset=queue_offset)
        return None if found is None else self._names.strip_message(found)

    def read_table(
        self,
        topic: str,
        *,
        start: Bound = EARLIEST,
        end: Bound = LATEST,
        columns: Iterable[str] | None = None,
        tags: str | None = None,
        body: str | Serializer | None = None,
        on_bad_record: str = "fail",
        bytes_max: int = 2 << 30,
    ) -> pa.Table:
        """Return the messages of a topic as a pyarrow Table; no group's offsets change.

        Names and types of the columns are those of the Spark source. Rows come queue by queue, in
        the order of their offsets. The whole table is held in memory: choose ``columns`` and a
        range where a topic is large.

        Args:
            topic: The topic to read.
            start: ``"earliest"``, ``"latest"``, ``"-1h"``, a store time (a text, a datetime with a
                zone, or milliseconds since 1970), or ``{queue: offset}``, which reads these queues
                only.
            end: A bound of the same kinds, before which to end. ``"latest"`` is the end of each
                queue when the read begins, so that the read ends even if producers keep sending.
            columns: Names of columns, as ``["body", "tags"]``; nothing else is decoded. By default:
                topic, brokerName, queueId, queueOffset, keys, tags, body, bornTimestamp,
                storeTimestamp.
            tags: ``"a || b"`` for messages with one of these tags.
            body: ``"json"``, ``"msgpack"``, ``"text"`` or a serializer such as `avro` makes: the
                fields of the bodies are columns in place of ``body``, with the types that their
                values have; a body without fields cannot be read. By default, bodies are bytes.
            on_bad_record: Handling of a message that cannot be read: ``"fail"`` ends the read,
                ``"null"`` returns a row without its body, ``"skip"`` omits it. The last two log a
                warning with its queue and offset. Of a damaged record only these are known, and its
                other columns are null.
            bytes_max: The most bytes that the table may take, with bodies inflated.

        Raises:
            RouteNotFound: There is no such topic.
            MessageRejected: An argument is invalid.
            OffsetOutOfRange: A queue does not hold an offset that is given for it.
            OffsetMoved: The broker has deleted messages before they were read.
            TableTooLarge: The table would take more than ``bytes_max``.
            MessageUnreadable: A message cannot be read, and ``on_bad_record`` is ``"fail"``; the
                error has its place.
            ProtocolError: The broker omits messages that it should hold.
        """
        from rmq_spark.client.admin.arrow_reads import read_topic_table  # noqa: PLC0415  # brings pyarrow

        return read_topic_table(
            self.instance, topic, start, end, columns, tags, on_bad_record, bytes_max, body
        )

    def read_committed(
        self,
        topic: str,
        *,
        start: Bound = EARLIEST,
        end: Bound = LATEST,
        columns: Iterable[str] | None = None,
        tags: str | None = None,
        bytes_max: int = 2 << 30,
    ) -> pa.Table:
        """Return the rows of a topic that Spark sinks have committed, as a pyarrow Table.

        Each row of a batch that was written with ``delivery=exactly_once`` appears once. Rows of
        other producers, of batches that were not committed, and of repeated commits are omitted.

        Args:
            topic: The topic to read.
            start: The time at which the first batch was committed: ``"earliest"``, ``"latest"``,
                ``"-1h"`` or a time (a text, a datetime with a zone, or milliseconds since 1970).
                Leading batches from which retention has deleted rows are omitted.
            end: A bound of the same kinds, before which to end.
            columns: Names of columns, as ``["body", "tags"]``; nothing else is decoded. By default:
                topic, brokerName, queueId, queueOffset, keys, tags, body, bornTimestamp,
                storeTimestamp.
            tags: ``"a || b"`` for messages with one of these tags.
            bytes_max: The most bytes that the table may take, with bodies inflated.

        Raises:
            RouteNotFound: There is no such topic, or nothing was committed to it yet.
            MessageRejected: An argument is invalid.
            TableTooLarge: The table would take more than ``bytes_max``.
            ManifestError: A manifest cannot be read, or rows are not those that were committed.
            OffsetMoved: The broker has deleted messages before they were read.
            ProtocolError: A message cannot be read; the error names it.
        """
        from rmq_spark.client.admin.arrow_reads import read_committed_table  # noqa: PLC0415  # brings pyarrow

        return read_committed_table(self.instance, topic, start, end, columns, tags, bytes_max)

    # ---- the cluster

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers, with their addresses, and the clusters that they belong to."""
        return self.instance.name_servers.admin.cluster_info()

    def route(self, topic: str) -> TopicRouteData:
        """Return the brokers and queues of a topic, as a name server knows them."""
        topic = self._names.wrap(check_text("topic", topic, "orders"))
        return self.instance.name_servers.route(topic)

    def masters(self, cluster: str | None = None) -> Mapping[str, str]:
        """Return the addresses of all masters, or of those of a ``cluster``, by broker name."""
        found = {
            name: broker.broker_addrs[MASTER_ID]
            for name, broker in self._brokers_in(cluster).items()
            if MASTER_ID in broker.broker_addrs
        }
        if not found:
            raise no_broker("master", cluster)
        return found

    def _brokers_in(self, cluster: str | None) -> Mapping[str, BrokerData]:
        """Return the brokers of a cluster, or of all clusters, in the order of their names."""
        cluster = check_name("cluster", cluster, DEFAULT_CLUSTER)
        info = self.cluster_info()
        table = info.broker_addr_table
        names = table if cluster is None else info.cluster_addr_table.get(cluster, ())
        return {name: table[name] for name in sorted(names) if name in table}

    def _selected_masters(self, cluster: str | None, broker_name: str | None) -> Mapping[str, str]:
        broker_name = check_name("broker_name", broker_name, "broker-a")
        masters = self.masters(cluster)
        if broker_name is None:
            return masters
        if broker_name not in masters:
            raise BrokerNotFound(broker_name, "the name servers know no such master")
        return {broker_name: masters[broker_name]}

    def runtime_info(self) -> Mapping[str, Mapping[str, str]]:
        """Return what each master reports about itself, by broker name: version, rates, disk."""
        return {
            name: self._api.admin.runtime_info(address) for name, address in self.masters().items()
        }

    def broker_info(self, address: str) -> Mapping[str, str]:
        """Return what the broker at an ``address``, master or slave, reports about itself."""
        address = check_text("address", address, "10.0.0.1:10911")
        return self._api.admin.runtime_info(address)

    # ---- topics

    def all_topic_configs(
        self, cluster: str | None = None
    ) -> Mapping[str, Mapping[str, TopicConfig]]:
        """Return the settings of all topics of each master, by broker name, then by topic.

        Args:
            cluster: Name of the cluster; None for all clusters.
        """
        return {
            name: self._own_configs(self._api.admin.topic_configs(address))
            for name, address in self.masters(cluster).items()
        }

    def _own_configs(self, configs: Mapping[str, TopicConfig]) -> Mapping[str, TopicConfig]:
        if not self._names:
            return configs
        return {
            short: replace(configs[self._names.wrap(short)], topic_name=short)
            for short in sorted(self._names.own(configs))
        }

    def topic_configs(self, topic: str) -> Mapping[str, TopicConfig]:
        """Return the settings of a topic on each master that has it, by broker name."""
        topic = self._names.wrap(check_text("topic", topic, "orders"))
        short = self._names.strip(topic)
        found = {
            name: self._api.admin.topic_config(address, topic)
            for name, address in self._brokers_of(topic)
        }
        known = {
            name: replace(config, topic_name=short)
            for name, config in found.items()
            if config is not None
        }
        if not known:
            raise RouteNotFound(topic)
        return known

    def find_topic(self, topic: str, cluster: str | None = None) -> frozenset[str]:
        """Return the names of the masters that have a topic; empty if none has it.

        This asks all masters, which know a new topic before the name servers do. A topic whose
        settings this client may not read counts as missing.

        Args:
            topic: Name of the topic.
            cluster: Name of the cluster; None for the masters of all clusters.
        """
        topic = self._names.wrap(check_text("topic", topic, "orders"))
        found: set[str] = set()
        for name, address in self.masters(cluster).items():
            with suppress(AccessDenied):
                if self._api.admin.topic_config(address, topic) is not None:
                    found.add(name)
        return frozenset(found)

    def topic_offsets(self, topic: str) -> Mapping[MessageQueue, TopicOffset]:
        """Return the first and end offsets of a ``topic``'s queues, and their last store times."""
        topic = self._names.wrap(check_text("topic", topic, "orders"))
        strip = self._names.strip_queue
        return {strip(queue): ends for queue, ends in self._queue_ends(topic).items()}

    # ---- groups

    def members(self, group: str) -> tuple[Connection, ...]:
        """Return the online members of a consumer ``group``, by client id; empty if offline.

        Raises:
            GroupNotFound: No broker knows the group.
        """
        return members_of(self._consumer_connections(group))

    def _consumer_connections(self, group: str) -> list[ConsumerConnection]:
        """Return what each broker knows about the online members of a group; empty if offline."""
        group = self._names.wrap(check_text("group", group, "billing"))
        addresses = tuple(self.masters().values())
        found = []
        for address in addresses:
            with suppress(ConsumerNotOnline):
                found.append(self._api.admin.consumer_connection(address, group))
        if not any(each.connection_set for each in found):
            self._check_group_exists(group, addresses)
        return found

    def queue_owners(self, group: str) -> Mapping[MessageQueue, str]:
        """Return the client id of each queue's owner in a ``group``, as the members report it.

        Queues of members that do not answer, because they are busy or older clients, are omitted.

        Raises:
            GroupNotFound: No broker knows the group.
        """
        return {queue: held.client_id for queue, held in self.queue_reports(group).items()}

    def queue_reports(self, group: str) -> Mapping[MessageQueue, QueueReport]:
        """Return the reports of a ``group``'s online members on each of their queues.

        While a listener fails, the member retries the same message, and the time of its queue
        advances. If a listener hangs, that time stands still while messages wait.

        Queues of members that do not answer, because they are busy or older clients, are omitted.

        Raises:
            GroupNotFound: No broker knows the group.
        """
        group = self._names.wrap(check_text("group", group, "billing"))
        reports: dict[MessageQueue, QueueReport] = {}
        asked = set()
        addresses = tuple(self.masters().values())
        is_online = False
        for address in addresses:
            for member in self._api.admin.online_members(address, group):
                is_online = True
                client_id = member.client_id
                if client_id in asked:
                    continue
                try:
                    info = self._api.admin.consumer_running_info(address, group, client_id)
                except ClientError:  # another broker may reach the member
                    continue
                asked.add(client_id)
                for queue, held in info.mq_table.items():
                    if not self._names.has(queue.topic):
                        continue
                    waiting = held.cached_msg_count + held.transaction_msg_count
                    at_ms = held.last_consume_timestamp or None
                    reports[self._names.strip_queue(queue)] = QueueReport(client_id, waiting, at_ms)
        if not is_online:
            self._check_group_exists(group, addresses)
        return reports

    # ---- internal: topics, groups and queues have their full names

    def _check_group_exists(self, group: str, addresses: Sequence[str]) -> None:
        """Raise an error, with the nearest name, if no broker knows a group or has its offsets."""
        if any(self._api.admin.consume_stats(each, group).offset_table for each in addresses):
            return
        known = {each for address in addresses for each in self._api.admin.group_configs(address)}
        if group not in known:
            raise GroupNotFound(group, nearest_name(group, sorted(known)))

    def _queue_ends(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        return dict(
            pair
            for _, address in self._brokers_of(topic)
            for pair in sorted(self._api.admin.topic_stats(address, topic).offset_table.items())
        )

    def _query(
        self,
        header: QueryMessageRequestHeader,
        brokers: Iterable[tuple[str, str]],
        is_wanted: Callable[[MessageExt], bool],
        bytes_max: int,
    ) -> tuple[MessageExt, ...]:
        """Return the wanted messages of all brokers; inflate their bodies one at a time."""
        found: list[MessageExt] = []
        found_bytes = 0
        for name, address in brokers:
            records = self._api.admin.query_message(address, header)
            for message in self._messages(address, records, name):
                if message.topic == header.topic and is_wanted(message):
                    found.append(self._names.strip_message(message))
                    found_bytes += len(message.body)
                    if found_bytes > bytes_max:
                        raise LookupTooLarge(header.topic, bytes_max, len(found))
        return tuple(found)

    def _messages(self, address: str, records: Buffer, broker_name: str) -> Iterator[MessageExt]:
        limit = self._api.max_body_bytes
        return _decode_or_fail(
            address, decode_messages(records, broker_name, max_body_bytes=limit, with_faults=True)
        )

    def _brokers_of(self, topic: str) -> list[tuple[str, str]]:
        """Return the names and addresses of a topic's masters, after asking for its route again."""
        with suggest_similar_topics(self.instance.name_servers):
            route = self.instance.routes.refresh(topic)
        found = [
            (name, broker.broker_addrs[MASTER_ID])
            for name, broker in sorted(route.brokers.items())
            if MASTER_ID in broker.broker_addrs
        ]
        if not found:
            raise RouteNotFound(topic, "none of its brokers has a master")
        return found


def no_broker(kind: str, cluster: str | None, broker_name: str | None = None) -> BrokerNotFound:
    """Return the error for a cluster without a broker of a kind; None stands for all clusters."""
    whose = "the cluster" if cluster is None else f"cluster {sanitize(cluster)}"
    return BrokerNotFound(broker_name or "", f"{whose} has no {kind} that the name servers know")


def members_of(connections: Iterable[ConsumerConnection]) -> tuple[Connection, ...]:
    """Return the members that any broker knows, in the order of their client ids."""
    found = {each.client_id: each for known in connections for each in known.connection_set}
    return tuple(found[client_id] for client_id in sorted(found))


def _decode_or_fail(address: str, messages: Iterator[MessageExt]) -> Iterator[MessageExt]:
    try:
        yield from messages
    except WireError as error:
        raise ProtocolError(address, str(error)) from error
