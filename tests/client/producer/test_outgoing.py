"""Messages are compressed, limited and batched before they are sent."""

import inspect
import os
import zlib
from array import array
from datetime import datetime
from random import Random

import pytest
from support.rocketmq import java_vectors

from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.message import Message
from rmq_spark.client.producer.prepared_message import (
    BATCH_MESSAGES_MAX,
    SendRules,
    UniqueIdGenerator,
    encode_prepared_batch,
    month_start_ms,
    prepare_batch,
    prepare_message,
    split_batches,
)
from rmq_spark.client.producer.producer import Producer
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message.message_batch import decode_batch
from rmq_spark.wire.message.message_id import decode_unique_id
from rmq_spark.wire.message.properties import decode_properties
from rmq_spark.wire.message_queue import MessageQueue

RULES = SendRules("P", max_message_bytes=10_000)
IDS = UniqueIdGenerator("10.0.0.1")
QUEUE = MessageQueue("T", "a", 3)


def test_small_body_is_not_compressed():
    ready = prepare_message(Message("T", b"x" * 4_095, flag=9), RULES, IDS, 1_000)
    assert (ready.body, ready.sys_flag, ready.flag) == (b"x" * 4_095, 0, 9)
    assert decode_properties(ready.properties_text)["UNIQ_KEY"] == ready.message_id
    header = ready.header(QUEUE)
    assert (header.producer_group, header.topic, header.queue_id, header.broker_name) == (
        "P",
        "T",
        3,
        "a",
    )
    assert (header.born_timestamp, header.default_topic, header.batch) == (1_000, "TBW102", False)


def test_large_message_body_is_compressed_and_flagged():
    ready = prepare_message(Message("T", b"x" * 4_096), RULES, IDS, 0)
    assert zlib.decompress(ready.body) == b"x" * 4_096
    assert (
        ready.sys_flag
        == (MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB).value
        == 0x301
    )


@pytest.mark.parametrize("size", [4_096, 10_000])
def test_incompressible_body_is_sent_plain(size):
    body = Random(1).randbytes(size)
    ready = prepare_message(Message("T", body), RULES, IDS, 0)
    assert (ready.body, ready.sys_flag) == (body, 0)


def test_message_size_limit_counts_the_uncompressed_body():
    with pytest.raises(MessageRejected, match="10001"):
        prepare_message(Message("T", b"x" * 10_001), RULES, IDS, 0)


VIEWS = {
    "of numbers": (memoryview(array("d", [1.0] * 100)), array("d", [1.0] * 100).tobytes()),
    "with gaps": (memoryview(b"abcdef")[::2], b"ace"),
    "of one number": (memoryview(b"x" * 8).cast("q", ()), b"x" * 8),
}


@pytest.mark.parametrize(("view", "as_bytes"), VIEWS.values(), ids=VIEWS)
def test_memoryview_body_is_sent_byte_for_byte(view, as_bytes):
    assert prepare_message(Message("T", view), RULES, IDS, 0).body == as_bytes
    ready = encode_prepared_batch(prepare_batch([Message("T", view)], RULES, IDS), RULES, 0)
    assert [entry.body for entry in decode_batch(ready.body)] == [as_bytes]


def test_message_size_limit_counts_the_bytes_of_a_memoryview():
    too_long = Message("T", memoryview(array("d", [1.0] * 1_251)))
    with pytest.raises(MessageRejected, match="10008"):
        prepare_message(too_long, RULES, IDS, 0)
    with pytest.raises(MessageRejected, match="10008"):
        prepare_batch([too_long], RULES, IDS)


def test_prepared_message_copies_the_body():
    body = bytearray(b"before")
    ready, parts = (
        prepare_message(Message("T", body), RULES, IDS, 0),
        prepare_batch([Message("T", body)], RULES, IDS),
    )
    body[:] = b"after!"
    assert ready.body == b"before"
    assert [entry.body for entry in decode_batch(encode_prepared_batch(parts, RULES, 0).body)] == [
        b"before"
    ]


def test_batch_entries_have_their_own_message_ids():
    parts = prepare_batch([Message("T", b"1", "t"), Message("T", b"2", flag=7)], RULES, IDS)
    ready = encode_prepared_batch(parts, RULES, 5)
    entries = decode_batch(ready.body)
    assert [(entry.body, entry.flag) for entry in entries] == [(b"1", 0), (b"2", 7)]
    assert [entry.properties["UNIQ_KEY"] for entry in entries] == ready.message_id.split(",")
    assert decode_properties(ready.properties_text) == {"WAIT": "true"}
    assert ready.header(QUEUE).batch is True


def test_batches_are_as_large_as_brokers_take_and_stay_in_order():
    messages = [Message("T", b"%d" % n * 300) for n in range(100)]
    split_parts = list(split_batches(prepare_batch(messages, RULES, IDS), 10_000))
    assert [part.message for parts in split_parts for part in parts] == messages
    assert len(split_parts) > 1
    assert all(sum(part.record_bytes for part in parts) <= 10_000 for parts in split_parts)


def test_batches_have_no_more_messages_than_an_answer_has_room_for_ids():
    messages = [Message("T", b"x")] * (BATCH_MESSAGES_MAX + 1)
    sizes = [len(parts) for parts in split_batches(prepare_batch(messages, RULES, IDS), 1 << 30)]
    assert sizes == [BATCH_MESSAGES_MAX, 1]
    assert list(split_batches([], 1)) == []


CANNOT = {
    "two topics": [Message("T", b"x"), Message("U", b"x")],
    "two ways to wait": [Message("T", b"x"), Message("T", b"x", wait_store_ok=False)],
    "a delay": [Message("T", b"x", delay_level=1)],
    "two keys": [Message("T", b"x", sharding_key="a"), Message("T", b"x", sharding_key="b")],
    "one with a key": [Message("T", b"x"), Message("T", b"x", sharding_key="b")],
    "a retry topic": [Message("%RETRY%g", b"x")],
    "a bad message": [Message("T", b"x"), Message("T", b"")],
}


@pytest.mark.parametrize("messages", CANNOT.values(), ids=CANNOT)
def test_batch_with_incompatible_messages_is_refused(messages):
    with pytest.raises(MessageRejected):
        prepare_batch(messages, RULES, IDS)


@java_vectors.each("defaults", where=lambda vector: vector["kind"] == "DefaultMQProducer")
def test_producer_defaults_equal_javas(vector):
    javas, arguments = vector["settings"], inspect.signature(Producer).parameters
    for ours, theirs in (
        ("send_timeout_ms", "sendMsgTimeout"),
        ("retries", "retryTimesWhenSendFailed"),
        ("retries", "retryTimesWhenSendAsyncFailed"),
        ("retry_another_broker_when_not_store_ok", "retryAnotherBrokerWhenNotStoreOK"),
        ("send_latency_fault_enable", "sendLatencyEnable"),
    ):
        assert (ours, arguments[ours].default) == (ours, javas.get(theirs, False))
    for ours, theirs in (
        ("default_topic_queue_nums", "defaultTopicQueueNums"),
        ("max_message_bytes", "maxMessageSize"),
        ("compress_body_bytes", "compressMsgBodyOverHowmuch"),
    ):
        assert (ours, getattr(SendRules("P"), ours)) == (ours, javas[theirs])


# ---- unique message ids never repeat, and have Java's format


SOME_DAY_MS = int(datetime(2026, 3, 17, 12, 34, 56).timestamp() * 1000)  # noqa: DTZ001  # Java uses the local month


def test_unique_id_contains_host_and_time():
    ids = UniqueIdGenerator("10.0.0.1", lambda: SOME_DAY_MS)
    first, second = decode_unique_id(ids.next()), decode_unique_id(ids.next())
    assert first.address == bytes([10, 0, 0, 1])
    assert first.process_id == os.getpid() & 0xFFFF
    assert first.month_ms == SOME_DAY_MS - month_start_ms(SOME_DAY_MS)
    assert (first.counter, second.counter) == (0, 1)


def test_bulk_unique_ids_continue_the_counter():
    ids = UniqueIdGenerator("10.0.0.1", lambda: SOME_DAY_MS)
    made = [ids.next(), *ids.next_many(3), ids.next()]
    assert [decode_unique_id(each).counter for each in made] == [0, 1, 2, 3, 4]


def test_unique_id_month_starts_at_local_midnight():
    began = datetime.fromtimestamp(month_start_ms(SOME_DAY_MS) / 1000)  # noqa: DTZ006  # tests local time
    assert began == datetime(2026, 3, 1)  # noqa: DTZ001  # tests local time


def test_unique_id_generator_changes_its_base_in_a_new_month():
    times = [SOME_DAY_MS, int(datetime(2026, 4, 2).timestamp() * 1000)]  # noqa: DTZ001  # tests local time
    ids = UniqueIdGenerator("10.0.0.1", lambda: times.pop(0))
    ids.next()
    assert decode_unique_id(ids.next()).month_ms == 24 * 3_600_000


@pytest.mark.parametrize(("address", "digits"), [("10.0.0.1", 32), ("::1", 56)])
def test_generated_unique_ids_never_repeat(address, digits):
    ids = [UniqueIdGenerator(address) for _ in range(2)]
    made = [each.next() for each in ids for _ in range(1_000)]
    made += [unique_id for each in ids for unique_id in each.next_many(1_000)]
    assert len(set(made)) == 4_000
    assert {len(text) for text in made} == {digits}
