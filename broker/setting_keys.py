"""Every setting by its key: where in `BrokerConfig` it is, what its values are, and what it is for.

RocketMQ's own name where RocketMQ has it. `conf/broker.conf` has them in this order, with these comments.
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
    """One setting."""

    section: str  # "" or the name of a field of BrokerConfig
    name: str
    values: Values[Any]
    comment: str


KEYS: Final[Mapping[str, Key]] = {
    # who it is and where it listens
    "brokerClusterName": Key("", "broker_cluster_name", NAME, "the cluster's name"),
    "brokerName": Key("", "broker_name", NAME, "the broker's name, part of every queue's"),
    "listenPort": Key("", "listen_port", number(0, 65_535), "one port for all requests; 0: any that is free"),
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
        "the address told to clients; nothing: the one that they reached",
    ),
    "allowRemoteWithoutAuthentication": Key(
        "",
        "allow_remote_without_authentication",
        FLAG,
        "true: anybody who reaches a bindAddress beyond loopback may read, write and delete",
    ),
    "brokerPermission": Key("", "broker_permission", number(0, 6), "4 read + 2 write"),
    "brokerRole": Key("store", "broker_role", BROKER_ROLE, "ASYNC_MASTER, or SLAVE: read only"),
    "regionId": Key("", "region_id", NAME, "told to producers for their traces"),
    "traceOn": Key("", "trace_on", FLAG, "whether producers may trace"),
    # topics, groups, sends
    "autoCreateTopicEnable": Key("", "auto_create_topic_enable", FLAG, "a send makes its topic"),
    "autoCreateSubscriptionGroup": Key(
        "", "auto_create_subscription_group", FLAG, "a consumer makes its group"
    ),
    "defaultTopicQueueNums": Key(
        "", "default_topic_queue_nums", number(1, 1_024), "queues of such a topic, at most"
    ),
    "maxTopics": Key("", "max_topics", COUNT, "topics, with those for retries; more are refused"),
    "maxQueues": Key("", "max_queues", COUNT, "queues of all topics; more are refused"),
    "maxGroups": Key("", "max_groups", COUNT, "consumer groups; more are refused"),
    "maxGroupsPerConnection": Key("", "max_groups_per_connection", COUNT, "that one client may be in"),
    "maxGroupMembers": Key(
        "", "max_group_members", COUNT, "clients in groups, each counted in each of its groups"
    ),
    "maxSubscriptionBytes": Key(
        "", "subscription_bytes_max", SIZE, "what all groups subscribe to; one client says a 16th at most"
    ),
    "maxConsumerOffsets": Key(
        "", "max_consumer_offsets", COUNT, "one for each group and queue of it; more are refused"
    ),
    "maxMessageSize": Key("store", "max_message_size", number(1, 16 * _MIB - 1), "bytes of one message"),
    "sendThreadPoolQueueCapacity": Key(
        "", "send_queue_capacity", COUNT, "sends that wait for the disk; more are refused as busy"
    ),
    "osPageCacheBusyTimeOutMills": Key(
        "", "send_wait_max_ms", MS, "when the disk makes sends wait longer, new ones are refused as busy"
    ),
    "syncFlushTimeout": Key(
        "", "sync_flush_timeout_ms", MS, "after this, a send is answered FLUSH_DISK_TIMEOUT"
    ),
    "messageDelayLevel": Key(
        "store", "message_delay_level_ms", DELAY_LEVELS, "the delays of levels 1, 2, 3 ..."
    ),
    # pulls
    "longPollingEnable": Key(
        "holds", "long_polling_enable", FLAG, "false: pulls wait for shortPollingTimeMills, nobody wakes them"
    ),
    "shortPollingTimeMills": Key(
        "holds", "short_polling_time_ms", MS, "how long then; and when too many wait"
    ),
    "suspendTimeoutMillsMin": Key(
        "holds", "suspend_timeout_min_ms", MS, "a client that asks for less waits this"
    ),
    "suspendTimeoutMillsMax": Key(
        "holds", "suspend_timeout_max_ms", MS, "a client that asks for more waits this"
    ),
    "maxHoldsPerConnectionAndQueue": Key(
        "holds", "holds_per_connection_and_queue", COUNT, "more wait for shortPollingTimeMills only"
    ),
    "maxHolds": Key(
        "holds",
        "holds_max",
        COUNT,
        "waiting pulls of all clients; as many more are put off likewise; beyond, they are refused as busy",
    ),
    "maxTransferCountOnMessageInMemory": Key("", "max_transfer_count", COUNT, "messages of one pull"),
    "maxTransferBytesOnMessageInMemory": Key("", "max_transfer_bytes", SIZE, "their bytes"),
    "maxTransferBytesExtended": Key(
        "", "max_transfer_bytes_extended", number(1, 15 * _MIB), "the same for clients that take large pulls"
    ),
    "enablePropertyFilter": Key("filters", "enable_property_filter", FLAG, "SQL92 subscriptions"),
    "maxFilterExpressionBytes": Key("filters", "expression_bytes_max", COUNT, "the text of one"),
    "maxFilterDepth": Key("filters", "depth_max", number(1, 200), "how deep it may nest"),
    "maxFilterNodes": Key("filters", "nodes_max", COUNT, "how many parts it may have"),
    # connections
    "maxConnections": Key(
        "server", "max_connections", COUNT, "clients; fewer where the system allows fewer descriptors"
    ),
    "maxConnectionsPerAddress": Key("server", "max_connections_per_address", COUNT, "of one address"),
    "maxAcceptsPerSecond": Key(
        "server", "max_accepts_per_second", COUNT, "new clients; more are turned away"
    ),
    "maxFrameBytes": Key("server", "frame_bytes_max", number(1_024, 16 * _MIB), "one request"),
    "maxHeaderBytes": Key(
        "server",
        "header_bytes_max",
        number(4_096, HEADER_BYTES_MAX),
        "its header, where a message's properties travel",
    ),
    "maxJsonBodyBytes": Key(
        "server",
        "json_body_bytes_max",
        number(1_024, 16 * _MIB),
        "its body, if that is no message: a heartbeat, a list of topics",
    ),
    "firstFrameTimeoutMills": Key(
        "server",
        "first_frame_timeout_ms",
        COUNT,
        "a client that says nothing, not even the header of a first request, is closed",
    ),
    "partialFrameTimeoutMills": Key(
        "server", "partial_frame_timeout_ms", COUNT, "so is one that does not finish a request"
    ),
    "serverChannelMaxIdleTimeMills": Key(
        "server", "idle_timeout_ms", COUNT, "and one that has nothing to do"
    ),
    "clientExpiredTimeoutMills": Key(
        "", "client_expired_timeout_ms", COUNT, "without a heartbeat a client leaves its groups"
    ),
    "maxWriteBufferBytes": Key(
        "server",
        "write_buffer_bytes",
        SIZE,
        "answers that a client has not read; beyond, nothing is read from it",
    ),
    "slowReaderTimeoutMills": Key(
        "server", "slow_reader_timeout_ms", COUNT, "one that reads none of them for so long is closed"
    ),
    "maxUnreadBytes": Key(
        "server",
        "unread_bytes_max",
        SIZE,
        "unread answers of all; the nearer to it, the shorter the answers to pulls",
    ),
    "maxInFlightBytes": Key(
        "server",
        "in_flight_bytes_max",
        SIZE,
        "requests of all that are not whole or have to wait; beyond, sends are busy",
    ),
    # the store
    "storePathRootDir": Key("store", "store_path_root_dir", DIRECTORY, "where everything is kept"),
    "maxOpenFiles": Key(
        "store", "open_files_max", COUNT, "of the store at a time; fewer where the system allows fewer"
    ),
    "mappedFileSizeCommitLog": Key(
        "store",
        "mapped_file_size_commit_log",
        number(4_096),
        "bytes of a file; never change it for a store that exists",
    ),
    "mappedFileSizeConsumeQueue": Key("store", "mapped_file_size_consume_queue", number(20), "likewise"),
    "maxHashSlotNum": Key("store", "max_hash_slot_num", COUNT, "likewise, of the index"),
    "maxIndexNum": Key("store", "max_index_num", COUNT, "likewise"),
    "messageIndexEnable": Key("store", "message_index_enable", FLAG, "whether messages are found by key"),
    "maxIndexHops": Key("store", "index_hops_max", COUNT, "entries of the index that one query looks at"),
    "flushDiskType": Key(
        "store",
        "flush_disk_type",
        FLUSH_DISK_TYPE,
        "SYNC_FLUSH: a message that is acknowledged is on the disk; ASYNC_FLUSH: will be",
    ),
    "flushIntervalCommitLog": Key(
        "store", "flush_interval_commit_log_ms", COUNT, "how soon, with ASYNC_FLUSH"
    ),
    "checkWholeLogBytes": Key(
        "store", "check_whole_log_bytes", number(0), "a log up to this size is checked whole at every start"
    ),
    "checkpointIntervalMills": Key(
        "", "checkpoint_interval_ms", COUNT, "how much a start after a crash has to redo"
    ),
    "flushConsumerOffsetInterval": Key("", "flush_consumer_offset_interval_ms", COUNT, "offsets of groups"),
    "flushDelayOffsetInterval": Key("", "flush_delay_offset_interval_ms", COUNT, "offsets of delay levels"),
    "fileReservedTime": Key("store", "file_reserved_time_hours", COUNT, "hours that messages are kept"),
    "deleteWhen": Key("store", "delete_when_hours", HOURS, "in which hours older ones go"),
    "cleanResourceInterval": Key("", "clean_resource_interval_ms", COUNT, "how often that is looked at"),
    "diskMaxUsedSpaceRatio": Key(
        "store", "disk_max_used_space_ratio", PERCENT, "percent of the disk in use: old ones go at any hour"
    ),
    "diskSpaceCleanForciblyRatio": Key(
        "store", "disk_space_clean_forcibly_ratio", PERCENT, "the oldest go, whatever their age"
    ),
    "diskSpaceWarningLevelRatio": Key(
        "store", "disk_space_warning_level_ratio", PERCENT, "sends are refused"
    ),
}
