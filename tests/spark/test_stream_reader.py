"""The stream reader for each release of Spark."""

import inspect
import json
import pickle

import pytest
from support.spark.source_queries import schema_of, send

from rmq_spark.spark import stream_reader as module
from rmq_spark.spark.errors import OptionError, SchemaError

SCHEMA = schema_of("body binary")
needs_limits = pytest.mark.skipif(not module.HAS_LIMITS, reason="Spark before 4.2")


def given(broker, topic, **more):
    return {"namesrvAddr": broker.address, "topic": topic, "startingOffsets": "earliest", **more}


def bodies(reader, start, end):
    pieces = reader.partitions(start, end)
    fresh = pickle.loads(pickle.dumps(reader))  # noqa: S301  # as Spark does
    return [
        body
        for piece in pieces
        for batch in fresh.read(piece)
        for body in batch.column("body").to_pylist()
    ]


def through_json(document):
    return json.loads(json.dumps(document))


@pytest.fixture
def old_reader(rocketpoll_broker, rocketpoll_topic):
    """Return the reader for Spark 4.0 and 4.1."""
    readers = []

    def make(**more):
        readers.append(
            module.Spark40StreamReader(given(rocketpoll_broker, rocketpoll_topic, **more), SCHEMA)
        )
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()


def test_stream_reader_of_spark_before_4_2_applies_limits(
    rocketpoll_broker, rocketpoll_topic, old_reader
):
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abcde")
    reader = old_reader(maxOffsetsPerTrigger="2")
    assert not inspect.signature(reader.latestOffset).parameters
    at, found = reader.initialOffset(), []
    for _ in range(3):
        end = reader.latestOffset()
        found.append(bodies(reader, at, through_json(end)))
        at = end
    assert found == [[b"a", b"b"], [b"c", b"d"], [b"e"]]
    assert reader.latestOffset() == at


def test_restarted_query_on_spark_4_0_learns_its_position_from_partitions(
    rocketpoll_broker, rocketpoll_topic, old_reader
):
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abcde")
    before = old_reader(maxOffsetsPerTrigger="2")
    before.initialOffset()
    reached = through_json(before.latestOffset())
    reader = old_reader(maxOffsetsPerTrigger="2")
    assert reader.partitions(reached, reached) == []
    assert bodies(reader, reached, reader.latestOffset()) == [b"c", b"d"]


def test_available_now_on_spark_4_0_reads_all_in_one_batch(
    rocketpoll_broker, rocketpoll_topic, old_reader
):
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abcde")
    reader = old_reader(maxOffsetsPerTrigger="2", availableNow="true")
    start = reader.initialOffset()
    send(rocketpoll_broker, rocketpoll_topic, 0, "late")
    assert bodies(reader, start, reader.latestOffset()) == [b"a", b"b", b"c", b"d", b"e"]


@needs_limits
def test_reader_for_spark_4_2_applies_limits_and_reports_the_latest_offset(
    rocketpoll_broker, rocketpoll_topic
):
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows  # noqa: PLC0415  # new in 4.2

    send(rocketpoll_broker, rocketpoll_topic, 0, *"abcde")
    reader = module.stream_reader(
        given(rocketpoll_broker, rocketpoll_topic, maxOffsetsPerTrigger="2"), SCHEMA
    )
    assert reader.getDefaultReadLimit() == ReadMaxRows(2)
    assert reader.reportLatestOffset() is None
    start = through_json(reader.initialOffset())
    assert bodies(reader, start, reader.latestOffset(start, ReadMaxRows(2))) == [b"a", b"b"]
    assert bodies(reader, start, reader.latestOffset(start, ReadMaxRows(3))) == [b"a", b"b", b"c"]
    end = reader.latestOffset(start, ReadAllAvailable())
    assert bodies(reader, start, end) == [b"a", b"b", b"c", b"d", b"e"]
    end = through_json(end)
    assert reader.latestOffset(end, ReadMaxRows(2)) is end
    assert reader.reportLatestOffset()["offsets"] == end["offsets"]
    reader.commit(end)
    reader.stop()


@needs_limits
@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"maxBytesPerTrigger": "5"}, "ReadMaxBytes"),
        ({"minOffsetsPerTrigger": "5"}, "ReadMinRows"),
        ({}, "ReadAllAvailable"),
    ],
)
def test_single_limit_is_a_plain_read_limit(rocketpoll_broker, rocketpoll_topic, more, name):
    reader = module.stream_reader(given(rocketpoll_broker, rocketpoll_topic, **more), SCHEMA)
    assert type(reader.getDefaultReadLimit()).__name__ == name
    reader.stop()


@pytest.mark.parametrize(
    ("more", "schema", "said"),
    [
        ({"key": "a"}, "body binary", "it applies to batch reads only"),
        ({}, "value string", "there is no column value"),
    ],
)
def test_stream_reader_reports_bad_options_at_its_first_use(
    rocketpoll_broker, rocketpoll_topic, more, schema, said
):
    reader = module.stream_reader(
        given(rocketpoll_broker, rocketpoll_topic, **more), schema_of(schema)
    )
    with pytest.raises((OptionError, SchemaError), match=said):
        reader.initialOffset()
    reader.stop()


def test_tasks_get_the_options_as_the_driver_reads_them(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a")
    options = given(rocketpoll_broker, rocketpoll_topic)
    monkeypatch.setenv("NAMESRV_ADDR", options.pop("namesrvAddr"))
    reader = module.Spark40StreamReader(options, SCHEMA)
    pieces = reader.partitions(reader.initialOffset(), reader.latestOffset())
    pickled = pickle.dumps(reader)
    reader.stop()
    monkeypatch.delenv("NAMESRV_ADDR")  # as on another machine
    task = pickle.loads(pickled)  # noqa: S301  # as Spark does
    assert [
        row for piece in pieces for batch in task.read(piece) for row in batch["body"].to_pylist()
    ] == [b"a"]


@needs_limits
def test_available_now_option_is_ignored_with_a_warning_from_spark_4_2(
    rocketpoll_broker, rocketpoll_topic, caplog
):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a")
    reader = module.stream_reader(
        given(rocketpoll_broker, rocketpoll_topic, availableNow="true"), SCHEMA
    )
    try:
        limit, at = reader.getDefaultReadLimit(), reader.initialOffset()
        for body in (b"a", b"late"):
            end = reader.latestOffset(at, limit)
            assert bodies(reader, at, through_json(end)) == [body]
            at = end
            send(rocketpoll_broker, rocketpoll_topic, 0, "late")
    finally:
        reader.stop()
    assert "option availableNow applies to Spark 4.0 and 4.1, and has no effect here" in caplog.text
