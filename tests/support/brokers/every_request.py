"""One request of each code that a broker may receive, and the rights that it needs.

`REQUESTS` is written by hand from RocketMQ's access rules, and not from the table under test. Each
request uses topic `TOPIC` and group `GROUP`, which exist and belong to other users, unless other
names are given.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.clients.remoting_clients import batch_request, pull_request, send_request
from support.stores.staged_batches import sized

from rmq_spark.wire.bodies import clients, encode_body
from rmq_spark.wire.bodies.configs import (
    CreateTopicListRequestBody,
    DataVersion,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
)
from rmq_spark.wire.bodies.operators import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rmq_spark.wire.bodies.pop import (
    BatchAck,
    BatchAckMessageRequestBody,
    SetMessageRequestModeRequestBody,
)
from rmq_spark.wire.bodies.staged_batches import CommitBatchRequestBody, StagedAttempt
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import Extension, ExtensionsHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand

TOPIC, GROUP, MEMBER, SINK = "orders", "billing", "member", "ledger"
CLUSTER, BROKER = "DefaultCluster", "broker-a"
DENIED = 16

_TOPIC, _GROUP, _CLUSTER = f"Topic:{TOPIC}", f"Group:{GROUP}", f"Cluster:{CLUSTER}"


@dataclass(frozen=True)
class Names:
    """The names in a request. The message position is known after the message is stored."""

    topic: str = TOPIC
    group: str = GROUP
    position: int = 0
    msg_id: str = ""

    def hidden_in(self, text: str) -> str:
        """Return a text with these names removed."""
        words = (self.topic, self.group, self.msg_id, f"offset, {self.position}")
        for number, word in enumerate(filter(None, words)):
            text = text.replace(word, f"<{number}>")
        return text


@dataclass(frozen=True)
class Case:
    """A request, and its answers to those who may send it and to those who may not.

    Attributes:
        build: Makes the request from names.
        rights: What a user needs for it, together.
        answers: The codes of responses to a user who has all.
        lacks: The code for a user who lacks one of the rights, where that is not `DENIED`.
        shows: Names in the response to a user with all rights, and in no other.
        is_changing: True if the broker is not the same afterwards.
    """

    build: Callable[[Names], RemotingCommand]
    rights: tuple[str, ...] = ()
    answers: tuple[int, ...] = (0,)
    lacks: Mapping[str, int] = field(default_factory=dict)
    shows: tuple[str, ...] = ()
    is_changing: bool = False


def _header(code: RequestCode, **values: Any) -> RemotingCommand:
    return RemotingCommand(code, ext_fields={name: str(value) for name, value in values.items()})


def _of(
    code: RequestCode, body: object = None, **values: Any
) -> Callable[[Names], RemotingCommand]:
    """Return a request with these field values; callables are called with the names."""

    def build(names: Names) -> RemotingCommand:
        found = {key: value(names) if callable(value) else value for key, value in values.items()}
        content = body(names) if callable(body) else body
        data = content if isinstance(content, bytes) else encode_body(content) if content else b""
        return _header(code, **found)._replace(body=data)

    return build


def _topic(names: Names) -> str:
    return names.topic


def _group(names: Names) -> str:
    return names.group


def _send(code: RequestCode) -> Callable[[Names], RemotingCommand]:
    return lambda names: send_request("x", names.topic, code=code)


def _reply(code: RequestCode) -> Callable[[Names], RemotingCommand]:
    """Return a reply to a producer that does not exist."""
    return lambda names: send_request(
        "x", names.topic, code=code, properties={"REPLY_TO_CLIENT": "nobody"}
    )


def _pull(code: RequestCode) -> Callable[[Names], RemotingCommand]:
    return lambda names: pull_request(0, names.topic, group=names.group, code=code)


def _queues(names: Names) -> clients.LockBatchRequestBody:
    queues = frozenset([MessageQueue(names.topic, BROKER, 3)])
    return clients.LockBatchRequestBody(consumer_group=names.group, client_id="me", mq_set=queues)


def _heartbeat(names: Names) -> clients.HeartbeatData:
    subscription = clients.SubscriptionData(topic=names.topic)
    consumer = clients.ConsumerData(group_name=names.group, subscription_data_set=(subscription,))
    return clients.HeartbeatData(client_id="me", consumer_data_set=(consumer,))


def _topic_config(names: Names) -> TopicConfig:
    return TopicConfig(topic_name=names.topic, read_queue_nums=9, write_queue_nums=9)


def _rows(names: Names) -> bytes:
    return bytes(sized(["row"], names.topic, 0)[2])


def _commit(names: Names) -> CommitBatchRequestBody:
    rows = _rows(names)
    attempt = StagedAttempt(attempt="a", chunks=1, rows=1, crc=zlib.crc32(rows))
    return CommitBatchRequestBody(attempts=(attempt,))


def _extensions(_: Names) -> RemotingCommand:
    header = ExtensionsHeader.of(frozenset(Extension))
    code = RequestCode.EXTENSIONS
    return RemotingCommand(code, ext_fields=HEADERS[code].request.encode(header))


_POLICIES = (
    PolicyInfo(entries=(PolicyEntryInfo(resource="Topic:*", actions=("All",), decision="Allow"),)),
)
_ACL = AclInfo(subject="User:owner", policies=_POLICIES)
_USER = UserInfo(username="target", password="12345678")

_C = RequestCode
_SUBSCRIBED = (f"{_TOPIC} Sub", f"{_GROUP} Sub")
_GETS = (f"{_TOPIC} Get", f"{_GROUP} Get")
_MANAGES, _WATCHES = (f"{_CLUSTER} Update",), (f"{_CLUSTER} Get",)
_LISTS = f"{_CLUSTER} List"
_RECEIPT = {
    "consumerGroup": _group,
    "topic": _topic,
    "queueId": 0,
    "extraInfo": f"0 1 1000 0 0 {BROKER} 0 0",
    "offset": 0,
}
_SINK = {"sink": SINK, "batchId": 0, "owner": "query"}


def _own(code: RequestCode, rights: tuple[str, ...], **given: Any) -> Case:
    """Return the case of a request about the whole broker, without header and body."""
    return Case(_of(code), rights, **given)


REQUESTS: Mapping[RequestCode, Case] = {
    # ---- sending
    _C.SEND_MESSAGE: Case(_send(_C.SEND_MESSAGE), (f"{_TOPIC} Pub",), is_changing=True),
    _C.SEND_MESSAGE_V2: Case(_send(_C.SEND_MESSAGE_V2), (f"{_TOPIC} Pub",), is_changing=True),
    _C.SEND_BATCH_MESSAGE: Case(
        lambda names: batch_request("x", "y", topic=names.topic),
        (f"{_TOPIC} Pub",),
        is_changing=True,
    ),
    _C.SEND_REPLY_MESSAGE: Case(_reply(_C.SEND_REPLY_MESSAGE), (f"{_TOPIC} Pub",), (1,)),
    _C.SEND_REPLY_MESSAGE_V2: Case(_reply(_C.SEND_REPLY_MESSAGE_V2), (f"{_TOPIC} Pub",), (1,)),
    _C.RECALL_MESSAGE: Case(
        _of(_C.RECALL_MESSAGE, topic=_topic, recallHandle="none"), (f"{_TOPIC} Pub",), (604,)
    ),
    _C.CONSUMER_SEND_MSG_BACK: Case(
        _of(
            _C.CONSUMER_SEND_MSG_BACK,
            offset=lambda names: names.position,
            group=_group,
            delayLevel=1,
        ),
        (f"{_GROUP} Sub", f"{_TOPIC} Sub"),
        lacks={f"{_TOPIC} Sub": 1},
        is_changing=True,
    ),
    _C.END_TRANSACTION: Case(
        _of(
            _C.END_TRANSACTION,
            producerGroup="P",
            tranStateTableOffset=0,
            commitLogOffset=0,
            commitOrRollback=8,
            msgId="m",
            topic=_topic,
        ),
        (f"{_TOPIC} Pub",),
        (1,),  # the first message of the log is no half message
    ),
    # ---- receiving
    _C.PULL_MESSAGE: Case(_pull(_C.PULL_MESSAGE), _SUBSCRIBED),
    _C.LITE_PULL_MESSAGE: Case(_pull(_C.LITE_PULL_MESSAGE), _SUBSCRIBED),
    _C.QUERY_MESSAGE: Case(
        _of(
            _C.QUERY_MESSAGE,
            topic=_topic,
            key="k",
            maxNum=9,
            beginTimestamp=0,
            endTimestamp=1 << 60,
        ),
        (f"{_TOPIC} Sub",),
    ),
    _C.VIEW_MESSAGE_BY_ID: Case(
        _of(_C.VIEW_MESSAGE_BY_ID, offset=lambda names: names.position),
        (f"{_TOPIC} Get",),
        lacks={f"{_TOPIC} Get": 1},
    ),
    _C.QUERY_CONSUME_QUEUE: Case(
        _of(
            _C.QUERY_CONSUME_QUEUE,
            topic=_topic,
            queueId=0,
            index=0,
            count=9,
            consumerGroup=_group,
        ),
        _GETS,
    ),
    _C.QUERY_CONSUMER_OFFSET: Case(
        _of(_C.QUERY_CONSUMER_OFFSET, consumerGroup=_group, topic=_topic, queueId=0), _SUBSCRIBED
    ),
    _C.UPDATE_CONSUMER_OFFSET: Case(
        _of(
            _C.UPDATE_CONSUMER_OFFSET, consumerGroup=_group, topic=_topic, queueId=0, commitOffset=0
        ),
        _SUBSCRIBED,
        is_changing=True,
    ),
    _C.SEARCH_OFFSET_BY_TIMESTAMP: Case(
        _of(_C.SEARCH_OFFSET_BY_TIMESTAMP, topic=_topic, queueId=0, timestamp=0), (f"{_TOPIC} Get",)
    ),
    _C.GET_MAX_OFFSET: Case(_of(_C.GET_MAX_OFFSET, topic=_topic, queueId=0), (f"{_TOPIC} Sub",)),
    _C.GET_MIN_OFFSET: Case(_of(_C.GET_MIN_OFFSET, topic=_topic, queueId=0), (f"{_TOPIC} Get",)),
    _C.GET_EARLIEST_MSG_STORETIME: Case(
        _of(_C.GET_EARLIEST_MSG_STORETIME, topic=_topic, queueId=0), (f"{_TOPIC} Get",)
    ),
    # ---- popping
    _C.POP_MESSAGE: Case(
        _of(
            _C.POP_MESSAGE,
            consumerGroup=_group,
            topic=_topic,
            queueId=-1,
            maxMsgNums=32,
            invisibleTime=60_000,
            pollTime=0,
            bornTime=0,
            initMode=0,
        ),
        _SUBSCRIBED,
        is_changing=True,
    ),
    _C.ACK_MESSAGE: Case(_of(_C.ACK_MESSAGE, **_RECEIPT), _SUBSCRIBED, is_changing=True),
    _C.BATCH_ACK_MESSAGE: Case(
        _of(
            _C.BATCH_ACK_MESSAGE,
            lambda names: BatchAckMessageRequestBody(
                acks=(BatchAck(consumer_group=names.group, topic=names.topic, bit_set="AQ=="),)
            ),
        ),
        _SUBSCRIBED,
        is_changing=True,
    ),
    _C.CHANGE_MESSAGE_INVISIBLETIME: Case(
        _of(_C.CHANGE_MESSAGE_INVISIBLETIME, **_RECEIPT, invisibleTime=1_000),
        _SUBSCRIBED,
        is_changing=True,
    ),
    _C.NOTIFICATION: Case(
        _of(
            _C.NOTIFICATION,
            consumerGroup=_group,
            topic=_topic,
            queueId=-1,
            pollTime=0,
            bornTime=0,
        ),
        _SUBSCRIBED,
    ),
    _C.PEEK_MESSAGE: Case(
        _of(_C.PEEK_MESSAGE, consumerGroup=_group, topic=_topic, queueId=0, maxMsgNums=1),
        _SUBSCRIBED,
        (0, 19),
    ),
    _C.POLLING_INFO: Case(
        _of(_C.POLLING_INFO, consumerGroup=_group, topic=_topic, queueId=-1), _GETS
    ),
    _C.SET_MESSAGE_REQUEST_MODE: Case(
        _of(
            _C.SET_MESSAGE_REQUEST_MODE,
            lambda names: SetMessageRequestModeRequestBody(
                topic=names.topic, consumer_group=names.group, mode=clients.MessageRequestMode.POP
            ),
        ),
        _MANAGES,
        is_changing=True,
    ),
    # ---- members of groups
    _C.HEART_BEAT: Case(_of(_C.HEART_BEAT, _heartbeat), _SUBSCRIBED, is_changing=True),
    _C.UNREGISTER_CLIENT: Case(
        _of(_C.UNREGISTER_CLIENT, clientID=MEMBER, consumerGroup=_group), (f"{_GROUP} Sub",)
    ),
    _C.GET_CONSUMER_LIST_BY_GROUP: Case(
        _of(_C.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=_group), (f"{_GROUP} Sub",)
    ),
    _C.LOCK_BATCH_MQ: Case(_of(_C.LOCK_BATCH_MQ, _queues), _SUBSCRIBED, is_changing=True),
    _C.UNLOCK_BATCH_MQ: Case(_of(_C.UNLOCK_BATCH_MQ, _queues), _SUBSCRIBED),
    _C.CHECK_CLIENT_CONFIG: Case(
        _of(
            _C.CHECK_CLIENT_CONFIG,
            lambda names: clients.CheckClientRequestBody(
                client_id="me",
                group=names.group,
                subscription_data=clients.SubscriptionData(topic=names.topic),
            ),
        ),
        _SUBSCRIBED,
    ),
    _C.QUERY_ASSIGNMENT: Case(
        _of(
            _C.QUERY_ASSIGNMENT,
            lambda names: clients.QueryAssignmentRequestBody(
                topic=names.topic, consumer_group=names.group, client_id="me", strategy_name="AVG"
            ),
        ),
        _SUBSCRIBED,
    ),
    # ---- operators: topics
    _C.UPDATE_AND_CREATE_TOPIC: Case(
        _of(
            _C.UPDATE_AND_CREATE_TOPIC,
            topic=_topic,
            defaultTopic="TBW102",
            readQueueNums=9,
            writeQueueNums=9,
            perm=6,
            topicFilterType="SINGLE_TAG",
        ),
        (f"{_TOPIC} Create",),
        is_changing=True,
    ),
    _C.UPDATE_AND_CREATE_TOPIC_LIST: Case(
        _of(
            _C.UPDATE_AND_CREATE_TOPIC_LIST,
            lambda names: CreateTopicListRequestBody(topic_config_list=(_topic_config(names),)),
        ),
        (f"{_TOPIC} Create",),
        is_changing=True,
    ),
    _C.DELETE_TOPIC_IN_BROKER: Case(
        _of(_C.DELETE_TOPIC_IN_BROKER, topic=_topic), (f"{_TOPIC} Delete",), is_changing=True
    ),
    _C.DELETE_TOPIC_IN_NAMESRV: Case(
        _of(_C.DELETE_TOPIC_IN_NAMESRV, topic=_topic), (f"{_TOPIC} Delete",), (1,)
    ),
    _C.REGISTER_TOPIC_IN_NAMESRV: Case(
        _of(_C.REGISTER_TOPIC_IN_NAMESRV, topic=_topic), (f"{_TOPIC} Create",), (3,)
    ),
    _C.GET_TOPIC_CONFIG: Case(_of(_C.GET_TOPIC_CONFIG, topic=_topic), (f"{_TOPIC} Get",)),
    _C.GET_TOPIC_STATS_INFO: Case(_of(_C.GET_TOPIC_STATS_INFO, topic=_topic), (f"{_TOPIC} Get",)),
    _C.QUERY_TOPIC_CONSUME_BY_WHO: Case(
        _of(_C.QUERY_TOPIC_CONSUME_BY_WHO, topic=_topic),
        (f"{_TOPIC} Get", f"{_GROUP} Get"),
        lacks={f"{_GROUP} Get": 0},
        shows=(GROUP,),
    ),
    _C.RESUME_CHECK_HALF_MESSAGE: Case(
        _of(_C.RESUME_CHECK_HALF_MESSAGE, topic=_topic, msgId="m"), _MANAGES, (1,)
    ),
    _C.GET_ALL_TOPIC_CONFIG: _own(
        _C.GET_ALL_TOPIC_CONFIG, (_LISTS,), lacks={_LISTS: 0}, shows=(TOPIC,)
    ),
    _C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _own(
        _C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        (f"{_TOPIC} Sub",),
        lacks={f"{_TOPIC} Sub": 0},
        shows=(TOPIC,),
    ),
    _C.GET_TOPICS_BY_CLUSTER: Case(
        _of(_C.GET_TOPICS_BY_CLUSTER, cluster=CLUSTER),
        (f"{_TOPIC} Pub",),
        lacks={f"{_TOPIC} Pub": 0},
        shows=(TOPIC,),
    ),
    _C.GET_SYSTEM_TOPIC_LIST_FROM_NS: _own(_C.GET_SYSTEM_TOPIC_LIST_FROM_NS, ()),
    _C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _own(_C.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, ()),
    _C.GET_UNIT_TOPIC_LIST: _own(_C.GET_UNIT_TOPIC_LIST, ()),
    _C.GET_HAS_UNIT_SUB_TOPIC_LIST: _own(_C.GET_HAS_UNIT_SUB_TOPIC_LIST, ()),
    _C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _own(_C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, ()),
    # ---- operators: groups
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Case(
        _of(
            _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            lambda names: SubscriptionGroupConfig(group_name=names.group, retry_max_times=1),
        ),
        (f"{_GROUP} Create",),
        is_changing=True,
    ),
    _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Case(
        _of(
            _C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            lambda names: SubscriptionGroupList(
                group_config_list=(
                    SubscriptionGroupConfig(group_name=names.group, retry_max_times=1),
                )
            ),
        ),
        (f"{_GROUP} Create",),
        is_changing=True,
    ),
    _C.DELETE_SUBSCRIPTIONGROUP: Case(
        _of(_C.DELETE_SUBSCRIPTIONGROUP, groupName=_group), (f"{_GROUP} Delete",), is_changing=True
    ),
    _C.GET_SUBSCRIPTIONGROUP_CONFIG: Case(
        _of(_C.GET_SUBSCRIPTIONGROUP_CONFIG, group=_group), (f"{_GROUP} Get",)
    ),
    _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _own(
        _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        (f"{_GROUP} Get",),
        lacks={f"{_GROUP} Get": 0},
        shows=(GROUP,),
    ),
    _C.QUERY_TOPICS_BY_CONSUMER: Case(
        _of(_C.QUERY_TOPICS_BY_CONSUMER, group=_group),
        (f"{_GROUP} Get", f"{_TOPIC} Sub"),
        lacks={f"{_TOPIC} Sub": 0},
        shows=(TOPIC,),
    ),
    _C.QUERY_SUBSCRIPTION_BY_CONSUMER: Case(
        _of(_C.QUERY_SUBSCRIPTION_BY_CONSUMER, group=_group, topic=_topic), _GETS
    ),
    _C.GET_CONSUMER_CONNECTION_LIST: Case(
        _of(_C.GET_CONSUMER_CONNECTION_LIST, consumerGroup=_group),
        (f"{_GROUP} Get", f"{_TOPIC} Sub"),
        lacks={f"{_TOPIC} Sub": 0},
        shows=(TOPIC,),
    ),
    _C.GET_PRODUCER_CONNECTION_LIST: Case(
        _of(_C.GET_PRODUCER_CONNECTION_LIST, producerGroup="P"), _WATCHES, (1,)
    ),
    _C.GET_ALL_PRODUCER_INFO: _own(_C.GET_ALL_PRODUCER_INFO, _WATCHES),
    _C.GET_CONSUME_STATS: Case(
        _of(_C.GET_CONSUME_STATS, consumerGroup=_group),
        (f"{_GROUP} Get", f"{_TOPIC} Sub"),
        lacks={f"{_TOPIC} Sub": 0},
        shows=(TOPIC,),
    ),
    _C.QUERY_CONSUME_TIME_SPAN: Case(
        _of(_C.QUERY_CONSUME_TIME_SPAN, topic=_topic, group=_group), _GETS
    ),
    _C.QUERY_CORRECTION_OFFSET: Case(
        _of(_C.QUERY_CORRECTION_OFFSET, topic=_topic, compareGroup=_group), _GETS
    ),
    _C.CLONE_GROUP_OFFSET: Case(
        _of(_C.CLONE_GROUP_OFFSET, srcGroup=_group, destGroup="copies", topic=_topic),
        (f"{_GROUP} Get", "Group:copies Update", f"{_TOPIC} Update"),
        is_changing=True,
    ),
    _C.INVOKE_BROKER_TO_RESET_OFFSET: Case(
        _of(
            _C.INVOKE_BROKER_TO_RESET_OFFSET,
            topic=_topic,
            group=_group,
            timestamp=0,
            isForce="true",
        ),
        (f"{_TOPIC} Update", f"{_GROUP} Update"),
    ),
    _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Case(
        _of(
            _C.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            topic=_topic,
            group=_group,
            clientAddr="somebody else",
        ),
        _GETS,
        (1,),
    ),
    _C.GET_CONSUMER_RUNNING_INFO: Case(
        _of(_C.GET_CONSUMER_RUNNING_INFO, consumerGroup=_group, clientId="somebody else"),
        (f"{_GROUP} Get",),
        (1,),
    ),
    _C.CONSUME_MESSAGE_DIRECTLY: Case(
        _of(
            _C.CONSUME_MESSAGE_DIRECTLY,
            consumerGroup=_group,
            clientId="somebody else",
            msgId=lambda names: names.msg_id,
            topic=_topic,
        ),
        _SUBSCRIBED,
        (1,),
    ),
    _C.GET_ALL_CONSUMER_OFFSET: _own(
        _C.GET_ALL_CONSUMER_OFFSET,
        (*_WATCHES, f"{_TOPIC} Sub", f"{_GROUP} Sub"),
        lacks={f"{_TOPIC} Sub": 0, f"{_GROUP} Sub": 0},
        shows=(f"{TOPIC}@{GROUP}",),
    ),
    _C.GET_BROKER_CONSUME_STATS: Case(
        _of(_C.GET_BROKER_CONSUME_STATS, isOrder="false"),
        (*_WATCHES, f"{_TOPIC} Sub", f"{_GROUP} Sub"),
        lacks={f"{_TOPIC} Sub": 0, f"{_GROUP} Sub": 0},
        shows=(TOPIC,),
    ),
    # ---- operators: the broker
    _C.GET_TIMER_METRICS: _own(_C.GET_TIMER_METRICS, _WATCHES),
    _C.GET_ALL_DELAY_OFFSET: _own(_C.GET_ALL_DELAY_OFFSET, _WATCHES),
    _C.UPDATE_BROKER_CONFIG: _own(_C.UPDATE_BROKER_CONFIG, _MANAGES, answers=(DENIED,)),
    _C.GET_BROKER_CONFIG: _own(_C.GET_BROKER_CONFIG, _WATCHES),
    _C.GET_BROKER_RUNTIME_INFO: _own(_C.GET_BROKER_RUNTIME_INFO, _WATCHES),
    _C.VIEW_BROKER_STATS_DATA: Case(
        _of(_C.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey=_topic),
        (*_WATCHES, f"{_TOPIC} Get"),
        lacks={f"{_TOPIC} Get": 1},
    ),
    _C.CLEAN_EXPIRED_CONSUMEQUEUE: _own(_C.CLEAN_EXPIRED_CONSUMEQUEUE, _MANAGES),
    _C.CLEAN_UNUSED_TOPIC: _own(_C.CLEAN_UNUSED_TOPIC, _MANAGES),
    _C.DELETE_EXPIRED_COMMITLOG: _own(_C.DELETE_EXPIRED_COMMITLOG, _MANAGES),
    # ---- users and access lists
    _C.AUTH_CREATE_USER: Case(
        _of(_C.AUTH_CREATE_USER, _USER, username="target"), _MANAGES, is_changing=True
    ),
    _C.AUTH_UPDATE_USER: Case(
        _of(_C.AUTH_UPDATE_USER, _USER, username="owner"), _MANAGES, is_changing=True
    ),
    _C.AUTH_DELETE_USER: Case(
        _of(_C.AUTH_DELETE_USER, username="owner"), _MANAGES, is_changing=True
    ),
    _C.AUTH_GET_USER: Case(_of(_C.AUTH_GET_USER, username="root"), _WATCHES),
    _C.AUTH_LIST_USER: Case(_of(_C.AUTH_LIST_USER, filter=""), _WATCHES),
    _C.AUTH_CREATE_ACL: Case(
        _of(_C.AUTH_CREATE_ACL, _ACL, subject="User:owner"), _MANAGES, is_changing=True
    ),
    _C.AUTH_UPDATE_ACL: Case(
        _of(_C.AUTH_UPDATE_ACL, _ACL, subject="User:owner"), _MANAGES, is_changing=True
    ),
    _C.AUTH_DELETE_ACL: Case(
        _of(_C.AUTH_DELETE_ACL, subject="User:owner"), _MANAGES, is_changing=True
    ),
    _C.AUTH_GET_ACL: Case(_of(_C.AUTH_GET_ACL, subject="User:owner"), _WATCHES),
    _C.AUTH_LIST_ACL: Case(_of(_C.AUTH_LIST_ACL), _WATCHES),
    # ---- the name server
    _C.GET_ROUTEINFO_BY_TOPIC: Case(
        _of(_C.GET_ROUTEINFO_BY_TOPIC, topic=_topic), (f"{_TOPIC} Pub",)
    ),
    _C.GET_BROKER_CLUSTER_INFO: _own(_C.GET_BROKER_CLUSTER_INFO, ()),
    _C.PUT_KV_CONFIG: Case(
        _of(_C.PUT_KV_CONFIG, namespace="N", key="K", value="V"), _MANAGES, is_changing=True
    ),
    _C.GET_KV_CONFIG: Case(_of(_C.GET_KV_CONFIG, namespace="N", key="K"), _WATCHES, (22,)),
    _C.DELETE_KV_CONFIG: Case(_of(_C.DELETE_KV_CONFIG, namespace="N", key="K"), _MANAGES),
    _C.GET_KVLIST_BY_NAMESPACE: Case(
        _of(_C.GET_KVLIST_BY_NAMESPACE, namespace="N"), _WATCHES, (22,)
    ),
    _C.REGISTER_BROKER: Case(
        _of(
            _C.REGISTER_BROKER,
            brokerName="other",
            brokerAddr="10.0.0.1:1",
            clusterName=CLUSTER,
            haServerAddr="",
            brokerId=0,
        ),
        _MANAGES,
        (3,),
    ),
    _C.UNREGISTER_BROKER: Case(
        _of(
            _C.UNREGISTER_BROKER,
            brokerName=BROKER,
            brokerAddr="10.0.0.1:1",
            clusterName=CLUSTER,
            brokerId=0,
        ),
        _MANAGES,
        (3,),
    ),
    _C.QUERY_DATA_VERSION: Case(
        _of(
            _C.QUERY_DATA_VERSION,
            DataVersion(),
            brokerName=BROKER,
            brokerAddr="10.0.0.1:1",
            clusterName=CLUSTER,
            brokerId=0,
        ),
        _WATCHES,
    ),
    _C.WIPE_WRITE_PERM_OF_BROKER: Case(
        _of(_C.WIPE_WRITE_PERM_OF_BROKER, brokerName=BROKER), _MANAGES, is_changing=True
    ),
    _C.ADD_WRITE_PERM_OF_BROKER: Case(
        _of(_C.ADD_WRITE_PERM_OF_BROKER, brokerName=BROKER), _MANAGES
    ),
    _C.UPDATE_NAMESRV_CONFIG: _own(_C.UPDATE_NAMESRV_CONFIG, _MANAGES, answers=(DENIED,)),
    _C.GET_NAMESRV_CONFIG: _own(_C.GET_NAMESRV_CONFIG, _WATCHES),
    # ---- our extensions
    _C.EXTENSIONS: Case(_extensions),
    _C.PULL_CHUNK: Case(_pull(_C.PULL_CHUNK), _SUBSCRIBED),
    _C.PULL_PLACES: Case(_pull(_C.PULL_PLACES), ("Topic:* Sub", f"{_GROUP} Sub")),
    _C.APPEND_CHUNK: Case(
        _of(_C.APPEND_CHUNK, _rows, producerGroup="P", topic=_topic, queueId=0),
        (f"{_TOPIC} Pub",),
        is_changing=True,
    ),
    _C.STAGE_CHUNK: Case(
        _of(
            _C.STAGE_CHUNK,
            _rows,
            **{**_SINK, "sink": "mine"},
            attempt="a",
            number=0,
            topic=_topic,
            queueId=0,
        ),
        (f"{_TOPIC} Pub",),
        is_changing=True,
    ),
    _C.COMMIT_BATCH: Case(_of(_C.COMMIT_BATCH, _commit, **_SINK), ("owner",), is_changing=True),
    _C.ABORT_BATCH: Case(_of(_C.ABORT_BATCH, **_SINK), ("owner",), is_changing=True),
    _C.LAST_BATCH: Case(_of(_C.LAST_BATCH, sink=SINK), ("owner",), (22,)),
    _C.FORGET_SINK: Case(_of(_C.FORGET_SINK, sink=SINK), _MANAGES, is_changing=True),
    _C.ALL_SINKS: _own(_C.ALL_SINKS, _WATCHES),
}
"""All cases by request code. The right ``owner`` means the user who owns the sink."""

TO_CLIENTS = frozenset(
    [
        _C.CHECK_TRANSACTION_STATE,
        _C.NOTIFY_CONSUMER_IDS_CHANGED,
        _C.RESET_CONSUMER_CLIENT_OFFSET,
        _C.GET_CONSUMER_STATUS_FROM_CLIENT,
        _C.PUSH_REPLY_MESSAGE_TO_CLIENT,
    ]
)
"""Requests that brokers send to clients; clients may not send them."""
