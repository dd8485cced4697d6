"""Names of topics, groups and clients are checked before any request."""

import threading
from contextlib import suppress
from enum import Enum

import pyarrow as pa
import pytest

from rmq_spark.client.arguments import check_client_id, check_group, check_send_topic, check_topic
from rmq_spark.client.errors import ClientError, MessageRejected
from rmq_spark.client.transport import frame_writer
from rmq_spark.wire import names
from rmq_spark.wire.names import dlq_topic, retry_topic
from rocketpoll import (
    Admin,
    ClientInstance,
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    PushSettings,
    by_tag,
)


@pytest.mark.parametrize("name", ["T", "%RETRY%g", "a|b-c_d", "x" * 127])
def test_valid_names_are_accepted(name):
    assert check_topic(name) == check_send_topic(name) == check_group(name) == name


@pytest.mark.parametrize("name", ["", " ", "../../etc", "a.b", "ü", "T\n", "x" * 256])
def test_invalid_names_are_refused_before_any_request(name):
    with pytest.raises(MessageRejected, match="topic: needed"):
        check_topic(name)
    with pytest.raises(MessageRejected, match="group: needed"):
        check_group(name)


def test_retry_topics_may_be_as_long_as_their_groups_need():
    group = "g" * names.GROUP_CHARACTERS_MAX
    assert check_topic(retry_topic(check_group(group)))
    assert check_topic(dlq_topic(group))
    with pytest.raises(MessageRejected, match="1 to 127 of them"):
        check_topic("x" * 128)


@pytest.mark.parametrize("topic", sorted(names.NOT_ALLOWED_SEND_TOPICS))
def test_send_to_a_system_topic_is_refused(topic):
    assert check_topic(topic) == topic
    with pytest.raises(MessageRejected, match="the broker does not reserve"):
        check_send_topic(topic)


@pytest.mark.parametrize("client_id", ["10.0.0.1@42#7", "...", "büro 3", "x" * 255, r"DOMAIN\user"])
def test_client_id_accepts_any_directory_name(client_id):
    assert check_client_id(client_id) == client_id


@pytest.mark.parametrize(
    "client_id",
    [
        "",
        " ",
        ".",
        "..",
        "../../etc",
        "/etc",
        "a/b",
        "a\0b",
        "a\nb",
        "\ud800",
        "x" * 256,
        "ü" * 128,
    ],
)
def test_invalid_client_id_is_refused_with_a_printable_error(client_id):
    with pytest.raises(MessageRejected, match=r"client_id: needed .*, found ") as raised:
        check_client_id(client_id)
    assert str(raised.value).isprintable()


def test_invalid_name_is_refused_by_argument_name():
    with pytest.raises(MessageRejected, match="producer_group: needed"):
        check_group("no group", "producer_group")
    with pytest.raises(TypeError, match="create_topic_key: needed"):
        check_topic(5, "create_topic_key")


class Names(str, Enum):
    """An Enum of strings: formatted as its name by Python 3.10 and 3.11, as its value
    from 3.12 on."""

    TOPIC = "orders-of-an-enum"
    GROUP = "billing-of-an-enum"
    OTHER = "copy-of-an-enum"
    TAG = "paid"
    KEY = "order-42"
    NAME = "colour"
    CLIENT = "client-of-an-enum"


MESSAGE = Message(
    Names.TOPIC,
    b"x",
    tags=Names.TAG,
    keys=[Names.KEY],
    properties={Names.NAME: Names.KEY},
    sharding_key=Names.KEY,
)
QUEUE = MessageQueue(Names.TOPIC, "broker-a", 0)


def _send_all(address):
    with Producer(Names.GROUP, address) as producer:
        producer.send(MESSAGE)
        producer.send(MESSAGE, QUEUE)
        producer.send_async(MESSAGE).result(9)
        producer.send_batch([MESSAGE])
        producer.send_one_way(MESSAGE)
        producer.send_table(pa.table({"body": ["x"], "tags": ["paid"]}), Names.TOPIC)


def _poll(address):
    settings = LitePullSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    instance = ClientInstance(address, client_id=Names.CLIENT)
    with LitePullConsumer(Names.GROUP, instance=instance, settings=settings) as consumer:
        consumer.subscribe(Names.TOPIC, Names.TAG)
        assert consumer.poll(9_000)
        assert {type(queue.topic) for queue in consumer.assignment()} == {str}
        consumer.seek(next(iter(consumer.assignment())), 0)
        consumer.commit()
        consumer.unsubscribe(Names.TOPIC)


def _listen(address):
    seen = threading.Event()

    def fail(*_):
        seen.set()
        raise ValueError

    settings = PushSettings(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, max_reconsume_times=0
    )
    with PushConsumer(Names.OTHER, address, listener=fail, settings=settings) as consumer:
        consumer.subscribe(Names.TOPIC, by_tag(Names.TAG))
        assert seen.wait(60)


def _administer(address):
    with Admin(address) as admin:
        admin.create_topic(Names.TOPIC, 2)
        admin.create_group(Names.GROUP)
        admin.topic_offsets(Names.TOPIC)
        admin.topic_configs(Names.TOPIC)
        admin.lag(Names.GROUP, Names.TOPIC)
        admin.progress(Names.GROUP)
        admin.members(Names.GROUP)
        admin.groups_of_topic(Names.TOPIC)
        admin.set_offset(Names.GROUP, QUEUE, 0, missing_ok=True)
        admin.reset_to_time(Names.GROUP, Names.TOPIC, 0)
        admin.messages_by_key(Names.TOPIC, Names.KEY)
        admin.read_table(Names.TOPIC, tags=Names.TAG)
        with suppress(ClientError):
            admin.clone_offsets(Names.GROUP, Names.OTHER)
        admin.delete_group(Names.OTHER)


@pytest.fixture
def written(monkeypatch):
    """Record all bytes that clients write to brokers."""
    pieces, real = [], frame_writer._encode_frame

    def noted(command):
        made = [bytes(each) for each in real(command)]
        pieces.append(b"".join(made))
        return made

    monkeypatch.setattr(frame_writer, "_encode_frame", noted)
    return pieces


def test_string_enum_names_are_sent_as_their_values(written, caplog):
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        for each in (_administer, _send_all, _poll, _listen, _administer):
            each(broker.address)
        topics, groups = admin.topics(), admin.groups()
    assert len(written) > 40
    assert [each for each in written if b"Names." in each] == []
    assert not [name for name in (*topics, *groups) if "Names." in name]
    assert "Names." not in caplog.text
    for message in (MESSAGE.topic, MESSAGE.tags, MESSAGE.sharding_key):
        assert type(message) is str
