import pickle

import pytest
from pyspark.sql.datasource import InputPartition
from source_parts import schema_of, send

from rmq_spark.spark.batch_reader import BatchReader
from rmq_spark.spark.errors import DataLoss, OptionError, SchemaError

SCHEMA = schema_of("body binary")


def reader(broker, topic, schema=SCHEMA, **more):
    return BatchReader({"namesrvAddr": broker.address, "topic": topic, **more}, schema)


def bodies(found):
    pieces = found.partitions()
    found = pickle.loads(pickle.dumps(found))  # noqa: S301  # what Spark does
    return [
        body
        for piece in pieces
        for batch in found.read(piece)
        for body in batch.column("body").to_pylist()
    ]


def test_a_batch_is_from_the_first_message_to_the_last(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    send(rocketpoll_broker, rocketpoll_topic, 2, "c")
    assert bodies(reader(rocketpoll_broker, rocketpoll_topic)) == [b"a", b"b", b"c"]


def test_or_of_what_is_asked_for(rocketpoll_broker, rocketpoll_topic):
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


def test_a_later_action_does_not_read_a_topic_that_was_made_again(
    rocketpoll_broker, rocketpoll_topic
):
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abcde")
    found = reader(rocketpoll_broker, rocketpoll_topic, maxRecordsPerPartition="2")
    pieces = found.partitions()
    marks = [each.last_mark for bundle in pieces for each in bundle.pieces]
    assert None not in marks  # which tell what was stored in the same millisecond
    rocketpoll_broker.delete_topic(rocketpoll_topic)
    rocketpoll_broker.create_topic(rocketpoll_topic, 1)
    send(rocketpoll_broker, rocketpoll_topic, 0, *"ABCDEFG")
    for piece in pieces:
        with pytest.raises(DataLoss, match="the topic was deleted and made again"):
            list(found.read(piece))


def test_no_rows_are_no_pieces_and_spark_reads_one_without_any(rocketpoll_broker, rocketpoll_topic):
    found = reader(rocketpoll_broker, rocketpoll_topic)
    assert found.partitions() == []
    assert list(found.read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"startingOffsets": "latest"}, "starts at the end has no rows"),
        ({"maxOffsetsPerTrigger": "5"}, "it is for streams only"),
        ({"schema": schema_of("value string")}, "there is no column value"),
    ],
)
def test_what_makes_no_batch_is_refused(rocketpoll_broker, rocketpoll_topic, more, said):
    with pytest.raises((OptionError, SchemaError), match=said):
        reader(rocketpoll_broker, rocketpoll_topic, **more)


@pytest.mark.parametrize("end", [0, 1])
def test_an_end_before_the_start_is_refused(rocketpoll_broker, rocketpoll_topic, end):
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
