"""Batch writes: the messages in the topic, and the errors for mistakes."""

import json

import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, PySparkException
from support.brokers.broker_kinds import NAME, wait_until
from support.spark.sink_fixture import forget_the_end_of_batch_0, ids_of
from support.spark.source_fixture import complaint

from rmq_spark.wire.bodies.configs import TopicConfig

READ_ONLY = 4


def test_batch_write_round_trips_rows(sink):
    rows = sink.spark.range(1_000).selectExpr(
        "cast(concat('body ', id) as binary) as body",
        "if(id % 3 = 0, null, concat('k', id)) as keys",
        "if(id % 5 = 0, null, 'even') as tags",
        "cast(id % 7 as int) as flag",
        "cast(id % 4 as int) as queueId",
    )
    sink.write(rows)
    found = sink.load(topic=sink.topic, columns="body,keys,tags,flag,queueId")
    assert_df_equality(found, rows, ignore_row_order=True, ignore_nullable=True)


def test_sink_keys_tags_and_properties_are_seen_by_a_client(sink):
    rows = sink.spark.sql(
        "select 'grün' as body, 'red' as tags, array('k1', 'k2') as keys, "
        "map('n', '7', 'no', null) as properties"
    )
    sink.write(rows)
    (message,) = sink.messages(1)
    assert (message.body.decode(), message.keys, message.tags) == ("grün", ("k1", "k2"), "red")
    assert message.properties["n"] == "7"
    assert "no" not in message.properties
    assert sink.bodies(topic=sink.topic, tags="red") == ["grün"]


@pytest.mark.deep
def test_trace_context_survives_read_and_write(sink):
    traced = (
        "map('traceparent', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', "
        "'tracestate', 'shop=1,b=2', 'baggage', 'customer=ada')"
    )
    sink.write(sink.spark.sql(f"select 'one' as body, {traced} as properties"))
    sink.write(sink.load(topic=sink.topic, columns="body,properties"))
    first, second = (message.properties for message in sink.messages(2))
    for name in ("traceparent", "tracestate", "baggage"):
        assert first[name] == second[name]
    assert first["tracestate"] == "shop=1,b=2"


def test_named_write_repeats_its_row_ids(sink):
    """For example in foreachBatch, where a batch is repeated after a crash."""
    rows = sink.spark.range(0, 10, 1, 2).selectExpr("cast(id as string) as body")
    for _ in range(2):
        sink.write(rows, writeName="totals-17")
    ids = ids_of(sink.messages(20))
    assert {name for name, *_ in ids} == {"totals-17"}
    assert ids[::2] == ids[1::2]
    assert len(set(ids)) == 10


@pytest.mark.deep
def test_repeated_foreach_batch_sends_the_same_message_ids(sink):
    """Writes need names only if a batch has two of them."""

    def send(rows, batch_id):
        sink.write(rows)
        sink.write(rows, writeName="again")

    topic, checkpoint = sink.filled("a", "b"), sink.checkpoint("each")
    for _ in range(2):
        rows = sink.stream(topic=topic, columns="body", startingOffsets="earliest")
        writer = rows.writeStream.foreachBatch(send).trigger(availableNow=True)
        writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
        forget_the_end_of_batch_0(checkpoint)
    ids = ids_of(sink.messages(8))
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    assert {tuple(each[:2]) for each in ids} == {(query_id, "0"), (f"{query_id}/again", "0")}
    assert ids[::2] == ids[1::2]
    assert len(set(ids)) == 4


def test_row_goes_to_the_queue_it_names(sink):
    rows = [(NAME, 3, "a"), (NAME, 1, "b")]
    sink.write(sink.spark.createDataFrame(rows, "brokerName string, queueId int, body string"))
    found = {message.body: message.queue.queue_id for message in sink.messages(2)}
    assert found == {b"a": 3, b"b": 1}


@pytest.mark.deep
def test_delayed_rows_come_later(sink):
    rows = [("now", 0, "a"), ("later", 1, "b")]
    sink.write(
        sink.spark.createDataFrame(rows, "body string, delayLevel int, tags string").coalesce(1)
    )
    found = {message.body.decode(): message for message in sink.messages(2)}
    assert found["later"].store_timestamp - found["now"].store_timestamp >= 900
    assert found["later"].tags == "b"
    assert [each[3] for each in ids_of(found.values())] == ["0", "1"]


def test_sink_mistakes_are_found_on_the_driver(sink):
    rows = sink.spark.sql("select 'a' as body, 'b' as tag")
    with pytest.raises(AnalysisException, match=r"there is no column tag \(is it tags\?\)"):
        sink.write(rows)
    rows = rows.drop("tag")
    with pytest.raises(
        AnalysisException, match=r'a topic cannot be overwritten.*\.mode\("append"\)'
    ):
        sink.write(rows, mode="overwrite")
    with pytest.raises(
        AnalysisException, match=r'Please use either the "Append" or "Overwrite" mode'
    ):
        sink.write(rows, mode="errorifexists")
    with pytest.raises(
        AnalysisException, match="option namesrvAddr: no name server answers: cannot connect"
    ):
        sink.write(rows, namesrvAddr="127.0.0.1:1")
    with pytest.raises(
        AnalysisException, match="option startingOffsets: it does not apply to the sink"
    ):
        sink.write(rows, startingOffsets="earliest")
    assert sink.messages(0) == []


def test_unsendable_row_of_a_batch_write_is_named_by_row_and_partition(sink):
    rows = sink.spark.range(0, 10, 1, 2).selectExpr("if(id = 7, null, 'a') as body")
    with pytest.raises(
        PySparkException, match="row 2 of partition 1, column body: it is null: remove such"
    ):
        sink.write(rows)


def test_sink_to_an_unwritable_topic_is_refused(sink):
    topic, cluster = sink.cluster.topic(), sink.cluster
    config = TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4, perm=READ_ONLY)
    cluster.api.admin.create_topic(cluster.address, config)
    # RocketMQ leaves that check to clients, which learn it from the name server
    wait_until("its route", lambda: not cluster.sender.routes.refresh(topic).publish_queues)
    with pytest.raises(AnalysisException) as raised:
        sink.write(sink.spark.sql("select 'a' as body"), topic=topic)
    assert complaint(raised) == (
        f"OptionError: option topic: no route to topic {topic}: no broker with a master allows "
        "writing to it. Set its perm to 6 (rw), or start its masters"
    )
