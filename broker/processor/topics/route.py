"""RouteProcessor: answers as a name server does, for this one broker.

Clients request routes, and tools lists of topics. Other brokers cannot register here: a cluster of
several needs RocketMQ's name server. Each response is made from the topic table, and so follows
created and deleted topics at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Final

from rmq_spark.wire.bodies.clients import BrokerData, QueueData, TopicRouteData
from rmq_spark.wire.bodies.configs import DataVersion, TopicConfig
from rmq_spark.wire.bodies.operators import ClusterInfo, KVTable, TopicList
from rmq_spark.wire.codes import MASTER_ID, RequestCode, ResponseCode, TopicPermission
from rmq_spark.wire.headers.operators import (
    AddWritePermOfBrokerResponseHeader,
    GetKVConfigResponseHeader,
    QueryDataVersionResponseHeader,
    WipeWritePermOfBrokerResponseHeader,
)
from rmq_spark.wire.remoting.command import RemotingCommand

from ...common.channel import Channel, ResponseSteps
from ...state.tables.kv_config import ORDER_TOPIC_CONFIG
from ...state.tables.topic_config import SYSTEM_TOPICS, is_system_topic
from ..admin.broker_admin import properties_text, read_only_error, reserved_topics
from ..processor import Processor, handles
from ..request import (
    RequestRejected,
    body_of,
    header_of,
    success_response,
    success_response_in_steps,
    system_error,
)

_WRITE: Final = int(TopicPermission.WRITE)
_READ_WRITE: Final = int(TopicPermission.READ | TopicPermission.WRITE)
_UNIT, _UNIT_SUB = 1, 2
"""The bits of a topic's sysFlag, which this broker does not use."""
_UNIT_FLAGS: Final = {
    RequestCode.GET_UNIT_TOPIC_LIST: (_UNIT, _UNIT),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (_UNIT_SUB, _UNIT_SUB),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (_UNIT | _UNIT_SUB, _UNIT_SUB),
}
"""The relevant bits for each request, and their required values."""


class RouteProcessor(Processor):
    """The responses to requests for routes, lists of topics, and write permissions."""

    # ---- where topics live

    @handles(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    def route(self, connection: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_ROUTEINFO_BY_TOPIC with the queues of a topic and the broker's address."""
        topic = header_of(request).topic
        config = self._broker.topics.get(topic)
        if config is None:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}",
            )
        queues = QueueData(
            broker_name=self._broker.config.broker_name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm & (self._broker.config.broker_permission | ~_READ_WRITE),
            topic_sys_flag=config.topic_sys_flag,
        )
        body = TopicRouteData(
            order_topic_conf=self._broker.kv_configs.get((ORDER_TOPIC_CONFIG, topic)),
            queue_datas=(queues,),
            broker_datas=(self._broker_data(connection),),
        )
        return success_response(request, body=body)

    @handles(RequestCode.GET_BROKER_CLUSTER_INFO)
    def cluster_info(self, connection: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_BROKER_CLUSTER_INFO with one cluster of one broker."""
        config = self._broker.config
        body = ClusterInfo(
            broker_addr_table={config.broker_name: self._broker_data(connection)},
            cluster_addr_table={config.broker_cluster_name: frozenset({config.broker_name})},
        )
        return success_response(request, body=body)

    def _broker_data(self, connection: Channel) -> BrokerData:
        return BrokerData(
            cluster=self._broker.config.broker_cluster_name,
            broker_name=self._broker.config.broker_name,
            broker_addrs={MASTER_ID: str(self._broker.advertised_host(connection))},
            enable_acting_master=False,  # 4.9 omits it, but some clients of 5.x require it
        )

    # ---- lists of topics

    @handles(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    def all_topics(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer GET_ALL_TOPIC_LIST_FROM_NAMESERVER with the names of all topics."""
        names = yield from self._matching_topics(connection, lambda _: True)
        return (yield from success_response_in_steps(request, TopicList(topic_list=names)))

    @handles(RequestCode.GET_TOPICS_BY_CLUSTER)
    def topics_of_cluster(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer GET_TOPICS_BY_CLUSTER with all topics, or none for another cluster."""
        is_own_cluster = header_of(request).cluster == self._broker.config.broker_cluster_name
        names = yield from self._matching_topics(connection, lambda _: is_own_cluster)
        return (yield from success_response_in_steps(request, TopicList(topic_list=names)))

    @handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    def cluster_names(self, connection: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_SYSTEM_TOPIC_LIST_FROM_NS with the names of cluster and broker."""
        names = frozenset(
            {self._broker.config.broker_cluster_name, self._broker.config.broker_name}
        )
        address = str(self._broker.advertised_host(connection))
        return success_response(request, body=TopicList(topic_list=names, broker_addr=address))

    @handles(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    def system_topics(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer GET_SYSTEM_TOPIC_LIST_FROM_BROKER with possible and existing system topics."""
        found = yield from self._matching_topics(
            connection, lambda config: is_system_topic(config.topic_name)
        )
        topics = TopicList(topic_list=SYSTEM_TOPICS | reserved_topics(self._broker.config) | found)
        return (yield from success_response_in_steps(request, topics))

    @handles(
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    )
    def unit_topics(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer three requests with the topics whose unit flags match."""
        mask, wanted = _UNIT_FLAGS[RequestCode(request.code)]
        names = yield from self._matching_topics(
            connection, lambda topic: topic.topic_sys_flag & mask == wanted
        )
        return (yield from success_response_in_steps(request, TopicList(topic_list=names)))

    def _matching_topics(
        self, connection: Channel, matches: Callable[[TopicConfig], bool]
    ) -> Generator[None, None, frozenset[str]]:
        """Return the names of the matching topics that the client may see, in steps."""
        visible = self._broker.access.visible_to(connection)
        names = []
        for config in tuple(self._broker.topics.topics.values()):
            yield
            if matches(config) and visible.has_topic(config.topic_name):
                names.append(config.topic_name)
        return frozenset(names)

    # ---- changes

    @handles(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
    def wipe_write_permission(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer WIPE_WRITE_PERM_OF_BROKER: producers find no queue, consumers still do."""
        header = WipeWritePermOfBrokerResponseHeader
        return self._change_permissions(connection, request, lambda perm: perm & ~_WRITE, header)

    @handles(RequestCode.ADD_WRITE_PERM_OF_BROKER)
    def add_write_permission(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer ADD_WRITE_PERM_OF_BROKER: all topics become writable, even read-only ones."""
        header = AddWritePermOfBrokerResponseHeader
        return self._change_permissions(connection, request, lambda perm: perm | _WRITE, header)

    def _change_permissions(
        self,
        connection: Channel,
        request: RemotingCommand,
        changed: Callable[[int], int],
        response_header: Callable[[int], object],
    ) -> ResponseSteps:
        """Change all topics and answer their number; 0 for a broker of another name."""
        topics = self._broker.topics
        names = tuple(topics.topics) if self._is_own(request) else ()
        with topics.changes.begin() as change:
            for name in names:
                yield None
                config = topics.get(name)  # it may have been deleted or replaced meanwhile
                if config is not None and changed(config.perm) != config.perm:
                    topics.put(replace(config, perm=changed(config.perm)), change)
        success = success_response(request, response_header(len(names)))
        self._broker.reply_after_save.commit_changes(
            connection, request, topics.save, success, change
        )
        return None

    def _is_own(self, request: RemotingCommand) -> bool:
        name: str = header_of(request).broker_name
        return name == self._broker.config.broker_name

    @handles(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    def delete_topic(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer DELETE_TOPIC_IN_NAMESRV with success: the broker has deleted the topic already."""
        header = header_of(request)
        is_own_cluster = header.cluster_name in (None, "", self._broker.config.broker_cluster_name)
        if is_own_cluster and self._broker.topics.get(header.topic) is not None:
            raise system_error(
                f"the topic {header.topic} still exists: delete it in the broker, which "
                "deletes its route as well"
            )
        return success_response(request)

    # ---- requests from brokers

    @handles(RequestCode.QUERY_DATA_VERSION)
    def query_data_version(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer QUERY_DATA_VERSION: whether a broker's topics differ from the registered ones."""
        client_version = body_of(request, DataVersion)
        if not self._is_own(request):
            return success_response(request, QueryDataVersionResponseHeader(changed=True))
        own_version = self._broker.topics.data_version
        is_same = (own_version.counter, own_version.timestamp) == (
            client_version.counter,
            client_version.timestamp,
        )
        return success_response(
            request, QueryDataVersionResponseHeader(changed=not is_same), own_version
        )

    @handles(
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
    )
    def refuse_broker(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Refuse REGISTER_BROKER and other requests of brokers."""
        raise RequestRejected(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"{RequestCode(request.code).name}: this name server serves its own broker "
            f"{self._broker.config.broker_name} only; other brokers need RocketMQ's name "
            "server",
        )

    @handles(RequestCode.GET_NAMESRV_CONFIG)
    def get_config(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_NAMESRV_CONFIG with the broker's settings: both are one process."""
        return request.respond(ResponseCode.SUCCESS, body=properties_text(self._broker.config))

    @handles(RequestCode.UPDATE_NAMESRV_CONFIG)
    def update_config(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Refuse UPDATE_NAMESRV_CONFIG: settings cannot be changed remotely."""
        raise read_only_error(request)


# ---- Key-value configurations.


class KVConfigProcessor(Processor):
    """The responses to put, get, delete and list requests of key-value configurations."""

    @handles(RequestCode.PUT_KV_CONFIG)
    def put(self, connection: Channel, request: RemotingCommand) -> None:
        """Answer PUT_KV_CONFIG: set a value."""
        header, values = header_of(request), self._broker.kv_configs
        with self._broker.reply_after_save.saving(connection, request, values) as change:
            values.put((header.namespace, header.key), header.value, change)

    @handles(RequestCode.GET_KV_CONFIG)
    def get(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_KV_CONFIG with a value."""
        header = header_of(request)
        value = self._broker.kv_configs.get((header.namespace, header.key))
        if value is None:
            raise RequestRejected(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return success_response(request, GetKVConfigResponseHeader(value))

    @handles(RequestCode.DELETE_KV_CONFIG)
    def delete(self, connection: Channel, request: RemotingCommand) -> None:
        """Answer DELETE_KV_CONFIG, with success even if there is no such key."""
        header, values = header_of(request), self._broker.kv_configs
        with self._broker.reply_after_save.saving(connection, request, values) as change:
            values.delete((header.namespace, header.key), change)

    @handles(RequestCode.GET_KVLIST_BY_NAMESPACE)
    def get_all(self, _: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer GET_KVLIST_BY_NAMESPACE with all values of a namespace."""
        namespace = header_of(request).namespace
        table = self._broker.kv_configs.list(namespace)
        if not table:
            raise RequestRejected(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}"
            )
        return success_response_in_steps(request, KVTable(table=dict(table)))
