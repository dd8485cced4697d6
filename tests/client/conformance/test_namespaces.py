"""Clients with a namespace on every kind of broker: users see names without it, brokers names with
it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import Clients

from rmq_spark.client.admin.admin import Admin, read_table
from rmq_spark.client.consumer.dispatch.listeners import ConsumeConcurrentlyStatus
from rmq_spark.client.consumer.lite_pull_consumer import Consumer
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.settings import PushSettings
from rmq_spark.client.consumer.simple_consumer import SimpleConsumer
from rmq_spark.client.errors import MessageRejected, RouteNotFound
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.producer.transaction_producer import TransactionProducer, TransactionState
from rmq_spark.wire.bodies.clients import ConsumeFromWhere
from rmq_spark.wire.headers.members import CheckTransactionStateRequestHeader
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import retry_topic
from rocketpoll import aio

IN = {"instance": {"namespace": "eu"}}
PATIENCE_MS = 20_000


@pytest.fixture
def clients(both_clients):
    return both_clients


@pytest.fixture
def topic(cluster):
    """Return a topic's name in the namespace."""
    name = f"T{cluster.group()}"
    cluster.topic(2, f"eu%{name}")
    return name


def test_messages_of_a_namespace_have_short_names_on_both_sides(cluster, clients, topic):
    producer, full = clients.producer(**IN), f"eu%{topic}"
    results = [
        producer.send(Message(topic, b"1")),
        producer.send_async(Message(topic, b"2")).result(10),
        producer.send(Message(topic, b"3"), lambda queues: queues[-1]),
        producer.send(Message(topic, b"4"), MessageQueue(topic, cluster.broker_name, 0)),
        producer.send(Message(topic, b"5", sharding_key="k")),
        producer.send(Message(full, b"6")),
        *producer.send_batch([Message(topic, b"7")]),
    ]
    assert {each.queue.topic for each in results} == {topic}
    assert (results[2].queue.queue_id, results[3].queue.queue_id) == (1, 0)
    assert {queue.topic for queue in producer.publish_queues(topic)} == {topic}
    consumer = clients.lite(topic=topic, **IN)
    found = []
    while len(found) < len(results):
        found += consumer.poll(PATIENCE_MS)
    assert sorted(each.body for each in found) == [b"%d" % n for n in range(1, 8)]
    assert {(each.topic, each.queue.topic) for each in found} == {(topic, topic)}
    assert {each.topic for each in clients.read(full, 7, queues=2)} == {full}
    assert {queue.topic for queue in consumer.assignment()} == {topic}


def test_positions_of_a_namespace_take_short_and_full_names(cluster, clients, topic):
    producer = clients.producer(**IN)
    queue = MessageQueue(topic, cluster.broker_name, 0)
    full = MessageQueue(f"eu%{topic}", cluster.broker_name, 0)
    for body in (b"0", b"1", b"2"):
        producer.send(Message(topic, body), queue)
    group = cluster.group()
    consumer = clients.lite(group, queues=[queue], auto_commit=False, **IN)
    assert consumer.assignment() == {queue}
    assert consumer.fetch_message_queues(topic) == {
        MessageQueue(topic, cluster.broker_name, number) for number in (0, 1)
    }
    for each, offset in ((queue, 1), (full, 2)):
        consumer.seek(each, offset)
        (message, *_) = consumer.poll(PATIENCE_MS)
        assert message.queue_offset == offset
        consumer.commit({each: offset + 1})
        assert consumer.committed(each) == offset + 1
        consumer.pause([each])
        consumer.resume([each])
    assert cluster.api.query_consumer_offset(cluster.address, f"eu%{group}", full) == 3


def test_request_of_a_namespace_is_answered_within_it(cluster, clients, topic):
    replier, consumer = clients.producer(**IN), clients.lite(topic=topic, **IN)
    ended = threading.Event()

    def reply():
        while not ended.is_set():
            for message in consumer.poll(100):
                replier.reply(message, message.topic.encode())

    thread = threading.Thread(target=reply)
    thread.start()
    try:
        found = clients.producer(**IN).request(Message(topic, b"x"), timeout_ms=PATIENCE_MS)
    finally:
        ended.set()
        thread.join()
    assert found.body == topic.encode()


def test_listener_of_a_namespace_gets_its_retries_by_their_short_name(cluster, topic):
    group, seen = cluster.group(), []

    def listen(messages, context):
        (message,) = messages
        seen.append((message.topic, message.reconsume_times, context.queue.topic))
        is_first = message.reconsume_times == 0
        return ConsumeConcurrentlyStatus.RECONSUME_LATER if is_first else None

    settings = PushSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    instance = cluster.instance(namespace="eu")
    consumer = PushConsumer(group, instance=instance, listener=listen, settings=settings)
    consumer.subscribe(topic)
    producer = Producer("P", instance=cluster.instance(namespace="eu"))
    with producer, consumer:
        assert topic in consumer.topics
        producer.send(Message(topic, b"x"))
        wait_until("it is retried", lambda: len(seen) == 2)
    assert seen == [(topic, 0, topic), (topic, 1, retry_topic(group))]


def test_transaction_of_a_namespace_is_of_the_full_group(cluster, topic):
    checked = []
    producer = TransactionProducer(
        "Booking",
        instance=cluster.instance(namespace="eu"),
        check_listener=lambda message: checked.append(message.topic) or TransactionState.COMMIT,
    )
    with producer:
        with producer.transaction(Message(topic, b"x")) as begun:
            pass
        assert begun.result.send_result.queue.topic == topic
        (found,) = Clients(cluster).read(f"eu%{topic}", 1, queues=2)
        assert found.properties["PGROUP"] == "eu%Booking"
        ends = []
        producer.instance.api.end_transaction_one_way = lambda _, header: ends.append(header)
        header = CheckTransactionStateRequestHeader(0, 0, found.message_id)
        producer._member.check_transaction_state(cluster.address, found, header)
    assert checked == [topic]
    assert [(each.producer_group, each.topic) for each in ends] == [("eu%Booking", f"eu%{topic}")]


@pytest.fixture
def admin(cluster):
    with Admin(cluster.name_server, namespace="eu") as admin:
        yield admin


def test_admin_of_a_namespace_has_its_topics_by_short_names_and_no_others(cluster, clients, admin):
    other, name = cluster.topic(), f"T{cluster.group()}"
    admin.create_topic(name, queues=2)
    wait_until("it is listed", lambda: name in admin.topics())
    assert f"eu%{name}" in cluster.api.admin.topic_configs(cluster.address)
    names = {each for table in admin.all_topic_configs().values() for each in table}
    assert name in names
    assert not {other, f"eu%{name}"} & (names | admin.topics())
    producer = clients.producer(**IN)
    sent = producer.send(Message(name, b"1", key="k"), MessageQueue(name, cluster.broker_name, 1))
    queues = [MessageQueue(name, cluster.broker_name, number) for number in (0, 1)]
    for given in (name, f"eu%{name}"):
        (config,) = admin.topic_configs(given).values()
        assert (config.topic_name, config.read_queue_nums) == (name, 2)
        assert sorted(admin.topic_offsets(given)) == queues
        assert admin.topic_size(given).messages == 1
        assert admin.route(given).queue_datas
        table = admin.read_table(given, start={queues[1]: 0}, end={queues[1]: 1})
        assert table["topic"].to_pylist() == [name]
    found = [
        admin.message_at(queues[1], 0),
        admin.message_by_offset_id(sent.offset_message_id),
        *admin.messages_by_unique_id(name, sent.message_id),
    ]
    assert [(each.topic, each.queue) for each in found] == [(name, queues[1])] * 3
    assert read_table(name, cluster.name_server, namespace="eu").num_rows == 1
    with pytest.raises(RouteNotFound):
        admin.topic_offsets(other)
    admin.delete_topic(name)
    assert f"eu%{name}" not in cluster.api.admin.topic_configs(cluster.address)


def test_admin_of_a_namespace_has_its_groups_by_short_names_and_no_others(
    cluster, clients, admin, topic
):
    group, other, full = cluster.group(), cluster.group(), f"eu%{topic}"
    admin.create_group(group)
    with Admin(cluster.name_server) as whole_admin:
        whole_admin.create_group(other)
    assert group in admin.groups()
    assert not {other, f"eu%{group}"} & admin.groups()
    clients.producer(**IN).send(Message(topic, b"1"), MessageQueue(topic, cluster.broker_name, 0))
    consumer = clients.lite(group, topic=topic, **IN)
    assert consumer.poll(PATIENCE_MS)[0].body == b"1"
    assert len(admin.members(group)) == 1
    wait_until("it reports", lambda: {each.topic for each in admin.queue_owners(group)} == {topic})
    state = admin.describe_group(group)
    assert (state.name, {each.lag.queue.topic for each in state.queues}) == (group, {topic})
    consumer.close()
    queue = MessageQueue(topic, cluster.broker_name, 0)
    admin.set_offset(group, queue, 0)
    assert {each.queue: each.messages for each in admin.lag(group, topic)}[queue] == 1
    assert admin.reset_to_time(group, topic, -1)[queue] == 1
    admin.clone_offsets(group, f"{group}copy", topic=topic)
    whole = MessageQueue(full, cluster.broker_name, 0)
    assert cluster.api.query_consumer_offset(cluster.address, f"eu%{group}copy", whole) == 1
    assert {each.queue.topic for each in admin.progress(f"{group}copy")} == {topic}
    assert not admin.dead_letters(group)
    admin.delete_group(group)
    assert group not in admin.groups()
    assert f"eu%{group}" not in cluster.api.admin.group_configs(cluster.address)


def test_each_kind_of_client_takes_a_namespace_with_its_name_servers(cluster, topic):
    server, group = cluster.name_server, cluster.group()
    with Producer("P", server, namespace="eu") as producer:
        assert producer.send(Message(topic, b"x")).queue.topic == topic
    with TransactionProducer("T", server, namespace="eu", check_listener=print) as producer:
        assert producer.instance.namespace.name == "eu"
    with Consumer(group, server, start="earliest", namespace="eu") as consumer:
        consumer.subscribe(topic)
        assert consumer.poll(PATIENCE_MS)[0].topic == topic
        assert (consumer.group, consumer.topics) == (group, {topic})
    pushed = PushConsumer(f"{group}p", server, listener=print, namespace="eu")
    with pushed as consumer:
        consumer.subscribe(topic)
        assert (consumer.group, topic in consumer.topics) == (f"{group}p", True)
    assert f"eu%{group}" in cluster.api.admin.group_configs(cluster.address)


def test_each_kind_of_asyncio_client_takes_a_namespace_with_its_name_servers(cluster, topic):
    async def run():
        server = cluster.name_server
        async with aio.Producer("P", server, namespace="eu") as producer:
            assert (await producer.send(Message(topic, b"x"))).queue.topic == topic
        group = cluster.group()
        async with aio.Consumer(group, server, start="earliest", namespace="eu") as consumer:
            await consumer.subscribe(topic)
            found = [each.topic for each in await consumer.poll(PATIENCE_MS)]
        async with aio.Admin(server, namespace="eu") as admin:
            assert topic in await admin.topics()
        return found

    assert asyncio.run(run()) == [topic]


def test_simple_consumer_of_a_namespace_acknowledges_and_gets_redeliveries(
    brokers, cluster, clients, topic
):
    if "4.9" in brokers[0]:
        pytest.skip("RocketMQ 4.9 cannot pop")
    producer = clients.producer(**IN)
    for body in (b"1", b"2", b"3"):
        producer.send(Message(topic, body))
    consumer = SimpleConsumer(
        cluster.group(), cluster.name_server, start="earliest", namespace="eu"
    )
    consumer.subscribe(topic)
    assert consumer.topics == {topic}
    found: list = []
    with consumer:
        wait_until("all", lambda: found.extend(consumer.receive()) or len(found) == 3)
        assert {each.topic for each in found} == {topic}
        again, *others = sorted(found, key=lambda each: each.body)
        consumer.ack(others)
        consumer.change_invisible_duration(again, 0)
        redelivered: list = []
        wait_until("again", lambda: redelivered.extend(consumer.receive()) or redelivered)
        assert [(each.topic, each.body) for each in redelivered] == [(topic, b"1")]
        consumer.ack(redelivered)


@pytest.mark.parametrize(
    "make",
    [Producer, Consumer, PushConsumer, SimpleConsumer, Admin, aio.Producer, aio.SimpleConsumer],
)
def test_namespace_is_refused_with_a_shared_client(make):
    is_aio = make.__module__.startswith(aio.Producer.__module__.rpartition(".")[0])
    name = "client" if is_aio else "instance"
    shared = aio.Client("a:1") if is_aio else ClientInstance("127.0.0.1:1")
    more = {"listener": print} if make is PushConsumer else {}
    with pytest.raises(MessageRejected, match=f"namespace: needed none with {name}"):
        make(*() if make is Admin else ("g",), namespace="eu", **{name: shared}, **more)


@pytest.mark.parametrize("name", ["", "a%b", "a b", "x" * 200])
def test_namespace_that_no_name_can_have_is_refused(name):
    with pytest.raises(MessageRejected, match="namespace"):
        ClientInstance("127.0.0.1:1", namespace=name)
