"""Name server headers: key-value configuration, registration of brokers, topics."""

from typing import NamedTuple

from rmq_spark.wire.headers.codec import Int32, Int64


class PutKVConfigRequestHeader(NamedTuple):
    """A value to set in a namespace."""

    namespace: str
    key: str
    value: str


class KVConfigRequestHeader(NamedTuple):
    """A value to get or to delete in a namespace."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(NamedTuple):
    """The value, if there is one."""

    value: str | None = None


class GetKVListByNamespaceRequestHeader(NamedTuple):
    """The namespace whose values are requested."""

    namespace: str


class RegisterBrokerRequestHeader(NamedTuple):
    """The broker that registers; the body lists its topics."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32 = 0
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None


class RegisterBrokerResponseHeader(NamedTuple):
    """The addresses at which a slave finds its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(NamedTuple):
    """The broker that unregisters from a name server."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class BrokerNameRequestHeader(NamedTuple):
    """The broker whose topics lose, or regain, the write permission."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(NamedTuple):
    """The number of topics that lost the permission."""

    wipe_topic_count: Int32


class AddWritePermOfBrokerResponseHeader(NamedTuple):
    """The number of topics that regained the permission."""

    add_topic_count: Int32


class GetTopicsByClusterRequestHeader(NamedTuple):
    """The cluster whose topics are requested."""

    cluster: str


class DeleteTopicFromNamesrvRequestHeader(NamedTuple):
    """The topic to remove from the routes."""

    topic: str
    cluster_name: str | None = None
