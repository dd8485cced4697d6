"""onBadRecord=dead_letter: unreadable messages are in another topic before the batch commits."""

import re

import pyarrow as pa
import pytest
from support.messages.bad_messages import BadTopic
from support.spark.source_fixture import complaint
from support.spark.source_queries import options_for, queue_of, queues_of, schema_of, send
from support.spark.streaming_engine import Crashed, Engine

from rmq_spark.client.manifest import CommittedSpan
from rmq_spark.client.message import Message
from rmq_spark.client.reading import bulk_pull
from rmq_spark.spark.errors import OptionError, SparkError, WriteError
from rmq_spark.spark.exactly_once.committed_reader import SpanGroup, read_spans
from rmq_spark.spark.options.options import read_options
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.preflight import check_with_brokers
from rmq_spark.spark.read import key_reader
from rmq_spark.spark.read.partition_reader import read_range
from rmq_spark.spark.schemas.columns import arrow_schema_of
from rmq_spark.spark.write.rows import sums_of
from rocketpoll import EmbeddedBroker

TO_DEAD = {"onBadRecord": "dead_letter", "deadLetterTopic": "dead"}
TEXT = {**TO_DEAD, "bodyFormat": "text"}


pytestmark = pytest.mark.usefixtures("own_producers")


@pytest.fixture
def broker(tmp_path):
    with EmbeddedBroker(tmp_path / "store") as broker:
        broker.create_topic("T", 1)
        yield broker


def letters(broker, topic="dead"):
    return list(broker.messages(topic))


def origins(found):
    return [int(letter.properties["DLQ_ORIGIN_QUEUE_OFFSET"]) for letter in found]


def send_bodies(broker, *bodies, topic="T", **more):
    with broker.producer() as producer:
        for body in bodies:
            producer.send(Message(topic, body, **more))


def run(broker, **options):
    """Run a query over all of topic T, as Spark would; return the offsets of its rows."""
    query = Engine(broker.address, subscribe="T", **options)
    query.start()
    query.run()
    query.stop()
    return [row.queue_offset for row in query.rows()]


def rows_of(broker, columns, end, **options):
    options = options_for(broker, "T", **options)
    batches = read_range(
        options, arrow_schema_of(schema_of(columns)), OffsetRange(queue_of("T"), 0, end)
    )
    return [row for batch in batches for row in batch.to_pylist()]


def test_damaged_messages_become_dead_letters_and_all_others_rows(tmp_path):
    with EmbeddedBroker(tmp_path) as broker:
        topic = BadTopic(broker, tmp_path)
        assert run(broker, **TO_DEAD) == sorted(topic.sound)
        found = {
            topic.bad[at]: letter for at, letter in zip(topic.bad, letters(broker), strict=True)
        }
        assert origins(found.values()) == sorted(topic.bad)
    assert found["garbage as zlib"].body == b"this is no stream"
    assert found["garbage as zlib"].flag == 7
    assert found["a changed body"].body == b"?amaged: a changed body"
    assert found["no magic"].body == b"damaged: no magic"
    assert b"damaged: a body length without sense" in found["a body length without sense"].body
    kinds = {name: letter.properties["DLQ_BODY"] for name, letter in found.items()}
    assert {name: kind for name, kind in kinds.items() if kind != "stored"} == {
        "a changed body": "damaged",
        "no magic": "body",
        "a body length without sense": "record",
    }
    del found["a body length without sense"]
    assert {letter.keys for letter in found.values()} == {("every",)}


def test_record_of_unknown_size_becomes_a_dead_letter_with_its_position(broker, monkeypatch):
    send(broker, "T", 0, "a", "b")

    pull = bulk_pull.BulkPull.__iter__

    def damaged(self):  # of a broker without record sizes
        for chunk in pull(self):
            records = b"\x7f" + bytes(chunk.records)[1:]
            yield chunk._replace(records=records, sizes=None, decoded=None)

    monkeypatch.setattr(bulk_pull.BulkPull, "__iter__", damaged)
    assert rows_of(broker, "body binary", 2, **TO_DEAD) == []
    found = letters(broker)
    assert origins(found) == [0, 1]
    assert {letter.properties["DLQ_BODY"] for letter in found} == {"none"}
    assert found[0].body == found[0].properties["DLQ_ERROR"].encode()


def test_body_of_another_format_becomes_a_dead_letter_with_its_properties(broker, caplog):
    send_bodies(broker, b"good", b"\xff", b"good", tags="t", keys=["a", "b"], properties={"p": "q"})
    assert [row["body"] for row in rows_of(broker, "body string", 3, **TEXT)] == ["good", "good"]
    [letter] = letters(broker)
    [original] = [each for each in broker.messages("T") if each.body == b"\xff"]
    assert letter.body == b"\xff"
    assert (letter.tags, letter.keys, letter.properties["p"]) == ("t", ("a", "b"), "q")
    assert letter.born_timestamp == original.born_timestamp
    assert letter.properties["DLQ_ORIGIN_MESSAGE_ID"] == original.message_id
    assert letter.properties["DLQ_ERROR"].startswith("its body: needed UTF-8, found byte b'\\xff'")
    assert "and it is a dead letter: its body: needed UTF-8" in caplog.text
    assert "onBadRecord=dead_letter applied to 1 message of a task" in caplog.text


def test_dead_letter_keeps_its_compressed_body(broker):
    body = b"\xff" + b"x" * 10_000
    send_bodies(broker, body)
    rows_of(broker, "body string", 1, **TEXT)
    [original], [letter] = broker.messages("T"), letters(broker)
    assert letter.body == original.body == body
    assert letter.sys_flag & 0x701 == original.sys_flag & 0x701 != 0


def test_filtered_out_message_becomes_no_dead_letter(broker):
    send_bodies(broker, b"\xff", tags="Aa")
    send_bodies(broker, b"\xff", tags="BB")  # a tag with the same hash
    rows_of(broker, "body string", 2, tags="BB", **TEXT)
    assert origins(letters(broker)) == [1]


def test_dead_letters_are_stored_before_later_rows_are_returned(broker):
    send_bodies(broker, b"\xff", b"good")
    rows = read_range(
        options_for(broker, "T", **TEXT),
        arrow_schema_of(schema_of("body string")),
        OffsetRange(queue_of("T"), 0, 2),
    )
    next(rows)
    assert origins(letters(broker)) == [0]
    rows.close()


def test_repeated_batch_sends_dead_letters_with_the_same_ids(broker):
    send_bodies(broker, b"good", b"\xff", b"\xfe", b"good")
    query = Engine(broker.address, subscribe="T", **TEXT)
    query.schema = schema_of("topic string, queueId int, queueOffset bigint, body string")
    for point in ("sink", "sink-done"):
        query.start()
        query.crash_at = point
        with pytest.raises(Crashed):
            query.run()
    query.start()
    query.run()
    query.stop()
    assert [row.queue_offset for row in query.rows()] == [0, 3]
    assert query.differing == []
    ids = {}
    for letter in letters(broker):
        ids.setdefault(int(letter.properties["DLQ_ORIGIN_QUEUE_OFFSET"]), []).append(
            letter.message_id
        )
    assert {at: len(each) for at, each in ids.items()} == {1: 3, 2: 3}
    assert all(len(set(each)) == 1 for each in ids.values())


def test_key_read_sends_dead_letters(broker):
    send_bodies(broker, b"good", b"\xff", keys="k")
    options = options_for(broker, "T", key="k", **TEXT)
    schema = arrow_schema_of(schema_of("body string"))
    with queues_of(broker, "T", key="k", **TEXT) as queues:
        [lookup] = key_reader.plan_key_lookups(options, queues)
    found = [
        each["body"].to_pylist() for each in key_reader.read_key_lookup(options, schema, lookup)
    ]
    assert found == [["good"]]
    assert origins(letters(broker)) == [1]


def test_committed_rows_of_another_format_become_dead_letters(broker):
    bodies = [b"good", b"\xff"]
    send_bodies(broker, *bodies)
    sums = sums_of(pa.array(bodies, pa.binary()))
    span = CommittedSpan(queue_of("T"), 0, 2, sums.crc, sums.body_bytes)
    options = options_for(broker, "T", isolation="committed", **TEXT)
    schema = arrow_schema_of(schema_of("body string"))
    rows = [row for each in read_spans(options, schema, SpanGroup((span,))) for row in each["body"]]
    assert [row.as_py() for row in rows] == ["good"]
    [letter] = letters(broker)
    assert letter.body == b"\xff"


def test_dead_letter_topic_is_in_the_namespace_of_the_source(broker):
    broker.create_topic("eu%T", 1)
    send_bodies(broker, b"\xff", topic="eu%T")
    options = options_for(broker, "T", namespace="eu", **TEXT)
    place = OffsetRange(queue_of("eu%T"), 0, 1)
    list(read_range(options, arrow_schema_of(schema_of("body string")), place))
    assert origins(letters(broker, "eu%dead")) == [0]


def test_task_fails_if_dead_letters_cannot_be_stored():
    with EmbeddedBroker(autoCreateTopicEnable=False) as broker:
        broker.create_topic("T", 1)
        send_bodies(broker, b"\xff")
        with pytest.raises(
            WriteError,
            match=r"dead letters of T for topic dead: no route to topic dead.* create the topic",
        ):
            rows_of(broker, "body string", 1, **TEXT)


def test_dead_letter_over_the_brokers_limit_names_the_setting():
    with EmbeddedBroker(maxMessageSize=20_000) as broker:
        broker.create_topic("T", 1)
        send_bodies(broker, b"\xff", properties={"p": "x" * 32_000})  # no space for more properties
        with pytest.raises(WriteError, match="raise maxMessageSize of the brokers: a dead letter"):
            rows_of(broker, "body string", 1, **TEXT)


def test_two_queries_sending_dead_letters_to_each_other_fail(broker):
    send_bodies(broker, b"\xff")
    rows_of(broker, "body string", 1, **TEXT)
    back = {**TEXT, "deadLetterTopic": "T"}
    options = read_options({"namesrvAddr": broker.address, "topic": "dead", **back})
    [letter] = letters(broker)
    place = OffsetRange(letter.queue, letter.queue_offset, letter.queue_offset + 1)
    with pytest.raises(SparkError, match=re.escape("cannot be sent to T: it was a dead letter in")):
        list(read_range(options, arrow_schema_of(schema_of("body string")), place))


def test_dead_letter_topic_must_exist_or_be_auto_created(broker):
    check_with_brokers(options_for(broker, "T", **TO_DEAD))
    with EmbeddedBroker(autoCreateTopicEnable=False) as strict:
        strict.create_topic("T", 1)
        with pytest.raises(OptionError, match="option deadLetterTopic: no route to topic dead: it"):
            check_with_brokers(options_for(strict, "T", **TO_DEAD))
        strict.create_topic("dead", 1)
        check_with_brokers(options_for(strict, "T", **TO_DEAD))


# ---- with Spark, and with every kind of broker


def test_readable_rows_continue_and_dead_letters_are_in_the_topic(source):
    topic, dead = source.cluster.topic(1), source.cluster.topic(1)
    producer = source.clients.producer()
    for body in (b'{"id": 1}', b"no JSON", b'{"id": 3}'):
        producer.send(Message(topic, body, tags="t", keys="k", properties={"p": "q"}))
    options = {"bodyFormat": "json", "bodySchema": "id INT", "columns": "queueOffset,id"}
    options |= {"onBadRecord": "dead_letter", "deadLetterTopic": dead}
    batches = source.run(source.stream(topic=topic, startingOffsets="earliest", **options))
    assert sorted(tuple(row) for row in batches.rows) == [(0, 1), (2, 3)]
    [letter] = source.load(topic=dead, columns="body,tags,keys,properties,msgId").collect()
    assert (bytes(letter.body), letter.tags, letter.keys) == (b"no JSON", "t", "k")
    assert letter.properties["p"] == "q"
    assert letter.properties["DLQ_ORIGIN_TOPIC"] == topic
    assert letter.properties["DLQ_ORIGIN_QUEUE_OFFSET"] == "1"
    # Each run of a batch read sends them again, with the same id.
    assert source.load(topic=topic, **options).count() == 2
    ids = [row.msgId for row in source.load(topic=dead, columns="msgId").collect()]
    assert ids == [letter.msgId] * 2


def test_load_refuses_the_sources_own_topic_as_dead_letter_topic(source):
    topic = source.cluster.topic(1)
    with pytest.raises(Exception, match="deadLetterTopic") as raised:
        source.load(topic=topic, onBadRecord="dead_letter", deadLetterTopic=topic)
    assert f"the query reads {topic} itself" in complaint(raised)
