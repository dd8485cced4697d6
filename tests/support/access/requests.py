"""Requests to a broker with access lists: at least one of each code that clients send.

Their fields have RocketMQ's names and are texts on the wire, so that a real RocketMQ and our broker
get the same bytes. They use the topic Orders and the group readers, or create and delete objects
that no other request needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from rmq_spark.wire.message.message_batch import BatchedMessage, encode_batch

TOPIC, GROUP, PRODUCERS = "Orders", "readers", "writers"
CLUSTER, BROKER = "peers", "broker-a"
RETRY, DEAD_LETTERS = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
TRACE = "RMQ_SYS_TRACE_TOPIC"
NO_FIELDS: Mapping[str, str] = MappingProxyType({})


class Request(NamedTuple):
    """An unsigned request."""

    name: str
    code: int
    ext_fields: Mapping[str, str] = NO_FIELDS
    body: bytes = b""


def as_json(value: Any) -> bytes:
    """Encode a JSON body."""
    return json.dumps(value, separators=(",", ":")).encode()


_AT = "1700000000000"
_SEND = {
    "producerGroup": PRODUCERS,
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": _AT,
    "flag": "0",
    "properties": "a\1b\2",
    "reconsumeTimes": "0",
    "unitMode": "false",
    "batch": "false",
}
SEND_V2 = dict(zip("abcdefghijkm", _SEND.values(), strict=True))
_PULL = {
    "consumerGroup": GROUP,
    "topic": TOPIC,
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "1",
    "sysFlag": "0",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subscription": "*",
    "subVersion": "0",
    "expressionType": "TAG",
}
QUERY = {"topic": TOPIC, "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": _AT}
UNIQUE_KEY = "_UNIQUE_KEY_QUERY"
_QUEUE = {"topic": TOPIC, "queueId": "0"}
_SUBSCRIPTION = {
    "topic": TOPIC,
    "subString": "*",
    "subVersion": 1,
    "expressionType": "TAG",
    "classFilterMode": False,
    "tagsSet": [],
    "codeSet": [],
}
_QUEUES = {
    "consumerGroup": GROUP,
    "clientId": "c1",
    "mqSet": [{"topic": TOPIC, "brokerName": BROKER, "queueId": 0}],
}
_TRANSACTION = {
    "producerGroup": PRODUCERS,
    "tranStateTableOffset": "0",
    "commitLogOffset": "0",
    "commitOrRollback": "12",
    "fromTransactionCheck": "false",
    "msgId": "x",
    "transactionId": "x",
}


def create_topic(topic: str) -> Request:
    """Return a request that creates a topic with one queue."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    return Request("UPDATE_AND_CREATE_TOPIC", 17, fields)


def _heartbeat(*topics: str, consumers: bool = True) -> bytes:
    consumer = {
        "groupName": GROUP,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [{**_SUBSCRIPTION, "topic": topic} for topic in topics],
        "unitMode": False,
    }
    return as_json(
        {
            "clientID": "c1",
            "producerDataSet": [{"groupName": PRODUCERS}],
            "consumerDataSet": [consumer] if consumers else [],
        }
    )


def _sends() -> Iterator[Request]:
    batch = encode_batch([BatchedMessage(b"x")])
    yield Request("SEND_MESSAGE", 10, _SEND, b"x")
    yield Request("SEND_MESSAGE_V2", 310, SEND_V2, b"x")
    yield Request("SEND_BATCH_MESSAGE", 320, {**SEND_V2, "m": "true"}, batch)
    retry = {**_SEND, "producerGroup": GROUP, "topic": RETRY}
    yield Request("SEND_MESSAGE to a retry topic", 10, retry, b"x")
    yield Request(
        "SEND_MESSAGE_V2 to a retry topic", 310, {**SEND_V2, "a": GROUP, "b": RETRY}, b"x"
    )
    inner = {**SEND_V2, "a": "CLIENT_INNER_PRODUCER", "b": RETRY}
    yield Request("SEND_MESSAGE_V2 to a retry topic by the client's own producer", 310, inner, b"x")
    for name, topic in {"dead-letter": DEAD_LETTERS, "trace": TRACE}.items():
        yield Request(f"SEND_MESSAGE_V2 to a {name} topic", 310, {**SEND_V2, "b": topic}, b"x")
    yield Request("END_TRANSACTION", 37, _TRANSACTION)
    yield Request("END_TRANSACTION of a topic", 37, {**_TRANSACTION, "topic": TOPIC})
    back = {
        "offset": "0",
        "group": GROUP,
        "delayLevel": "0",
        "originMsgId": "x",
        "originTopic": TOPIC,
        "unitMode": "false",
        "maxReconsumeTimes": "16",
    }
    yield Request("CONSUMER_SEND_MSG_BACK", 36, back)
    yield Request("SEND_REPLY_MESSAGE", 324, _SEND, b"x")
    yield Request("SEND_REPLY_MESSAGE_V2", 325, SEND_V2, b"x")


def _reads() -> Iterator[Request]:
    yield Request("PULL_MESSAGE", 11, _PULL)
    yield Request("PULL_MESSAGE of a retry topic", 11, {**_PULL, "topic": RETRY})
    yield Request("PULL_MESSAGE of a dead-letter topic", 11, {**_PULL, "topic": DEAD_LETTERS})
    yield Request("LITE_PULL_MESSAGE", 361, _PULL)
    yield Request("QUERY_MESSAGE", 12, QUERY)
    yield Request("VIEW_MESSAGE_BY_ID", 33, {"offset": "0"})
    yield Request("VIEW_MESSAGE_BY_ID of a topic", 33, {"offset": "0", "topic": TOPIC})
    yield Request("SEARCH_OFFSET_BY_TIMESTAMP", 29, {**_QUEUE, "timestamp": _AT})
    yield Request("GET_MAX_OFFSET", 30, _QUEUE)
    yield Request("GET_MIN_OFFSET", 31, _QUEUE)
    yield Request("GET_EARLIEST_MSG_STORETIME", 32, _QUEUE)
    of_group = {"consumerGroup": GROUP}
    yield Request("QUERY_CONSUMER_OFFSET", 14, {**_QUEUE, **of_group})
    of_retry = {**_QUEUE, **of_group, "topic": RETRY}
    yield Request("QUERY_CONSUMER_OFFSET of a retry topic", 14, of_retry)
    yield Request("UPDATE_CONSUMER_OFFSET", 15, {**_QUEUE, **of_group, "commitOffset": "0"})
    entries = {**_QUEUE, **of_group, "index": "0", "count": "1"}
    yield Request("QUERY_CONSUME_QUEUE", 321, entries)


def _members() -> Iterator[Request]:
    yield Request("HEART_BEAT", 34, body=_heartbeat(TOPIC))
    yield Request("HEART_BEAT of a producer", 34, body=_heartbeat(consumers=False))
    yield Request("HEART_BEAT with a retry topic", 34, body=_heartbeat(RETRY))
    yield Request("GET_CONSUMER_LIST_BY_GROUP", 38, {"consumerGroup": GROUP})
    yield Request("LOCK_BATCH_MQ", 41, body=as_json(_QUEUES))
    yield Request("UNLOCK_BATCH_MQ", 42, body=as_json(_QUEUES))
    client = {"clientID": "c1"}
    yield Request("UNREGISTER_CLIENT of a producer", 35, {**client, "producerGroup": PRODUCERS})
    yield Request("UNREGISTER_CLIENT of a consumer", 35, {**client, "consumerGroup": GROUP})
    checked = {"clientId": "c1", "group": GROUP, "subscriptionData": _SUBSCRIPTION}
    yield Request("CHECK_CLIENT_CONFIG", 46, body=as_json(checked))
    assignment = {
        "topic": TOPIC,
        "consumerGroup": GROUP,
        "clientId": "c1",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }
    yield Request("QUERY_ASSIGNMENT", 400, body=as_json(assignment))


def _operators() -> Iterator[Request]:
    yield create_topic("Made")
    config = {
        "topicName": "MadeToo",
        "readQueueNums": 1,
        "writeQueueNums": 1,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
        "attributes": {},
    }
    topics = as_json({"topicConfigList": [config]})
    yield Request("UPDATE_AND_CREATE_TOPIC_LIST", 18, body=topics)
    group = as_json({"groupName": "made-group", "consumeEnable": True, "retryQueueNums": 1})
    yield Request("UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", 200, body=group)
    groups = as_json({"groupConfigList": [{"groupName": "made-too"}]})
    yield Request("UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST", 225, body=groups)
    for name, code in {
        "GET_ALL_TOPIC_CONFIG": 21,
        "GET_BROKER_CONFIG": 26,
        "GET_BROKER_RUNTIME_INFO": 28,
        "GET_ALL_CONSUMER_OFFSET": 43,
        "GET_ALL_DELAY_OFFSET": 45,
        "GET_ALL_SUBSCRIPTIONGROUP_CONFIG": 201,
        "GET_SYSTEM_TOPIC_LIST_FROM_BROKER": 305,
        "CLEAN_EXPIRED_CONSUMEQUEUE": 306,
        "CLEAN_UNUSED_TOPIC": 316,
        "GET_ALL_PRODUCER_INFO": 328,
        "DELETE_EXPIRED_COMMITLOG": 329,
    }.items():
        yield Request(name, code)
    yield Request("UPDATE_BROKER_CONFIG", 25, body=b"messageIndexSafe=true\n")
    yield Request("GET_TOPIC_STATS_INFO", 202, {"topic": TOPIC})
    yield Request("GET_CONSUMER_CONNECTION_LIST", 203, {"consumerGroup": GROUP})
    yield Request("GET_PRODUCER_CONNECTION_LIST", 204, {"producerGroup": PRODUCERS})
    yield Request("GET_CONSUME_STATS", 208, {"consumerGroup": GROUP})
    yield Request("GET_CONSUME_STATS of a topic", 208, {"consumerGroup": GROUP, "topic": TOPIC})
    both = {"topic": TOPIC, "group": GROUP}
    to_the_end = {**both, "timestamp": "-1", "isForce": "true"}
    yield Request("INVOKE_BROKER_TO_RESET_OFFSET", 222, to_the_end)
    yield Request("INVOKE_BROKER_TO_GET_CONSUMER_STATUS", 223, both)
    yield Request("QUERY_TOPIC_CONSUME_BY_WHO", 300, {"topic": TOPIC})
    yield Request("QUERY_CONSUME_TIME_SPAN", 303, both)
    of_client = {"consumerGroup": GROUP, "clientId": "c1"}
    yield Request("GET_CONSUMER_RUNNING_INFO", 307, of_client)
    yield Request("QUERY_CORRECTION_OFFSET", 308, {"compareGroup": GROUP, "topic": TOPIC})
    directly = {**of_client, "msgId": "0" * 32, "brokerName": BROKER, "topic": TOPIC}
    yield Request("CONSUME_MESSAGE_DIRECTLY", 309, directly)
    clone = {"srcGroup": GROUP, "destGroup": "made-group", "topic": TOPIC, "offline": "false"}
    yield Request("CLONE_GROUP_OFFSET", 314, clone)
    stats = {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC}
    yield Request("VIEW_BROKER_STATS_DATA", 315, stats)
    yield Request("GET_BROKER_CONSUME_STATS", 317, {"isOrder": "false"})
    yield Request("RESUME_CHECK_HALF_MESSAGE", 323, {"topic": TOPIC, "msgId": "0" * 32})
    yield Request("QUERY_TOPICS_BY_CONSUMER", 343, {"group": GROUP})
    yield Request("QUERY_SUBSCRIPTION_BY_CONSUMER", 345, both)
    yield Request("GET_TOPIC_CONFIG", 351, {"topic": TOPIC})
    yield Request("GET_SUBSCRIPTIONGROUP_CONFIG", 352, {"group": GROUP})
    yield Request("DELETE_SUBSCRIPTIONGROUP", 207, {"groupName": "made-group"})
    yield Request("DELETE_TOPIC_IN_BROKER", 215, {"topic": "Made"})
    yield Request("an unknown code", 12_345, {"a": "b"})


def _name_server() -> Iterator[Request]:
    """Return the requests that our broker answers as its own name server; a real broker only checks
    their rights."""
    entry = {"namespace": "N", "key": "k"}
    yield Request("PUT_KV_CONFIG", 100, {**entry, "value": "v"})
    yield Request("GET_KV_CONFIG", 101, entry)
    yield Request("GET_KVLIST_BY_NAMESPACE", 219, {"namespace": "N"})
    yield Request("DELETE_KV_CONFIG", 102, entry)
    yield Request("UPDATE_NAMESRV_CONFIG", 318, body=b"a=b\n")
    yield Request("GET_NAMESRV_CONFIG", 319)
    yield Request("WIPE_WRITE_PERM_OF_BROKER", 205, {"brokerName": "another"})
    yield Request("ADD_WRITE_PERM_OF_BROKER", 327, {"brokerName": "another"})
    yield Request("GET_TOPICS_BY_CLUSTER", 224, {"cluster": CLUSTER})
    yield Request("GET_ROUTEINFO_BY_TOPIC", 105, {"topic": TOPIC})
    yield Request("GET_ROUTEINFO_BY_TOPIC of a retry topic", 105, {"topic": RETRY})
    for name, code in {
        "GET_BROKER_CLUSTER_INFO": 106,
        "GET_ALL_TOPIC_LIST_FROM_NAMESERVER": 206,
        "GET_SYSTEM_TOPIC_LIST_FROM_NS": 304,
        "GET_UNIT_TOPIC_LIST": 311,
    }.items():
        yield Request(name, code)


def _access() -> Iterator[Request]:
    """Return requests about users and lists; they change no user that another test needs."""
    user = {"username": "made"}
    subject = {"subject": "User:made"}
    entry = {"resource": "Topic:A", "actions": ["Pub"], "decision": "Allow"}
    policies = as_json({"policies": [{"policyType": "CUSTOM", "entries": [entry]}]})
    yield Request("AUTH_CREATE_USER", 3001, user, as_json({**user, "password": "12345678"}))
    yield Request("AUTH_UPDATE_USER", 3002, user, as_json({**user, "password": "87654321"}))
    yield Request("AUTH_GET_USER", 3004, user)
    yield Request("AUTH_LIST_USER", 3005)
    yield Request("AUTH_CREATE_ACL", 3006, subject, policies)
    yield Request("AUTH_UPDATE_ACL", 3007, subject, policies)
    yield Request("AUTH_GET_ACL", 3009, subject)
    yield Request("AUTH_LIST_ACL", 3010)
    yield Request("AUTH_DELETE_ACL", 3008, subject)
    yield Request("AUTH_DELETE_USER", 3003, user)


REQUESTS = (
    *_sends(),
    *_reads(),
    *_operators(),
    *_name_server(),
    *_access(),
    *_members(),  # last: with members, brokers forward some requests to them
)
