"""Our clients and Java's exchange messages unchanged, and share queues within one group.

Each test runs on a real RocketMQ and on our broker, with Java clients of both versions.
"""

import time

import pytest
from support.brokers.broker_kinds import NAME, wait_until
from support.brokers.clusters import Cluster
from support.clients.conformance_clients import Clients, Listener, numbers
from support.clients.fake_members import implementation_of
from support.rocketmq.java_clients import bodies_of, to_send
from support.rocketmq.mqadmin import MqAdmin, rows

from rmq_spark.client.message import Message
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.names import retry_topic
from rmq_spark.wire.trace import TraceType

pytestmark = pytest.mark.interop

LONG = "".join(f"line {number}\n" for number in range(3_000))
COMPRESSED = MessageSysFlag.COMPRESSED.value


@pytest.fixture
def ours(java_broker):
    """Return our clients of the same broker."""
    cluster = Cluster(java_broker.name_server, java_broker.address, NAME)
    yield Clients(cluster)
    cluster.close()


# ---- between our clients and Java's


def test_java_consumer_gets_message_of_our_producer_unchanged(scenario, ours):
    topic = scenario.topic()
    producer = ours.producer()
    sent = Message(
        topic,
        b"\x00any\xff",
        tags="blue",
        keys=("k1", "k2"),
        properties={"place": "Üsküdar"},
        flag=7,
    )
    result = producer.send(sent)
    producer.send(Message(topic, LONG.encode()))
    first, second = scenario.read(topic, 2)
    assert (first["body"], first["tags"], first["keys"], first["flag"]) == (
        "\x00any\xff",
        "blue",
        "k1 k2",
        7,
    )
    assert first["properties"]["place"] == "Üsküdar"
    assert (first["messageId"], first["offsetMessageId"]) == (
        result.message_id,
        result.offset_message_id,
    )
    assert second["body"] == LONG
    assert second["storeSize"] < len(LONG) / 2


@pytest.mark.parametrize("answer", ["answer", LONG], ids=["short", "compressed"])
def test_java_consumer_replies_to_our_request(scenario, ours, answer):
    topic = scenario.topic()
    replier, consumer = scenario.producer(), scenario.push(topic=topic)
    asking = ours.producer().request_async(Message(topic, b"question"), timeout_ms=60_000)
    (asked,) = consumer.wait_for(["question"])
    assert replier.reply(asked, answer)["status"] == "SEND_OK"
    assert asking.result(60).body.decode() == answer


@pytest.mark.parametrize("answer", ["answer", LONG], ids=["short", "compressed"])
def test_our_consumer_replies_to_a_java_request(scenario, ours, answer):
    topic = scenario.topic()
    replier, asker = ours.producer(), scenario.producer()
    ours.push(
        lambda found, _: [replier.reply(each, answer.encode()) for each in found] and None,
        topic=topic,
    )
    asker.request(topic, to_send("question"))
    reply = asker.replied()
    assert (reply["body"], reply["properties"]["MSG_TYPE"]) == (answer, "reply")


def test_mqadmin_shows_traces_of_our_producer_and_consumer(scenario, ours, java_broker):
    topic = scenario.topic()
    listener, group = Listener(), f"{topic}-traced"
    consumer = ours.push(listener, group, topic, enable_trace=True)
    producer = ours.producer(enable_trace=True)
    sent = producer.send(Message(topic, b"x", keys="k"))
    listener.wait_for(["x"])
    consumer.shutdown()  # which sends the recorded traces
    producer.shutdown()
    mqadmin = MqAdmin(scenario.clients, java_broker.version)

    def shown():
        return mqadmin.run("queryMsgTraceById", "-i", sent.message_id)

    wait_until("all traces", lambda: "Pub" in shown() and group in shown())
    (pub,) = rows(shown(), "Pub")
    assert (pub[1], pub[-1]) == (producer.group, "success")
    (sub,) = rows(shown(), "Sub")
    assert (sub[1], sub[-1]) == (group, "success")


def test_our_admin_reads_traces_of_java_clients(scenario, ours):
    topic = scenario.topic()
    producer, consumer = scenario.producer(trace=True), scenario.push(topic=topic, trace=True)
    producer.send(topic, to_send("x", keys="k1 k2", tags="blue"))
    (sent,) = consumer.wait_for(["x"])
    admin, message_id = ours.admin(), sent["messageId"]

    def found():
        return {each.trace_type: each for each in admin.message_traces(message_id)}

    # Java's clients send traces half a second later; on a busy machine a stop drops them.
    wait_until("three traces", lambda: len(found()) == 3)
    pub, before, after = (found()[kind] for kind in list(TraceType)[:3])
    assert (pub.group, pub.topic, pub.tags, pub.keys) == (producer.group, topic, "blue", "k1 k2")
    assert (pub.is_success, pub.offset_message_id) == (True, sent["offsetMessageId"])
    assert (before.group, before.keys) == (consumer.group, "k1 k2")
    assert (after.request_id, after.is_success) == (before.request_id, True)


def test_our_consumers_get_message_of_a_java_producer_unchanged(scenario, ours):
    topic = scenario.topic()
    (result, _) = scenario.producer().send(
        topic,
        to_send("\x00any\xff", tags="blue", keys="k1 k2", flag=7, properties={"place": "Üsküdar"}),
        to_send(LONG),
    )
    listener = Listener()
    ours.push(listener, topic=topic)
    lite = ours.lite(topic=topic)
    found = []
    while len(found) < 2:
        found += lite.poll(20_000)
    wait_until("two calls", lambda: len(listener.messages) == 2)
    assert sorted(listener.messages, key=lambda each: each.queue_offset) == found
    first, second = found
    assert (first.body, first.tags, first.keys, first.flag) == (
        b"\x00any\xff",
        "blue",
        ("k1", "k2"),
        7,
    )
    assert first.properties["place"] == "Üsküdar"
    assert first.message_id == result["messageIds"][0]
    assert first.offset_message_id == result["offsetMessageIds"][0]
    assert second.body == LONG.encode()
    assert second.sys_flag & COMPRESSED


def test_java_consumer_gets_our_batches_delays_and_tags(scenario, ours):
    topic = scenario.topic()
    producer = ours.producer()
    (batch,) = producer.send_batch(
        Message(topic, body.encode(), tags="red" if number % 2 else "BB", keys=body)
        for number, body in enumerate(numbers(10))
    )
    late = producer.send(Message(topic, b"late", tags="red", delay_level=1))
    consumer = scenario.lite(topic=topic, tags="red || Aa")
    consumer.wait_for([*numbers(10)[1::2], "late"])
    assert consumer.bodies == [*numbers(10)[1::2], "late"]
    ids = batch.message_id.split(",")[1::2]
    assert [each["messageId"] for each in consumer.received] == [*ids, late.message_id]


def test_arrow_table_rows_reach_a_java_consumer_as_messages(scenario, ours):
    pa = pytest.importorskip("pyarrow")
    topic = scenario.topic()
    table = pa.table({"body": numbers(200), "keys": numbers(200), "tags": ["t"] * 200})
    ours.producer().send_table(table, topic)
    found = scenario.read(topic, 200)
    assert bodies_of(found) == [each["keys"] for each in found]
    assert sorted(bodies_of(found)) == numbers(200)
    assert {each["tags"] for each in found} == {"t"}
    assert len({each["messageId"] for each in found}) == 200


def test_same_sharding_key_selects_the_same_queue_in_java_and_python(scenario, ours):
    topic = scenario.topic(queues=4)
    keys = [f"order {number}" for number in range(40)]
    java = scenario.producer().send_in_order(topic, *[to_send("x", keys=key) for key in keys])
    producer = ours.producer()
    mine = [
        producer.send(Message(topic, b"x", keys=key.replace(" ", "_"), sharding_key=key))
        for key in keys
    ]
    assert [each.queue.queue_id for each in mine] == [each["queueId"] for each in java]


# ---- in one group


def shared(topic, mine, java):
    """Return the queues of each client, if both together own each of the four once."""
    of_mine = sorted(queue.queue_id for queue in mine.assignment() if queue.topic == topic)
    more = {"topic": topic} if java.kind == "push" else {}
    of_java = java.ask("assigned", **more)
    return len(of_mine) == len(of_java) == 2 and sorted(of_mine + of_java) == [0, 1, 2, 3]


def send_to_each(scenario, topic, bodies):
    producer = scenario.producer()
    for number, body in enumerate(bodies):
        producer.send_to_queue(topic, number % 4, to_send(body))
    producer.stop()


@pytest.mark.parametrize("first", ["ours", "java"])
def test_push_consumers_of_both_kinds_share_queues_and_take_over_from_each_other(
    scenario, ours, first
):
    topic, listener = scenario.topic(queues=4), Listener()

    def join():
        return ours.push(listener, scenario.group, topic)

    if first == "ours":
        mine = join()
        wait_until(
            "all queues", lambda: len([q for q in mine.assignment() if q.topic == topic]) == 4
        )
        java = scenario.push(topic=topic)
    else:
        java = scenario.push(topic=topic)
        java.wait_for_assigned(0, 1, 2, 3, topic=topic)
        mine = join()
    wait_until("two queues each", lambda: shared(topic, mine, java))
    send_to_each(scenario, topic, numbers(40))
    wait_until(
        "all", lambda: java.look() is not None and len(java.bodies) + len(listener.bodies) >= 40
    )
    assert sorted(java.bodies + listener.bodies) == numbers(40)
    assert {each["queueId"] for each in java.received}.isdisjoint(
        each.queue.queue_id for each in listener.messages
    )
    if first == "ours":
        java.stop()
        wait_until(
            "all queues", lambda: len([q for q in mine.assignment() if q.topic == topic]) == 4
        )
        send_to_each(scenario, topic, numbers(8, start=40))
        listener.wait_for(numbers(8, start=40))
    else:
        mine.shutdown()
        java.wait_for_assigned(0, 1, 2, 3, topic=topic)
        send_to_each(scenario, topic, numbers(8, start=40))
        java.wait_for(numbers(8, start=40))
    assert sorted(java.bodies + listener.bodies) == numbers(48)


def test_java_member_takes_over_queues_of_our_killed_member(scenario, ours):
    topic, listener = scenario.topic(queues=4), Listener()
    java = scenario.push(topic=topic)
    mine = ours.push(listener, scenario.group, topic)
    wait_until("two queues each", lambda: shared(topic, mine, java))
    implementation_of(mine)._instance.connections.shutdown()  # as the end of its process does
    java.wait_for_assigned(0, 1, 2, 3, topic=topic)
    send_to_each(scenario, topic, numbers(40))
    java.wait_for(numbers(40))


def test_retry_in_a_mixed_group_may_succeed_in_the_other_client(scenario, ours):
    topic, group = scenario.topic(queues=4), scenario.group
    listener = Listener()
    mine = ours.push(listener, group, topic)
    java = scenario.push(topic=topic, failTimes=1)
    wait_until("two queues each", lambda: shared(topic, mine, java))
    send_to_each(scenario, topic, numbers(8))
    wait_until(
        "all of them", lambda: java.look() is not None and len(java.bodies + listener.bodies) >= 12
    )
    failed = sorted({each["body"] for each in java.received if each["reconsumeTimes"] == 0})
    assert len(failed) == 4
    again = sorted(
        [each["body"] for each in java.received if each["reconsumeTimes"] == 1]
        + [each.body.decode() for each in listener.messages if each.reconsume_times == 1]
    )
    assert again == failed
    assert {each.topic for each in listener.messages} == {topic}
    assert scenario.ask("queues", topic=retry_topic(group))


def test_orderly_consumers_of_java_and_python_respect_each_others_locks(scenario, ours):
    topic, said = scenario.topic(queues=4), []
    listener = Listener(lambda message: said.append((message.queue.queue_id, time.monotonic())))
    mine = ours.push(listener, scenario.group, topic, orderly=True)
    wait_until("all queues", lambda: len([q for q in mine.assignment() if q.topic == topic]) == 4)
    java = scenario.push(topic=topic, orderly=True)
    wait_until("two queues each", lambda: shared(topic, mine, java), 60)
    sent = [to_send(f"{number:03}", keys=f"order {number % 7}") for number in range(70)]
    scenario.producer().send_in_order(topic, *sent)
    wait_until(
        "all", lambda: java.look() is not None and len(java.bodies) + len(listener.bodies) >= 70
    )
    assert sorted(java.bodies + listener.bodies) == numbers(70)
    queues_of_mine = {queue_id for queue_id, _ in said}
    assert queues_of_mine.isdisjoint(each["queueId"] for each in java.received)
    for bodies in (java.bodies, listener.bodies):
        for key in range(7):
            of_key = [body for body in bodies if int(body) % 7 == key]
            assert of_key in ([], numbers(70)[key::7])
