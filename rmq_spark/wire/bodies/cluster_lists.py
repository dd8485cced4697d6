"""Bodies with the lists that operators request: brokers, topics, groups, settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_spark.wire.bodies.routes import BrokerData


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """The response to GET_BROKER_CLUSTER_INFO."""

    broker_addr_table: Mapping[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTable:
    """The response to GET_BROKER_RUNTIME_INFO, GET_KVLIST_BY_NAMESPACE: a plain table."""

    table: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicList:
    """A list of topics: the response to GET_ALL_TOPIC_LIST_FROM_NAMESERVER and to other requests.

    They are GET_TOPICS_BY_CLUSTER, QUERY_TOPICS_BY_CONSUMER, GET_UNIT_TOPIC_LIST and its two
    sisters, GET_SYSTEM_TOPIC_LIST_FROM_NS and GET_SYSTEM_TOPIC_LIST_FROM_BROKER. Of the last two
    only the former is answered with ``broker_addr``.
    """

    topic_list: frozenset[str] = frozenset()
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """The response to QUERY_TOPIC_CONSUME_BY_WHO: names of consumer groups."""

    group_list: frozenset[str] = frozenset()
