"""NameServerCalls: what operators ask and tell name servers, a method for each request.

What all have to be told (a deleted topic, a setting) is told to all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rmq_spark.client.errors import CONNECTION_FAULTS, ClientError, NoNameServer, NotFound
from rmq_spark.client.name_servers import NameServers
from rmq_spark.wire.bodies.lists import ClusterInfo, KVTable, TopicList
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.namesrv import (
    BrokerNameRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVListByNamespaceRequestHeader,
    GetTopicsByClusterRequestHeader,
    KVConfigRequestHeader,
    PutKVConfigRequestHeader,
)

_Found = TypeVar("_Found")


class NameServerCalls:
    """See the module."""

    def __init__(self, servers: NameServers) -> None:
        self._servers = servers
        self._calls = servers.calls

    def cluster_info(self) -> ClusterInfo:
        """All brokers, by name and by cluster."""
        found = self._servers.ask_any(
            lambda address: self._calls.body(ClusterInfo, address, RequestCode.GET_BROKER_CLUSTER_INFO)
        )
        return self._servers.detours.cluster(found)

    def topics(self, cluster: str | None = None) -> frozenset[str]:
        """All topics, or those of a cluster."""
        if cluster is None:
            code, header = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None
        else:
            code, header = RequestCode.GET_TOPICS_BY_CLUSTER, GetTopicsByClusterRequestHeader(cluster)
        return self._servers.ask_any(
            lambda address: self._calls.body(TopicList, address, code, header)
        ).topic_list

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Take a topic out of all name servers' routes."""
        header = DeleteTopicFromNamesrvRequestHeader(topic, cluster)
        self._all(lambda address: self._calls.call(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, header))

    def kv_config(self, namespace: str, key: str) -> str | None:
        """One setting; None if there is no such."""
        header = KVConfigRequestHeader(namespace, key)
        try:
            found = self._servers.ask_any(
                lambda address: self._calls.header(address, RequestCode.GET_KV_CONFIG, header)
            )
        except NotFound:
            return None
        value: str | None = found.value
        return value

    def kv_configs(self, namespace: str) -> dict[str, str]:
        """All settings of a namespace."""
        header = GetKVListByNamespaceRequestHeader(namespace)
        code = RequestCode.GET_KVLIST_BY_NAMESPACE
        try:
            return dict(
                self._servers.ask_any(lambda address: self._calls.body(KVTable, address, code, header)).table
            )
        except NotFound:
            return {}

    def put_kv_config(self, namespace: str, key: str, value: str) -> None:
        """Change a setting, everywhere."""
        header = PutKVConfigRequestHeader(namespace, key, value)
        self._all(lambda address: self._calls.call(address, RequestCode.PUT_KV_CONFIG, header))

    def delete_kv_config(self, namespace: str, key: str) -> None:
        """Forget a setting, everywhere."""
        header = KVConfigRequestHeader(namespace, key)
        self._all(lambda address: self._calls.call(address, RequestCode.DELETE_KV_CONFIG, header))

    def wipe_write_permission(self, broker_name: str) -> int:
        """No topic of this broker is written any more; of how many that was changed."""
        header, code = BrokerNameRequestHeader(broker_name), RequestCode.WIPE_WRITE_PERM_OF_BROKER
        counts: list[int] = self._all(
            lambda address: self._calls.header(address, code, header).wipe_topic_count
        )
        return max(counts)

    def add_write_permission(self, broker_name: str) -> int:
        """All topics of this broker may be written again; of how many that was changed."""
        header, code = BrokerNameRequestHeader(broker_name), RequestCode.ADD_WRITE_PERM_OF_BROKER
        counts: list[int] = self._all(
            lambda address: self._calls.header(address, code, header).add_topic_count
        )
        return max(counts)

    def _all(self, call: Callable[[str], _Found]) -> list[_Found]:
        """What all of them say; one that cannot be reached is an error, once the others were told."""
        if not self._servers.addresses:
            raise NoNameServer
        said: list[_Found] = []
        fault: ClientError | None = None
        for address in self._servers.addresses:
            try:
                said.append(call(address))
            except CONNECTION_FAULTS as error:  # noqa: PERF203  # the others are to be told all the same
                fault = error
        if fault is not None:
            raise fault
        return said
