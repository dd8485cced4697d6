"""Offsets of the source as JSON."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.spark.errors import CheckpointError
from rmq_spark.spark.plan.source_offset import QueuePosition, SourceOffset
from rmq_spark.wire.message_queue import MessageQueue

queues = st.builds(MessageQueue, st.text(max_size=4), st.text(max_size=4), st.integers(0, 99))
numbers = st.integers(0, 1 << 62)
unknown_or_not = st.none() | numbers
positions = st.dictionaries(
    queues, st.builds(QueuePosition, numbers, unknown_or_not, unknown_or_not)
)
Q = MessageQueue("orders", "broker-a", 0)
R = MessageQueue("orders", "broker-a", 10)


@given(positions, st.dictionaries(queues, numbers))
def test_source_offset_round_trips_through_json(given_positions, began):
    offset = SourceOffset(given_positions, began)
    text = json.dumps(offset.to_json())
    again = SourceOffset.from_json(json.loads(text))
    assert again == offset
    assert json.dumps(again.to_json()) == text


@given(positions)
def test_source_offset_json_does_not_depend_on_queue_order(given_positions):
    backwards = dict(reversed(given_positions.items()))
    assert json.dumps(SourceOffset(given_positions).to_json()) == json.dumps(
        SourceOffset(backwards).to_json()
    )


def test_source_offset_json_format():
    known = QueuePosition(23, 1_700_000_000_000, 77)
    offset = SourceOffset({R: QueuePosition(7), Q: known}, {R: 5})
    assert json.dumps(offset.to_json()) == (
        '{"v": 1, "offsets": {"orders": {"broker-a": {"0": 23, "10": 7}}}, '
        '"stored": {"orders": {"broker-a": {"0": 1700000000000}}}, '
        '"marks": {"orders": {"broker-a": {"0": 77}}}, '
        '"began": {"orders": {"broker-a": {"10": 5}}}}'
    )
    assert offset.topics == {"orders"}


def test_source_offset_json_of_an_older_release_without_marks_round_trips():
    """Spark compares the texts: a different one would cause a batch."""
    document = {
        "v": 1,
        "offsets": {"orders": {"broker-a": {"0": 23}}},
        "stored": {"orders": {"broker-a": {"0": 1_700_000_000_000}}},
    }
    found = SourceOffset.from_json(document)
    assert found.positions == {Q: QueuePosition(23, 1_700_000_000_000)}
    assert found.to_json() == document


def test_missing_brokers_of_a_source_offset_end_when_renamed_or_answering():
    other = replace(Q, broker_name="broker-b")
    offset = SourceOffset(
        {Q: QueuePosition(23), other: QueuePosition(7)}, missing_brokers=("broker-b", "c")
    )
    assert offset.without_queues([Q]).missing_brokers == ("broker-b", "c")
    assert offset.with_brokers(["broker-a"]) is offset
    assert offset.with_brokers(["broker-b"]).missing_brokers == ("c",)
    assert offset.without_brokers(["broker-a"]).missing_brokers == ("broker-a", "broker-b", "c")
    renamed = offset.renamed({"broker-b": "broker-new"})
    assert renamed.missing_brokers == ("c",)
    assert {queue.broker_name for queue in renamed.positions} == {"broker-a", "broker-new"}


def test_source_offset_of_a_newer_version_is_refused_with_advice():
    with pytest.raises(
        CheckpointError,
        match=r"version 2, and this release of rocketpoll reads 1\. Run the query with",
    ):
        SourceOffset.from_json({"v": 2, "offsets": {}})


@pytest.mark.parametrize(
    "document",
    [
        None,
        3,
        [],
        {},
        {"offsets": {}},
        {"v": "1"},
        {"orders": {"0": 3}},
        {"v": 1, "offsets": []},
        {"v": 1, "offsets": {"T": {"b": {"x": 1}}}},
        {"v": 1, "offsets": {"T": {"b": {"0": -1}}}},
        {"v": 1, "offsets": {"T": {"b": {"0": "1"}}}},
        {"v": 1, "offsets": {"T": {"b": 1}}},
    ],
)
def test_foreign_offset_json_is_refused(document):
    with pytest.raises(CheckpointError, match="an offset that is not rocketpoll's"):
        SourceOffset.from_json(document)
