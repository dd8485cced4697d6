"""Push consumers on every kind of broker: which messages a listener gets once, again or never.
Tests of the consumer alone are in tests/client/consumer."""

from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import Listener, bodies_of, messages, numbers

from rmq_spark.client.consumer.dispatch.listeners import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
)
from rmq_spark.client.message import Message
from rmq_spark.client.subscriptions import by_sql
from rmq_spark.wire.bodies.clients import MessageModel
from rmq_spark.wire.names import dlq_topic, retry_topic

LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


def send(clients, topic, *bodies, **more):
    producer = clients.producer()
    return [producer.send(each) for each in messages(topic, bodies, **more)]


def test_push_listener_gets_each_message_once_and_group_resumes(cluster, clients):
    topic, group = cluster.topic(), cluster.group()
    send(clients, topic, *numbers(40))
    listener = Listener()
    consumer = clients.push(listener, group, topic)
    listener.wait_for(numbers(40))
    send(clients, topic, *numbers(20, start=40))  # pulls are held by now
    assert sorted(listener.wait_for(numbers(60))) == numbers(60)
    assert {each.reconsume_times for each in listener.messages} == {0}
    consumer.shutdown()
    ends = [
        cluster.api.max_offset(cluster.address, cluster.queue(topic, each)) for each in range(4)
    ]
    wait_until(
        "offsets", lambda: [cluster.stored_offset(group, topic, each) for each in range(4)] == ends
    )
    send(clients, topic, "new")
    again = Listener()
    clients.push(again, group, topic)
    assert again.wait_for(["new"]) == ["new"]


def test_push_groups_are_independent(cluster, clients):
    topic = cluster.topic()
    send(clients, topic, *numbers(10))
    listeners = [Listener(), Listener()]
    for listener in listeners:
        clients.push(listener, topic=topic)
    for listener in listeners:
        assert sorted(listener.wait_for(numbers(10))) == numbers(10)


def test_push_subscription_selects_by_tags_and_sql(cluster, clients):
    topic, group = cluster.topic(queues=1), cluster.group()
    producer = clients.producer()
    for n, tag in enumerate(["red", "BB", "green", "Aa", "blue"]):
        producer.send(Message(topic, tag.encode(), tags=tag, properties={"n": str(n)}))
    by_tag, by_condition = Listener(), Listener()
    clients.push(by_tag, group, topic, selector="red || Aa", persist_consumer_offset_interval_ms=50)
    clients.push(by_condition, topic=topic, selector=by_sql("n BETWEEN 1 AND 2"))
    assert sorted(by_tag.wait_for(["red", "Aa"])) == ["Aa", "red"]
    assert sorted(by_condition.wait_for(["BB", "green"])) == ["BB", "green"]
    wait_until("what was passed over counts", lambda: cluster.stored_offset(group, topic) == 5)


def test_push_subscription_change_applies_while_a_pull_is_held(cluster, clients):
    topic, listener = cluster.topic(queues=1), Listener()
    consumer = clients.push(
        listener,
        topic=topic,
        selector="old",
        broker_suspend_max_time_ms=90_000,
        consumer_timeout_ms_when_suspend=120_000,
    )
    send(clients, topic, "first", tags="old")
    listener.wait_for(["first"])
    consumer.subscribe(topic, "new")
    send(clients, topic, "next", tags="new")
    assert listener.wait_for(["first", "next"]) == ["first", "next"]


def test_push_retry_keeps_tags_keys_properties_and_message_id(cluster, clients):
    topic, group = cluster.topic(queues=1), cluster.group()
    listener = Listener(
        lambda message: LATER if message.body == b"bad" and not message.reconsume_times else None
    )
    clients.push(listener, group, topic)
    producer = clients.producer()
    sent = Message(topic, b"bad", tags="t", keys="k", properties={"a": "b"})
    result = producer.send(sent)
    producer.send(Message(topic, b"good"))
    wait_until("three calls", lambda: len(listener.messages) == 3)
    again = [each for each in listener.messages if each.body == b"bad"][1]
    assert (again.topic, again.reconsume_times) == (topic, 1)
    assert (again.tags, again.keys, again.properties["a"]) == ("t", ("k",), "b")
    assert again.message_id == result.message_id
    assert cluster.retried(group) == 1


def test_push_message_goes_to_dead_letters_after_max_reconsume_times(cluster, clients):
    topic, group = cluster.topic(queues=1), cluster.group()
    listener = Listener(lambda message: LATER if message.body == b"bad" else None)
    clients.push(listener, group, topic, max_reconsume_times=1)
    (bad, _) = send(clients, topic, "bad", "good")
    wait_until("a dead letter", lambda: cluster.dead_letters(group) == 1)
    assert sorted(listener.bodies) == ["bad", "bad", "good"]
    (dead,) = clients.read(dlq_topic(group), 1, queues=1)
    assert dead.body == b"bad"
    assert dead.properties["RETRY_TOPIC"] == dead.real_topic == topic
    assert dead.properties["ORIGIN_MESSAGE_ID"] == bad.offset_message_id


def test_negative_delay_level_of_a_listener_sends_its_message_to_dead_letters(cluster, clients):
    topic, group, called = cluster.topic(queues=1), cluster.group(), []

    def give_up(found, context):
        called.extend(bodies_of(found))
        context.delay_level_when_next_consume = -1
        return LATER

    clients.push(give_up, group, topic)
    send(clients, topic, "bad")
    wait_until("a dead letter", lambda: cluster.dead_letters(group) == 1)
    assert called == ["bad"]


def test_orderly_listener_gets_messages_in_order_per_key(cluster, clients):
    topic = cluster.topic(queues=3)
    producer = clients.producer()
    for number in range(100):
        producer.send(
            Message(topic, b"%03d" % number, keys=f"{number % 5}", sharding_key=f"{number % 5}")
        )
    listener = Listener()
    clients.push(listener, topic=topic, orderly=True)
    found = listener.wait_for(numbers(100))
    for key in range(5):
        assert [body for body in found if int(body) % 5 == key] == numbers(100)[key::5]


def test_failing_message_holds_up_its_queue_for_an_orderly_listener(cluster, clients):
    topic, tries = cluster.topic(queues=1), []

    def third_time(message):
        if message.body == b"002" and len(tries) < 2:
            tries.append(message.reconsume_times)
            return SUSPEND
        return None

    listener = Listener(third_time)
    send(clients, topic, *numbers(5))
    clients.push(listener, topic=topic, orderly=True, suspend_current_queue_time_ms=10)
    assert listener.wait_for(numbers(5)) == ["000", "001", "002", "002", "002", "003", "004"]
    assert tries == [0, 1]


def test_orderly_message_failing_for_good_becomes_a_dead_letter(cluster, clients):
    topic, group = cluster.topic(queues=1), cluster.group()
    listener = Listener(lambda message: SUSPEND if message.body == b"001" else None)
    send(clients, topic, *numbers(3))
    clients.push(
        listener,
        group,
        topic,
        orderly=True,
        suspend_current_queue_time_ms=10,
        max_reconsume_times=1,
    )
    assert listener.wait_for(numbers(3)) == ["000", "001", "001", "002"]
    wait_until("a dead letter", lambda: cluster.dead_letters(group) == 1)


def test_orderly_rebalance_hands_over_queue_locks(cluster, clients):
    topic, group = cluster.topic(queues=2), cluster.group()
    one, two = Listener(), Listener()
    first = clients.push(one, group, topic, orderly=True)
    second = clients.push(two, group, topic, orderly=True)
    wait_until("a queue each", lambda: [_of(topic, each) for each in (first, second)] == [1, 1])
    send(clients, topic, *numbers(20))
    wait_until("all", lambda: sorted(one.bodies + two.bodies) == numbers(20))
    assert {each.queue for each in one.messages}.isdisjoint(each.queue for each in two.messages)
    second.shutdown()
    wait_until("both queues", lambda: _of(topic, first) == 2)
    send(clients, topic, *numbers(10, start=20))
    one.wait_for(numbers(10, start=20))
    assert sorted(one.bodies + two.bodies) == numbers(30)


def _of(topic, consumer):
    return sum(queue.topic == topic for queue in consumer.assignment())


def test_broadcasting_push_listeners_each_get_all_without_retries(cluster, clients, tmp_path):
    topic, group = cluster.topic(queues=2), cluster.group()
    listeners = [Listener(lambda _: LATER), Listener(lambda _: LATER)]
    for listener in listeners:
        clients.push(
            listener,
            group,
            topic,
            message_model=MessageModel.BROADCASTING,
            local_offset_directory=tmp_path / str(id(listener)),
        )
    send(clients, topic, *numbers(10))
    for listener in listeners:
        assert sorted(listener.wait_for(numbers(10))) == numbers(10)
    assert cluster.retried(group) == cluster.dead_letters(group) == 0


def test_push_members_with_different_subscriptions_are_warned(
    cluster, clients, monkeypatch, caplog
):
    monkeypatch.setattr(
        "rmq_spark.client.consumer.rebalance.rebalance_service.CHECK_INTERVAL_MS", 0
    )
    group, topics = cluster.group(), [cluster.topic(queues=1), cluster.topic(queues=1)]
    for topic in topics:
        clients.push(Listener(), group, topic, rebalance_interval_ms=200)
    said = f"one member subscribes to {topics[0]}, another to {topics[1]}:"
    wait_until("the first one is told", lambda: said in caplog.text)


def test_running_info_shows_the_state_of_a_push_consumer(cluster, clients):
    topic, group = cluster.topic(queues=1), cluster.group()
    listener = Listener()
    send(clients, topic, *numbers(10))
    clients.push(listener, group, topic)
    listener.wait_for(numbers(10))
    (client_id,) = cluster.members(group)
    info = cluster.api.admin.consumer_running_info(cluster.address, group, client_id)
    assert {each.topic for each in info.subscription_set} == {topic, retry_topic(group)}
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info.mq_table[cluster.queue(topic)].commit_offset == 10
