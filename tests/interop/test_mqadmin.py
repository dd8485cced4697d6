"""`mqadmin` displays the real state, and its changes take effect.

Each test makes a state with Java clients and compares it with the command's output, on a real
RocketMQ and on our broker, with the tools of both versions.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.brokers.broker_kinds import DELAYS_S, NAME, wait_until
from support.rocketmq.java_clients import (
    ADDED_PROPERTIES,
    Scenario,
    bodies_of,
    numbered,
    queue,
    to_send,
)
from support.rocketmq.mqadmin import CommandFailed, MqAdmin, java_json, named, row, rows
from support.rocketmq.real_broker import CLUSTER

pytestmark = pytest.mark.interop

READ, WRITE = 4, 2
NO_TOPIC, NOT_ONLINE = "CODE: 17", "CODE: 206"
POLLS_IN_VAIN = 5


@pytest.fixture
def mqadmin(java_broker, java_clients) -> MqAdmin:
    return MqAdmin(java_clients, java_broker.version)


@pytest.fixture(scope="module", autouse=True)
def rewound(java_broker, java_clients):
    """Return a running consumer whose group was reset to the start, which takes ten seconds."""
    scenario = Scenario(java_clients, java_broker.address, "rewound")
    topic = scenario.topic(queues=2)
    scenario.producer().send(topic, *numbered(6))
    before = scenario.push(topic=topic)
    before.wait_for(bodies_of(numbered(6)))
    before.stop()
    consumer = scenario.push(topic=topic)
    consumer.wait_for_assigned(0, 1, topic=topic)
    mqadmin = MqAdmin(java_clients, java_broker.version)
    said = mqadmin.run("resetOffsetByTime", "-g", scenario.group, "-t", topic, "-s", "0")
    yield consumer, said
    scenario.stop()


@pytest.fixture
def half_consumed(scenario):
    """Return a topic of two queues with seven messages each, of which a group has consumed five."""
    topic = scenario.topic(queues=2)
    producer = scenario.producer()
    producer.send(topic, *numbered(10))
    consumer = scenario.push(topic=topic)
    consumer.wait_for(bodies_of(numbered(10)))
    consumer.stop()
    wait_until("offsets", lambda: scenario.consumed(scenario.group, topic) == {0: 5, 1: 5})
    producer.send(topic, *numbered(4, start=10))
    for queue_id in range(2):
        scenario.wait_for_max_offset(topic, 7, queue_id)
    return topic


# ---- cluster and broker


def test_cluster_list_shows_the_broker(mqadmin, scenario):
    cells = row(mqadmin.run("clusterList"), CLUSTER, NAME)
    assert cells[2:4] == ["0", scenario.address]


def test_mqadmin_broker_status_counts_sent_messages(mqadmin, scenario):
    topic = scenario.topic()
    before = named(mqadmin.run("brokerStatus", "-b", scenario.address))
    scenario.producer().send(topic, *numbered(10))
    scenario.wait_for_max_offset(topic, 10)
    after = named(mqadmin.run("brokerStatus", "-b", scenario.address))
    assert int(after["msgPutTotalTodayNow"]) - int(before["msgPutTotalTodayNow"]) >= 10
    assert int(after["commitLogMaxOffset"]) - int(before["commitLogMaxOffset"]) >= 10 * 100
    assert after["commitLogMinOffset"] == before["commitLogMinOffset"] == "0"
    assert int(after["bootTimestamp"]) == int(before["bootTimestamp"]) < 1000 * time.time()
    assert int(after["putMessageTimesTotal"]) >= 10
    assert 0 < float(after["commitLogDiskRatio"]) < 1
    assert after["runtime"].startswith("[ 0 days, 0 hours, ")
    by_cluster = row(mqadmin.run("brokerStatus", "-c", CLUSTER), scenario.address, "bootTimestamp")
    assert by_cluster[-1] == after["bootTimestamp"]


def test_mqadmin_broker_config_equals_the_settings_file(mqadmin, scenario, java_broker):
    config = named(mqadmin.run("getBrokerConfig", "-b", scenario.address), " = ")
    expected = {
        "brokerName": NAME,
        "brokerClusterName": CLUSTER,
        "brokerIP1": "127.0.0.1",
        "listenPort": scenario.address.rpartition(":")[2],
        "storePathRootDir": str(java_broker.root),
        "flushDiskType": "ASYNC_FLUSH",
        "autoCreateTopicEnable": "true",
        "enablePropertyFilter": "true",
        "defaultTopicQueueNums": "8",
        "mappedFileSizeCommitLog": str(32 << 20),
        "longPollingEnable": "true",
    }
    assert {name: config.get(name) for name in expected} == expected
    seconds = [
        int(word[:-1]) * {"s": 1, "h": 3600}[word[-1]]
        for word in config["messageDelayLevel"].split()
    ]
    assert tuple(seconds) == DELAYS_S


# ---- topics


def test_mqadmin_creates_updates_and_shows_a_topic(mqadmin, scenario):
    topic = scenario.new_name()
    assert not rows(mqadmin.run("topicList"), topic)
    said = mqadmin.run("updateTopic", "-b", scenario.address, "-t", topic, "-r", "3", "-w", "2")
    assert f"create topic to {scenario.address} success." in said
    scenario.wait_for_topic(topic, 2)
    assert rows(mqadmin.run("topicList"), topic) == [[topic]]
    check_route(mqadmin, topic, scenario.address, read=3, write=2, perm=READ | WRITE)

    mqadmin.run("updateTopic", "-c", CLUSTER, "-t", topic, "-r", "4", "-w", "4", "-p", str(READ))
    scenario.wait_for_topic(topic, 4)
    check_route(mqadmin, topic, scenario.address, read=4, write=4, perm=READ)


def check_route(mqadmin, topic: str, address: str, *, read: int, write: int, perm: int) -> None:
    route = java_json(mqadmin.run("topicRoute", "-t", topic))
    (broker,) = route["brokerDatas"]
    assert (broker["brokerName"], broker["cluster"], broker["brokerAddrs"]) == (
        NAME,
        CLUSTER,
        {"0": address},
    )
    (queues,) = route["queueDatas"]
    assert queues["brokerName"] == NAME
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (
        read,
        write,
        perm,
    )


def test_mqadmin_topic_status_shows_min_and_max_offsets(mqadmin, scenario):
    topic = scenario.topic(queues=2)
    producer = scenario.producer()
    producer.send_to_queue(topic, 0, *numbered(3))
    scenario.wait_for_max_offset(topic, 3)
    last = scenario.read(topic, 3)[-1]
    status = mqadmin.run("topicStatus", "-t", topic)
    assert row(status, NAME, "0")[2:4] == ["0", "3"]
    seconds, millis = divmod(last["storeTimestamp"], 1000)
    stored = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) + f",{millis:03}"
    assert " ".join(row(status, NAME, "0")[4:]) == stored
    assert row(status, NAME, "1")[2:4] == ["0", "0"]


def test_mqadmin_delete_topic_removes_messages(mqadmin, scenario):
    topic = scenario.topic(queues=2)
    scenario.producer().send(topic, *numbered(4))
    scenario.wait_for_max_offset(topic, 2)
    said = mqadmin.run("deleteTopic", "-c", CLUSTER, "-t", topic)
    assert f"delete topic [{topic}] from cluster [{CLUSTER}] success." in said
    assert not rows(mqadmin.run("topicList"), topic)
    with pytest.raises(CommandFailed, match=NO_TOPIC):
        mqadmin.run("topicRoute", "-t", topic)

    scenario.clients.ask("admin create topic", address=scenario.address, topic=topic, queues=2)
    scenario.wait_for_topic(topic, 2)
    assert scenario.ask("offsets", **queue(topic, 0)) == {"min": 0, "max": 0, "earliest": -1}
    scenario.producer().send_to_queue(topic, 0, to_send("anew"))
    assert bodies_of(scenario.read(topic, 1, queues=2)) == ["anew"]


def test_mqadmin_topic_list_of_a_cluster_shows_consumer_groups(mqadmin, scenario, half_consumed):
    assert row(mqadmin.run("topicList", "-c"), CLUSTER, half_consumed) == [
        CLUSTER,
        half_consumed,
        scenario.group,
    ]


# ---- groups


def test_mqadmin_consume_enable_controls_a_group(mqadmin, scenario):
    topic = scenario.topic()
    scenario.producer().send(topic, *numbered(3))
    said = mqadmin.run(
        "updateSubGroup", "-b", scenario.address, "-g", scenario.group, "-s", "false"
    )
    assert f"create subscription group to {scenario.address} success." in said
    consumer = scenario.lite()
    consumer.assign(topic, 0)
    for _ in range(POLLS_IN_VAIN):
        assert consumer.look() == []
    mqadmin.run("updateSubGroup", "-c", CLUSTER, "-g", scenario.group, "-s", "true")
    consumer.wait_for(bodies_of(numbered(3)))


def test_mqadmin_consumer_progress_shows_lag(mqadmin, scenario, half_consumed):
    progress = mqadmin.run("consumerProgress", "-g", scenario.group)
    for queue_id in "01":
        assert row(progress, half_consumed, NAME, queue_id)[3:6] == ["7", "5", "2"]
    assert "Diff Total: 4" in progress
    with pytest.raises(CommandFailed, match=NO_TOPIC):
        mqadmin.run("consumerProgress", "-g", f"{scenario.group}-unknown")


def version_name(java_broker) -> str:
    return f"V{java_broker.version.replace('.', '_')}"


def test_mqadmin_shows_connections_of_a_group(mqadmin, scenario, java_broker):
    topic = scenario.topic()
    consumer = scenario.push(topic=topic, tags="a || b")
    said = mqadmin.run("consumerConnection", "-g", scenario.group)
    _, address, language, version = row(said, consumer.ask("client id"))
    assert (language, version) == ("JAVA", version_name(java_broker))
    assert address.startswith("127.0.0.1:")
    assert row(said, topic) == [topic, "a", "||", "b"]
    assert row(said, f"%RETRY%{scenario.group}")[1:] == ["*"]
    facts = named(said)
    assert facts["ConsumeType"] == "CONSUME_PASSIVELY"
    assert facts["MessageModel"] == "CLUSTERING"
    assert facts["ConsumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    consumer.stop()
    wait_until("the end of the connection", lambda: is_offline(mqadmin, scenario.group))


def is_offline(mqadmin, group: str) -> bool:
    try:
        mqadmin.run("consumerConnection", "-g", group)
    except CommandFailed as failed:
        return NOT_ONLINE in str(failed)
    return False


def test_mqadmin_resets_offset_to_time_and_end(mqadmin, scenario, half_consumed):
    def reset(timestamp: int) -> dict[str, str]:
        said = mqadmin.run(
            "resetOffsetByTime", "-g", scenario.group, "-t", half_consumed, "-s", str(timestamp)
        )
        return {cells[1]: cells[-1] for cells in rows(said, NAME)}

    def progress(queue_id: int) -> list[str]:
        said = mqadmin.run("consumerProgress", "-g", scenario.group)
        return row(said, half_consumed, NAME, str(queue_id))[3:6]

    assert reset(0) == {"0": "0", "1": "0"}
    assert [progress(each) for each in range(2)] == [["7", "0", "7"]] * 2
    assert reset(-1) == {"0": "7", "1": "7"}
    assert [progress(each) for each in range(2)] == [["7", "7", "0"]] * 2
    reset(0)
    consumer = scenario.push(topic=half_consumed)
    consumer.wait_for(bodies_of(numbered(14)))
    assert len(consumer.received) == 14


# ---- messages


def test_mqadmin_shows_a_message_by_each_id(mqadmin, scenario):
    topic = scenario.topic()
    (sent,) = scenario.producer().send(
        topic, to_send("to be shown", tags="t", keys="k", properties={"a": "b"})
    )
    (read,) = scenario.read(topic, 1)
    consumer = scenario.push(topic=topic)
    consumer.wait_for(["to be shown"])
    wait_until("the index", lambda: key_is_found(scenario, topic, "k"))
    by_offset = mqadmin.query_by_id(topic, sent["offsetMessageIds"][0])
    by_unique_key = mqadmin.run("queryMsgByUniqueKey", "-t", topic, "-i", sent["messageIds"][0])
    assert named(by_offset)["OffsetID"] == sent["offsetMessageIds"][0]
    for said in (by_offset, by_unique_key):
        facts = named(said)
        assert (facts["Topic"], facts["Tags"], facts["Keys"]) == (topic, "[t]", "[k]")
        assert (facts["Queue ID"], facts["Queue Offset"]) == ("0", str(read["queueOffset"]))
        assert facts["Reconsume Times"] == "0"
        assert facts["Store Host"] == scenario.address
        assert facts["Born Host"] == read["bornHost"].lstrip("/")
        shown = dict(each.split("=") for each in facts["Properties"].strip("{}").split(", "))
        assert shown["UNIQ_KEY"] == sent["messageIds"][0]
        own = {name: text for name, text in shown.items() if name not in ADDED_PROPERTIES}
        assert own == {"a": "b", "TAGS": "t", "KEYS": "k"}
        body = Path(facts["Message Body Path"])  # the file that the tool has written
        assert body.read_text(encoding="latin-1") == "to be shown"
    body.unlink()


def test_mqadmin_query_by_id_shows_consume_status(mqadmin, scenario, half_consumed):
    first, last = (scenario.read(half_consumed, 14, queues=2)[each] for each in (0, -1))

    def track(message) -> str:
        said = mqadmin.query_by_id(half_consumed, message["offsetMessageId"])
        Path(named(said)["Message Body Path"]).unlink()
        (line,) = [each for each in said.splitlines() if f"consumerGroup={scenario.group}," in each]
        return line.partition("trackType=")[2].partition(",")[0]

    assert (track(first), track(last)) == ("NOT_ONLINE", "NOT_ONLINE")
    consumer = scenario.push(topic=half_consumed, hangs=True)
    wait_until("a message that is being consumed", consumer.look)
    assert (track(first), track(last)) == ("CONSUMED", "NOT_CONSUME_YET")


def key_is_found(scenario, topic: str, key: str):
    return scenario.ask("query", topic=topic, key=key, begin=0, end=(1 << 63) - 1)


def test_mqadmin_shows_messages_by_key(mqadmin, scenario):
    topic = scenario.topic(queues=2)
    results = scenario.producer().send(
        topic, *numbered(6, keys="shared"), to_send("other", keys="last")
    )
    wait_until("the index", lambda: key_is_found(scenario, topic, "last"))
    said = mqadmin.run("queryMsgByKey", "-t", topic, "-k", "shared")
    shown = {cells[0]: cells[1:3] for cells in rows(said)}
    assert shown == {
        each["messageIds"][0]: [str(each["queueId"]), str(each["queueOffset"])]
        for each in results[:6]
    }


# ---- statistics


def test_consume_stats_of_a_broker_show_each_group(mqadmin, scenario, half_consumed):
    said = mqadmin.run("brokerConsumeStats", "-b", scenario.address)
    for queue_id in "01":
        assert row(said, half_consumed, scenario.group, NAME, queue_id)[4:7] == ["7", "5", "2"]
    assert int(named(said)["Diff Total"]) >= 4


def test_mqadmin_reset_of_an_online_group_redelivers(rewound):
    consumer, said = rewound
    assert {cells[1]: cells[-1] for cells in rows(said, NAME)} == {"0": "0", "1": "0"}
    consumer.wait_for(bodies_of(numbered(6)))
    assert len(consumer.received) == 6
