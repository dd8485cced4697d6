"""Arguments of a wrong type are refused by the call, with an error that names the expected type and
an example.

The tables are complete: a new argument needs a row with plausible wrong values.
"""

import re
from enum import IntEnum

import pyarrow as pa
import pytest

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.arguments import check_queues, check_timestamp_ms
from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.consumer.settings import LitePullSettings, PushSettings
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.producer.prepared_message import SendRules
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.transport.remoting_client import RemotingClient
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import aio

QUEUE = MessageQueue("T", "broker-a", 0)
TABLE = pa.table({"body": [b"x"]})
ELSEWHERE = MessageQueue("U", "broker-a", 0)
NOWHERE = "127.0.0.1:1"
WITH_SCHEME = "http://127.0.0.1:1"
SAYS = re.compile(r".+: needed .+, found .+; for example: .+")
LIMIT = re.compile(r".+: needed .+, found .+")


def listen(_, __):
    pass


def lite(**settings):
    return LitePullConsumer("G", NOWHERE, LitePullSettings(**settings))


def pushing(*arguments, **more):
    return PushConsumer("G", *arguments, **{"listener": listen, **more})


WRONG_WHEN_MADE = {
    "group: int": lambda: Producer(5, NOWHERE),
    "group: none": lambda: Producer(None, NOWHERE),
    "name servers: int": lambda: Producer("P", 9876),
    "name servers: an instance": lambda: Producer("P", ClientInstance(NOWHERE)),
    "instance: text": lambda: Producer("P", instance=NOWHERE),
    "rules: a dict": lambda: Producer("P", NOWHERE, rules={"max_message_bytes": 1}),
    "retries: text": lambda: Producer("P", NOWHERE, retries="2"),
    "pending: text": lambda: Producer("P", NOWHERE, pending_max="10"),
    "send timeout: text": lambda: Producer("P", NOWHERE, send_timeout_ms="3000"),
    "credentials: a pair": lambda: ClientInstance(NOWHERE, credentials=("key", "secret")),
    "tls: True": lambda: RemotingClient(tls=True),
    "request timeout: text": lambda: ClientInstance(NOWHERE, request_timeout_ms="3"),
    "another broker: text": lambda: Producer(
        "P", NOWHERE, retry_another_broker_when_not_store_ok="no"
    ),
    "member: an object": lambda: Producer("P", NOWHERE, member=object()),
    "instance: its class": lambda: LitePullConsumer("G", instance=ClientInstance),
    "commits: text": lambda: lite(auto_commit="false"),
    "settings: a dict": lambda: LitePullConsumer("G", NOWHERE, {"pull_batch_size": 5}),
    "settings: of the other kind": lambda: LitePullConsumer("G", NOWHERE, PushSettings()),
    "listener: a coroutine function": lambda: pushing(NOWHERE, listener=coroutine),
    "listener: one parameter": lambda: pushing(NOWHERE, listener=lambda _: None),
    "batch size: text": lambda: lite(pull_batch_size="10"),
    "interval: float": lambda: lite(rebalance_interval_ms=1.5),
    "model: text": lambda: lite(message_model="BROADCASTING"),
    "strategy: a class": lambda: lite(allocate_message_queue_strategy=LitePullSettings),
    "limits: a dict": lambda: lite(limits={"pull_threshold_for_queue": 5}),
    "directory: text": lambda: lite(local_offset_directory="/tmp/offsets"),  # noqa: S108  # nothing is written
}


class Member:
    """A check listener."""

    def check_transaction_state(self, address, message, header):
        pass


def test_transaction_listener_object_is_accepted_as_member():
    assert Producer("P", NOWHERE, member=Member())


async def coroutine(_, __):
    pass


@pytest.mark.parametrize("make", WRONG_WHEN_MADE.values(), ids=list(WRONG_WHEN_MADE))
def test_client_constructor_refuses_arguments_of_wrong_type(make):
    with pytest.raises(TypeError) as raised:
        make()
    assert SAYS.fullmatch(str(raised.value)), raised.value


def test_byte_addresses_are_shown_as_given():
    with pytest.raises(TypeError, match="found bytes b'localhost:9876'; for example: "):
        ClientInstance(b"localhost:9876")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Producer("", NOWHERE),
        lambda: Producer("P", NOWHERE, pending_max=0),
        lambda: Producer("P", NOWHERE, pending_bytes_max=-1),
        lambda: Producer("P", NOWHERE, retries=-1),
        lambda: Producer("P", WITH_SCHEME),
        lambda: LitePullConsumer("G", WITH_SCHEME),
        lambda: aio.Producer("P", WITH_SCHEME),
        lambda: ClientInstance(NOWHERE, request_timeout_ms=0),
        lambda: lite(pull_batch_size=0),
        lambda: lite(consume_timestamp_ms=1_750_000_000),
        lambda: pushing(NOWHERE, settings=PushSettings(max_reconsume_times=2**40)),
        lambda: Producer("P", NOWHERE, send_timeout_ms=-1),
        lambda: ClientInstance(NOWHERE, client_id="../../elsewhere"),
        lambda: ClientInstance(NOWHERE, client_id="x" * 256),
        lambda: SendRules("P", create_topic_key="no topic"),
        lambda: SendRules("P", default_topic_queue_nums=2**31),
        lambda: SendRules("P", compress_level=10),
        lambda: SendRules("P", compress_level=23, compress_type=MessageSysFlag.COMPRESSION_ZSTD),
        lambda: SendRules("P", compress_type=MessageSysFlag.COMPRESSED),
    ],
)
def test_client_constructor_refuses_values_out_of_range(make):
    with pytest.raises(ValueError, match=LIMIT):
        make()


# ---- sending


def message(**fields):
    return lambda producer: producer.send(Message(**{"topic": "T", "body": b"x", **fields}))


WRONG_WHEN_SENT = {
    "a text": lambda producer: producer.send("x"),
    "topic and body": lambda producer: producer.send("T", b"x"),
    "body: text": message(body="x"),
    "body: a dict": message(body={"a": 1}),
    "topic: int": message(topic=5),
    "property: int": message(properties={"colour": 5}),
    "property of int": message(properties={5: "red"}),
    "properties: a list": message(properties=["colour"]),
    "keys: int": message(keys=5),
    "tags: a list": message(tags=["red"]),
    "delay level: text": message(delay_level="3"),
    "flag: text": message(flag="1"),
    "delay level: True": message(delay_level=True),
    "table: a setting that is none": lambda producer: producer.send_table(TABLE, "T", colour=1),
    "tables: a setting that is none": lambda producer: producer.send_batches(
        [TABLE], "T", colour=1
    ),
    "sharding key: int": message(sharding_key=5),
    "wait_store_ok: text": message(wait_store_ok="no"),
    "queue: text": lambda producer: producer.send(Message("T", b"x"), "broker-a"),
    "queue: its parts": lambda producer: producer.send(Message("T", b"x"), ("T", "broker-a", 0)),
    "chosen: int": lambda producer: producer.send(Message("T", b"x"), lambda _: 0),
    "timeout: text": lambda producer: producer.send(Message("T", b"x"), timeout_ms="3"),
    "batch: one message": lambda producer: producer.send_batch(Message("T", b"x")),
}


@pytest.fixture
def broker(running_broker, api):
    config = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
    api.admin.create_topic(running_broker.address, config)
    return running_broker


@pytest.fixture
def producer(broker):
    with Producer("P", broker.address) as producer:
        yield producer


def test_send_refuses_arguments_of_wrong_type(producer, api, broker):
    for what, send in WRONG_WHEN_SENT.items():
        with pytest.raises(TypeError) as raised:
            send(producer)
        assert SAYS.fullmatch(str(raised.value)), (what, raised.value)
    assert api.max_offset(broker.address, QUEUE) == 0
    assert producer._async_sender.permits.count == 0


def test_send_refuses_number_as_property_value(producer):
    with pytest.raises(
        TypeError, match=r"property n: needed a string \(str\), found int 1; for example: '1'"
    ):
        producer.send(Message("T", b"x", properties={"n": 1}))


@pytest.mark.parametrize("queue", [ELSEWHERE, lambda _: ELSEWHERE])
def test_send_refuses_queue_of_another_topic(producer, queue):
    with pytest.raises(ValueError, match="needed one of topic T"):
        producer.send(Message("T", b"x"), queue)


@pytest.mark.parametrize("queue_id", [-1, 2**31])
def test_invalid_queue_id_is_refused(producer, queue_id):
    queue = MessageQueue("T", "broker-a", queue_id)
    for ask in (producer.send, producer.send_async, producer.send_one_way):
        with pytest.raises(
            ValueError, match=f"queue_id of queue: needed 0 to 2147483647, found {queue_id}"
        ):
            ask(Message("T", b"x"), queue)
    with pytest.raises(ValueError, match="queue_id of queue: needed"):
        producer.send_table(TABLE, "T", queue=queue)


def test_negative_send_timeout_is_refused_before_sending(producer, api, broker):
    for ask in (producer.send, producer.send_async):
        with pytest.raises(
            ValueError, match="timeout_ms: needed milliseconds, 0 to 2147483647, found -5"
        ):
            ask(Message("T", b"x"), timeout_ms=-5)
    assert api.max_offset(broker.address, QUEUE) == 0


@pytest.mark.parametrize(
    ("setting", "found"),
    [("producer_group", ""), ("create_topic_key", "a b"), ("default_topic_queue_nums", 2**31)],
)
def test_send_rules_refuse_setting_with_reserved_characters(setting, found):
    with pytest.raises(ValueError, match=f"^{setting}: needed"):
        SendRules(**{"producer_group": "P", setting: found})


# ---- consuming

WRONG_BEFORE_THE_START = {
    "topics: a list": lambda consumer: consumer.subscribe(["T"]),
    "tags: a list": lambda consumer: consumer.subscribe("T", ["red"]),
    "queues: one": lambda consumer: consumer.assign(QUEUE),
    "queues: their parts": lambda consumer: consumer.assign([("T", "broker-a", 0)]),
    "queues: with tags of int": lambda consumer: consumer.assign([QUEUE], 5),
    "topic of queues: a list": lambda consumer: consumer.fetch_message_queues(["T"]),
    "listener: int": lambda consumer: consumer.register_topic_message_queue_change_listener("T", 5),
}


@pytest.mark.parametrize("ask", WRONG_BEFORE_THE_START.values(), ids=list(WRONG_BEFORE_THE_START))
def test_consumer_before_start_refuses_arguments_of_wrong_type_without_change(ask):
    consumer = LitePullConsumer("G", NOWHERE)
    with pytest.raises(TypeError) as raised:
        ask(consumer)
    assert SAYS.fullmatch(str(raised.value)), raised.value
    assert consumer.topics == frozenset()
    assert consumer.assignment() == frozenset()
    consumer.subscribe("T")  # the failed assign has not changed its mode


WRONG_WHILE_IT_RUNS = {
    "poll: text": lambda consumer: consumer.poll("5"),
    "offset: text": lambda consumer: consumer.seek(QUEUE, "5"),
    "queue: a topic": lambda consumer: consumer.seek("T", 0),
    "time: text": lambda consumer: consumer.seek_to_time(QUEUE, "2026-01-01"),
    "time: as Python has it": lambda consumer: consumer.seek_to_time(QUEUE, 1_750_000_000.5),
    "offsets: a list": lambda consumer: consumer.commit([QUEUE]),
    "offsets: of text": lambda consumer: consumer.commit({QUEUE: "5"}),
    "pause: one": lambda consumer: consumer.pause(QUEUE),
    "committed: a topic": lambda consumer: consumer.committed("T"),
}


@pytest.fixture
def consumer(broker):
    consumer = LitePullConsumer("G", broker.address)
    consumer.assign([QUEUE])
    with consumer:
        yield consumer


def test_running_consumer_refuses_arguments_of_wrong_type_and_keeps_polling(consumer, producer):
    for what, ask in WRONG_WHILE_IT_RUNS.items():
        with pytest.raises(TypeError) as raised:
            ask(consumer)
        assert SAYS.fullmatch(str(raised.value)), (what, raised.value)
    consumer.seek_to_begin(QUEUE)
    producer.send(Message("T", b"x"), QUEUE)
    assert [each.body for each in consumer.poll(10_000)] == [b"x"]


@pytest.mark.parametrize("timestamp_ms", [1_750_000_000, -1, 2**63])
def test_timestamp_in_seconds_is_refused_by_seek_to_time(consumer, timestamp_ms):
    for ask in (consumer.seek_to_time, consumer.offset_for_timestamp):
        with pytest.raises(ValueError, match="timestamp_ms: needed milliseconds since 1970"):
            ask(QUEUE, timestamp_ms)
    with pytest.raises(
        ValueError, match=r"timestamp_ms: .*if these are seconds, write 1750000000000"
    ):
        consumer.seek_to_time(QUEUE, 1_750_000_000)


def test_poll_refuses_negative_timeout(consumer):
    with pytest.raises(
        ValueError, match="timeout_ms: needed milliseconds, 0 to 2147483647, found -1"
    ):
        consumer.poll(-1)


def test_negative_offset_makes_commit_store_none_of_its_offsets(consumer):
    with pytest.raises(ValueError, match=LIMIT):
        consumer.commit({QUEUE: -5})


# ---- admin

WRONG_OF_OPERATORS = {
    "topic to make: a list": lambda admin: admin.create_topic(["T"], 4),
    "queues: text": lambda admin: admin.create_topic("T", "4"),
    "topics to make: one name": lambda admin: admin.create_topics("T"),
    "topics to make: bytes": lambda admin: admin.create_topics([b"T"]),
    "topic to find: none": lambda admin: admin.route(None),
    "group to make: bytes": lambda admin: admin.create_group(b"G"),
    "lag: of groups": lambda admin: admin.lag(["G"], "T"),
    "offset of: a topic": lambda admin: admin.set_offset("G", "T", 0),
    "offset: text": lambda admin: admin.set_offset("G", QUEUE, "5"),
    "time: text": lambda admin: admin.reset_to_time("G", "T", "2026-01-01"),
    "force: text": lambda admin: admin.reset_to_time("G", "T", 0, is_force="false"),
    "with offsets: text": lambda admin: admin.delete_group("G", with_offsets="false"),
    "since: text": lambda admin: admin.messages_by_key("T", "k", begin_ms="2026-01-01"),
    "id: int": lambda admin: admin.message_by_offset_id(5),
}


@pytest.mark.parametrize("ask", WRONG_OF_OPERATORS.values(), ids=list(WRONG_OF_OPERATORS))
def test_admin_refuses_arguments_of_wrong_type_without_a_request(ask):
    with pytest.raises(TypeError) as raised:
        ask(Admin(NOWHERE))
    assert SAYS.fullmatch(str(raised.value)), raised.value


@pytest.mark.parametrize(
    "ask",
    [
        lambda admin: admin.reset_to_time("G", "T", 1_750_000_000),
        lambda admin: admin.reset_to_time("G", "T", -2),
        lambda admin: admin.messages_by_key("T", "k", begin_ms=1_750_000_000),
        lambda admin: admin.messages_by_key("T", "k", end_ms=1_750_000_000),
        lambda admin: admin.messages_by_key("T", "k", messages_max=0),
    ],
)
def test_admin_refuses_values_out_of_range_without_a_request(ask):
    with pytest.raises(ValueError, match=LIMIT):
        ask(Admin(NOWHERE))


def test_admin_accepts_an_int_enum_as_timestamp():
    class Since(IntEnum):
        BEGINNING = 3
        SECONDS = 1_750_000_000

    assert check_timestamp_ms("start", Since.BEGINNING) == 3
    with pytest.raises(ValueError, match="write 1750000000000"):
        check_timestamp_ms("start", Since.SECONDS)


def test_argument_error_does_not_repeat_megabytes():
    with pytest.raises(TypeError) as raised:
        check_queues("x" * 1_000_000)
    assert len(str(raised.value)) < 300
