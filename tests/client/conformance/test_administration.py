"""Administration on every kind of broker: topics, groups, offsets, lag, messages."""

import time

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import Listener, messages, numbers, polled

from rmq_spark.client.admin.group_offsets import LATEST_MS
from rmq_spark.client.errors import (
    BrokerRefused,
    ClientError,
    GroupNotFound,
    MessageRejected,
    NotFound,
    NotSupported,
    RouteNotFound,
)
from rmq_spark.client.message import Message
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.names import retry_topic

HOUR_MS = 3_600_000


@pytest.fixture
def clients(both_clients):
    return both_clients


@pytest.fixture
def admin(clients):
    return clients.admin()


def commit(cluster, group, topic, *offsets):
    for queue_id, offset in enumerate(offsets):
        cluster.store_offset(group, topic, offset, queue_id)


def stored(cluster, group, topic, queues=2):
    """Return a group's stored offsets; also wait for queues that are new."""
    return [
        cluster.api.query_consumer_offset(
            cluster.address, group, cluster.queue(topic, each), set_zero_if_not_found=False
        )
        for each in range(queues)
    ]


def filled(cluster, clients, count=20, queues=2):
    """Fill the queues of a topic round-robin with the same number of messages."""
    topic = cluster.topic(queues)
    producer = clients.producer()
    for number, each in enumerate(messages(topic, numbers(count))):
        producer.send(each, cluster.queue(topic, number % queues))
    clients.read(topic, count, queues)
    return topic


def told_of(admin, cluster):
    try:
        return admin.runtime_info()[cluster.broker_name]
    except BrokerRefused:  # in its first second, a RocketMQ broker has no statistics yet
        return {}


def test_admin_returns_cluster_info_and_topic_route(cluster, admin):
    topic = cluster.topic(queues=3)
    info = admin.cluster_info()
    assert info.broker_addr_table[cluster.broker_name].broker_addrs[0] == cluster.address
    assert admin.masters() == {cluster.broker_name: cluster.address}
    (name,) = info.cluster_addr_table
    assert admin.masters(name) == admin.masters()
    route = admin.route(topic)
    (queues,) = route.queue_datas
    assert (queues.broker_name, queues.read_queue_nums, queues.write_queue_nums) == (
        cluster.broker_name,
        3,
        3,
    )
    assert route.broker_datas[0].broker_addrs[0] == cluster.address
    wait_until(
        "what the broker says of itself", lambda: "msgPutTotalTodayNow" in told_of(admin, cluster)
    )
    with pytest.raises(ClientError, match="no master"):
        admin.masters("no such cluster")


def test_topics_are_created_changed_and_deleted(cluster, clients, admin):
    topic = cluster.group().replace("Group", "Made")
    admin.create_topic(topic, 3)
    wait_until("the topic", lambda: topic in admin.topics())
    assert topic in cluster.api.admin.topic_configs(cluster.address)
    with pytest.raises(BrokerRefused) as refused:
        clients.producer().send(Message(topic, b"x"), cluster.queue(topic, 3))
    assert refused.value.remark
    admin.create_topic(topic, 5)
    wait_until("five queues", lambda: admin.route(topic).queue_datas[0].write_queue_nums == 5)
    clients.producer().send(Message(topic, b"x"), cluster.queue(topic, 3))
    admin.delete_topic(topic)
    assert topic not in cluster.api.admin.topic_configs(cluster.address)
    with pytest.raises(RouteNotFound):
        admin.route(topic)


def test_topics_created_together_exist_with_their_settings_beside_known_ones(
    cluster, brokers, admin
):
    """RocketMQ from 5.3 on skips the whole list if its first topic exists with the same
    settings."""
    prefix = cluster.group().replace("Group", "Many")
    names = [f"{prefix}{number}" for number in range(40)]
    fifo = TopicConfig(
        topic_name="", read_queue_nums=2, write_queue_nums=2, attributes={"message.type": "FIFO"}
    )

    def queues():
        table = cluster.api.admin.topic_configs(cluster.address)
        return {name: table[name].read_queue_nums for name in names if name in table}

    admin.create_topics(names[:1], 3)
    admin.create_topics(names, 3)
    assert queues() == dict.fromkeys(names, 3)
    admin.create_topics(names[:20], 5)
    admin.create_topics(names, 5)
    admin.create_topics(names, 5)
    assert queues() == dict.fromkeys(names, 5)
    admin.create_topics(names[:30], config=fifo)
    assert queues() == dict.fromkeys(names[:30], 2) | dict.fromkeys(names[30:], 5)
    if brokers[0] != "4.9.7":
        table = cluster.api.admin.topic_configs(cluster.address)
        assert table[names[7]].attributes == fifo.attributes
    for name in names:
        admin.delete_topic(name)


def test_groups_are_created_and_deleted_with_their_offsets(cluster, clients, admin):
    topic, group = filled(cluster, clients), cluster.group()
    admin.create_group(group)
    assert group in admin.groups()
    commit(cluster, group, topic, 4, 4)
    assert group in admin.groups_of_topic(topic)
    admin.delete_group(group)
    assert group not in admin.groups()
    assert stored(cluster, group, topic) == [None, None] or cluster.stored_offset(group, topic) == 0


def test_admin_returns_topic_offsets_and_group_lag(cluster, clients, admin):
    topic, group = filled(cluster, clients), cluster.group()
    offsets = admin.topic_offsets(topic)
    assert {queue: (each.min_offset, each.max_offset) for queue, each in offsets.items()} == {
        cluster.queue(topic, number): (0, 10) for number in range(2)
    }
    last_ms = max(each.store_timestamp for each in clients.read(topic, 20, 2))
    assert max(each.last_update_timestamp for each in offsets.values()) == last_ms
    commit(cluster, group, topic, 3, 10)
    lags = admin.lag(group, topic)
    assert [
        (each.queue, each.broker_offset, each.consumer_offset, each.messages) for each in lags
    ] == [
        (cluster.queue(topic, 0), 10, 3, 7),
        (cluster.queue(topic, 1), 10, 10, 0),
    ]
    assert all(0 < each.last_timestamp <= last_ms for each in lags)


def test_group_members_are_listed_while_online(cluster, clients, admin):
    topic, group = cluster.topic(), cluster.group()
    consumer = clients.lite(group, topic)
    wait_until("queues", consumer.assignment)
    (member,) = admin.members(group)
    assert (member.client_id,) == cluster.members(group)
    consumer.shutdown()
    wait_until("nobody", lambda: admin.members(group) == ())


def test_offline_group_is_reset_by_offset_and_by_time(cluster, clients, admin):
    topic, group = cluster.topic(queues=2), cluster.group()
    producer = clients.producer()
    for each in messages(topic, numbers(4)):
        producer.send(each, cluster.queue(topic, 0))
    last_ms = clients.read(topic, 4, 2)[-1].store_timestamp
    wait_until("another millisecond", lambda: time.time() * 1000 > last_ms + 2)
    result = producer.send(Message(topic, b"late"), cluster.queue(topic, 0))
    late_ms = clients.read(topic, 5, 2)[-1].store_timestamp
    assert result.queue_offset == 4
    commit(cluster, group, topic, 1, 0)

    admin.set_offset(group, cluster.queue(topic, 0), 3)
    assert stored(cluster, group, topic) == [3, 0]
    with pytest.raises(MessageRejected, match="from 0 to 5"):
        admin.set_offset(group, cluster.queue(topic, 0), 6)
    at = {cluster.queue(topic, 0): 4, cluster.queue(topic, 1): 0}
    assert admin.reset_to_time(group, topic, late_ms) == at
    assert stored(cluster, group, topic) == [4, 0]
    assert admin.reset_to_time(group, topic, LATEST_MS)[cluster.queue(topic, 0)] == 5
    assert admin.reset_to_time(group, topic, late_ms - HOUR_MS)[cluster.queue(topic, 0)] == 0
    assert (
        admin.reset_to_time(group, topic, LATEST_MS, is_force=False)[cluster.queue(topic, 0)] == 0
    )
    assert stored(cluster, group, topic) == [0, 0]


def test_offset_reset_of_a_group_without_members_applies_at_its_start(cluster, clients, admin):
    topic, group = filled(cluster, clients), cluster.group()
    admin.create_group(group)
    admin.reset_to_time(group, topic, LATEST_MS)
    clients.producer().send(Message(topic, b"new"))
    assert polled(clients.lite(group, topic), 1) == ["new"]


def test_online_group_reset_by_time_gets_its_messages_again(cluster, clients, admin):
    topic, group, listener = filled(cluster, clients, 10, 1), cluster.group(), Listener()
    clients.push(listener, group, topic, persist_consumer_offset_interval_ms=50)
    listener.wait_for(numbers(10))
    wait_until("offsets", lambda: cluster.stored_offset(group, topic) == 10)
    found = admin.reset_to_time(group, topic, listener.messages[0].store_timestamp - HOUR_MS)
    assert found[cluster.queue(topic)] == 0
    wait_until("all of them again", lambda: sorted(listener.bodies) == sorted(numbers(10) * 2))


def test_offset_reset_of_an_online_group_by_offset(cluster, clients, admin, brokers):
    topic, group, listener = filled(cluster, clients, 10, 1), cluster.group(), Listener()
    clients.push(listener, group, topic, persist_consumer_offset_interval_ms=50)
    listener.wait_for(numbers(10))
    wait_until("offsets", lambda: cluster.stored_offset(group, topic) == 10)
    if brokers[0].startswith("4."):
        with pytest.raises(NotSupported, match="stop the group"):
            admin.set_offset(group, cluster.queue(topic), 7)
        assert sorted(listener.bodies) == numbers(10)
        return
    admin.set_offset(group, cluster.queue(topic), 7)
    wait_until(
        "three again", lambda: sorted(listener.bodies) == sorted(numbers(10) + numbers(10)[7:])
    )


def test_messages_are_found_by_key_id_and_position(cluster, clients, admin):
    topic, other = cluster.topic(queues=2), cluster.topic(queues=1)
    producer = clients.producer()
    results = [
        producer.send(Message(topic, b"%d" % n, keys=(f"own{n}", "shared"))) for n in range(4)
    ]
    producer.send(Message(other, b"elsewhere", keys=("shared", "last")))
    found = clients.read(topic, 4, 2)
    wait_until("the index", lambda: admin.messages_by_key(other, "last"))

    by_key = admin.messages_by_key(topic, "shared")
    assert sorted(each.body for each in by_key) == [b"0", b"1", b"2", b"3"]
    assert [each.body for each in admin.messages_by_key(topic, "own2")] == [b"2"]
    assert len(admin.messages_by_key(topic, "shared", messages_max=2)) == 2
    assert admin.messages_by_key(topic, "own") == admin.messages_by_key(topic, "last") == ()
    first_ms = min(each.store_timestamp for each in found)
    assert admin.messages_by_key(topic, "shared", end_ms=first_ms - HOUR_MS) == ()
    assert len(admin.messages_by_key(topic, "shared", begin_ms=first_ms - HOUR_MS)) == 4

    for number, result in enumerate(results):
        body = b"%d" % number
        (same,) = admin.messages_by_unique_id(topic, result.message_id)
        placed = admin.message_by_offset_id(result.offset_message_id)
        assert (same.body, placed.body) == (body, body)
        assert same == placed
        assert (placed.queue, placed.queue_offset) == (result.queue, result.queue_offset)
    with pytest.raises(NotFound):
        admin.messages_by_unique_id(topic, "7F000001000000000000000000000000")
    with pytest.raises(MessageRejected):
        admin.message_by_offset_id("no id")
    with pytest.raises(BrokerRefused):
        admin.message_by_offset_id(results[0].offset_message_id[:-5] + "FFFFF")


def test_admin_reports_missing_topic_and_group(cluster, admin):
    nowhere = cluster.group().replace("Group", "Nowhere")
    for ask in (admin.route, admin.topic_offsets, lambda topic: admin.lag("G", topic)):
        with pytest.raises(RouteNotFound, match=nowhere):
            ask(nowhere)
    with pytest.raises(MessageRejected):
        admin.create_topic("no good name!")
    with pytest.raises(GroupNotFound):
        admin.members(cluster.group())
    assert retry_topic(nowhere) not in admin.topics()
