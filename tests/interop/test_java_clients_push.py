"""Java push consumers: their messages, the members that get them, and the results of failures.

Each test runs on a real RocketMQ and on our broker, with clients of both versions.
"""

from __future__ import annotations

import pytest
from support.brokers.broker_kinds import wait_until
from support.rocketmq.java_clients import JavaError, bodies_of, numbered, to_send

pytestmark = pytest.mark.interop

SUBSCRIPTION_PARSE_FAILED = 23


def test_java_push_consumer_gets_all_messages_once_and_continues_after_a_restart(scenario):
    topic = scenario.topic(queues=4)
    producer = scenario.producer()
    producer.send(topic, *numbered(40))
    consumer = scenario.push(topic=topic)
    consumer.wait_for(bodies_of(numbered(40)))
    producer.send(topic, *numbered(20, start=40))  # pulls are held by now
    consumer.wait_for(bodies_of(numbered(60)))
    assert len(consumer.received) == 60
    assert {each["reconsumeTimes"] for each in consumer.received} == {0}
    consumer.stop()
    wait_until(
        "offsets", lambda: scenario.consumed(scenario.group, topic) == dict.fromkeys(range(4), 15)
    )

    producer.send(topic, *numbered(8, start=60))
    following = scenario.push(topic=topic)
    following.wait_for(bodies_of(numbered(8, start=60)))
    assert sorted(following.bodies) == bodies_of(numbered(8, start=60))


def test_java_orderly_consumer_gets_messages_in_order_per_key(scenario):
    topic = scenario.topic(queues=3)
    sent = [to_send(f"{number}", keys=f"order {number % 5}") for number in range(100)]
    scenario.producer().send_in_order(topic, *sent)
    consumer = scenario.push(topic=topic, orderly=True)
    consumer.wait_for(bodies_of(sent))
    for key in {each["keys"] for each in sent}:
        received = [each["body"] for each in consumer.received if each["keys"] == key]
        assert received == [each["body"] for each in sent if each["keys"] == key]


def test_failing_message_holds_up_its_queue_for_a_java_orderly_consumer(scenario):
    topic = scenario.topic()
    scenario.producer().send(topic, *numbered(5))
    consumer = scenario.push(topic=topic, orderly=True, failTimes=2, failBody="message 2")
    consumer.wait_for(bodies_of(numbered(5)))
    assert consumer.bodies == [f"message {number}" for number in (0, 1, 2, 2, 2, 3, 4)]
    assert [each["reconsumeTimes"] for each in consumer.received] == [0, 0, 0, 1, 2, 0, 0]


def test_java_orderly_message_failing_for_good_becomes_a_dead_letter(scenario):
    topic = scenario.topic()
    scenario.producer().send(topic, *numbered(3))
    consumer = scenario.push(
        topic=topic, orderly=True, failTimes=100, failBody="message 1", maxReconsumeTimes=1
    )
    consumer.wait_for(["message 2"])
    assert consumer.bodies == [f"message {number}" for number in (0, 1, 1, 2)]
    assert bodies_of(dead_letters(scenario, 1)) == ["message 1"]


def test_java_push_consumer_filters_by_tags(scenario):
    topic = scenario.topic(queues=2)
    kinds = ["red", "green", "blue", "BB"]
    sent = [to_send(f"{n}", tags=kinds[n % 4]) for n in range(40)]
    producer = scenario.producer()
    producer.send(topic, *sent[:20])
    consumer = scenario.push(topic=topic, tags="red || blue || Aa")
    wanted = [each["body"] for each in sent if each["tags"] in {"red", "blue"}]
    consumer.wait_for(set(wanted) & set(bodies_of(sent[:20])))
    producer.send(topic, *sent[20:])
    consumer.wait_for(wanted)
    assert sorted(consumer.bodies) == sorted(wanted)


SQL = {
    "n > 6": "789",
    "n BETWEEN 2 AND 4 OR n = 0": "0234",
    "place IN ('here', 'nowhere')": "02468",
    "place = 'there' AND NOT (n <= 5)": "79",
    "rare IS NOT NULL": "5",
    "rare IS NULL AND n < 2": "01",
    "(n < 2 OR n >= 8) AND place <> 'here'": "19",
    "TAGS IN ('t1', 't2') AND n > 3": "4589",
}


def test_java_push_consumer_filters_by_sql(scenario):
    topic = scenario.topic()
    sent = [
        to_send(
            f"{n}",
            tags=f"t{n % 4 + 1}",
            properties={"n": f"{n}", "place": "there" if n % 2 else "here"},
        )
        for n in range(10)
    ]
    sent[5]["properties"]["rare"] = "x"
    scenario.producer().send(topic, *sent)
    consumers = {
        sql: scenario.push(topic=topic, sql=sql, group=f"{scenario.group}-{number}")
        for number, sql in enumerate(SQL)
    }
    for sql, consumer in consumers.items():
        consumer.wait_for(SQL[sql])
    assert {sql: "".join(sorted(consumer.bodies)) for sql, consumer in consumers.items()} == SQL


def test_java_push_consumer_with_invalid_sql_is_refused(scenario):
    topic = scenario.topic()
    with pytest.raises(JavaError) as refused:
        scenario.push(topic=topic, sql="n >> 5")
    assert refused.value.code == SUBSCRIPTION_PARSE_FAILED


def test_message_failing_in_java_is_redelivered_until_it_succeeds(scenario):
    topic = scenario.topic()
    with_retries(scenario, topic)
    consumer = scenario.push(topic=topic, failTimes=2, failBody="message 1")
    (_, sent, _) = scenario.producer().send(topic, *numbered(3, keys="k", properties={"a": "b"}))
    wait_until(
        "all deliveries", lambda: consumer.look() is not None and len(consumer.received) >= 5
    )
    assert sorted(consumer.bodies) == [f"message {number}" for number in (0, 1, 1, 1, 2)]
    again = [each for each in consumer.received if each["body"] == "message 1"]
    assert [each["reconsumeTimes"] for each in again] == [0, 1, 2]
    assert {each["topic"] for each in again} == {topic}  # also if it came through the retry topic
    assert {each["keys"] for each in again} == {"k"}
    assert {each["properties"]["a"] for each in again} == {"b"}
    assert {each["properties"].get("UNIQ_KEY") for each in again} == {sent["messageIds"][0]}
    retry = f"%RETRY%{scenario.group}"
    consumer.stop()
    wait_until("offsets", lambda: scenario.consumed(scenario.group, retry) == {0: 2})


def test_message_failing_for_good_in_java_becomes_a_dead_letter(scenario):
    topic = scenario.topic()
    with_retries(scenario, topic)
    consumer = scenario.push(topic=topic, failTimes=100, failBody="message 1", maxReconsumeTimes=2)
    (_, sent, _) = scenario.producer().send(
        topic, *numbered(3, keys="k", tags="t", properties={"a": "b"})
    )
    (dead,) = dead_letters(scenario, 1)
    consumer.look()
    assert sorted(consumer.bodies) == [f"message {number}" for number in (0, 1, 1, 1, 2)]
    assert (dead["body"], dead["keys"], dead["tags"]) == ("message 1", "k", "t")
    assert dead["properties"]["a"] == "b"
    assert dead["properties"]["UNIQ_KEY"] == sent["messageIds"][0]
    assert dead["properties"]["ORIGIN_MESSAGE_ID"] == sent["offsetMessageIds"][0]
    assert dead["properties"]["RETRY_TOPIC"] == topic


def with_retries(scenario, topic: str) -> None:
    """Create the group, and its retry topic. A client asks for the retry topic at its start, before
    the broker knows the group, and then only every half minute."""
    retry = f"%RETRY%{scenario.group}"
    first = scenario.push(topic=topic)
    wait_until(f"a route to {retry}", lambda: scenario.ask("queues", topic=retry))
    first.stop()


def dead_letters(scenario, count: int) -> list[dict]:
    """Return the group's dead letters, found by offset as an operator finds them."""
    topic = f"%DLQ%{scenario.group}"
    wait_until(f"a route to {topic}", lambda: scenario.ask("queues", topic=topic))
    scenario.wait_for_max_offset(topic, count)
    return scenario.read(topic, count)


def test_java_rebalance_shares_queues_and_takes_over(scenario):
    topic = scenario.topic(queues=4)
    producer = scenario.producer()
    first = scenario.push(topic=topic)
    first.wait_for_assigned(0, 1, 2, 3, topic=topic)
    second = scenario.push(topic=topic)

    def shares() -> list[list[int]]:
        return sorted(each.ask("assigned", topic=topic) for each in (first, second))

    wait_until("two queues each", lambda: shares() == [[0, 1], [2, 3]])
    producer.send(topic, *numbered(40))
    wait_until("all", lambda: has_all(first, second, count=40))
    assert {each["queueId"] for each in first.received}.isdisjoint(
        each["queueId"] for each in second.received
    )

    second.stop()
    first.wait_for_assigned(0, 1, 2, 3, topic=topic)
    producer.send(topic, *numbered(8, start=40))
    first.wait_for(bodies_of(numbered(8, start=40)))
    assert sorted(first.bodies + second.bodies) == sorted(bodies_of(numbered(48)))


def has_all(*consumers, count: int) -> bool:
    for each in consumers:
        each.look()
    return len({body for each in consumers for body in each.bodies}) == count


def test_java_push_consumer_takes_over_from_a_killed_jvm(scenario, more_clients):
    topic = scenario.topic(queues=4)
    producer = scenario.producer()
    survivor = scenario.push(topic=topic)
    survivor.wait_for_assigned(0, 1, 2, 3, topic=topic)
    victim = scenario.push(clients=more_clients, topic=topic, hangs=True)
    wait_until("a share", lambda: len(victim.ask("assigned", topic=topic)) == 2)
    wait_until("the other", lambda: len(survivor.ask("assigned", topic=topic)) == 2)
    producer.send(topic, *numbered(40))
    wait_until("what the victim works on", lambda: victim.look() or victim.received)
    wait_until("half of all", lambda: survivor.look() == [] and len(survivor.received) == 20)
    more_clients.kill()

    survivor.wait_for_assigned(0, 1, 2, 3, topic=topic)
    survivor.wait_for(bodies_of(numbered(40)))
    producer.send(topic, *numbered(8, start=40))
    survivor.wait_for(bodies_of(numbered(8, start=40)))
    assert sorted(survivor.bodies) == sorted(bodies_of(numbered(48)))


def test_java_orderly_rebalance_hands_over_queue_locks(scenario):
    topic = scenario.topic(queues=2)
    producer = scenario.producer()
    first = scenario.push(topic=topic, orderly=True)
    first.wait_for_assigned(0, 1, topic=topic)
    producer.send(topic, *numbered(10))
    first.wait_for(bodies_of(numbered(10)))
    first.stop()
    second = scenario.push(topic=topic, orderly=True)
    producer.send(topic, *numbered(10, start=10))
    second.wait_for(bodies_of(numbered(10, start=10)))
    assert sorted(second.bodies) == bodies_of(numbered(10, start=10))


def test_broker_relays_running_info_requests_to_a_java_consumer(scenario):
    topic = scenario.topic(queues=2)
    scenario.producer().send(topic, *numbered(4))
    consumer = scenario.push(topic=topic, tags="*")
    consumer.wait_for(bodies_of(numbered(4)))
    client_id = consumer.ask("client id")
    info = scenario.ask("running info", group=scenario.group, clientId=client_id)
    assert info["subscriptions"] == {topic: "*", f"%RETRY%{scenario.group}": "*"}
    assert (info["consumeType"], info["ordered"]) == ("CONSUME_PASSIVELY", "false")
    commits = {
        each["queueId"]: each["commitOffset"] for each in info["queues"] if each["topic"] == topic
    }
    assert commits == {0: 2, 1: 2}
    with pytest.raises(JavaError):
        scenario.ask("running info", group=scenario.group, clientId="nobody")
