"""Route bodies: the brokers and queues of a topic, as clients request them from a name server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueData:
    """The numbers of queues that one broker has for a topic, and the permissions for them."""

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
    """The response to GET_ROUTEINFO_BY_TOPIC."""

    order_topic_conf: str | None = None
    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
