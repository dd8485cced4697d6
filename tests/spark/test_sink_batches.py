"""Batch writes: what a client then finds in the topic, and the errors for mistakes."""

import json

import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, PySparkException
from support.brokers.broker_kinds import NAME, wait_until
from support.spark.sink_fixture import forget_the_end_of_batch_0, ids_of
from support.spark.source_fixture import complaint

from rmq_spark.spark.write.rows import ROW_ID
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


def test_row_ids_contain_write_partition_and_number(sink):
    rows = sink.spark.range(0, 10, 1, 2).selectExpr("cast(id as string) as body")
    sink.write(rows)
    ids = ids_of(sink.messages(10))
    assert [each[1:] for each in ids] == [
        ("0", str(part), str(row)) for part in range(2) for row in range(5)
    ]
    sink.write(rows)
    assert len({write_id for write_id, *_ in ids_of(sink.messages(20))}) == 2


def test_named_write_repeats_its_row_ids(sink):
    """As in foreachBatch, where a batch is run again after a crash."""
    rows = sink.spark.range(0, 10, 1, 2).selectExpr("cast(id as string) as body")
    for _ in range(2):
        sink.write(rows, writeName="totals-17")
    ids = ids_of(sink.messages(20))
    assert {name for name, *_ in ids} == {"totals-17"}
    assert ids[::2] == ids[1::2]
    assert len(set(ids)) == 10


@pytest.mark.deep
def test_repeated_foreach_batch_sends_the_same_message_ids(sink):
    """Nobody has to name its writes, but where there are two in one batch."""

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


def test_batch_write_row_ids_use_txn_app_id_and_version(sink):
    rows = sink.spark.range(0, 10, 1, 2).selectExpr("cast(id as string) as body")
    for _ in range(2):
        sink.write(rows, txnAppId="paid", txnVersion=17)
    ids = ids_of(sink.messages(20))
    assert {each[:2] for each in ids} == {("paid", "17")}
    assert ids[::2] == ids[1::2]
    assert len(set(ids)) == 10


@pytest.mark.deep
def test_ids_can_be_left_out(sink):
    sink.write(sink.spark.sql("select 'a' as body"), rowIds="false")
    (message,) = sink.messages(1)
    assert ROW_ID not in message.properties


@pytest.mark.deep
def test_rows_go_to_the_topics_that_they_name(sink):
    other = sink.cluster.topic()
    rows = [(sink.topic, "a"), (other, "b"), (sink.topic, "c")]
    sink.write(sink.spark.createDataFrame(rows, "topic string, body string"), topic=None)
    assert sorted(message.body for message in sink.messages(2)) == [b"a", b"c"]
    assert [message.body for message in sink.messages(1, other)] == [b"b"]


def test_rows_with_one_sharding_key_keep_order_in_one_queue(sink):
    rows = sink.spark.range(0, 200, 1, 1).selectExpr(
        "cast(id as string) as body", "concat('key', id % 3) as shardingKey"
    )
    sink.write(rows)
    places = {}
    for message in sink.messages(200):  # by queue and offset
        places.setdefault(int(message.body) % 3, []).append(
            (message.queue.queue_id, int(message.body))
        )
    for number, found in places.items():
        assert len({queue_id for queue_id, _ in found}) == 1
        assert [body for _, body in found] == list(range(number, 200, 3))


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


@pytest.mark.deep
def test_batch_write_without_rows_sends_nothing(sink):
    sink.write(sink.spark.sql("select 'a' as body where false"))
    assert sink.messages(0) == []


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
    # RocketMQ lets clients see to it, who hear of it from the name server
    wait_until("its route", lambda: not cluster.sender.routes.refresh(topic).publish_queues)
    with pytest.raises(AnalysisException) as raised:
        sink.write(sink.spark.sql("select 'a' as body"), topic=topic)
    assert complaint(raised) == (
        f"OptionError: option topic: no route to topic {topic}: no broker with a master allows "
        "writing to it. Set its perm to 6, or start its masters"
    )
