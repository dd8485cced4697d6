"""Committed spans as sent, split, and read again; changed rows are detected."""

import logging
import re
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.spark.source_queries import options_for, queue_of, send

from rmq_spark.client.errors import OffsetMoved
from rmq_spark.client.manifest import CommittedSpan
from rmq_spark.client.producer.arrow_sender import SentSpan
from rmq_spark.client.reading.bulk_pull import RawChunk
from rmq_spark.spark.errors import DataLoss, RecordFault
from rmq_spark.spark.exactly_once.committed_reader import SpanGroup, group_spans, read_spans
from rmq_spark.spark.read import record_chunks
from rmq_spark.spark.write.rows import SpanCollector
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rocketpoll import EmbeddedBroker

SCHEMA = pa.schema([("queueOffset", pa.int64()), ("tags", pa.string())])


def named(*spans_and_bodies):
    """Return the spans of rows sent in several requests."""
    spans = SpanCollector()
    for queue_offset, bodies in spans_and_bodies:
        sent = [SentSpan(queue_of("T"), queue_offset, len(bodies))]
        spans.add(sent, pa.array([body.encode() for body in bodies], pa.binary()))
    return spans.spans


def test_adjacent_committed_spans_are_merged_up_to_a_limit(monkeypatch):
    at_once = named((7, ["a", "bb", "ccc"]))
    assert [span[1:3] + span[4:] for span in at_once] == [(7, 3, 6)]
    assert named((7, ["a"]), (8, ["bb", "ccc"])) == at_once
    assert len(named((7, ["a"]), (9, ["bb"]))) == 2
    monkeypatch.setattr("rmq_spark.spark.write.rows.SPAN_ROWS_MAX", 2)
    assert len(named((7, ["a"]), (8, ["bb", "ccc"]))) == 2
    monkeypatch.setattr("rmq_spark.spark.write.rows.SPAN_BYTES_MAX", 4)
    assert len(named((7, ["aaa"]), (8, ["bb"]))) == 2


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=20),
    st.none() | st.integers(1, 9),
    st.none() | st.integers(1, 9),
)
def test_pieces_have_every_span_once_and_each_is_of_one_queue(sizes, pieces_min, rows_max):
    spans = [CommittedSpan(queue_of("T", q), at, n, 0, 0) for at, (q, n) in enumerate(sizes)]
    pieces = group_spans(spans, pieces_min, rows_max)
    assert sorted(span for piece in pieces for span in piece.spans) == sorted(
        span for span in spans if span.message_count
    )
    for piece in pieces:
        assert len({span.queue for span in piece.spans}) == 1
        rows = sum(span.message_count for span in piece.spans)
        assert rows_max is None or rows <= rows_max or len(piece.spans) == 1


def test_committed_spans_are_grouped_into_partitions():
    spans = [CommittedSpan(queue_of("T"), at, 10, 0, 0) for at in range(8)]
    assert len(group_spans(spans)) == 1
    assert len(group_spans(spans, 4)) == 4
    assert len(group_spans(spans, 99)) == 8


@pytest.fixture
def span(rocketpoll_broker, rocketpoll_topic):
    """Return three stored rows, and their span in a manifest."""
    send(rocketpoll_broker, rocketpoll_topic, 0, "one", "two", "three", tags="a")
    spans = SpanCollector()
    sent = [SentSpan(queue_of(rocketpoll_topic), 0, 3)]
    spans.add(sent, pa.array([b"one", b"two", b"three"], pa.binary()))
    return spans.spans[0]


def offsets(options, *spans):
    rows = (batch.to_pylist() for batch in read_spans(options, SCHEMA, SpanGroup(spans)))
    return [row["queueOffset"] for some in rows for row in some]


def test_committed_rows_round_trip(rocketpoll_broker, rocketpoll_topic, span):
    options = options_for(rocketpoll_broker, rocketpoll_topic)
    assert offsets(options, span, span) == [0, 1, 2, 0, 1, 2]
    tagged = options_for(rocketpoll_broker, rocketpoll_topic, tags="b")
    assert offsets(tagged, span) == []


def other_rows(span):
    return span._replace(crc=span.crc ^ 1)


def lost_tail(span):
    return span._replace(message_count=9)


@pytest.mark.parametrize(
    "other",
    [other_rows, pytest.param(lost_tail, marks=pytest.mark.deep)],  # waits for the end of the queue
)
def test_rows_different_from_the_committed_ones_are_data_loss(
    rocketpoll_broker, rocketpoll_topic, span, other, caplog
):
    options = options_for(rocketpoll_broker, rocketpoll_topic)
    with pytest.raises(
        DataLoss, match=r"(rows committed at .* of queue 0|queue 0 of .* (has lost|ends at))"
    ):
        offsets(options, other(span))
    caplog.set_level(logging.WARNING, "rmq_spark")
    lenient = options_for(rocketpoll_broker, rocketpoll_topic, failOnDataLoss="false")
    assert offsets(lenient, other(span), span) == [0, 1, 2]
    assert re.search(r"continuing without them: (the rows .*)?queue 0 of", caplog.text)


def test_only_committed_bodies_are_decoded(rocketpoll_broker, rocketpoll_topic, span, caplog):
    """Bodies that are not JSON are an error only in committed rows."""
    schema = pa.schema([("queueOffset", pa.int64()), ("id", pa.int64())])
    more = {"bodyFormat": "json", "bodySchema": "id BIGINT", "failOnDataLoss": "false"}
    options = options_for(rocketpoll_broker, rocketpoll_topic, **more)
    with pytest.raises(RecordFault, match="offset 0 of queue 0"):
        list(read_spans(options, schema, SpanGroup((span,))))
    other = span._replace(crc=span.crc ^ 1)
    assert list(read_spans(options, schema, SpanGroup((other,)))) == []
    assert "incomplete or were replaced" in caplog.text


def test_committed_rows_are_decoded_as_text_columns(rocketpoll_broker, rocketpoll_topic, span):
    schema = pa.schema([("body", pa.string())])
    options = options_for(rocketpoll_broker, rocketpoll_topic, bodyFormat="text")
    [batch] = read_spans(options, schema, SpanGroup((span,)))
    assert batch.schema == schema
    assert batch.column("body").to_pylist() == ["one", "two", "three"]


# ---- damaged rows

BODIES = ["one", "two", "three", "four"]


@pytest.fixture
def stored(tmp_path):
    """Run a broker with a topic of four rows; return it, and a function that damages
    one of them."""

    def damage(body, at):
        """Flip a bit this number of bytes before the length field of this body."""
        [log] = (tmp_path / "commitlog").iterdir()
        with log.open("r+b") as file:
            # the file is a gigabyte, but almost empty
            found = file.read(1 << 16).index(struct.pack(">i", len(body)) + body.encode())
            file.seek(found - at)
            [byte] = file.read(1)
            file.seek(found - at)
            file.write(bytes([byte ^ 0x40]))

    with EmbeddedBroker(tmp_path) as broker:
        broker.create_topic("T", queues=1)
        send(broker, "T", 0, *BODIES)
        yield broker, damage


LENGTH, CRC = 0, 84 - 8
"""Positions in a record, as bytes before the length field of its body."""


def damaged_options(broker, **more):
    return options_for(broker, "T", onBadRecord="skip", **more)


@pytest.mark.parametrize("body", BODIES)
def test_unreadable_record_is_identified_by_its_stated_crc(stored, body):
    broker, damage = stored
    [span] = named((0, BODIES))
    damage(body, LENGTH)
    left = [number for number, each in enumerate(BODIES) if each != body]
    assert offsets(damaged_options(broker), span) == left
    nulls = options_for(broker, "T", onBadRecord="null")
    assert offsets(nulls, span) == [0, 1, 2, 3]


@pytest.mark.parametrize("body", ["one", "three"])
def test_span_with_an_unreadable_row_is_data_loss(stored, body):
    broker, damage = stored
    [span] = named((0, ["none", "of", "these", "was"]))
    damage(body, LENGTH)
    with pytest.raises(DataLoss, match="replaced: 1 of them cannot be read"):
        offsets(damaged_options(broker), span)


def test_span_without_a_matching_crc_is_a_data_loss(stored):
    broker, damage = stored
    [span] = named((0, BODIES))
    damage("two", CRC)
    damage("two", LENGTH)
    with pytest.raises(DataLoss, match="replaced: 1 of them cannot be read"):
        offsets(damaged_options(broker), span)
    lenient = damaged_options(broker, failOnDataLoss="false")
    assert offsets(lenient, span) == []


@pytest.mark.parametrize(
    ("begin", "left"),
    [
        (1, [1, 2, 3]),
        (3, [3]),
        (0, [0, 2, 3]),
        (0, [0, 1, 2]),
        (0, [1, 2, 3]),
        (1, [2, 3]),
        (4, []),
    ],
)
def test_remaining_rows_of_a_damaged_span_are_not_believed(
    rocketpoll_broker, rocketpoll_topic, monkeypatch, begin, left
):
    """Retention may have deleted the other rows, or the queue may have lost its end and grown
    again."""
    records = [
        encode_record(StoredMessage(rocketpoll_topic, BODIES[at].encode(), queue_offset=at))
        for at in left
    ]
    answer = RawChunk(b"".join(records), np.array([len(each) for each in records]), 4)

    def pull(start, **_):
        if start < begin:
            raise OffsetMoved("queue 0", start, begin, 4, begin)
        return [answer]

    monkeypatch.setattr(record_chunks, "BulkPull", pull)
    options = options_for(rocketpoll_broker, rocketpoll_topic, failOnDataLoss="false")
    [span] = named((0, BODIES))
    whole = span._replace(queue=queue_of(rocketpoll_topic))
    assert offsets(options, whole) == []


def test_missing_empty_row_is_noticed(rocketpoll_broker, rocketpoll_topic, monkeypatch):
    record = encode_record(StoredMessage(rocketpoll_topic, b"one", queue_offset=0))
    answer = RawChunk(record, np.array([len(record)]), 2)
    monkeypatch.setattr(record_chunks, "BulkPull", lambda *_, **__: [answer])
    options = options_for(rocketpoll_broker, rocketpoll_topic, failOnDataLoss="false")
    [span] = named((0, ["one", ""]))
    assert offsets(options, span._replace(queue=queue_of(rocketpoll_topic))) == []
