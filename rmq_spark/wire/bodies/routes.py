"""Bodies about where topics live: routes, clusters, brokers that register."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueData:
    """How many queues of a topic one broker has, and what may be done with them."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerData:
    """The addresses of one broker: the master has number 0, its slaves the others."""

    cluster: str | None = None
    broker_name: str
    broker_addrs: Mapping[int, str]
    enable_acting_master: bool | None = None
    zone_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRouteData:
    """The answer to GET_ROUTEINFO_BY_TOPIC."""

    order_topic_conf: str | None = None
    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """The answer to GET_BROKER_CLUSTER_INFO."""

    broker_addr_table: Mapping[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTable:
    """The answer to GET_BROKER_RUNTIME_INFO, GET_KVLIST_BY_NAMESPACE: a plain table."""

    table: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicList:
    """The answer to GET_ALL_TOPIC_LIST_FROM_NAMESERVER, GET_TOPICS_BY_CLUSTER, QUERY_TOPICS_BY_CONSUMER.

    Also to GET_UNIT_TOPIC_LIST and its two sisters, and to GET_SYSTEM_TOPIC_LIST_FROM_NS and _FROM_BROKER:
    only to the former of these with ``broker_addr``.
    """

    topic_list: frozenset[str] = frozenset()
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """The answer to QUERY_TOPIC_CONSUME_BY_WHO: names of consumer groups."""

    group_list: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class GetConsumerListByGroupResponseBody:
    """The answer to GET_CONSUMER_LIST_BY_GROUP: the client ids of a group's members."""

    consumer_id_list: tuple[str, ...] = ()
