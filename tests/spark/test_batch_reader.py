"""Batch reads: range, partitions, and losses after load()."""

import pickle
import sys

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from support.spark.exactly_once_sink import CommittingSink
from support.spark.source_queries import schema_of, send

from rmq_spark.client.errors import ConnectionFailed
from rmq_spark.spark.batch_reader import BatchReader
from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.data_source import RocketPollDataSource
from rmq_spark.spark.errors import BrokersAway, DataLoss, OptionError, SchemaError

SCHEMA = schema_of("body binary")


@pytest.fixture(autouse=True)
def _same_python(monkeypatch):
    """Make Spark start the Python that runs the tests."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)


def reader(broker, topic, schema=SCHEMA, **more):
    return BatchReader({"namesrvAddr": broker.address, "topic": topic, **more}, schema)


def bodies(found):
    pieces = found.partitions()
    found = pickle.loads(pickle.dumps(found))  # noqa: S301  # as Spark does
    return [
        body
        for piece in pieces
        for batch in found.read(piece)
        for body in batch.column("body").to_pylist()
    ]


def test_batch_read_covers_all_messages_from_first_to_last(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    send(rocketpoll_broker, rocketpoll_topic, 2, "c")
    assert bodies(reader(rocketpoll_broker, rocketpoll_topic)) == [b"a", b"b", b"c"]


def test_batch_read_of_relative_offsets_and_of_a_key(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abcdef", keys="k")
    more = {
        "startingOffsets": "-5 messages",
        "endingOffsets": f'{{"{rocketpoll_topic}": {{"0": 4, "*": -1}}}}',
    }
    found = reader(rocketpoll_broker, rocketpoll_topic, maxRecordsPerPartition="2", **more)
    assert len(found.partitions()) == 2
    assert bodies(found) == [b"b", b"c", b"d"]
    assert bodies(reader(rocketpoll_broker, rocketpoll_topic, key="k")) == [
        b"a",
        b"b",
        b"c",
        b"d",
        b"e",
        b"f",
    ]


def test_second_action_on_a_recreated_topic_is_data_loss(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abcde")
    found = reader(rocketpoll_broker, rocketpoll_topic, maxRecordsPerPartition="2")
    pieces = found.partitions()
    marks = [each.last_mark for bundle in pieces for each in bundle.ranges]
    assert None not in marks  # they distinguish messages of the same millisecond
    rocketpoll_broker.delete_topic(rocketpoll_topic)
    rocketpoll_broker.create_topic(rocketpoll_topic, 1)
    send(rocketpoll_broker, rocketpoll_topic, 0, *"ABCDEFG")
    for piece in pieces:
        with pytest.raises(DataLoss, match="the topic was deleted and recreated"):
            list(found.read(piece))


@pytest.fixture
def loaded(rocketpoll_broker, rocketpoll_topic):
    """Return a function that loads a topic and returns a factory of readers."""

    def load(**more):
        given = {"namesrvAddr": rocketpoll_broker.address, "topic": rocketpoll_topic}
        source = RocketPollDataSource(CaseInsensitiveDict(given | more))
        source.schema()
        kept = pickle.dumps(source)
        return lambda: pickle.loads(kept).reader(SCHEMA)  # noqa: S301  # as Spark does

    return load


def test_readers_of_a_loaded_batch_end_where_queues_ended_at_load(
    loaded, rocketpoll_broker, rocketpoll_topic
):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    make, last = loaded(), loaded(startingOffsets="-1 message")
    send(rocketpoll_broker, rocketpoll_topic, 0, "c")
    send(rocketpoll_broker, rocketpoll_topic, 1, "d")
    assert bodies(make()) == [b"a", b"b"]
    send(rocketpoll_broker, rocketpoll_topic, 0, "e")
    assert bodies(make()) == [b"a", b"b"]
    assert bodies(last()) == [b"b"]
    assert bodies(loaded()()) == [b"a", b"b", b"c", b"e", b"d"]


def test_batch_read_bound_may_be_an_offset_past_the_end_at_load(
    loaded, rocketpoll_broker, rocketpoll_topic
):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a")
    end = loaded(endingOffsets=f'{{"{rocketpoll_topic}": {{"0": 2, "*": -1}}}}')
    start = loaded(startingOffsets=f'{{"{rocketpoll_topic}": {{"0": 2, "*": -2}}}}')
    send(rocketpoll_broker, rocketpoll_topic, 0, "b", "c")
    assert bodies(end()) == [b"a", b"b"]
    assert bodies(start()) == []


def test_committed_batches_of_a_loaded_read_are_those_at_load(
    loaded, monkeypatch, own_producers, rocketpoll_broker, rocketpoll_topic
):
    sink = CommittingSink(monkeypatch, rocketpoll_broker, rocketpoll_topic)
    first = sink.write(0, [["a", "b"]])
    make = loaded(isolation="committed")
    sink.write(1, [["c"]])
    assert bodies(make()) == [body.encode() for body in first]


def test_queue_shorter_than_at_load_is_data_loss(loaded, rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abc")
    strict, lenient = loaded(), loaded(failOnDataLoss="false")
    rocketpoll_broker.delete_topic(rocketpoll_topic)
    rocketpoll_broker.create_topic(rocketpoll_topic, 1)
    send(rocketpoll_broker, rocketpoll_topic, 0, "A")
    with pytest.raises(
        DataLoss, match=r"ended at 3 when load\(\) ran, and ends at 1 now.* load\(\)"
    ):
        strict().partitions()
    assert bodies(lenient()) == [b"A"]


def test_batch_read_of_an_unreachable_broker_at_load_ends_where_it_is_later(
    loaded, monkeypatch, rocketpoll_broker, rocketpoll_topic
):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a")
    with monkeypatch.context() as patch:

        def away(self, queues, *, required=None):
            raise BrokersAway("broker-a", 0, ConnectionFailed("broker-a:1", "nobody listens"))

        patch.setattr(QueueClient, "ends", away)
        make = loaded()
    send(rocketpoll_broker, rocketpoll_topic, 0, "b")
    assert bodies(make()) == [b"a", b"b"]


def test_empty_batch_read_has_no_partitions(rocketpoll_broker, rocketpoll_topic):
    found = reader(rocketpoll_broker, rocketpoll_topic)
    assert found.partitions() == []
    assert list(found.read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"startingOffsets": "latest"}, "starts at the end has no rows"),
        ({"maxOffsetsPerTrigger": "5"}, "it applies to streams only"),
        ({"schema": schema_of("value string")}, "there is no column value"),
    ],
)
def test_streaming_options_are_refused_in_a_batch_read(
    rocketpoll_broker, rocketpoll_topic, more, said
):
    with pytest.raises((OptionError, SchemaError), match=said):
        reader(rocketpoll_broker, rocketpoll_topic, **more)


@pytest.mark.parametrize("end", [0, 1])
def test_batch_read_with_an_end_before_its_start_is_refused(
    rocketpoll_broker, rocketpoll_topic, end
):
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abc")
    more = {
        "endingOffsets": f'{{"{rocketpoll_topic}": {{"0": {end}, "*": -1}}}}',
        "startingOffsets": f'{{"{rocketpoll_topic}": {{"0": 2, "*": -2}}}}',
    }
    with pytest.raises(
        OptionError,
        match=rf"option endingOffsets: queue 0 .* would end at {end}, before it starts at 2",
    ):
        reader(rocketpoll_broker, rocketpoll_topic, **more).partitions()
