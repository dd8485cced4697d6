"""Responses with highly compressed bodies: consumers do not cache them beyond their limits.

Cache limits count inflated bytes. Under any limit, every message is delivered once.
"""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.client.consumer.brokers.pull_decoder import SuspectRecord, decode_pull
from rmq_spark.client.consumer.queues.process_queue import ProcessQueue
from rmq_spark.client.producer.prepared_message import now_ms
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import compress_body
from rmq_spark.wire.headers.members import SendMessageRequestHeader
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import (
    ClientInstance,
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    PullLimits,
    PushConsumer,
    PushSettings,
)

MIB = 1 << 20
QUEUES = 4
MESSAGES = 24
ZSTD = MessageSysFlag.COMPRESSED.value | MessageSysFlag.COMPRESSION_ZSTD.value
BOMB = compress_body(bytes(MIB), MessageSysFlag.COMPRESSION_ZSTD)
QUEUE = MessageQueue("T", "broker-a", 0)
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
LIMITS = PullLimits(pull_threshold_size_for_all_mib=2, pull_threshold_size_for_queue_mib=2)


@pytest.fixture(scope="module")
def broker():
    """Run a broker with four queues of highly compressed messages of a hundred bytes."""
    assert len(BOMB) < 200
    with EmbeddedBroker() as broker, ClientInstance(broker.address) as instance:
        broker.create_topic("T", QUEUES)
        for number in range(MESSAGES * QUEUES):
            header = SendMessageRequestHeader(
                *("P", "T", "TBW102", QUEUES, number % QUEUES, ZSTD, now_ms(), 0, ""), batch=False
            )
            instance.api.send(broker.address, header, BOMB, "")
        yield broker


@pytest.fixture
def cached(monkeypatch):
    """Record the total cache size each time a response is added."""
    sizes, caches, mutex = [], set(), threading.Lock()
    put = ProcessQueue.put_messages

    def put_messages(cache, *messages):
        added = put(cache, *messages)
        with mutex:
            caches.add(cache)
            sizes.append(sum(each.body_bytes for each in caches))
        return added

    monkeypatch.setattr(ProcessQueue, "put_messages", put_messages)
    return sizes


def delivered_by_poll(broker):
    settings = LitePullSettings(
        consume_from_where=FIRST, pull_batch_size=32, auto_commit=False, limits=LIMITS
    )
    found = []
    with LitePullConsumer("lite", broker.address, settings) as consumer:
        consumer.subscribe("T")
        while len(found) < MESSAGES * QUEUES:
            found += [(each.queue, each.queue_offset, len(each.body)) for each in consumer.poll()]
            consumer.commit()
    return found


def delivered_to_listener(broker):
    settings = PushSettings(consume_from_where=FIRST, pull_batch_size=32, limits=LIMITS)
    found, are_all = [], threading.Event()

    def listen(messages, _):
        found.extend((each.queue, each.queue_offset, len(each.body)) for each in messages)
        if len(found) >= MESSAGES * QUEUES:
            are_all.set()

    with PushConsumer("push", broker.address, settings=settings, listener=listen) as consumer:
        consumer.subscribe("T")
        assert are_all.wait(120)
    return found


@pytest.mark.parametrize("delivered", [delivered_by_poll, delivered_to_listener])
def test_consumer_caches_no_more_inflated_bytes_than_its_limit_and_a_body_of_each_queue(
    broker, cached, delivered
):
    found = delivered(broker)
    assert len(found) == len(set(found)) == MESSAGES * QUEUES
    assert {size for *_, size in found} == {MIB}
    assert MIB <= max(cached) <= (2 + QUEUES) * MIB


BODIES = st.sampled_from(["bomb", "plain", "damaged", "no zstd"])


def record_of(kind, queue_offset):
    if kind == "plain":
        return encode_record(StoredMessage("T", bytes(5_000), "", queue_offset=queue_offset))
    body = b"not compressed" if kind == "no zstd" else SMALL_BOMB
    record = encode_record(StoredMessage("T", body, "", queue_offset=queue_offset, sys_flag=ZSTD))
    return record.replace(SMALL_BOMB, SMALL_BOMB[::-1]) if kind == "damaged" else record


SMALL_BOMB = compress_body(bytes(2_000), MessageSysFlag.COMPRESSION_ZSTD)


@given(st.lists(BODIES, min_size=1, max_size=12), st.data())
def test_pulls_with_any_room_deliver_every_message_once_in_order(kinds, data):
    records = [record_of(kind, at) for at, kind in enumerate(kinds)]
    at, suspect, readable, unreadable = 0, None, [], []
    while at < len(kinds):
        room = data.draw(st.integers(-3_000, 9_000))
        try:
            found = decode_pull(
                b"".join(records[at:]), QUEUE, at, len(kinds), suspect, room_bytes=room
            )
        except SuspectRecord as doubtful:
            assert suspect is None
            suspect = doubtful.record
            continue
        suspect = None
        inflated = [m for m in found.messages if m.sys_flag & MessageSysFlag.COMPRESSED.value]
        assert sum(len(message.body) for message in inflated[:-1]) <= max(room, 0)
        readable += [message.queue_offset for message in found.messages]
        unreadable += [message.queue_offset for message in found.unreadable]
        before, at = at, len(kinds) if found.next_offset is None else found.next_offset
        assert at > before
    assert readable == [n for n, kind in enumerate(kinds) if kind in {"bomb", "plain"}]
    assert unreadable == [n for n, kind in enumerate(kinds) if kind in {"damaged", "no zstd"}]


def test_pull_decoder_cuts_no_answer_of_bodies_that_were_not_compressed():
    records = b"".join(record_of("plain", at) for at in range(8))
    found = decode_pull(records, QUEUE, 0, 8, room_bytes=-1)
    assert (len(found.messages), found.next_offset) == (8, None)
