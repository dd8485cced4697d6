"""Codes: the numbers of RocketMQ's remoting protocol for requests, responses, languages and codecs.

Names and numbers are RocketMQ's own, so that a search for either finds this file. Numbers from
29000 up are ours: they are sent only to a peer that has agreed to them (`extensions.py`). `headers`
has the fields that the requests carry.

Some of RocketMQ's numbers are missing on purpose, because rocketpoll serves none of them: 50 to 53,
200056 and 200070 ff. (light queues), 513 (static topics), 901 and 904 (masters and slaves), and the
response codes 2000 to 2018 (controllers). A peer that sends one gets REQUEST_CODE_NOT_SUPPORTED.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag, unique
from typing import Final

MASTER_ID: Final = 0
"""The broker id of masters; slaves have others."""


@unique
class RequestCode(IntEnum):
    """The code of a request; unique over name server (N), broker (B) and client (C)."""

    SEND_MESSAGE = 10  # B
    PULL_MESSAGE = 11  # B
    QUERY_MESSAGE = 12  # B
    QUERY_CONSUMER_OFFSET = 14  # B
    UPDATE_CONSUMER_OFFSET = 15  # B
    UPDATE_AND_CREATE_TOPIC = 17  # B
    UPDATE_AND_CREATE_TOPIC_LIST = 18  # B, 5.x
    GET_ALL_TOPIC_CONFIG = 21  # B
    UPDATE_BROKER_CONFIG = 25  # B: always refused by ours
    GET_BROKER_CONFIG = 26  # B
    GET_BROKER_RUNTIME_INFO = 28  # B
    SEARCH_OFFSET_BY_TIMESTAMP = 29  # B
    GET_MAX_OFFSET = 30  # B
    GET_MIN_OFFSET = 31  # B
    GET_EARLIEST_MSG_STORETIME = 32  # B
    VIEW_MESSAGE_BY_ID = 33  # B
    HEART_BEAT = 34  # B
    UNREGISTER_CLIENT = 35  # B
    CONSUMER_SEND_MSG_BACK = 36  # B
    END_TRANSACTION = 37  # B, one-way
    GET_CONSUMER_LIST_BY_GROUP = 38  # B
    CHECK_TRANSACTION_STATE = 39  # C, one-way
    NOTIFY_CONSUMER_IDS_CHANGED = 40  # C, one-way
    LOCK_BATCH_MQ = 41  # B
    UNLOCK_BATCH_MQ = 42  # B
    GET_ALL_CONSUMER_OFFSET = 43  # B
    GET_ALL_DELAY_OFFSET = 45  # B
    CHECK_CLIENT_CONFIG = 46  # B
    GET_TIMER_METRICS = 61  # B, 5.x
    PUT_KV_CONFIG = 100  # N
    GET_KV_CONFIG = 101  # N
    DELETE_KV_CONFIG = 102  # N
    REGISTER_BROKER = 103  # N
    UNREGISTER_BROKER = 104  # N
    GET_ROUTEINFO_BY_TOPIC = 105  # N
    GET_BROKER_CLUSTER_INFO = 106  # N
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200  # B
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201  # B
    GET_TOPIC_STATS_INFO = 202  # B
    GET_CONSUMER_CONNECTION_LIST = 203  # B
    GET_PRODUCER_CONNECTION_LIST = 204  # B
    WIPE_WRITE_PERM_OF_BROKER = 205  # N
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206  # N
    DELETE_SUBSCRIPTIONGROUP = 207  # B
    GET_CONSUME_STATS = 208  # B
    DELETE_TOPIC_IN_BROKER = 215  # B
    DELETE_TOPIC_IN_NAMESRV = 216  # N
    REGISTER_TOPIC_IN_NAMESRV = 217  # N, 5.x
    GET_KVLIST_BY_NAMESPACE = 219  # N
    RESET_CONSUMER_CLIENT_OFFSET = 220  # C, one-way
    GET_CONSUMER_STATUS_FROM_CLIENT = 221  # C
    INVOKE_BROKER_TO_RESET_OFFSET = 222  # B
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223  # B
    GET_TOPICS_BY_CLUSTER = 224  # N
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225  # B, 5.x
    QUERY_TOPIC_CONSUME_BY_WHO = 300  # B
    QUERY_CONSUME_TIME_SPAN = 303  # B
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304  # N
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305  # B
    CLEAN_EXPIRED_CONSUMEQUEUE = 306  # B
    GET_CONSUMER_RUNNING_INFO = 307  # B, passed on to C
    QUERY_CORRECTION_OFFSET = 308  # B
    CONSUME_MESSAGE_DIRECTLY = 309  # B, passed on to C
    SEND_MESSAGE_V2 = 310  # B
    GET_UNIT_TOPIC_LIST = 311  # N
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312  # N
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313  # N
    CLONE_GROUP_OFFSET = 314  # B
    VIEW_BROKER_STATS_DATA = 315  # B
    CLEAN_UNUSED_TOPIC = 316  # B
    GET_BROKER_CONSUME_STATS = 317  # B
    UPDATE_NAMESRV_CONFIG = 318  # N: always refused by ours
    GET_NAMESRV_CONFIG = 319  # N
    SEND_BATCH_MESSAGE = 320  # B
    QUERY_CONSUME_QUEUE = 321  # B
    QUERY_DATA_VERSION = 322  # N
    RESUME_CHECK_HALF_MESSAGE = 323  # B
    SEND_REPLY_MESSAGE = 324  # B
    SEND_REPLY_MESSAGE_V2 = 325  # B
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326  # C
    ADD_WRITE_PERM_OF_BROKER = 327  # N
    GET_ALL_PRODUCER_INFO = 328  # B
    DELETE_EXPIRED_COMMITLOG = 329  # B
    QUERY_TOPICS_BY_CONSUMER = 343  # B, 5.x
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345  # B, 5.x
    GET_TOPIC_CONFIG = 351  # B, 5.x
    GET_SUBSCRIPTIONGROUP_CONFIG = 352  # B, 5.x
    LITE_PULL_MESSAGE = 361  # B, 5.x: sent by lite consumers of 5.x instead of 11
    RECALL_MESSAGE = 370  # B, 5.x: discard a message that waits for its timer
    QUERY_ASSIGNMENT = 400  # B, 5.x: the queues of a member, divided by the broker
    SET_MESSAGE_REQUEST_MODE = 401  # B, 5.x: whether a group's members pull or pop a topic
    AUTH_CREATE_USER = 3001  # B, 5.x
    AUTH_UPDATE_USER = 3002  # B, 5.x
    AUTH_DELETE_USER = 3003  # B, 5.x
    AUTH_GET_USER = 3004  # B, 5.x
    AUTH_LIST_USER = 3005  # B, 5.x
    AUTH_CREATE_ACL = 3006  # B, 5.x
    AUTH_UPDATE_ACL = 3007  # B, 5.x
    AUTH_DELETE_ACL = 3008  # B, 5.x
    AUTH_GET_ACL = 3009  # B, 5.x
    AUTH_LIST_ACL = 3010  # B, 5.x
    POP_MESSAGE = 200050  # B, 5.x: messages that are invisible to others until acknowledged
    ACK_MESSAGE = 200051  # B, 5.x
    PEEK_MESSAGE = 200052  # B, 5.x
    CHANGE_MESSAGE_INVISIBLETIME = 200053  # B, 5.x
    NOTIFICATION = 200054  # B, 5.x: answered when there is something to pop
    POLLING_INFO = 200055  # B, 5.x
    BATCH_ACK_MESSAGE = 200151  # B, 5.x
    EXTENSIONS = 29000  # B, ours: the extensions that both sides know
    PULL_CHUNK = 29001  # B, ours: a pull of many megabytes, with the sizes of its records in front
    APPEND_CHUNK = 29002  # B, ours: ready-encoded records of one queue, with their sizes in front
    STAGE_CHUNK = 29003  # B, ours: records of a batch, invisible until it is committed
    COMMIT_BATCH = 29004  # B, ours: all rows of a batch become visible
    ABORT_BATCH = 29005  # B, ours: delete staged records of a batch that is not committed
    LAST_BATCH = 29006  # B, ours: the last batch that a sink has committed
    FORGET_SINK = 29007  # B, ours: delete a sink's last batch and all that it has staged
    ALL_SINKS = 29008  # B, ours: the last batches of all sinks
    PULL_PLACES = 29009  # B, ours: a pull whose records are read from the files of the log


@unique
class ResponseCode(IntEnum):
    """The result code of a response; 0 means success everywhere."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    USER_NOT_EXIST = 3001
    POLICY_NOT_EXIST = 3002


@unique
class LanguageCode(IntEnum):
    """The sender's language; a JSON header has its name, the other two codecs its number."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


@unique
class SerializeType(IntEnum):
    """The codec of a frame's header, in the top byte of the frame's second word."""

    JSON = 0
    ROCKETMQ = 1
    MSGPACK = 2  # ours


# ---- Bit fields of commands, stored messages, pulls and permissions.


class CommandFlag(IntFlag):
    """The ``flag`` word of a command."""

    RESPONSE = 1
    ONE_WAY = 2


class MessageSysFlag(IntFlag):
    """The ``sysFlag`` word of a stored or sent message.

    Two fields are wider than a bit: the transaction state and the compression type. Use the masks
    with the values below them.
    """

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    TRANSACTION_PREPARED = 0x4
    TRANSACTION_COMMIT = 0x8
    TRANSACTION_ROLLBACK = 0xC
    TRANSACTION_MASK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    COMPRESSION_LZ4 = 0x100
    COMPRESSION_ZSTD = 0x200
    COMPRESSION_ZLIB = 0x300
    COMPRESSION_MASK = 0x700


class PullSysFlag(IntFlag):
    """The ``sysFlag`` word of a pull request."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4  # the request itself carries the subscription
    CLASS_FILTER = 8
    LITE_PULL = 16


class TopicPermission(IntFlag):
    """The ``perm`` word of a topic, a queue or a broker."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8
