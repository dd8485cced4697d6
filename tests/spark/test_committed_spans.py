"""Spans as they are sent, cut to pieces, and read again; what is not what it was is found out."""

import logging

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_parts import options_for, queue_of, send

from rmq_spark.client.manifest import CommittedSpan
from rmq_spark.client.producer.arrow_sends import SentSpan
from rmq_spark.spark.committed_spans import NamedSpans, SpanPiece, read_spans, span_pieces
from rmq_spark.spark.errors import DataLoss

SCHEMA = pa.schema([("queueOffset", pa.int64()), ("tags", pa.string())])


def named(*spans_and_bodies):
    """The spans of rows that were sent in several requests."""
    spans = NamedSpans()
    for queue_offset, bodies in spans_and_bodies:
        sent = [SentSpan(queue_of("T"), queue_offset, len(bodies))]
        spans.add(sent, pa.array([body.encode() for body in bodies], pa.binary()))
    return spans.spans


def test_spans_that_adjoin_are_joined_while_they_are_small(monkeypatch):
    at_once = named((7, ["a", "bb", "ccc"]))
    assert [span[1:3] + span[4:] for span in at_once] == [(7, 3, 6)]
    assert named((7, ["a"]), (8, ["bb", "ccc"])) == at_once
    assert len(named((7, ["a"]), (9, ["bb"]))) == 2
    monkeypatch.setattr("rmq_spark.spark.committed_spans.SPAN_ROWS_MAX", 2)
    assert len(named((7, ["a"]), (8, ["bb", "ccc"]))) == 2
    monkeypatch.setattr("rmq_spark.spark.committed_spans.SPAN_BYTES_MAX", 4)
    assert len(named((7, ["aaa"]), (8, ["bb"]))) == 2


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=20),
    st.none() | st.integers(1, 9),
    st.none() | st.integers(1, 9),
)
def test_pieces_have_every_span_once_and_each_is_of_one_queue(sizes, pieces_min, rows_max):
    spans = [CommittedSpan(queue_of("T", q), at, n, 0, 0) for at, (q, n) in enumerate(sizes)]
    pieces = span_pieces(spans, pieces_min, rows_max)
    assert sorted(span for piece in pieces for span in piece.spans) == sorted(
        span for span in spans if span.message_count
    )
    for piece in pieces:
        assert len({span.queue for span in piece.spans}) == 1
        rows = sum(span.message_count for span in piece.spans)
        assert rows_max is None or rows <= rows_max or len(piece.spans) == 1


def test_spans_make_as_many_pieces_as_are_wanted_if_they_can():
    spans = [CommittedSpan(queue_of("T"), at, 10, 0, 0) for at in range(8)]
    assert len(span_pieces(spans)) == 1
    assert len(span_pieces(spans, 4)) == 4
    assert len(span_pieces(spans, 99)) == 8


@pytest.fixture
def span(rocketpoll_broker, rocketpoll_topic):
    """Three rows, as they are stored and as a manifest names them."""
    send(rocketpoll_broker, rocketpoll_topic, 0, "one", "two", "three", tags="a")
    spans = NamedSpans()
    sent = [SentSpan(queue_of(rocketpoll_topic), 0, 3)]
    spans.add(sent, pa.array([b"one", b"two", b"three"], pa.binary()))
    return spans.spans[0]


def offsets(options, *spans):
    rows = (batch.to_pylist() for batch in read_spans(options, SCHEMA, SpanPiece(spans)))
    return [row["queueOffset"] for some in rows for row in some]


def test_rows_are_read_as_they_were_committed(rocketpoll_broker, rocketpoll_topic, span):
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
    [other_rows, pytest.param(lost_tail, marks=pytest.mark.deep)],  # its end is waited for
)
def test_rows_that_are_not_those_that_were_committed_are_a_loss(
    rocketpoll_broker, rocketpoll_topic, span, other, caplog
):
    options = options_for(rocketpoll_broker, rocketpoll_topic)
    with pytest.raises(DataLoss, match=r"queue 0 of .* (has other messages|has lost|ends at)"):
        offsets(options, other(span))
    caplog.set_level(logging.WARNING, "rmq_spark")
    lenient = options_for(rocketpoll_broker, rocketpoll_topic, failOnDataLoss="false")
    assert offsets(lenient, other(span), span) == [0, 1, 2]
    assert "are passed over: queue 0 of" in caplog.text
