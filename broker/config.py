"""Every setting of the broker, with its default: frozen values, grouped by where they are used.

Their names in a file, and the texts that stand for their values, are the business of `settings`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rmq_spark.wire.framing import HEADER_BYTES_MAX
from rocketpoll.broker.longpolling.hold_limits import HoldLimits
from rocketpoll.broker.store.config import StoreConfig

_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """The share of the broker's resources that one client, and all together, may take.

    The entries of `setting_keys.KEYS` say what each field means, and its unit.
    """

    max_connections: int = 12_000
    max_connections_per_address: int = 2_048
    max_accepts_per_second: int = 200
    frame_bytes_max: int = 16 * _MIB
    header_bytes_max: int = HEADER_BYTES_MAX
    json_body_bytes_max: int = 262_144
    first_frame_timeout_ms: int = 10_000
    partial_frame_timeout_ms: int = 30_000
    idle_timeout_ms: int = 120_000
    write_buffer_bytes: int = 65_536
    slow_reader_timeout_ms: int = 30_000
    in_flight_bytes_max: int = 64 * _MIB
    unread_bytes_max: int = 64 * _MIB


@dataclass(frozen=True, kw_only=True)
class FilterLimits:
    """The limits of SQL92 expressions in subscriptions, and whether any are allowed.

    The entries of `setting_keys.KEYS` say what each field means, and its unit.
    """

    enable_property_filter: bool = True
    expression_bytes_max: int = 4_096
    depth_max: int = 32
    nodes_max: int = 256


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """All settings of a broker, frozen; `rocketpoll.broker.settings` reads them from files.

    The entries of `setting_keys.KEYS` say what each field means, and its unit.
    """

    store: StoreConfig
    server: ServerLimits = field(default_factory=ServerLimits)
    holds: HoldLimits = field(default_factory=HoldLimits)
    filters: FilterLimits = field(default_factory=FilterLimits)
    broker_cluster_name: str = "DefaultCluster"
    broker_name: str = "broker-a"
    broker_ip1: str = ""
    bind_address: str = "127.0.0.1"
    listen_port: int = 9876
    vip_channel_enable: bool = True
    allow_remote_without_authentication: bool = False
    broker_permission: int = 6
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    default_topic_queue_nums: int = 8
    max_topics: int = 10_000
    max_queues: int = 82_000
    max_groups: int = 5_000
    max_groups_per_connection: int = 500
    max_group_members: int = 50_000
    subscription_bytes_max: int = 64 * _MIB
    max_consumer_offsets: int = 200_000
    max_transfer_count: int = 32
    max_transfer_bytes: int = 262_144
    max_transfer_bytes_extended: int = 8 * _MIB
    sync_flush_timeout_ms: int = 5_000
    send_queue_capacity: int = 10_000
    send_wait_max_ms: int = 1_000
    flush_consumer_offset_interval_ms: int = 5_000
    flush_delay_offset_interval_ms: int = 10_000
    checkpoint_interval_ms: int = 60_000
    clean_resource_interval_ms: int = 10_000
    client_expired_timeout_ms: int = 120_000
    region_id: str = "DefaultRegion"
    trace_on: bool = True
