"""Messages of Java producers arrive unchanged by each kind of send, and can be queried.

Each test runs on a real RocketMQ and on our broker, with clients of both versions.
"""

from __future__ import annotations

import time
from random import Random

import pytest
from support.brokers.broker_kinds import DELAYS_S, RocketPollBroker, wait_until
from support.rocketmq.java_clients import (
    ADDED_PROPERTIES,
    JavaError,
    bodies_of,
    numbered,
    queue,
    to_send,
)

pytestmark = pytest.mark.interop

FOR_EVER = (1 << 63) - 1
MESSAGE_ILLEGAL, TOPIC_NOT_EXIST = 13, 17


def test_all_message_fields_of_a_java_producer_arrive(scenario):
    topic = scenario.topic()
    sent = [
        to_send(
            "\x00any\xffbytes",
            tags="blue",
            keys="k1 k2",
            flag=7,
            properties={"place": "Üsküdar", "n": "1"},
        ),
        to_send("plain"),
    ]
    results = scenario.producer().send(topic, *sent)
    assert [each["status"] for each in results] == ["SEND_OK"] * 2
    assert [each["queueOffset"] for each in results] == [0, 1]
    first, second = scenario.read(topic, 2)
    assert (first["body"], second["body"]) == ("\x00any\xffbytes", "plain")
    assert (first["tags"], first["keys"], first["flag"]) == ("blue", "k1 k2", 7)
    assert users_own(first) == {"TAGS": "blue", "KEYS": "k1 k2", "place": "Üsküdar", "n": "1"}
    assert users_own(second) == {}
    assert (second.get("tags"), second.get("keys"), second["flag"]) == (None, None, 0)
    for message, result in zip((first, second), results, strict=True):
        assert message["topic"] == topic
        assert message["messageId"] == result["messageIds"][0]
        assert message["queueOffset"] == result["queueOffset"]
        assert message["storeHost"] == f"/{scenario.address}"
        assert message["bornHost"].startswith("/127.0.0.1:")
        assert message["bornTimestamp"] <= message["storeTimestamp"]
        assert message["reconsumeTimes"] == 0


def users_own(message) -> dict[str, str]:
    """Return a message's properties without those that RocketMQ's clients and brokers add."""
    return {
        name: text for name, text in message["properties"].items() if name not in ADDED_PROPERTIES
    }


def test_missing_topic_is_created_by_a_java_producer(scenario):
    topic = scenario.new_name()
    producer = scenario.producer()
    assert scenario.ask("queues", topic=topic) == {}
    producer.send(topic, to_send("first"))
    scenario.wait_for_topic(topic, 4)  # the producer's default; the broker would create eight
    assert bodies_of(scenario.read(topic, 1, queues=4)) == ["first"]
    wait_until("four queues", lambda: producer.publish_queues(topic) == [0, 1, 2, 3])


def test_java_client_creates_a_topic(scenario):
    topic = scenario.new_name()
    scenario.ask("create topic as a client", topic=topic, queues=3)
    scenario.wait_for_topic(topic, 3)
    producer = scenario.producer()
    assert producer.publish_queues(topic) == [0, 1, 2]
    used = {each["queueId"] for each in producer.send(topic, *numbered(6))}
    assert used == {0, 1, 2}


def test_java_asynchronous_sends_call_their_callbacks(scenario):
    topic = scenario.topic(queues=4)
    sent = numbered(100)
    results = scenario.producer().send_asynchronously(topic, *sent)
    assert [each["status"] for each in results] == ["SEND_OK"] * 100
    found = scenario.read(topic, 100, queues=4)
    by_id = {each["messageId"]: each for each in found}
    for message, result in zip(sent, results, strict=True):
        arrived = by_id[result["messageIds"][0]]
        assert arrived["body"] == message["body"]
        assert (arrived["queueId"], arrived["queueOffset"]) == (
            result["queueId"],
            result["queueOffset"],
        )


def test_oneway_messages_of_a_java_producer_arrive(scenario):
    topic = scenario.topic(queues=2)
    scenario.producer().send_one_way(topic, *numbered(20))
    assert sorted(bodies_of(scenario.read(topic, 20, queues=2))) == sorted(bodies_of(numbered(20)))


def test_java_batch_stays_together_in_one_queue(scenario):
    topic = scenario.topic(queues=4)
    producer = scenario.producer()
    batches = [
        [to_send(f"{name}{n}", keys=f"{name}{n}", tags=name) for n in range(10)] for name in "ab"
    ]
    for batch in batches:
        result = producer.send_batch(topic, *batch)
        assert result["status"] == "SEND_OK"
        assert len(set(result["messageIds"])) == len(set(result["offsetMessageIds"])) == 10
        places = [scenario.ask("view", topic=topic, id=each) for each in result["offsetMessageIds"]]
        assert bodies_of(places) == bodies_of(batch)
        assert [each["queueId"] for each in places] == [result["queueId"]] * 10
        first = result["queueOffset"]
        assert [each["queueOffset"] for each in places] == list(range(first, first + 10))
        assert [users_own(each) for each in places] == [
            {"KEYS": each["keys"], "TAGS": each["tags"]} for each in batch
        ]
        assert [each["keys"] for each in places] == [each["keys"] for each in batch]
        assert {each["tags"] for each in places} == {batch[0]["tags"]}
    assert len(scenario.read(topic, 20, queues=4)) == 20


@pytest.mark.parametrize("level", [1, 5])
def test_delayed_message_of_java_arrives_after_its_delay(scenario, level):
    topic = scenario.topic()
    producer = scenario.producer()
    (result,) = producer.send(
        topic, to_send("late", delayLevel=level, keys="k", tags="t", properties={"a": "b"})
    )
    assert result["status"] == "SEND_OK"
    producer.send(topic, to_send("prompt"))
    prompt, late = scenario.read(topic, 2)
    assert (prompt["body"], late["body"]) == ("prompt", "late")
    assert late["storeTimestamp"] - late["bornTimestamp"] >= 1000 * DELAYS_S[level - 1]
    assert (late["keys"], late["tags"], late["properties"]["a"]) == ("k", "t", "b")
    assert late["messageId"] == result["messageIds"][0]
    assert (late["topic"], late["queueId"], late["queueOffset"]) == (topic, 0, 1)


TIMERS = {
    "TIMER_DELAY_SEC": ("setDelayTimeSec", lambda: 2),
    "TIMER_DELAY_MS": ("setDelayTimeMs", lambda: 2_000),
    "TIMER_DELIVER_MS": ("setDeliverTimeMs", lambda: time.time_ns() // 1_000_000 + 2_000),
}


def timer(java_broker, name):
    """Return the time of a timer message, and how a client of the broker's version sets it.

    Clients of 4.9 have no setters: programs set the property.
    """
    setter, value = TIMERS[name][0], TIMERS[name][1]()
    if java_broker.version.startswith("4"):
        return value, {"systemProperties": {name: str(value)}}
    return value, {"timers": {setter: value}}


@pytest.mark.parametrize("name", TIMERS)
def test_timer_message_of_java_arrives_at_its_time(scenario, java_broker, name):
    is_ours = isinstance(java_broker, RocketPollBroker)
    if not is_ours and java_broker.version.startswith("4"):
        pytest.skip("RocketMQ 4.9 delivers the message at once")
    topic = scenario.topic()
    producer = scenario.producer()
    value, timed = timer(java_broker, name)
    (result,) = producer.send(topic, to_send("late", keys="k", **timed))
    assert result["status"] == "SEND_OK"
    producer.send(topic, to_send("prompt"))
    prompt, late = scenario.read(topic, 2)
    assert (prompt["body"], late["body"]) == ("prompt", "late")
    due_ms = value if name == "TIMER_DELIVER_MS" else late["bornTimestamp"] + 2_000
    assert late["storeTimestamp"] >= due_ms
    assert (late["topic"], late["queueId"], late["queueOffset"]) == (topic, 0, 1)
    assert late["messageId"] == result["messageIds"][0]
    kept = {each for each in late["properties"] if each.startswith(("TIMER_", "REAL_"))}
    if is_ours:
        kept.discard("TIMER_DELIVER_MS")  # stored for a delay as well
    else:
        kept -= {"REAL_TOPIC", "REAL_QID"}  # RocketMQ clears them after it has encoded them
    assert kept - {name} == {"TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}


@pytest.mark.parametrize("name", TIMERS)
def test_timer_message_of_java_is_recalled(scenario, java_broker, name):
    if java_broker.version.startswith("4") or not isinstance(java_broker, RocketPollBroker):
        pytest.skip("clients of 4.9 cannot recall, and RocketMQ does not by default")
    topic = scenario.topic()
    producer = scenario.producer()
    _, timed = timer(java_broker, name)
    (result,) = producer.send(topic, to_send("x", **timed))
    producer.send(topic, to_send("y", timers={"setDelayTimeMs": 2_500}))
    assert producer.recall(topic, result["recallHandle"]) == result["messageIds"][0]
    assert [each["body"] for each in scenario.read(topic, 1)] == ["y"]
    with pytest.raises(JavaError):
        producer.recall(topic, result["recallHandle"])


@pytest.mark.parametrize("wait", ["true", "false"])
def test_messages_of_a_batch_keep_whether_to_wait_for_the_disk(scenario, wait):
    topic = scenario.topic()
    batch = [to_send(body, systemProperties={"WAIT": wait}) for body in "ab"]
    assert scenario.producer().send_batch(topic, *batch)["status"] == "SEND_OK"
    assert [each["properties"]["WAIT"] for each in scenario.read(topic, 2)] == [wait] * 2


def test_long_bodies_are_stored_compressed_and_read_whole(scenario):
    topic = scenario.topic()
    body = "".join(f"line {number}\n" for number in range(10_000))
    scenario.producer().send(topic, to_send(body))
    (found,) = scenario.read(topic, 1)
    assert found["body"] == body
    assert found["storeSize"] < len(body) / 2


def test_java_body_over_the_limit_is_refused(scenario):
    topic = scenario.topic()
    producer = scenario.producer(messageBytesMax=8 << 20)
    noise = Random(1).randbytes(5 << 20).decode("latin-1")  # incompressible
    with pytest.raises(JavaError) as refused:
        producer.send(topic, to_send(noise))
    assert refused.value.code == MESSAGE_ILLEGAL
    assert scenario.max_offset(topic) == 0


def test_java_reads_min_max_and_search_offset(scenario):
    topic = scenario.topic(queues=2)
    assert scenario.ask("offsets", **queue(topic, 0)) == {"min": 0, "max": 0, "earliest": -1}
    producer = scenario.producer()
    for number in range(10):
        producer.send_to_queue(topic, 0, to_send(f"message {number}"))
    scenario.wait_for_max_offset(topic, 10)
    times = [each["storeTimestamp"] for each in scenario.read(topic, 10, queues=2)]
    assert scenario.ask("offsets", **queue(topic, 0)) == {"min": 0, "max": 10, "earliest": times[0]}
    assert scenario.ask("offsets", **queue(topic, 1)) == {"min": 0, "max": 0, "earliest": -1}
    for queue_offset, timestamp in enumerate(times):
        if times.count(timestamp) == 1:
            assert (
                scenario.ask("search offset", **queue(topic, 0), timestamp=timestamp)
                == queue_offset
            )
    assert scenario.ask("search offset", **queue(topic, 0), timestamp=times[0] - 1000) == 0


def test_java_finds_a_message_by_either_id(scenario):
    topic = scenario.topic()
    (result,) = scenario.producer().send(topic, to_send("looked for", keys="k"))
    (read,) = scenario.read(topic, 1)
    by_offset_id = scenario.ask("view", topic=topic, id=result["offsetMessageIds"][0])
    wait_until("the index", lambda: key_is_found(scenario, topic, "k"))
    by_unique_key = scenario.ask("query unique key", topic=topic, key=result["messageIds"][0])
    by_any_id = scenario.ask("view", topic=topic, id=result["messageIds"][0])
    for found in (by_offset_id, by_unique_key, by_any_id):
        assert found["body"] == "looked for"
        assert (found["queueId"], found["queueOffset"]) == (read["queueId"], read["queueOffset"])
        assert found["messageId"] == read["messageId"]
        assert found["offsetMessageId"] == result["offsetMessageIds"][0]


def key_is_found(scenario, topic, key):
    return scenario.ask("query", topic=topic, key=key, begin=0, end=FOR_EVER)


def test_java_finds_messages_by_key_and_time(scenario):
    topic, other = scenario.topic(queues=2), scenario.topic()
    producer = scenario.producer()
    producer.send(
        topic, *[to_send(f"{n}", keys=f"own{n} shared") for n in range(6)], to_send("no key")
    )
    producer.send(other, to_send("elsewhere", keys="shared last"))

    def found(key: str, begin: int = 0, end: int = FOR_EVER, of: str = topic) -> list[str]:
        return sorted(bodies_of(scenario.ask("query", topic=of, key=key, begin=begin, end=end)))

    wait_until("the index", lambda: found("last", of=other))
    assert found("shared") == ["0", "1", "2", "3", "4", "5"]
    assert found("own3") == ["3"]
    assert found("shared", of=other) == ["elsewhere"]
    assert found("own") == found("unknown") == []
    stored_at = {each["body"]: each["storeTimestamp"] for each in scenario.read(topic, 7, queues=2)}
    hour_ms = 3_600_000
    assert found("shared", end=min(stored_at.values()) - hour_ms) == []
    assert found("shared", begin=max(stored_at.values()) + hour_ms) == []
    assert found("own2", begin=stored_at["2"] - hour_ms, end=stored_at["2"] + hour_ms) == ["2"]
