"""Producers on every kind of broker: each kind of send delivers messages unchanged."""

from random import Random

import pytest
from support.brokers.broker_kinds import DELAYS_S, wait_until
from support.clients.conformance_clients import bodies_of, messages, numbers

from rmq_spark.client.errors import ClientError, MessageIllegal, MessageRejected, RouteNotFound
from rmq_spark.client.message import Message
from rmq_spark.client.results import SendStatus
from rmq_spark.wire.codes import MessageSysFlag

LONG = "".join(f"line {number}\n" for number in range(10_000)).encode()
MESSAGE_BYTES_MAX = 1 << 19
"""maxMessageSize of our broker under test; RocketMQ brokers have the default, which is larger."""
COMPRESSED = MessageSysFlag.COMPRESSED.value


@pytest.fixture
def clients(both_clients):
    return both_clients


def test_producer_sends_all_message_fields(cluster, clients):
    topic = cluster.topic()
    producer = clients.producer()
    sent = Message(
        topic,
        b"\x00any\xff bytes",
        tags="blue",
        keys=("k1", "k2"),
        properties={"place": "Üsküdar", "n": "1"},
        flag=-7,
    )
    result = producer.send(sent)
    (found,) = clients.read(topic, 1)
    assert (found.body, found.tags, found.keys, found.flag) == (sent.body, "blue", ("k1", "k2"), -7)
    assert {"place": "Üsküdar", "n": "1"}.items() <= found.properties.items()
    assert result.send_status is SendStatus.SEND_OK
    assert (result.queue, result.queue_offset) == (found.queue, found.queue_offset)
    assert (result.message_id, result.offset_message_id) == (
        found.message_id,
        found.offset_message_id,
    )
    assert found.store_host == cluster.address
    assert found.born_host.startswith("127.0.0.1:")
    assert 0 < found.born_timestamp <= found.store_timestamp
    assert found.reconsume_times == 0


def test_largest_incompressible_body_arrives(cluster, clients):
    topic, body = cluster.topic(), Random(1).randbytes(MESSAGE_BYTES_MAX)
    assert clients.producer().send(Message(topic, body)).send_status is SendStatus.SEND_OK
    (found,) = clients.read(topic, 1)
    assert (found.body, found.sys_flag & COMPRESSED) == (body, 0)


def test_largest_properties_that_the_client_allows_are_accepted(cluster, clients):
    topic, producer = cluster.topic(), clients.producer()
    with pytest.raises(MessageRejected, match="32255 bytes"):
        producer.send(Message(topic, b"x", properties={"a": "x" * 32_255}))
    room = 32_255 - len(Message(topic, b"x", properties={"a": "x"}).properties_text("x" * 32)) + 1
    for more in ({}, {"delay_level": 1}):
        size = room - len("DELAY=1;") * len(more)
        message = Message(topic, b"x", properties={"a": "x" * size}, **more)
        assert len(message.properties_text("x" * 32)) == 32_255
        assert producer.send(message).send_status is SendStatus.SEND_OK
    assert {len(each.properties["a"]) for each in clients.read(topic, 2)} == {room, room - 8}


def test_producer_sends_round_robin_to_all_queues(cluster, clients):
    topic = cluster.topic()
    producer = clients.producer()
    results = [producer.send(each) for each in messages(topic, numbers(20))]
    assert sorted(result.queue.queue_id for result in results) == sorted([0, 1, 2, 3] * 5)
    assert sorted(bodies_of(clients.read(topic, 20))) == numbers(20)


def test_send_goes_to_the_chosen_queue(cluster, clients):
    topic = cluster.topic()
    producer = clients.producer()
    assert producer.send(Message(topic, b"a"), cluster.queue(topic, 2)).queue.queue_id == 2
    assert producer.send(Message(topic, b"b"), lambda queues: queues[-1]).queue.queue_id == 3
    assert (
        producer.send_async(Message(topic, b"c"), cluster.queue(topic, 1)).result(10).queue.queue_id
        == 1
    )
    producer.send_one_way(Message(topic, b"d"), cluster.queue(topic, 0))
    assert [(each.body, each.queue.queue_id) for each in clients.read(topic, 4)] == [
        *((b"d", 0), (b"c", 1), (b"a", 2), (b"b", 3))
    ]


def test_send_futures_get_their_own_results(cluster, clients):
    topic = cluster.topic()
    producer = clients.producer()
    futures = {body: producer.send_async(Message(topic, body.encode())) for body in numbers(200)}
    results = {body: future.result(30) for body, future in futures.items()}
    assert {result.send_status for result in results.values()} == {SendStatus.SEND_OK}
    for found in clients.read(topic, 200):
        result = results[found.body.decode()]
        assert (result.queue, result.queue_offset) == (found.queue, found.queue_offset)
        assert result.message_id == found.message_id


def test_oneway_messages_arrive(cluster, clients):
    topic = cluster.topic()
    producer = clients.producer()
    for each in messages(topic, numbers(20)):
        producer.send_one_way(each)
    assert sorted(bodies_of(clients.read(topic, 20))) == numbers(20)


def test_batch_messages_stay_together_in_one_queue_with_their_properties(cluster, clients):
    topic = cluster.topic()
    sent = [
        Message(topic, body.encode(), tags=f"t{body}", keys=body, properties={"n": body})
        for body in numbers(50)
    ]
    (result,) = clients.producer().send_batch(sent)
    found = clients.read(topic, 50)
    assert bodies_of(found) == numbers(50)
    assert {each.queue for each in found} == {result.queue}
    assert [each.queue_offset for each in found] == list(range(50))
    assert result.message_id.split(",") == [each.message_id for each in found]
    assert result.offset_message_id.split(",") == [each.offset_message_id for each in found]
    assert [(each.tags, each.keys, each.properties["n"]) for each in found] == [
        (f"t{body}", (body,), body) for body in numbers(50)
    ]


def test_batch_with_a_sharding_key_goes_to_the_keys_queue(cluster, clients):
    topic, producer = cluster.topic(), clients.producer()
    for key in ("ada", "bob", "eve"):
        alone = producer.send(Message(topic, b"alone", sharding_key=key))
        batch = [Message(topic, body.encode(), sharding_key=key) for body in numbers(3)]
        (result,) = producer.send_batch(batch)
        assert (result.queue, result.queue_offset) == (alone.queue, alone.queue_offset + 1)


def test_long_batch_is_split_and_keeps_its_order(cluster, clients):
    topic = cluster.topic()
    producer = clients.producer(rules={"max_message_bytes": 10_000})
    bodies = [body * 300 for body in numbers(40)]
    results = producer.send_batch(messages(topic, bodies))
    assert len(results) > 3
    found = {
        (each.queue, each.queue_offset): each.body.decode() for each in clients.read(topic, 40)
    }
    in_order = [
        found[result.queue, result.queue_offset + number]
        for result in results
        for number in range(len(result.message_id.split(",")))
    ]
    assert in_order == bodies


def test_batch_of_more_messages_than_one_response_can_list_is_split_and_arrives(cluster, clients):
    topic = cluster.topic()
    batch = messages(topic, map(str, range(5_000)))
    results = clients.producer().send_batch(batch, timeout_ms=60_000)
    assert len(results) == 2
    assert sorted(int(each.body) for each in clients.read(topic, 5_000)) == list(range(5_000))


def test_messages_with_the_same_key_keep_their_order(cluster, clients):
    topic = cluster.topic()
    producer = clients.producer()
    for number in range(70):
        producer.send(
            Message(topic, b"%d" % number, keys=f"o{number % 7}", sharding_key=f"o{number % 7}")
        )
    found = clients.read(topic, 70)
    assert len({each.queue for each in found}) > 1
    for key in range(7):
        same = [each for each in found if each.keys == (f"o{key}",)]
        assert len({each.queue for each in same}) == 1
        assert [int(each.body) for each in same] == list(range(key, 70, 7))


def test_delayed_message_arrives_after_its_delay_unchanged(cluster, clients):
    topic = cluster.topic(queues=1)
    producer = clients.producer()
    late = Message(topic, b"late", delay_level=1, keys="k", tags="t", properties={"a": "b"})
    result = producer.send(late)
    producer.send(Message(topic, b"prompt"))
    prompt, found = clients.read(topic, 2, queues=1)
    assert (prompt.body, found.body) == (b"prompt", b"late")
    assert found.store_timestamp - found.born_timestamp >= 1000 * DELAYS_S[0]
    assert (found.keys, found.tags, found.properties["a"]) == (("k",), "t", "b")
    assert (found.message_id, found.topic) == (result.message_id, topic)


def test_long_bodies_are_stored_compressed_and_read_whole(cluster, clients):
    topic = cluster.topic(queues=1)
    producer = clients.producer()
    producer.send(Message(topic, LONG))
    producer.send(Message(topic, LONG[:4_000]))
    long, short = clients.read(topic, 2, queues=1)
    assert long.body == LONG
    assert short.body == LONG[:4_000]
    assert long.sys_flag & COMPRESSED
    assert not short.sys_flag & COMPRESSED
    record = cluster.api.admin.view_message(cluster.address, long.commit_log_offset)
    assert len(record) < len(LONG) / 2


def test_arrow_table_rows_become_messages(cluster, clients, is_ours):
    pa = pytest.importorskip("pyarrow")
    topic = cluster.topic()
    rows = range(500)
    table = pa.table(
        {
            "body": [b"%03d" % n for n in rows],
            "keys": [f"k{n}" for n in rows],
            "tags": ["even" if n % 2 == 0 else "odd" for n in rows],
            "properties": pa.array(
                [[("n", str(n))] for n in rows], pa.map_(pa.string(), pa.string())
            ),
            "flag": pa.array(rows, pa.int32()),
        }
    )
    result = clients.producer().send_table(table, topic, chunk_bytes=10_000)
    assert result.message_count == sum(span.message_count for span in result.spans) == 500
    found = sorted(clients.read(topic, 500), key=lambda each: each.flag)
    assert bodies_of(found) == numbers(500)
    assert [(each.keys, each.tags) for each in found[:2]] == [(("k0",), "even"), (("k1",), "odd")]
    assert [each.properties["n"] for each in found] == [str(n) for n in rows]
    assert {(each.queue, each.queue_offset) for each in found} == {
        (span.queue, span.queue_offset + number)
        for span in result.spans
        for number in range(span.message_count)
    }
    assert all(("UNIQ_KEY" in each.properties) is not is_ours for each in found)


def test_record_batches_sent_to_one_queue_keep_their_row_order(cluster, clients):
    pa = pytest.importorskip("pyarrow")
    topic = cluster.topic()
    table = pa.table({"body": numbers(300)})
    queue = cluster.queue(topic, 3)
    clients.producer().send_batches(table.to_batches(max_chunksize=70), topic, queue=queue)
    found = clients.read(topic, 300)
    assert bodies_of(found) == numbers(300)
    assert {each.queue for each in found} == {queue}


def test_missing_topic_is_created_by_the_first_message(cluster, clients):
    topic = cluster.group().replace("Group", "Unmade")
    producer = clients.producer()
    result = producer.send(Message(topic, b"first"))
    assert result.send_status is SendStatus.SEND_OK
    assert bodies_of(clients.read(topic, 1)) == ["first"]
    wait_until("a route", lambda: _has_queues(producer, topic, 4))


def _has_queues(producer, topic, count):
    try:
        return len(producer.instance.routes.refresh(topic).publish_queues) == count
    except RouteNotFound:
        return False


def test_refused_message_raises_and_is_not_stored(cluster, clients):
    topic = cluster.topic(queues=1)
    producer = clients.producer(rules={"max_message_bytes": 16 << 20})
    noise = Random(1).randbytes(5 << 20)
    with pytest.raises(MessageIllegal) as refused:
        producer.send(Message(topic, noise), timeout_ms=10_000)
    assert refused.value.code == 13
    with pytest.raises(MessageIllegal):
        producer.send_async(Message(topic, noise), timeout_ms=10_000).result(30)
    with pytest.raises(ClientError):
        producer.send(Message(topic, b"astray"), cluster.queue(topic, 7))
    with pytest.raises(MessageRejected):
        producer.send(Message(topic, b""))
    assert clients.read(topic, 0, queues=1) == []
