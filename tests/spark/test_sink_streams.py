"""Streaming writes: the sent rows, repeats under the same ids, and errors that end the query."""

import pytest
from chispa import assert_df_equality
from pyspark.errors import StreamingQueryException
from support.spark.sink_fixture import forget_the_end_of_batch_0, ids_of

from rmq_spark.spark.data_source import RocketPollDataSource
from rmq_spark.spark.write.reports import ROW_ID
from rmq_spark.spark.writer import StreamRowWriter

pytestmark = pytest.mark.deep

EARLIEST = {"startingOffsets": "earliest"}


def test_sink_stream_copies_a_topic(sink):
    topic = sink.filled(*"abcdefgh", TAGS="t", KEYS="k")
    same = "queueId,queueOffset,keys,tags,body"
    columns = f"topic,brokerName,{same},bornTimestamp,storeTimestamp,msgId,properties"
    query = sink.copy(sink.stream(topic=topic, columns=columns, **EARLIEST))
    assert_df_equality(
        sink.load(topic=sink.topic, columns=same),
        sink.load(topic=topic, columns=same),
        ignore_row_order=True,
    )
    assert {each[:2] for each in ids_of(sink.messages(8))} == {(query.id, "0")}


def test_restarted_sink_query_sends_only_new_rows_under_new_ids(sink):
    topic = sink.filled("a", "b")
    rows = sink.stream(topic=topic, columns="body", **EARLIEST)
    sink.copy(rows)
    sink.cluster.send(topic, "c")
    query = sink.copy(rows)
    assert sorted(message.body for message in sink.messages(3)) == [b"a", b"b", b"c"]
    assert [each[:2] for each in ids_of(sink.messages(3))] == [(query.id, batch) for batch in "001"]


def test_repeated_sink_batch_sends_the_same_message_ids(sink):
    """A removed entry of the commit log simulates a crash between sink and commit log."""
    rows = sink.stream(topic=sink.filled(*range(20)), columns="body", **EARLIEST)
    sink.copy(rows)
    once = ids_of(sink.messages(20))
    assert len(set(once)) == 20
    forget_the_end_of_batch_0(sink.checkpoint("sink"))
    sink.copy(rows)
    twice = sink.messages(40)
    assert ids_of(twice) == sorted(2 * once)
    by_id = {}
    for message in twice:
        by_id.setdefault(*ids_of([message]), set()).add(message.body)
    assert all(len(bodies) == 1 for bodies in by_id.values())


@pytest.mark.parametrize("ids", ["true", "keys"])
def test_row_ids_by_keys_survive_a_shuffle_and_positions_do_not(sink, ids):
    text = "cast(body as string)"
    rows = sink.stream(topic=sink.filled(*range(20)), columns="body", **EARLIEST)
    rows = rows.selectExpr(f"{text} as body", f"concat('k', {text}) as keys")
    for partitions in (2, 3):
        sink.copy(rows.repartition(partitions, "keys"), rowIds=ids)
        forget_the_end_of_batch_0(sink.checkpoint("sink"))
    bodies = {}
    for message in sink.messages(40):
        bodies.setdefault(message.properties[ROW_ID], set()).add(message.body)
    assert max(map(len, bodies.values())) == (1 if ids == "keys" else 2)
    assert (len(bodies) == 20) is (ids == "keys")


def test_unreachable_name_server_ends_the_sink_query_in_its_first_batch(sink):
    rows = sink.stream(topic=sink.filled("a"), columns="body", **EARLIEST)
    with pytest.raises(StreamingQueryException, match="option namesrvAddr: no name server answers"):
        sink.copy(rows, namesrvAddr="127.0.0.1:1")


def test_unsendable_row_ends_the_sink_query_by_row_and_partition(sink):
    rows = sink.stream(topic=sink.filled("a"), columns="body", **EARLIEST)
    with pytest.raises(
        StreamingQueryException, match="row 0 of partition 0, column body: it is null"
    ):
        sink.copy(rows.selectExpr("cast(null as string) as body"))
    assert sink.messages(0) == []


@pytest.mark.wide
def test_sink_stream_accepts_rows_one_by_one(sink):
    """Spark 4.0 gives streams no record batches; newer releases run this path here."""

    class RowSource(RocketPollDataSource):
        @classmethod
        def name(cls):
            return "rocketpoll_rows"

        def streamWriter(self, schema, overwrite):  # noqa: ARG002, N802  # name in Spark's interface
            return StreamRowWriter(self.options, schema)

    sink.spark.dataSource.register(RowSource)
    topic = sink.filled(*"abc", TAGS="t", KEYS="k")
    rows = sink.stream(topic=topic, columns="storeTimestamp,body,tags,properties,keys", **EARLIEST)
    sink.copy(rows, into="rocketpoll_rows")
    assert sorted((each.body, each.tags, each.keys) for each in sink.messages(3)) == [
        (body, "t", ("k",)) for body in (b"a", b"b", b"c")
    ]
