"""NameServerApi: an operator's requests to name servers, one method each.

A lookup asks any name server; a change (a deleted topic, a setting) goes to all of them.
`name_servers` holds their addresses and chooses which one to ask first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    ClientError,
    ConnectionClosed,
    NoNameServer,
    NotFound,
)
from rmq_spark.client.transport.address_overrides import AddressOverrides
from rmq_spark.client.transport.typed_requests import TypedRequests
from rmq_spark.wire.bodies.cluster_lists import ClusterInfo, KVTable, TopicList
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


class NameServerAccess(Protocol):
    """The part of `NameServers` that the requests of operators need."""

    addresses: tuple[str, ...]
    requests: TypedRequests
    address_overrides: AddressOverrides

    def ask_any(self, call: Callable[[str], _Found]) -> _Found:
        """Return the answer of the first name server that answers."""


class NameServerApi:
    """An operator's requests to name servers, one method each."""

    def __init__(self, servers: NameServerAccess) -> None:
        self._servers = servers
        self._requests = servers.requests

    def _ask_with_retry(self, call: Callable[[str], _Found]) -> _Found:
        """Return the answer of any name server; one that closes the connection is asked again.

        It may have closed one that is kept open between questions, as whoever is started again
        does, and that may be seen only when the next question has been sent. Operators have the
        time for a second one; a send that looks for its route has not.
        """

        def asked(address: str) -> _Found:
            try:
                return call(address)
            except ConnectionClosed:
                return call(address)

        return self._servers.ask_any(asked)

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers, by name and by cluster."""
        found = self._ask_with_retry(
            lambda address: self._requests.body(
                ClusterInfo, address, RequestCode.GET_BROKER_CLUSTER_INFO
            )
        )
        return self._servers.address_overrides.apply_to_cluster(found)

    def topics(self, cluster: str | None = None) -> frozenset[str]:
        """Return all topics, or those of a cluster."""
        if cluster is None:
            code, header = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None
        else:
            code, header = (
                RequestCode.GET_TOPICS_BY_CLUSTER,
                GetTopicsByClusterRequestHeader(cluster),
            )
        return self._ask_with_retry(
            lambda address: self._requests.body(TopicList, address, code, header)
        ).topic_list

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic from the routes of all name servers."""
        header = DeleteTopicFromNamesrvRequestHeader(topic, cluster)
        self._ask_all(
            lambda address: self._requests.call(
                address, RequestCode.DELETE_TOPIC_IN_NAMESRV, header
            )
        )

    def kv_config(self, namespace: str, key: str) -> str | None:
        """Return one setting, or None."""
        header = KVConfigRequestHeader(namespace, key)
        try:
            found = self._ask_with_retry(
                lambda address: self._requests.header(address, RequestCode.GET_KV_CONFIG, header)
            )
        except NotFound:
            return None
        value: str | None = found.value
        return value

    def kv_configs(self, namespace: str) -> dict[str, str]:
        """Return all settings of a namespace."""
        header = GetKVListByNamespaceRequestHeader(namespace)
        code = RequestCode.GET_KVLIST_BY_NAMESPACE
        try:
            return dict(
                self._ask_with_retry(
                    lambda address: self._requests.body(KVTable, address, code, header)
                ).table
            )
        except NotFound:
            return {}

    def put_kv_config(self, namespace: str, key: str, value: str) -> None:
        """Change a setting on all name servers."""
        header = PutKVConfigRequestHeader(namespace, key, value)
        self._ask_all(
            lambda address: self._requests.call(address, RequestCode.PUT_KV_CONFIG, header)
        )

    def delete_kv_config(self, namespace: str, key: str) -> None:
        """Delete a setting from all name servers."""
        header = KVConfigRequestHeader(namespace, key)
        self._ask_all(
            lambda address: self._requests.call(address, RequestCode.DELETE_KV_CONFIG, header)
        )

    def wipe_write_permission(self, broker_name: str) -> int:
        """Forbid writing to all topics of a broker; return the number of topics changed."""
        header, code = BrokerNameRequestHeader(broker_name), RequestCode.WIPE_WRITE_PERM_OF_BROKER
        counts: list[int] = self._ask_all(
            lambda address: self._requests.header(address, code, header).wipe_topic_count
        )
        return max(counts)

    def add_write_permission(self, broker_name: str) -> int:
        """Allow writing to all topics of a broker again; return the number of topics changed."""
        header, code = BrokerNameRequestHeader(broker_name), RequestCode.ADD_WRITE_PERM_OF_BROKER
        counts: list[int] = self._ask_all(
            lambda address: self._requests.header(address, code, header).add_topic_count
        )
        return max(counts)

    def _ask_all(self, call: Callable[[str], _Found]) -> list[_Found]:
        """Ask all name servers and return their answers.

        If one cannot be reached, its error is raised once the others were asked.
        """
        if not self._servers.addresses:
            raise NoNameServer
        said: list[_Found] = []
        fault: ClientError | None = None
        for address in self._servers.addresses:
            try:
                said.append(call(address))
            except CONNECTION_FAULTS as error:  # noqa: PERF203  # the others are asked all the same
                fault = error
        if fault is not None:
            raise fault
        return said
