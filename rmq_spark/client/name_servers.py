"""NameServers: whom to ask where topics live; the next one, when one does not answer.

What all have to be told (a deleted topic, a setting) is told to all. It knows no route but the one it is
asked for: keeping them is `routes`' business.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from rmq_spark.client.calls import Ask, Calls
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    ClientError,
    NoNameServer,
    NotFound,
    RouteNotFound,
    TopicNotFound,
)
from rmq_spark.wire.bodies.routes import TopicRouteData
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.namesrv import (
    BrokerNameRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    KVConfigRequestHeader,
    PutKVConfigRequestHeader,
)

if TYPE_CHECKING:
    from rmq_spark.wire.bodies.lists import ClusterInfo

_Found = TypeVar("_Found")


def parse_addresses(text: str | Iterable[str] | None) -> tuple[str, ...]:
    """The addresses in ``a:9876;b:9876``; commas and spaces separate them as well."""
    texts = (text or "",) if isinstance(text, str) or text is None else text
    found = [address for each in texts for address in re.split(r"[;,\s]+", each) if address]
    return tuple(dict.fromkeys(found))


class NameServers:
    """See the module."""

    def __init__(self, addresses: str | Iterable[str] | None, ask: Ask, timeout_ms: int) -> None:
        """``ask`` gives the answer of one of them to a request."""
        self.addresses = parse_addresses(addresses)
        self._calls = Calls(ask, timeout_ms)
        self._lock = threading.Lock()
        self._preferred = 0

    def route(self, topic: str) -> TopicRouteData:
        """Where a topic lives.

        Raises:
            RouteNotFound: The name servers know no such topic.
        """
        header = GetRouteInfoRequestHeader(topic)
        try:
            return self._any(
                lambda address: self._calls.body(
                    TopicRouteData, address, RequestCode.GET_ROUTEINFO_BY_TOPIC, header
                )
            )
        except TopicNotFound as error:
            raise RouteNotFound(topic) from error

    def cluster_info(self) -> ClusterInfo:
        """All brokers, by name and by cluster."""
        from rmq_spark.wire.bodies.lists import ClusterInfo  # noqa: PLC0415  # only operators ask

        return self._any(
            lambda address: self._calls.body(ClusterInfo, address, RequestCode.GET_BROKER_CLUSTER_INFO)
        )

    def topics(self, cluster: str | None = None) -> frozenset[str]:
        """All topics, or those of a cluster."""
        from rmq_spark.wire.bodies.lists import TopicList  # noqa: PLC0415  # only operators ask

        if cluster is None:
            code, header = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None
        else:
            code, header = RequestCode.GET_TOPICS_BY_CLUSTER, GetTopicsByClusterRequestHeader(cluster)
        return self._any(lambda address: self._calls.body(TopicList, address, code, header)).topic_list

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Take a topic out of all name servers' routes."""
        header = DeleteTopicFromNamesrvRequestHeader(topic, cluster)
        self._all(lambda address: self._calls.call(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, header))

    def kv_config(self, namespace: str, key: str) -> str | None:
        """One setting; None if there is no such."""
        header = KVConfigRequestHeader(namespace, key)
        try:
            found = self._any(lambda address: self._calls.header(address, RequestCode.GET_KV_CONFIG, header))
        except NotFound:
            return None
        value: str | None = found.value
        return value

    def kv_configs(self, namespace: str) -> dict[str, str]:
        """All settings of a namespace."""
        from rmq_spark.wire.bodies.lists import KVTable  # noqa: PLC0415  # only operators ask

        header = GetKVListByNamespaceRequestHeader(namespace)
        code = RequestCode.GET_KVLIST_BY_NAMESPACE
        try:
            return dict(self._any(lambda address: self._calls.body(KVTable, address, code, header)).table)
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

    def _any(self, call: Callable[[str], _Found]) -> _Found:
        """What the first finds that answers; whoever answered is asked first the next time."""
        tries: list[ClientError] = []
        count = len(self.addresses)
        first = self._preferred
        for step in range(count):
            at = (first + step) % count
            try:
                return call(self.addresses[at])
            except CONNECTION_FAULTS as error:
                tries.append(error)
                with self._lock:
                    if self._preferred == at:
                        self._preferred = (at + 1) % count
        raise NoNameServer(tries)

    def _all(self, call: Callable[[str], _Found]) -> list[_Found]:
        """What all of them say; one that cannot be reached is an error, once the others were told."""
        if not self.addresses:
            raise NoNameServer
        said: list[_Found] = []
        fault: ClientError | None = None
        for address in self.addresses:
            try:
                said.append(call(address))
            except CONNECTION_FAULTS as error:  # noqa: PERF203  # the others are to be told all the same
                fault = error
        if fault is not None:
            raise fault
        return said
