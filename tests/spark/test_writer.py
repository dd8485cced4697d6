"""The sink's writers without Spark; `test_sink_batches` and `test_sink_streams` use Spark."""

import logging
import pickle
from dataclasses import replace

import pytest
from pyspark.sql import Row
from support.spark.exactly_once_sink import CommittingSink
from support.spark.source_queries import schema_of

from rmq_spark.client.manifest import CommittedSpan
from rmq_spark.spark.data_source import RocketPollDataSource
from rmq_spark.spark.errors import OptionError, SchemaError, WriteError
from rmq_spark.spark.options.sink_columns import SinkColumn
from rmq_spark.spark.write.reports import ROW_ID, TaskReport, WriteTask
from rmq_spark.spark.writer import BatchWriter, TaskCommitMessage, to_record_batches
from rmq_spark.wire.message_queue import MessageQueue


def test_sink_rows_become_columns_of_their_types():
    kinds = {
        "body": "binary",
        "properties": "map<string,string>",
        "keys": "array<string>",
        "flag": "int",
    }
    sent = [SinkColumn(name, 2 * at, kind) for at, (name, kind) in enumerate(kinds.items())]
    rows = [
        Row(bytearray(b"a"), 0, {"x": "1", "y": None}, 0, ["k"], 0, 5),
        Row(b"b", 0, None, 0, None, 0, None),
    ]
    (batch,) = to_record_batches(iter(rows), sent)
    assert [batch.column(2 * at).to_pylist() for at in range(4)] == [
        [b"a", b"b"],
        [[("x", "1"), ("y", None)], None],
        [["k"], None],
        [5, None],
    ]
    assert not list(to_record_batches(iter([]), sent))


SENT = TaskCommitMessage(
    WriteTask("w", 0, 1),
    TaskReport(3, 50, 0, (CommittedSpan(MessageQueue("T", "a", 2), 7, 3, 0, 0),)),
)


def test_task_report_survives_pickling():
    again = pickle.loads(pickle.dumps(SENT))  # noqa: S301  # as Spark does
    assert again == SENT


def test_driver_logs_the_rows_of_a_commit_and_an_abort(rocketpoll_broker, rocketpoll_topic, caplog):
    caplog.set_level(logging.INFO, "rmq_spark")
    given = {"namesrvAddr": rocketpoll_broker.address, "topic": rocketpoll_topic}
    schema = schema_of("body string")
    writer = RocketPollDataSource(given).writer(schema, overwrite=False)
    assert isinstance(writer, BatchWriter)
    writer.commit([SENT, SENT])
    assert "6 rows, 100 bytes, of 2 tasks are in 1 queues" in caplog.text
    writer.commit([SENT, replace(SENT, rows=SENT.rows._replace(retries=3))])
    assert "of 2 tasks are in 1 queues, after 3 retries" in caplog.text
    writer.abort([SENT, None])
    assert (
        "was aborted: 3 rows, 50 bytes, of 1 tasks are in 1 queues, 1 tasks have not reported"
        in caplog.text
    )
    assert "the sent rows stay" in caplog.text
    writer = RocketPollDataSource(given).streamWriter(schema, overwrite=False)
    writer.commit([SENT], 8)
    writer.abort([None], 9)
    assert "batch 8: 3 rows" in caplog.text
    assert "batch 9 was aborted" in caplog.text


def test_writer_needs_a_body_column_and_a_spark_task(rocketpoll_broker, rocketpoll_topic):
    source = RocketPollDataSource(
        {"namesrvAddr": rocketpoll_broker.address, "topic": rocketpoll_topic}
    )
    with pytest.raises(SchemaError, match="there is no column body"):
        source.streamWriter(schema_of("tags string"), overwrite=False)
    with pytest.raises(WriteError, match="cannot be overwritten"):
        source.writer(schema_of("body string"), overwrite=True)
    with pytest.raises(WriteError, match="in Spark's tasks only"):
        source.writer(schema_of("body string"), overwrite=False).write(iter([]))


def test_write_name_is_refused_for_streams(rocketpoll_broker, rocketpoll_topic):
    given = {
        "namesrvAddr": rocketpoll_broker.address,
        "topic": rocketpoll_topic,
        "writeName": "totals-1",
    }
    source = RocketPollDataSource(given)
    assert source.writer(schema_of("body string"), overwrite=False)._write_id == "totals-1"
    with pytest.raises(OptionError, match="option writeName: it applies to batch writes"):
        source.streamWriter(schema_of("body string"), overwrite=False)


@pytest.mark.parametrize(
    ("query", "options", "known_by"),
    [
        ("query", {}, "query:4:0:"),
        ("query", {"writeName": "again"}, "query/again:4:0:"),
        ("query", {"txnAppId": "app", "txnVersion": "9"}, "app:9:0:"),
        (None, {"writeName": "daily"}, "daily:0:0:"),
        (None, {"txnAppId": "app", "txnVersion": "9"}, "app:9:0:"),
    ],
)
def test_rows_of_a_batch_write_have_the_same_ids_when_it_is_started_again(
    monkeypatch, rocketpoll_broker, rocketpoll_topic, query, options, known_by
):
    sink = CommittingSink(
        monkeypatch,
        rocketpoll_broker,
        rocketpoll_topic,
        query,
        **{"delivery": "at_least_once", **options},
    )
    sink.is_batch_write = True
    for _ in range(2):
        sink.write_batch(4, sink.rows(2))
    found = [each.properties[ROW_ID] for each in rocketpoll_broker.messages(rocketpoll_topic)]
    assert sorted(found) == sorted([known_by + "0", known_by + "1"] * 2)


def test_txn_app_id_and_version_are_refused_for_streams(rocketpoll_broker, rocketpoll_topic):
    given = {
        "namesrvAddr": rocketpoll_broker.address,
        "topic": rocketpoll_topic,
        "txnAppId": "app",
        "txnVersion": "9",
    }
    with pytest.raises(OptionError, match="option txnAppId: it applies to batch writes"):
        RocketPollDataSource(given).streamWriter(schema_of("body string"), overwrite=False)


def test_deduplication_by_id_and_content_loses_no_reordered_row(
    monkeypatch, rocketpoll_broker, rocketpoll_topic
):
    """After a shuffle, the id of one row may belong to another row."""
    sink = CommittingSink(
        monkeypatch, rocketpoll_broker, rocketpoll_topic, delivery="at_least_once"
    )
    [rows] = sink.rows(4)
    for order in (rows, rows[::-1]):
        sink.attempt(0, 0, order)
    found = rocketpoll_broker.messages(rocketpoll_topic)
    by_id = {each.properties[ROW_ID]: each.text for each in found[::-1]}
    assert len(by_id) == 4
    by_both = {(each.properties[ROW_ID], each.text) for each in found}
    assert {text for _, text in by_both} == set(rows)
