"""Rows about operators: lists and figures of all topics, groups, offsets, queues, and changes."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.gaps.asked import Scale, ask, ask_long, send
from benchmarks.gaps.measured import Client, MeasuredBroker
from benchmarks.gaps.row import Row, row_of, rows_of
from rmq_spark.wire.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from rmq_spark.wire.bodies.configs import DataVersion, SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import RemotingCommand

BROKER = "broker-a"
CLUSTER = "DefaultCluster"
_QUEUES_OF_A_TOPIC = 8

_SMALL = (
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_TOPIC_CONFIG,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_NAMESRV_CONFIG,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_TIMER_METRICS,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
    RequestCode.VIEW_BROKER_STATS_DATA,
    RequestCode.EXTENSIONS,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.PUT_KV_CONFIG,
    RequestCode.GET_KV_CONFIG,
    RequestCode.DELETE_KV_CONFIG,
    RequestCode.DELETE_TOPIC_IN_NAMESRV,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.UPDATE_NAMESRV_CONFIG,
    RequestCode.REGISTER_BROKER,
    RequestCode.UNREGISTER_BROKER,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV,
    *(code for code in RequestCode if code.name.startswith("AUTH_")),
)
"""Requests about a single object, whatever else exists; the broker always refuses some of them."""

_FIELDS = {
    "topic": "wide",
    "queueId": 0,
    "consumerGroup": "G",
    "group": "G",
    "commitOffset": 1,
    "timestamp": 1 << 50,
    "namespace": "N",
    "key": "K",
    "value": "V",
    "statsName": "TOPIC_PUT_NUMS",
    "statsKey": "wide",
}


def operator_rows(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    """Create as many objects as the limits allow, and query them."""
    yield from _of_queues(broker, client, scale)
    small = {code.name: ask(code, **_FIELDS) for code in _SMALL}
    yield from rows_of(broker, client, small, scale.rounds)
    yield from _of_lists(broker, client, scale)
    yield from _of_changes(broker, client, scale)


def make_topic(broker: MeasuredBroker, topic: str, queues: int, flag: int = 0) -> None:
    """Create a topic at once."""
    broker.controller.tables.topics.put(
        TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_sys_flag=flag,
        )
    )


def _of_queues(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    make_topic(broker, "wide", scale.queues)
    broker.send(
        client, [send("wide", queue_id, queue_id=queue_id) for queue_id in range(scale.queues)]
    )
    tables = broker.controller.tables
    for group in ("G", "other"):
        tables.groups.find_or_create(group)
        for queue_id in range(scale.queues):
            tables.offsets.commit(group, "wide", queue_id, 1)
    member = HeartbeatData(
        client_id="c",
        consumer_data_set=(
            ConsumerData(group_name="G", subscription_data_set=(SubscriptionData(topic="wide"),)),
        ),
    )
    broker.send(Client(broker), [ask(RequestCode.HEART_BEAT, member)])
    reset = {"topic": "wide", "group": "G", "timestamp": 0, "isForce": "true"}
    compare = {"topic": "wide", "compareGroup": "G", "filterGroups": ""}
    requests = {
        "the figures of": ask(RequestCode.GET_TOPIC_STATS_INFO, topic="wide"),
        "the progress of a group in": ask(RequestCode.GET_CONSUME_STATS, consumerGroup="G"),
        "the progress of two groups in": ask(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false"),
        "the ages of messages in": ask(
            RequestCode.QUERY_CONSUME_TIME_SPAN, topic="wide", group="G"
        ),
        "a reset of": ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset),
        "a comparison of groups in": ask(RequestCode.QUERY_CORRECTION_OFFSET, **compare),
        "a clone of the offsets of": ask(
            RequestCode.CLONE_GROUP_OFFSET, srcGroup="G", destGroup="clone"
        ),
    }
    named = {f"{what} {scale.queues:,} queues": request for what, request in requests.items()}
    yield from rows_of(broker, client, named, scale.rounds)


def _of_lists(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    tables = broker.controller.tables
    for number in range(scale.topics - len(tables.topics.topics)):
        make_topic(broker, f"topic-{number}", _QUEUES_OF_A_TOPIC, flag=3 - number % 2)
        for queue_id in range(_QUEUES_OF_A_TOPIC):
            tables.offsets.commit("G", f"topic-{number}", queue_id, number)
    for number in range(scale.groups - len(tables.groups.groups)):
        tables.groups.find_or_create(f"group-{number}")
        tables.offsets.commit(f"group-{number}", "wide", 0, 1)
    namespace = {"namespace": "filled"}
    for number in range(scale.values):
        tables.kv_configs.put(("filled", str(number)), "x" * 1_000)
    topics, groups = f"{scale.topics:,} topics", f"{scale.groups:,} groups"
    requests: dict[str, RemotingCommand] = {
        f"all of {topics}": ask(RequestCode.GET_ALL_TOPIC_CONFIG),
        f"the names of {topics}": ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
        f"the names of {topics} of a cluster": ask(
            RequestCode.GET_TOPICS_BY_CLUSTER, cluster=CLUSTER
        ),
        f"system topics among {topics}": ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
        f"unit topics among {topics}": ask(RequestCode.GET_UNIT_TOPIC_LIST),
        f"topics with unit subscriptions among {topics}": ask(
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST
        ),
        f"those that are no unit topics among {topics}": ask(
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST
        ),
        f"all of {groups}": ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
        f"all offsets of {topics}": ask(RequestCode.GET_ALL_CONSUMER_OFFSET),
        f"the topics of a group among {topics}": ask(
            RequestCode.QUERY_TOPICS_BY_CONSUMER, group="G"
        ),
        f"the groups of a topic among {groups}": ask(
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="wide"
        ),
        f"{scale.values:,} values of a namespace": ask(
            RequestCode.GET_KVLIST_BY_NAMESPACE, **namespace
        ),
        "a data version": ask(RequestCode.QUERY_DATA_VERSION, DataVersion(), brokerName=BROKER),
    }
    yield from rows_of(broker, client, requests, scale.rounds)
    texts: list[object] = []
    name = f"metrics, with {groups} in a topic of {scale.queues:,} queues"
    gap = broker.longest_turn(act=lambda: broker.ask_for_metrics(texts.append), until=lambda: texts)
    yield Row(("/metrics",), name, gap)


def _of_changes(broker: MeasuredBroker, client: Client, scale: Scale) -> Iterator[Row]:
    wipe = ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName=BROKER)
    name = f"{scale.topics:,} topics made read-only"
    yield row_of(name, broker.longest_turn(client, [wipe]), RequestCode.WIPE_WRITE_PERM_OF_BROKER)
    add = wipe._replace(code=RequestCode.ADD_WRITE_PERM_OF_BROKER)
    name = f"{scale.topics:,} topics made writable"
    yield row_of(name, broker.longest_turn(client, [add]), RequestCode.ADD_WRITE_PERM_OF_BROKER)
    create = {
        "topic": "wide",
        "defaultTopic": "TBW102",
        "readQueueNums": scale.queues,
        "writeQueueNums": scale.queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }
    group = SubscriptionGroupConfig(group_name="G")
    requests = {
        "a topic beside many": ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **create),
        "a group beside many": ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group),
        "as many topics as a body holds": ask_long(
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
            scale.json_bytes,
            '{"topicConfigList":[',
            '{"topicName":"topic-%d","readQueueNums":8,"writeQueueNums":8}',
            "]}",
        ),
        "as many groups as a body holds": ask_long(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            scale.json_bytes,
            '{"groupConfigList":[',
            '{"groupName":"group-%d"}',
            "]}",
        ),
    }
    yield from rows_of(broker, client, requests, scale.rounds)
    _count_much(broker, scale)
    yield row_of(
        "the deletion of a group beside many counters",
        broker.longest_turn(
            client,
            [ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="clone", removeOffset="true")],
        ),
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
    )
    yield row_of(
        f"the deletion of {scale.queues:,} queues beside many counters",
        broker.longest_turn(client, [ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="wide")]),
        RequestCode.DELETE_TOPIC_IN_BROKER,
    )
    make_topic(broker, "wide", scale.queues)


def _count_much(broker: MeasuredBroker, scale: Scale) -> None:
    """Count as if eight groups had received messages of every topic in each of the last samples."""
    stats, now_ms = broker.controller.processors.stats, 0
    for _ in range(3):
        count_in_all(broker, scale)
        now_ms += 10_000
        for _ in stats.sample(now_ms):
            pass


def count_in_all(broker: MeasuredBroker, scale: Scale) -> None:
    """Add to a statistic of every topic and of eight groups for each."""
    stats = broker.controller.processors.stats
    for number in range(scale.topics):
        stats.record_put(f"topic-{number}", 1, 1)
        for group in range(8):
            stats.record_get(f"topic-{number}", f"group-{group}", 1, 1, 0)
