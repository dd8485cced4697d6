"""Start and end positions in every format."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options.start_positions import (
    EARLIEST,
    LATEST,
    CountPosition,
    GroupPosition,
    OffsetPosition,
    RelativeTimePosition,
    TimePosition,
    parse_positions,
    parse_times,
)


def everywhere(text):
    return parse_positions("startingOffsets", text).common


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", OffsetPosition(EARLIEST)),
        ("Latest", OffsetPosition(LATEST)),
        ("group", GroupPosition(EARLIEST)),
        ("group:latest", GroupPosition(LATEST)),
        ("-10m", RelativeTimePosition(600_000)),
        ("-2 hours", RelativeTimePosition(7_200_000)),
        ("-100", CountPosition(100)),
        ("-1 messages", CountPosition(1)),
        ("-5 rows", CountPosition(5)),
        ("2023-11-14T22:13:20Z", TimePosition(1_700_000_000_000)),
    ],
)
def test_single_word_position_applies_to_all_queues(text, position):
    assert everywhere(text) == position


@pytest.mark.parametrize("text", ["newest", "10m", "", "-", "-10x", "2023-13-01", "+5"])
def test_unknown_position_word_is_refused_with_the_choices(text):
    with pytest.raises(
        OptionError, match="needed earliest, latest, group, a time, -10m, -100 messages, or JSON"
    ):
        everywhere(text)


@pytest.mark.parametrize("text", ["20231114", '{"T": {"0": "20231114"}}', "2023111412000"])
def test_quoted_offset_is_refused_instead_of_parsed_as_a_date(text):
    """Python 3.11 and later would parse the text as a date, and silently start there."""
    with pytest.raises(OptionError, match="An offset is a number without quotes in JSON"):
        everywhere(text)


@pytest.mark.parametrize(("text", "name"), [("-1", "latest"), ("-2", "earliest")])
def test_bare_numbers_as_positions_are_refused(text, name):
    with pytest.raises(
        OptionError, match=rf'{text} is ambiguous\. Write {name}, or "{text} messages"'
    ):
        everywhere(text)


def at(tree, topic="T", broker="b", queue=0):
    return parse_positions("startingOffsets", json.dumps(tree)).position_of(topic, broker, queue)


def test_json_positions_name_topic_broker_and_queue():
    tree = {"T": {"b": {"0": 23, "1": -1}, "c": {"0": "-10m"}}}
    assert at(tree) == OffsetPosition(23)
    assert at(tree, queue=1) == OffsetPosition(LATEST)
    assert at(tree, broker="c") == RelativeTimePosition(600_000)
    assert at(tree, broker="c", queue=1) is None
    assert at(tree, topic="U") is None


def test_start_positions_may_omit_the_brokers():
    tree = {"T": {"0": 23, "*": "latest"}}
    assert at(tree) == OffsetPosition(23)
    assert at(tree, broker="any", queue=7) == OffsetPosition(LATEST)
    positions = parse_positions("startingOffsets", json.dumps(tree))
    assert not positions.has_broker_level("T")
    assert parse_positions("o", '{"T": {"*": -2}}').has_broker_level("T")
    assert parse_positions("o", '{"T": {"b": {"0": 1}}}').has_broker_level("T")


@pytest.mark.parametrize(
    "tree",
    [{"*": -2}, {"T": -2}, {"T": {"*": -2}}, {"T": {"b": {"*": -2}}}, {"*": {"*": {"*": -2}}}],
)
def test_star_or_short_path_in_a_position_tree_covers_all_other_queues(tree):
    assert at(tree) == OffsetPosition(EARLIEST)


def test_start_positions_allow_a_topic_named_like_its_broker():
    assert at({"b": {"b": {"0": 5}}}, topic="b") == OffsetPosition(5)


def test_offset_json_of_a_checkpoint_is_a_valid_position():
    tree = {"v": 1, "offsets": {"T": {"b": {"0": 4}}}, "stored": {"T": {"b": {"0": 1}}}}
    assert at(tree) == OffsetPosition(4)


def test_topics_may_be_named_like_the_fields_of_a_checkpoint_offset():
    tree = {"v": {"b": {"0": 4}}, "offsets": {"b": {"0": 5}}}
    assert at(tree, topic="v") == OffsetPosition(4)
    assert at(tree, topic="offsets") == OffsetPosition(5)
    assert at({"v": -2, "offsets": {"0": 5}}, topic="v") == OffsetPosition(EARLIEST)


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"T": {}},
        {"T": {"b": {"0": -3}}},
        {"T": {"b": {"0": True}}},
        {"T": {"b": {"0": 1.5}}},
        {"T": {"b": {"x": 1}}},
        {"T": {"b": -2}},
        {"T": {"b": {"0": {"0": 1}}}},
        {"T": {"b": {"0": None}}},
        {"T": {"b": {"0": "-1"}}},
    ],
)
def test_invalid_position_tree_is_refused_by_option_name(tree):
    with pytest.raises(OptionError, match="option startingOffsets"):
        at(tree)


def test_position_times_by_queue_are_parsed():
    positions = parse_times(
        "startingOffsetsByTimestamp", '{"T": {"b": {"0": 1000, "1": "1970-01-01T00:00:02Z"}}}'
    )
    assert positions.position_of("T", "b", 0) == TimePosition(1000)
    assert positions.position_of("T", "b", 1) == TimePosition(2000)
    with pytest.raises(
        OptionError, match="T > b > 0: needed milliseconds since 1970 or a time such as"
    ):
        parse_times("o", '{"T": {"b": {"0": -1}}}')


@pytest.mark.parametrize(
    "text",
    [
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        "1969-12-31",
        "1970-01-01T00:00:00Z",
        "2026-01-31T12:00:00.5+02:00",
        "9999-12-31T23:59:59.999Z",
    ],
)
def test_time_per_queue_means_the_same_as_one_time_for_all_queues(text):
    by_queue = parse_times("startingOffsetsByTimestamp", json.dumps({"T": {"*": text}}))
    for_all = parse_positions("startingOffsets", text)
    assert by_queue.position_of("T", "b", 0) == for_all.position_of("T", "b", 0)


def test_uses_group_is_true_if_any_position_is_group():
    assert parse_positions("o", "group").uses_group
    assert parse_positions("o", '{"T": {"0": 1, "*": "group"}}').uses_group
    assert not parse_positions("o", '{"T": {"0": 1}}').uses_group


names = st.text(min_size=1, max_size=3).filter(lambda name: name != "*")
offsets = st.dictionaries(
    st.integers(0, 9).map(str), st.integers(-2, 1 << 62), min_size=1, max_size=3
)
trees = st.dictionaries(
    names, st.dictionaries(names, offsets, min_size=1, max_size=3), min_size=1, max_size=3
)


@given(trees)
@example({" > ": {"v": {"0": 1}}, "v": {"0": {"0": 2}}})
def test_named_queues_get_their_own_positions(tree):
    positions = parse_positions(
        "o", json.dumps(tree if "v" not in tree else {"offsets": tree, "v": 1})
    )
    for topic, brokers in tree.items():
        for broker, queues in brokers.items():
            for queue, offset in queues.items():
                assert positions.position_of(topic, broker, int(queue)) == OffsetPosition(offset)
