"""The sink as Spark runs it, in batches and streams."""

from __future__ import annotations

import logging
import pickle

import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import Row
from source_parts import schema_of

from rmq_spark.client.arrow_sends import SentSpan
from rmq_spark.spark.errors import SchemaError, WriteError
from rmq_spark.spark.sink_columns import SinkColumn
from rmq_spark.spark.sink_rows import ROW_ID, WriteTask
from rmq_spark.spark.source import RocketPollDataSource
from rmq_spark.spark.writer import BatchWriter, StreamRowWriter, TaskSent, record_batches
from rmq_spark.wire.message_queue import MessageQueue

PATIENCE_SECONDS = 480


@pytest.fixture
def write(rocketpoll_broker, rocketpoll_topic):
    """Write a data frame to the test's topic."""

    def write(rows, mode="append", **options):
        given = {"namesrvAddr": rocketpoll_broker.address, "topic": rocketpoll_topic, **options}
        rows.write.format("rocketpoll").mode(mode).options(**given).save()

    return write


@pytest.fixture
def stream(rocketpoll_broker, rocketpoll_topic, tmp_path):
    """Run a stream into the test's topic over all that there is; the query, when it has ended."""

    def stream(rows, mode="append", sink="rocketpoll", **options):
        given = {
            "namesrvAddr": rocketpoll_broker.address,
            "topic": rocketpoll_topic,
            "checkpointLocation": str(tmp_path / "checkpoint"),
            **options,
        }
        writer = rows.writeStream.format(sink).outputMode(mode).options(**given)
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(PATIENCE_SECONDS)
        finally:
            query.stop()
        return query

    return stream


def read(spark, broker, topic, columns, *, is_stream=False):
    reader = spark.readStream if is_stream else spark.read
    given = {"namesrvAddr": broker.address, "topic": topic, "columns": columns}
    return reader.format("rocketpoll").options(**given, startingOffsets="earliest").load()


def ids_in(broker, topic):
    return sorted(message.properties[ROW_ID] for message in broker.messages(topic))


def test_what_is_written_is_what_is_read(spark, write, rocketpoll_broker, rocketpoll_topic):
    rows = spark.range(1_000).selectExpr(
        "cast(concat('body ', id) as binary) as body",
        "if(id % 3 = 0, null, concat('k', id)) as keys",
        "if(id % 5 = 0, null, 'even') as tags",
        "cast(id % 7 as int) as flag",
        "cast(id % 4 as int) as queueId",
    )
    write(rows)
    found = read(spark, rocketpoll_broker, rocketpoll_topic, "body,keys,tags,flag,queueId")
    assert_df_equality(found, rows, ignore_row_order=True, ignore_nullable=True)


def test_each_row_has_an_id_of_its_write_its_partition_and_its_number(
    spark, write, rocketpoll_broker, rocketpoll_topic
):
    rows = spark.range(0, 10, 1, 2).selectExpr("cast(id as string) as body", "map('mine', 'x') as properties")
    write(rows)
    ids = [each.split(":") for each in ids_in(rocketpoll_broker, rocketpoll_topic)]
    (write_id,) = {each[0] for each in ids}
    assert [each[1:] for each in ids] == [["0", str(part), str(row)] for part in range(2) for row in range(5)]
    assert {message.properties["mine"] for message in rocketpoll_broker.messages(rocketpoll_topic)} == {"x"}
    write(rows)
    assert {each.partition(":")[0] for each in ids_in(rocketpoll_broker, rocketpoll_topic)} > {write_id}


def test_mistakes_are_found_on_the_driver(spark, write, rocketpoll_broker, rocketpoll_topic):
    rows = spark.range(1).selectExpr("'a' as body", "'b' as tag")
    with pytest.raises(AnalysisException, match=r"there is no column tag \(is it tags\?\)"):
        write(rows)
    rows = rows.drop("tag")
    with pytest.raises(AnalysisException, match=r'a topic cannot be overwritten.*\.mode\("append"\)'):
        write(rows, mode="overwrite")
    with pytest.raises(AnalysisException, match=r'Please use either the "Append" or "Overwrite" mode'):
        write(rows, mode="errorifexists")
    with pytest.raises(AnalysisException, match="option namesrvAddr: no name server answers: cannot connect"):
        write(rows, namesrvAddr="127.0.0.1:1")
    with pytest.raises(AnalysisException, match="option startingOffsets: it is of no use to the sink"):
        write(rows, startingOffsets="earliest")
    assert rocketpoll_broker.messages(rocketpoll_topic) == []


def test_a_row_that_cannot_be_sent_is_named(spark, write):
    rows = spark.range(0, 10, 1, 2).selectExpr("if(id = 7, null, 'a') as body")
    with pytest.raises(PySparkException, match="row 2 of partition 1, column body: it is null: leave such"):
        write(rows)


def test_a_topic_is_copied_as_it_is_read(spark, stream, rocketpoll_broker, rocketpoll_topic):
    source = f"{rocketpoll_topic}-source"
    rocketpoll_broker.create_topic(source)
    rocketpoll_broker.send(source, *"abcdefgh", tags="t", keys="k")
    columns = (
        "topic,brokerName,queueId,queueOffset,keys,tags,body,bornTimestamp,storeTimestamp,msgId,properties"
    )
    query = stream(read(spark, rocketpoll_broker, source, columns, is_stream=True))
    same = "queueId,queueOffset,keys,tags,body"
    assert_df_equality(
        read(spark, rocketpoll_broker, rocketpoll_topic, same),
        read(spark, rocketpoll_broker, source, same),
        ignore_row_order=True,
    )
    ids = ids_in(rocketpoll_broker, rocketpoll_topic)
    assert {each.rpartition(":")[0].rpartition(":")[0] for each in ids} == {f"{query.id}:0"}


def test_a_batch_that_is_run_again_has_the_same_ids(
    spark, stream, rocketpoll_broker, rocketpoll_topic, tmp_path
):
    """As after a crash between the sink and the commit log: its entry is missing."""
    source = f"{rocketpoll_topic}-source"
    rocketpoll_broker.create_topic(source)
    rocketpoll_broker.send(source, *(str(number) for number in range(20)))
    rows = read(spark, rocketpoll_broker, source, "body", is_stream=True)
    stream(rows)
    once = ids_in(rocketpoll_broker, rocketpoll_topic)
    assert len(set(once)) == len(once) == 20
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    stream(rows)
    assert ids_in(rocketpoll_broker, rocketpoll_topic) == sorted(2 * once)
    by_id = {}
    for message in rocketpoll_broker.messages(rocketpoll_topic):
        by_id.setdefault(message.properties[ROW_ID], set()).add(message.body)
    assert all(len(bodies) == 1 for bodies in by_id.values())


def test_complete_mode_sends_the_whole_result_with_each_batch(
    spark, stream, rocketpoll_broker, rocketpoll_topic
):
    source = f"{rocketpoll_topic}-source"
    rocketpoll_broker.create_topic(source)
    rocketpoll_broker.send(source, "a", "b", "a")
    rows = read(spark, rocketpoll_broker, source, "body", is_stream=True)
    counts = rows.groupBy("body").count().selectExpr("concat(cast(body as string), ' ', count) as body")
    stream(counts, mode="complete")
    assert sorted(each.body for each in rocketpoll_broker.messages(rocketpoll_topic)) == [b"a 2", b"b 1"]
    rocketpoll_broker.send(source, "b")
    stream(counts, mode="complete")
    found = sorted(each.body for each in rocketpoll_broker.messages(rocketpoll_topic))
    assert found == [b"a 2", b"a 2", b"b 1", b"b 2"]


def test_a_stream_with_a_wrong_address_ends_with_its_first_batch(spark, stream, rocketpoll_broker):
    source = "writer-source"
    rocketpoll_broker.send(source, "a")
    rows = read(spark, rocketpoll_broker, source, "body", is_stream=True)
    with pytest.raises(StreamingQueryException, match="option namesrvAddr: no name server answers"):
        stream(rows, namesrvAddr="127.0.0.1:1")


def test_rows_that_come_one_by_one_are_sent_as_well(spark, stream, rocketpoll_broker, rocketpoll_topic):
    """Spark 4.0 gives streams no record batches: this is its way in a newer release."""

    class RowSource(RocketPollDataSource):
        @classmethod
        def name(cls):
            return "rocketpoll_rows"

        def streamWriter(self, schema, overwrite):  # noqa: ARG002, N802  # Spark's
            return StreamRowWriter(self.options, schema)

    spark.dataSource.register(RowSource)
    source = f"{rocketpoll_topic}-source"
    rocketpoll_broker.create_topic(source)
    rocketpoll_broker.send(source, *"abc", tags="t", keys="k")
    rows = read(spark, rocketpoll_broker, source, "storeTimestamp,body,tags,properties,keys", is_stream=True)
    stream(rows, sink="rocketpoll_rows")
    messages = rocketpoll_broker.messages(rocketpoll_topic)
    assert sorted((each.body, each.tags, each.keys) for each in messages) == [
        (body, "t", ("k",)) for body in (b"a", b"b", b"c")
    ]


def test_rows_become_columns_of_the_kinds_that_they_have():
    kinds = {"body": "binary", "properties": "map<string,string>", "keys": "array<string>", "flag": "int"}
    sent = [SinkColumn(name, 2 * at, kind) for at, (name, kind) in enumerate(kinds.items())]
    rows = [
        Row(bytearray(b"a"), 0, {"x": "1", "y": None}, 0, ["k"], 0, 5),
        Row(b"b", 0, None, 0, None, 0, None),
    ]
    (batch,) = record_batches(iter(rows), sent)
    assert [batch.column(2 * at).to_pylist() for at in range(4)] == [
        [b"a", b"b"],
        [[("x", "1"), ("y", None)], None],
        [["k"], None],
        [5, None],
    ]
    assert not list(record_batches(iter([]), sent))


SENT = TaskSent(WriteTask("w", 0, 1), 0, 3, (SentSpan(MessageQueue("T", "a", 2), 7, 3),))


def test_a_task_reports_which_rows_it_sent_and_where():
    again = pickle.loads(pickle.dumps(SENT))  # noqa: S301  # what Spark does
    assert again == SENT
    assert again.row_ids == ("w:0:1:0", "w:0:1:2")
    assert TaskSent(WriteTask("w", 0, 1), 0, 0, ()).row_ids is None


def test_the_driver_says_what_was_sent_and_what_stays(rocketpoll_broker, rocketpoll_topic, caplog):
    caplog.set_level(logging.INFO, "rmq_spark")
    given = {"namesrvAddr": rocketpoll_broker.address, "topic": rocketpoll_topic}
    schema = schema_of("body string")
    writer = RocketPollDataSource(given).writer(schema, overwrite=False)
    assert isinstance(writer, BatchWriter)
    writer.commit([SENT, SENT])
    assert "6 rows of 2 tasks are in 1 queues" in caplog.text
    writer.abort([SENT, None])
    assert (
        "was given up: 3 rows of 1 tasks are in 1 queues, 1 tasks have not said what they sent" in caplog.text
    )
    assert "what was sent stays" in caplog.text
    writer = RocketPollDataSource(given).streamWriter(schema, overwrite=False)
    writer.commit([SENT], 8)
    writer.abort([None], 9)
    assert "batch 8: 3 rows" in caplog.text
    assert "batch 9 was given up" in caplog.text


def test_a_writer_needs_columns_that_fit_and_a_task_to_write_in(rocketpoll_broker, rocketpoll_topic):
    source = RocketPollDataSource({"namesrvAddr": rocketpoll_broker.address, "topic": rocketpoll_topic})
    with pytest.raises(SchemaError, match="there is no column body"):
        source.streamWriter(schema_of("tags string"), overwrite=False)
    with pytest.raises(WriteError, match="cannot be overwritten"):
        source.writer(schema_of("body string"), overwrite=True)
    with pytest.raises(WriteError, match="in Spark's tasks only"):
        source.writer(schema_of("body string"), overwrite=False).write(iter([]))
