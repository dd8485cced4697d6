"""BrokerConfig: all settings of the broker as one value.

Settings that only one package uses are declared there: `store.config`, `longpolling.hold_limits`,
`filter.filter_limits`. All others are declared here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from rmq_spark.wire.remoting.framing import HEADER_BYTES_MAX

from ..common.setting import (
    ADDRESS,
    COUNT,
    FLAG,
    HOSTS,
    MS,
    NAME,
    OPTIONAL_ADDRESS,
    OPTIONAL_PATH,
    OPTIONAL_PORT,
    SECRET,
    SIZE,
    Secret,
    choice,
    number,
    setting,
)
from ..filter.filter_limits import FilterLimits
from ..longpolling.hold_limits import HoldLimits
from ..store.config import StoreConfig
from ..store.read.entry_selection import DEFAULT_LIMITS
from .access import AccessConfig
from .pop import PopConfig

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """The limits on the broker's resources, for one client and for all together."""

    max_connections: int = setting(
        "maxConnections",
        COUNT,
        "maximum number of clients; fewer where the system allows fewer descriptors",
        default=12_000,
        is_reloadable=True,
    )
    max_connections_per_address: int = setting(
        "maxConnectionsPerAddress",
        COUNT,
        "maximum number of clients from one address, or from one /64 of IPv6",
        default=2_048,
        is_reloadable=True,
    )
    max_accepts_per_second: int = setting(
        "maxAcceptsPerSecond",
        COUNT,
        "maximum number of new clients per second; addresses share half of them",
        default=200,
        is_reloadable=True,
    )
    frame_bytes_max: int = setting(
        "maxFrameBytes",
        number(1_024, 16 * _MIB),
        "maximum size of one request, in bytes; at least maxMessageSize",
        default=16 * _MIB,
    )
    header_bytes_max: int = setting(
        "maxHeaderBytes",
        number(4_096, HEADER_BYTES_MAX),
        "maximum size of the header of a request, which carries message properties, in bytes",
        default=HEADER_BYTES_MAX,
    )
    json_body_bytes_max: int = setting(
        "maxJsonBodyBytes",
        number(1_024, 16 * _MIB),
        "maximum size of a JSON body, such as a heartbeat or a list of topics, in bytes",
        default=262_144,
    )
    first_frame_timeout_ms: int = setting(
        "firstFrameTimeoutMills",
        COUNT,
        "a client that does not send the header of a first request within this time is "
        "disconnected; ms",
        default=10_000,
        is_reloadable=True,
    )
    partial_frame_timeout_ms: int = setting(
        "partialFrameTimeoutMills",
        COUNT,
        "a client that does not finish a request within this time is disconnected; ms",
        default=30_000,
        is_reloadable=True,
    )
    idle_timeout_ms: int = setting(
        "serverChannelMaxIdleTimeMills",
        COUNT,
        "a client that is idle for this time is disconnected; ms",
        default=120_000,
        is_reloadable=True,
    )
    write_buffer_bytes: int = setting(
        "maxWriteBufferBytes",
        SIZE,
        "maximum bytes of unread responses of one client; past it, the broker stops "
        "reading from it",
        default=65_536,
    )
    slow_reader_timeout_ms: int = setting(
        "slowReaderTimeoutMills",
        COUNT,
        "a client that reads none of its responses for this time is disconnected; ms",
        default=30_000,
        is_reloadable=True,
    )
    unread_bytes_max: int = setting(
        "maxUnreadBytes",
        SIZE,
        "maximum bytes of unread responses of all clients; near it, responses to pulls get shorter",
        default=64 * _MIB,
    )
    in_flight_bytes_max: int = setting(
        "maxInFlightBytes",
        SIZE,
        "waiting requests of all clients, in bytes; above, sends are refused; partial ones may "
        "double it",
        default=64 * _MIB,
        is_reloadable=True,
    )


class TlsMode(Enum):
    """The kinds of connections that a port accepts, by RocketMQ's names."""

    disabled = "disabled"
    permissive = "permissive"
    enforcing = "enforcing"


class ClientAuth(Enum):
    """The demand for certificates of clients, by RocketMQ's names."""

    none = "none"
    optional = "optional"
    require = "require"


@dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """The TLS of the broker's ports. RocketMQ has these settings in a file of its own."""

    mode: TlsMode = setting(
        "tls.server.mode",
        choice(TlsMode),
        "disabled; permissive: also TLS, once certPath is set; enforcing: nothing but TLS",
        default=TlsMode.permissive,
        is_reloadable=True,
    )
    cert_path: Path | None = setting(
        "tls.server.certPath",
        OPTIONAL_PATH,
        "PEM file of the broker's certificate, followed by those between it and its authority",
        default=None,
        rocketmq="a self-signed one, made at each start",
        is_reloadable=True,
    )
    key_path: Path | None = setting(
        "tls.server.keyPath",
        OPTIONAL_PATH,
        "PEM file of the certificate's private key; empty: it is in certPath's file",
        default=None,
        is_reloadable=True,
    )
    key_password: Secret = setting(
        "tls.server.keyPassword",
        SECRET,
        "password of the private key, if it is encrypted; never shown",
        default=Secret(),
        is_reloadable=True,
    )
    auth_client: bool = setting(
        "tls.server.authClient",
        FLAG,
        "whether certificates of clients are verified, as need.client.auth and trustCertPath say",
        default=False,
        is_reloadable=True,
    )
    need_client_auth: ClientAuth = setting(
        "tls.server.need.client.auth",
        choice(ClientAuth),
        "none, optional or require: whether clients are asked for a certificate",
        default=ClientAuth.none,
        is_reloadable=True,
    )
    trust_cert_path: Path | None = setting(
        "tls.server.trustCertPath",
        OPTIONAL_PATH,
        "PEM file of the authorities whose clients are accepted, with authClient=true",
        default=None,
        is_reloadable=True,
    )

    @property
    def is_offered(self) -> bool:
        """True if clients can connect with TLS."""
        return self.mode is not TlsMode.disabled and self.cert_path is not None

    def faults(self) -> list[str]:
        """Return how the settings contradict each other, and how to correct that."""
        if self.mode is TlsMode.disabled:
            return []
        faults = []
        if self.mode is TlsMode.enforcing and self.cert_path is None:
            faults.append(
                "tls.server.mode=enforcing needs a certificate: set tls.server.certPath and "
                "tls.server.keyPath"
            )
        elif self.key_path is not None and self.cert_path is None:
            faults.append(
                f"tls.server.keyPath={self.key_path} is the key of no certificate: set "
                "tls.server.certPath as well"
            )
        if self.auth_client and self.need_client_auth is ClientAuth.none:
            faults.append(
                "tls.server.authClient=true verifies nobody with tls.server.need.client.auth=none: "
                "set that to optional or require, or tls.server.authClient=false"
            )
        elif self.auth_client and self.trust_cert_path is None:
            faults.append(
                "tls.server.authClient=true needs the authorities of the clients: set "
                "tls.server.trustCertPath"
            )
        elif not self.auth_client and self.need_client_auth is not ClientAuth.none:
            faults.append(
                f"tls.server.need.client.auth={self.need_client_auth.name} without verification "
                "would accept a certificate that anybody has made: set tls.server.authClient=true "
                "and tls.server.trustCertPath, or tls.server.need.client.auth=none"
            )
        return faults


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """All settings of a broker, frozen.

    `rocketpoll.broker.settings.settings` reads them from files.
    """

    store: StoreConfig
    server: ServerLimits = field(default_factory=ServerLimits)
    holds: HoldLimits = field(default_factory=HoldLimits)
    filters: FilterLimits = field(default_factory=FilterLimits)
    pop: PopConfig = field(default_factory=PopConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    access: AccessConfig = field(default_factory=AccessConfig)
    broker_cluster_name: str = setting(
        "brokerClusterName",
        NAME,
        "name of the cluster that the broker belongs to",
        default="DefaultCluster",
    )
    broker_name: str = setting(
        "brokerName",
        NAME,
        "name of the broker, part of the name of every queue",
        default="broker-a",
        rocketmq="the machine's name",
    )
    listen_port: int = setting(
        "listenPort",
        number(0, 65_535),
        "TCP port for all requests; 0 picks any free port",
        default=9876,
        rocketmq="10911",
    )
    vip_channel_enable: bool = setting(
        "vipChannelEnable",
        FLAG,
        "listen on listenPort - 2 as well, for clients up to 4.4 and the dashboard; not with "
        "listenPort=0",
        default=True,
    )
    bind_address: str = setting(
        "bindAddress",
        ADDRESS,
        "the address to listen on",
        default="127.0.0.1",
        rocketmq="all addresses",
    )
    broker_ip1: str = setting(
        "brokerIP1",
        OPTIONAL_ADDRESS,
        "address advertised to clients; empty: the one that each client connected to",
        default="",
        rocketmq="the machine's address",
    )
    namesrv_addr: tuple[str, ...] = setting(
        "namesrvAddr",
        HOSTS,
        "name servers of a RocketMQ cluster to register at, as host:port;host:port; empty: none",
        default=(),
    )
    register_name_server_period_ms: int = setting(
        "registerNameServerPeriod",
        number(10_000, 60_000),
        "the broker registers again after this time, and when topics change; ms",
        default=30_000,
    )
    register_broker_timeout_ms: int = setting(
        "registerBrokerTimeoutMills",
        number(100, 60_000),
        "a name server that does not answer within this time is asked again; ms",
        default=6_000,
        rocketmq="24000",
    )
    compressed_register: bool = setting(
        "compressedRegister",
        FLAG,
        "whether the list of topics is sent to name servers compressed",
        default=False,
    )
    allow_remote_without_authentication: bool = setting(
        "allowRemoteWithoutAuthentication",
        FLAG,
        "true: anybody who reaches a non-loopback bindAddress may read, write and delete",
        default=False,
    )
    metrics_port: int | None = setting(
        "metricsPort",
        OPTIONAL_PORT,
        "TCP port of /metrics, /healthz and /readyz; 0 picks any free port; empty: none",
        default=None,
        rocketmq="5557, as metricsPromExporterPort",
    )
    metrics_host: str = setting(
        "metricsHost",
        ADDRESS,
        "the address of metricsPort; it serves names and figures, never messages",
        default="127.0.0.1",
    )
    broker_permission: int = setting(
        "brokerPermission",
        number(0, 6),
        "permissions of the whole broker: 4 read + 2 write",
        default=6,
    )
    region_id: str = setting(
        "regionId", NAME, "region reported to producers for their traces", default="DefaultRegion"
    )
    trace_on: bool = setting("traceOn", FLAG, "whether producers may record traces", default=True)
    recall_message_enable: bool = setting(
        "recallMessageEnable",
        FLAG,
        "whether producers may recall messages that wait for their timers",
        default=True,
        rocketmq="false",
    )
    auto_create_topic_enable: bool = setting(
        "autoCreateTopicEnable",
        FLAG,
        "whether a send to an unknown topic creates the topic",
        default=True,
    )
    auto_create_subscription_group: bool = setting(
        "autoCreateSubscriptionGroup",
        FLAG,
        "whether a consumer of an unknown group creates the group",
        default=True,
    )
    default_topic_queue_nums: int = setting(
        "defaultTopicQueueNums",
        number(1, 1_024),
        "maximum number of queues of an automatically created topic",
        default=8,
    )
    max_topics: int = setting(
        "maxTopics",
        COUNT,
        "maximum number of topics, retry topics included, system topics not; more are refused",
        default=10_000,
        is_reloadable=True,
    )
    max_queues: int = setting(
        "maxQueues",
        COUNT,
        "maximum number of queues of all topics together; more are refused",
        default=82_000,
        is_reloadable=True,
    )
    max_groups: int = setting(
        "maxGroups",
        COUNT,
        "maximum number of consumer groups; more are refused",
        default=5_000,
        is_reloadable=True,
    )
    max_groups_per_connection: int = setting(
        "maxGroupsPerConnection",
        COUNT,
        "maximum number of groups that one client may be a member of",
        default=500,
    )
    max_group_members: int = setting(
        "maxGroupMembers",
        COUNT,
        "maximum number of group members; a client counts once in each of its groups",
        default=50_000,
    )
    subscription_bytes_max: int = setting(
        "maxSubscriptionBytes",
        SIZE,
        "maximum bytes of the subscriptions of all groups; one client may use a sixteenth",
        default=64 * _MIB,
    )
    max_consumer_offsets: int = setting(
        "maxConsumerOffsets",
        COUNT,
        "maximum number of stored offsets, one for each group and queue; more are refused",
        default=200_000,
        is_reloadable=True,
    )
    transaction_timeout_ms: int = setting(
        "transactionTimeOut",
        COUNT,
        "age from which a half message is checked, unless its producer sets another age; ms",
        default=6_000,
    )
    transaction_check_interval_ms: int = setting(
        "transactionCheckInterval",
        COUNT,
        "interval between rounds of checks of half messages; ms",
        default=30_000,
        rocketmq="60000 in 4.9",
    )
    transaction_check_max: int = setting(
        "transactionCheckMax",
        COUNT,
        "a half message that was checked this often is moved to TRANS_CHECK_MAX_TIME_TOPIC",
        default=15,
    )
    reject_transaction_message: bool = setting(
        "rejectTransactionMessage", FLAG, "whether half messages are refused", default=False
    )
    send_queue_capacity: int = setting(
        "sendThreadPoolQueueCapacity",
        COUNT,
        "maximum number of sends waiting for the disk; more are refused as busy",
        default=10_000,
    )
    send_wait_max_ms: int = setting(
        "osPageCacheBusyTimeOutMills",
        MS,
        "when sends wait longer than this for the disk, new ones are refused as busy; ms",
        default=1_000,
    )
    sync_flush_timeout_ms: int = setting(
        "syncFlushTimeout",
        MS,
        "a send waiting longer for the disk is answered FLUSH_DISK_TIMEOUT; ms",
        default=5_000,
    )
    max_transfer_count: int = setting(
        "maxTransferCountOnMessageInMemory",
        COUNT,
        "maximum number of messages in the response to one pull",
        default=DEFAULT_LIMITS.count_max,
    )
    max_transfer_bytes: int = setting(
        "maxTransferBytesOnMessageInMemory",
        number(1, 15 * _MIB),
        "maximum size of the response to one pull, in bytes",
        default=DEFAULT_LIMITS.bytes_max,
    )
    max_transfer_bytes_extended: int = setting(
        "maxTransferBytesExtended",
        number(1, 15 * _MIB),
        "maximum size of the response to a client that supports large pulls, in bytes",
        default=8 * _MIB,
    )
    client_expired_timeout_ms: int = setting(
        "clientExpiredTimeoutMills",
        COUNT,
        "a client without a heartbeat for this time leaves its groups; ms",
        default=120_000,
    )
    checkpoint_interval_ms: int = setting(
        "checkpointIntervalMills",
        COUNT,
        "interval between checkpoints, which limits the work of a start after a crash; ms",
        default=60_000,
    )
    flush_consumer_offset_interval_ms: int = setting(
        "flushConsumerOffsetInterval",
        COUNT,
        "interval between saves of the offsets of consumer groups; ms",
        default=5_000,
    )
    flush_delay_offset_interval_ms: int = setting(
        "flushDelayOffsetInterval",
        COUNT,
        "interval between saves of the offsets of delay levels; ms",
        default=10_000,
    )
    timer_flush_interval_ms: int = setting(
        "timerFlushIntervalMs",
        COUNT,
        "interval between saves of the progress of timers; ms",
        default=1_000,
    )
    clean_resource_interval_ms: int = setting(
        "cleanResourceInterval",
        COUNT,
        "interval between checks for files to delete; ms",
        default=10_000,
    )
