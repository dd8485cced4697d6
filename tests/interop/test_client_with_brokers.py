"""Our client says the same things to RocketMQ 4.9, to RocketMQ 5 and to our broker, and hears the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import pyarrow as pa
import pytest
from broker_kinds import EVERY_KIND, NAME, RunningBroker, started_broker, wait_until
from client_members import Consumer

from rmq_spark.client import (
    LATEST_MS,
    Admin,
    BulkPull,
    Message,
    MessageQueue,
    Producer,
    PullRules,
    PullStatus,
)
from rmq_spark.client.errors import (
    ClientError,
    NotFound,
    OffsetMoved,
    RouteNotFound,
    TopicNotFound,
)
from rmq_spark.client.message import decode_messages
from rmq_spark.wire.flags import PullSysFlag
from rmq_spark.wire.headers.pull import PullMessageRequestHeader

_numbers = count()


@pytest.fixture(scope="module", params=EVERY_KIND)
def broker(request, tmp_path_factory) -> Iterator[RunningBroker]:
    """A broker of each kind."""
    yield from started_broker(request.param, tmp_path_factory.mktemp("broker"))


class Room(NamedTuple):
    """What a test works with: a topic of its own, with four queues."""

    admin: Admin
    producer: Producer
    topic: str
    address: str

    def queue(self, queue_id: int = 0) -> MessageQueue:
        return MessageQueue(self.topic, NAME, queue_id)

    def bulk(self, start: int, end: int, **rules) -> list:
        pull = BulkPull(
            self.producer.instance.api, self.address, "G", self.queue(), start, end, PullRules(**rules)
        )
        return [message for chunk in pull for message in decode_messages(chunk.records, NAME)]

    def end(self, queue_id: int = 0) -> int:
        return self.producer.instance.api.max_offset(self.address, self.queue(queue_id))


def is_there(admin: Admin, topic: str) -> bool:
    try:
        return bool(admin.instance.routes.refresh(topic).publish_queues)
    except ClientError:
        return False


@pytest.fixture
def room(broker) -> Iterator[Room]:
    with Admin(broker.name_server) as admin:
        wait_until("a broker", lambda: is_there(admin, "TBW102"))
        topic = f"client-{next(_numbers)}"
        admin.create_topic(topic, 4)
        wait_until("the topic's route", lambda: is_there(admin, topic))
        with Producer("P", instance=admin.instance) as producer:
            yield Room(admin, producer, topic, broker.address)


def test_a_message_arrives_with_all_that_it_says(room):
    message = Message(room.topic, b"body" * 2_000, "tag", ["k1", "k2"], {"mine": "ü"}, flag=9)
    result = room.producer.send(message, room.queue())
    wait_until("the message", room.end)
    (got,) = room.bulk(0, 1)
    assert (got.body, got.tags, got.keys, got.flag) == (message.body, "tag", ("k1", "k2"), 9)
    assert got.properties["mine"] == "ü"
    assert (got.message_id, got.offset_message_id) == (result.message_id, result.offset_message_id)


def test_each_way_of_sending_stores_the_message(room):
    queue = room.queue()
    sent = [b"sync", b"async", b"one way"]
    room.producer.send(Message(room.topic, sent[0]), queue)
    room.producer.send_async(Message(room.topic, sent[1]), queue).result(10)
    room.producer.send_one_way(Message(room.topic, sent[2]), queue)
    wait_until("all three", lambda: room.end() == 3)
    assert sorted(message.body for message in room.bulk(0, 3)) == sorted(sent)


def test_batches_and_tables_arrive_whole(room):
    room.producer.send_batch([Message(room.topic, b"%d" % n, f"t{n}") for n in range(5_000)])
    wait_until("the batches", lambda: sum(room.end(n) for n in range(4)) == 5_000)
    ends = [room.end(n) for n in range(4)]
    rows = pa.table({"body": [b"%d" % n for n in range(9_000)], "keys": ["k"] * 9_000})
    result = room.producer.send_table(rows, room.topic, queue=room.queue())
    assert result.message_count == 9_000
    wait_until("the table", lambda: room.end() == ends[0] + 9_000)
    found = room.bulk(ends[0], ends[0] + 9_000)
    assert [message.body for message in found] == [b"%d" % n for n in range(9_000)]
    assert {message.keys for message in found} == {("k",)}


def test_bulk_pulls_filter_and_stop_at_their_end(room):
    messages = [Message(room.topic, b"%d" % n, f"t{n % 3}") for n in range(300)]
    for message in messages:
        room.producer.send_one_way(message, room.queue())
    wait_until("all of them", lambda: room.end() == 300)
    every = room.bulk(0, 300)
    assert [message.queue_offset for message in every] == list(range(300))
    wanted = [message.queue_offset for message in every[10:200] if message.tags == "t1"]
    assert [m.queue_offset for m in room.bulk(10, 200, subscription="t1")] == wanted
    with pytest.raises(OffsetMoved):
        room.bulk(400, 401, wait_ms=100)


def test_a_held_pull_is_answered_when_a_message_comes(room):
    held = PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND
    header = PullMessageRequestHeader("G", room.topic, 0, 0, 32, held, 0, 20_000, 0, "*", "TAG")
    future = room.producer.instance.api.pull_async(room.address, header)
    room.producer.send(Message(room.topic, b"x"), room.queue())
    (got,) = decode_messages(future.result(30).records, NAME)
    assert got.body == b"x"


def test_a_topic_that_is_not_there_is_made_by_its_first_message(room):
    topic = room.topic + "-new"
    room.producer.send(Message(topic, b"x"))
    wait_until("its route", lambda: is_there(room.admin, topic))
    stored = room.admin.topic_offsets(topic)
    wait_until(
        "the message", lambda: sum(o.max_offset for o in room.admin.topic_offsets(topic).values()) == 1
    )
    assert len(stored) >= 4


def test_what_is_not_there_is_an_error_that_says_so(room):
    with pytest.raises(RouteNotFound):
        room.admin.topic_offsets("Nobody")
    header = PullMessageRequestHeader("G", "Nobody", 0, 0, 32, PullSysFlag.SUBSCRIPTION, 0, 0, 0, "*", "TAG")
    with pytest.raises(TopicNotFound):
        room.producer.instance.api.pull(room.address, header)
    with pytest.raises(NotFound):
        room.admin.messages_by_unique_id(room.topic, "0" * 32)


def test_messages_are_found_by_key_and_by_either_id(room):
    result = room.producer.send(Message(room.topic, b"found", keys="needle"), room.queue())
    wait_until("the index", lambda: room.admin.messages_by_key(room.topic, "needle"))
    (by_id,) = room.admin.messages_by_unique_id(room.topic, result.message_id)
    assert by_id.body == b"found"
    assert room.admin.message_by_offset_id(result.offset_message_id).body == b"found"


def test_a_group_has_offsets_and_lag_and_is_reset_offline(room):
    group = room.topic + "-group"
    room.admin.create_group(group)
    assert group in room.admin.groups()
    for _ in range(3):
        room.producer.send(Message(room.topic, b"x"), room.queue())
    wait_until("all of them", lambda: room.end() == 3)
    room.admin.set_offset(group, room.queue(), 1)
    (first, *_) = room.admin.lag(group, room.topic)
    assert (first.broker_offset, first.consumer_offset, first.messages) == (3, 1, 2)
    assert room.admin.reset_to_time(group, room.topic, LATEST_MS)[room.queue()] == 3
    assert room.admin.reset_to_time(group, room.topic, 0)[room.queue()] == 0
    assert room.admin.lag(group, room.topic)[0].messages == 3
    assert room.admin.members(group) == ()


def test_a_member_is_known_and_told(room):
    instance, group, consumer = room.admin.instance, room.topic + "-group", Consumer(room.topic + "-group")
    instance.register_consumer(group, consumer)
    instance.heartbeat()
    assert consumer.rebalances.acquire(timeout=30)
    assert room.producer.instance.api.consumer_ids(room.address, group) == (instance.client_id,)
    room.producer.send(Message(room.topic, b"x"), room.queue())
    wait_until("the message", room.end)
    for queue_id in range(4):
        instance.api.update_consumer_offset(room.address, group, room.queue(queue_id), 0)
    offsets = room.admin.reset_to_time(group, room.topic, LATEST_MS)
    assert offsets[room.queue()] == 1
    header = PullMessageRequestHeader(
        group, room.topic, 0, 0, 32, PullSysFlag.SUBSCRIPTION, 0, 0, 0, "*", "TAG"
    )

    def is_told() -> bool:
        """4.9 and ours push it; 5.x has the next pull say it."""
        moved = instance.api.pull(room.address, header)
        is_moved = moved.pull_status is PullStatus.OFFSET_ILLEGAL and moved.next_begin_offset == 1
        return consumer.resets.acquire(blocking=False) or is_moved

    wait_until("the member is told", is_told)
    info = instance.api.consumer_running_info(room.address, group, instance.client_id)
    assert info.properties == {"PROP_CONSUMEORDERLY": "false"}
    instance.unregister_consumer(group)
    assert room.producer.instance.api.consumer_ids(room.address, group) == ()
