"""Every setting by its key: its field in `BrokerConfig`, the kind of its values, and its purpose.

The keys are RocketMQ's own names where RocketMQ has them. `conf/broker.conf` lists them in this
order, with these comments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rmq_spark.wire.framing import HEADER_BYTES_MAX
from rocketpoll.broker.setting_values import (
    ADDRESS,
    ADDRESS_OR_NOTHING,
    BROKER_ROLE,
    COUNT,
    DELAY_LEVELS,
    DIRECTORY,
    FLAG,
    FLUSH_DISK_TYPE,
    HOURS,
    MS,
    NAME,
    PERCENT,
    SIZE,
    Values,
    number,
)

_MIB: Final = 1 << 20


class Key(NamedTuple):
    """The description of one setting: where its value is kept, how it is parsed, what it is for."""

    section: str  # "" or the name of a field of BrokerConfig
    name: str
    values: Values[Any]
    comment: str


KEYS: Final[Mapping[str, Key]] = {
    # identity and addresses
    "brokerClusterName": Key(
        "", "broker_cluster_name", NAME, "name of the cluster that the broker belongs to"
    ),
    "brokerName": Key("", "broker_name", NAME, "name of the broker, part of the name of every queue"),
    "listenPort": Key(
        "", "listen_port", number(0, 65_535), "TCP port for all requests; 0 picks any free port"
    ),
    "vipChannelEnable": Key(
        "",
        "vip_channel_enable",
        FLAG,
        "listen on listenPort - 2 as well, for clients up to 4.4 and the dashboard; not with listenPort=0",
    ),
    "bindAddress": Key("", "bind_address", ADDRESS, "the address to listen on"),
    "brokerIP1": Key(
        "",
        "broker_ip1",
        ADDRESS_OR_NOTHING,
        "address advertised to clients; empty: the one that each client connected to",
    ),
    "allowRemoteWithoutAuthentication": Key(
        "",
        "allow_remote_without_authentication",
        FLAG,
        "true: anybody who reaches a non-loopback bindAddress may read, write and delete",
    ),
    "brokerPermission": Key(
        "", "broker_permission", number(0, 6), "permissions of the whole broker: 4 read + 2 write"
    ),
    "brokerRole": Key("store", "broker_role", BROKER_ROLE, "ASYNC_MASTER, or SLAVE: read-only"),
    "regionId": Key("", "region_id", NAME, "region reported to producers for their traces"),
    "traceOn": Key("", "trace_on", FLAG, "whether producers may record traces"),
    # topics, groups, sends
    "autoCreateTopicEnable": Key(
        "", "auto_create_topic_enable", FLAG, "whether a send to an unknown topic creates the topic"
    ),
    "autoCreateSubscriptionGroup": Key(
        "", "auto_create_subscription_group", FLAG, "whether a consumer of an unknown group creates the group"
    ),
    "defaultTopicQueueNums": Key(
        "",
        "default_topic_queue_nums",
        number(1, 1_024),
        "maximum number of queues of an automatically created topic",
    ),
    "maxTopics": Key(
        "", "max_topics", COUNT, "maximum number of topics, retry topics included; more are refused"
    ),
    "maxQueues": Key(
        "", "max_queues", COUNT, "maximum number of queues of all topics together; more are refused"
    ),
    "maxGroups": Key("", "max_groups", COUNT, "maximum number of consumer groups; more are refused"),
    "maxGroupsPerConnection": Key(
        "", "max_groups_per_connection", COUNT, "maximum number of groups that one client may be a member of"
    ),
    "maxGroupMembers": Key(
        "",
        "max_group_members",
        COUNT,
        "maximum number of group members; a client counts once in each of its groups",
    ),
    "maxSubscriptionBytes": Key(
        "",
        "subscription_bytes_max",
        SIZE,
        "bytes of the subscriptions of all groups; one client may use a sixteenth of them",
    ),
    "maxConsumerOffsets": Key(
        "",
        "max_consumer_offsets",
        COUNT,
        "maximum number of stored offsets, one for each group and queue; more are refused",
    ),
    "maxMessageSize": Key(
        "store", "max_message_size", number(1, 16 * _MIB - 1), "maximum size of one message, in bytes"
    ),
    "sendThreadPoolQueueCapacity": Key(
        "",
        "send_queue_capacity",
        COUNT,
        "maximum number of sends waiting for the disk; more are refused as busy",
    ),
    "osPageCacheBusyTimeOutMills": Key(
        "",
        "send_wait_max_ms",
        MS,
        "when sends wait longer than this for the disk, new ones are refused as busy; ms",
    ),
    "syncFlushTimeout": Key(
        "",
        "sync_flush_timeout_ms",
        MS,
        "a send waiting longer for the disk is answered FLUSH_DISK_TIMEOUT; ms",
    ),
    "messageDelayLevel": Key(
        "store", "message_delay_level_ms", DELAY_LEVELS, "delays of the levels 1, 2, 3 ..."
    ),
    # pulls
    "longPollingEnable": Key(
        "holds",
        "long_polling_enable",
        FLAG,
        "false: pulls wait for shortPollingTimeMills, and arrivals do not wake them",
    ),
    "shortPollingTimeMills": Key(
        "holds",
        "short_polling_time_ms",
        MS,
        "wait of a pull without long polling, or when too many pulls wait; ms",
    ),
    "suspendTimeoutMillsMin": Key(
        "holds",
        "suspend_timeout_min_ms",
        MS,
        "minimum time that a pull is held, whatever the client asks for; ms",
    ),
    "suspendTimeoutMillsMax": Key(
        "holds",
        "suspend_timeout_max_ms",
        MS,
        "maximum time that a pull is held, whatever the client asks for; ms",
    ),
    "maxHoldsPerConnectionAndQueue": Key(
        "holds",
        "holds_per_connection_and_queue",
        COUNT,
        "held pulls of one client and queue; more wait for shortPollingTimeMills only",
    ),
    "maxHolds": Key(
        "holds",
        "holds_max",
        COUNT,
        "held pulls of all clients; as many more wait for shortPollingTimeMills, the rest are refused",
    ),
    "maxTransferCountOnMessageInMemory": Key(
        "", "max_transfer_count", COUNT, "maximum number of messages in the answer to one pull"
    ),
    "maxTransferBytesOnMessageInMemory": Key(
        "", "max_transfer_bytes", SIZE, "maximum size of the answer to one pull, in bytes"
    ),
    "maxTransferBytesExtended": Key(
        "",
        "max_transfer_bytes_extended",
        number(1, 15 * _MIB),
        "maximum size of the answer to a client that supports large pulls, in bytes",
    ),
    "enablePropertyFilter": Key(
        "filters", "enable_property_filter", FLAG, "whether SQL92 subscriptions are allowed"
    ),
    "maxFilterExpressionBytes": Key(
        "filters", "expression_bytes_max", COUNT, "maximum size of the text of an SQL92 expression, in bytes"
    ),
    "maxFilterDepth": Key(
        "filters", "depth_max", number(1, 200), "maximum nesting depth of an SQL92 expression"
    ),
    "maxFilterNodes": Key("filters", "nodes_max", COUNT, "maximum number of nodes of an SQL92 expression"),
    # connections
    "maxConnections": Key(
        "server",
        "max_connections",
        COUNT,
        "maximum number of clients; fewer where the system allows fewer descriptors",
    ),
    "maxConnectionsPerAddress": Key(
        "server", "max_connections_per_address", COUNT, "maximum number of clients from one address"
    ),
    "maxAcceptsPerSecond": Key(
        "server",
        "max_accepts_per_second",
        COUNT,
        "maximum number of new clients per second; more are turned away",
    ),
    "maxFrameBytes": Key(
        "server", "frame_bytes_max", number(1_024, 16 * _MIB), "maximum size of one request, in bytes"
    ),
    "maxHeaderBytes": Key(
        "server",
        "header_bytes_max",
        number(4_096, HEADER_BYTES_MAX),
        "maximum size of the header of a request, which carries message properties, in bytes",
    ),
    "maxJsonBodyBytes": Key(
        "server",
        "json_body_bytes_max",
        number(1_024, 16 * _MIB),
        "maximum size of a JSON body, such as a heartbeat or a list of topics, in bytes",
    ),
    "firstFrameTimeoutMills": Key(
        "server",
        "first_frame_timeout_ms",
        COUNT,
        "a client that has not sent the header of a first request by then is disconnected; ms",
    ),
    "partialFrameTimeoutMills": Key(
        "server",
        "partial_frame_timeout_ms",
        COUNT,
        "a client that does not finish a request within this time is disconnected; ms",
    ),
    "serverChannelMaxIdleTimeMills": Key(
        "server", "idle_timeout_ms", COUNT, "a client that is idle for this time is disconnected; ms"
    ),
    "clientExpiredTimeoutMills": Key(
        "",
        "client_expired_timeout_ms",
        COUNT,
        "a client without a heartbeat for this time leaves its groups; ms",
    ),
    "maxWriteBufferBytes": Key(
        "server",
        "write_buffer_bytes",
        SIZE,
        "unread answers of one client, in bytes; beyond, nothing more is read from it",
    ),
    "slowReaderTimeoutMills": Key(
        "server",
        "slow_reader_timeout_ms",
        COUNT,
        "a client that reads none of its answers for this time is disconnected; ms",
    ),
    "maxUnreadBytes": Key(
        "server",
        "unread_bytes_max",
        SIZE,
        "unread answers of all clients, in bytes; near it, answers to pulls get shorter",
    ),
    "maxInFlightBytes": Key(
        "server",
        "in_flight_bytes_max",
        SIZE,
        "incomplete or waiting requests of all clients, in bytes; beyond, sends are refused as busy",
    ),
    # the store
    "storePathRootDir": Key("store", "store_path_root_dir", DIRECTORY, "directory of the store"),
    "maxOpenFiles": Key(
        "store",
        "open_files_max",
        COUNT,
        "maximum number of open files of the store; fewer where the system allows fewer",
    ),
    "mappedFileSizeCommitLog": Key(
        "store",
        "mapped_file_size_commit_log",
        number(4_096),
        "size of a commit log file, in bytes; never change it for an existing store",
    ),
    "mappedFileSizeConsumeQueue": Key(
        "store",
        "mapped_file_size_consume_queue",
        number(20),
        "size of a consume queue file, in bytes; never change it for an existing store",
    ),
    "maxHashSlotNum": Key(
        "store",
        "max_hash_slot_num",
        COUNT,
        "hash slots of an index file; never change it for an existing store",
    ),
    "maxIndexNum": Key(
        "store", "max_index_num", COUNT, "entries of an index file; never change it for an existing store"
    ),
    "messageIndexEnable": Key("store", "message_index_enable", FLAG, "whether messages can be found by key"),
    "maxIndexHops": Key(
        "store", "index_hops_max", COUNT, "maximum number of index entries that one query looks at"
    ),
    "flushDiskType": Key(
        "store",
        "flush_disk_type",
        FLUSH_DISK_TYPE,
        "SYNC_FLUSH: an acknowledged message is on the disk; ASYNC_FLUSH: it will be soon",
    ),
    "flushIntervalCommitLog": Key(
        "store", "flush_interval_commit_log_ms", COUNT, "interval between flushes with ASYNC_FLUSH; ms"
    ),
    "checkWholeLogBytes": Key(
        "store",
        "check_whole_log_bytes",
        number(0),
        "a commit log up to this size, in bytes, is checked as a whole at every start",
    ),
    "checkpointIntervalMills": Key(
        "",
        "checkpoint_interval_ms",
        COUNT,
        "interval between checkpoints, which limits the work of a start after a crash; ms",
    ),
    "flushConsumerOffsetInterval": Key(
        "",
        "flush_consumer_offset_interval_ms",
        COUNT,
        "interval between saves of the offsets of consumer groups; ms",
    ),
    "flushDelayOffsetInterval": Key(
        "",
        "flush_delay_offset_interval_ms",
        COUNT,
        "interval between saves of the offsets of delay levels; ms",
    ),
    "fileReservedTime": Key("store", "file_reserved_time_hours", COUNT, "hours for which messages are kept"),
    "deleteWhen": Key(
        "store", "delete_when_hours", HOURS, "hours of the day in which expired messages are deleted"
    ),
    "cleanResourceInterval": Key(
        "", "clean_resource_interval_ms", COUNT, "interval between checks for files to delete; ms"
    ),
    "diskMaxUsedSpaceRatio": Key(
        "store",
        "disk_max_used_space_ratio",
        PERCENT,
        "percent of the disk used: from here on, expired messages are deleted at any hour",
    ),
    "diskSpaceCleanForciblyRatio": Key(
        "store",
        "disk_space_clean_forcibly_ratio",
        PERCENT,
        "percent of the disk used: from here on, the oldest messages go, whatever their age",
    ),
    "diskSpaceWarningLevelRatio": Key(
        "store",
        "disk_space_warning_level_ratio",
        PERCENT,
        "percent of the disk used: from here on, sends are refused",
    ),
}
