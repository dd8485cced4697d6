"""Values of options: durations, sizes, numbers, booleans, times and JSON."""

import re

import pytest

from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.options import values
from rmq_spark.spark.options.options import Selection, is_broker_topic, selects
from rmq_spark.spark.options.table import OPTIONS, Use


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500", 500),
        ("500ms", 500),
        ("30s", 30000),
        ("15m", 900000),
        ("10 minutes", 600000),
        ("1 hour", 3600000),
        ("2d", 172800000),
        ("1 MIN", 60000),
    ],
)
def test_duration_option_has_a_unit(text, ms):
    assert values.milliseconds("o", text) == ms


@pytest.mark.parametrize("text", ["", "-1", "1.5s", "1 fortnight", "s", "1 ss x"])
def test_invalid_duration_option_is_refused_by_name(text):
    with pytest.raises(OptionError, match="option o: needed a duration such as 500ms, 30s or 15m"):
        values.milliseconds("o", text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("64k", 65_536), ("8mb", 8 << 20), ("1G", 1 << 30), ("2 t", 2 << 40), ("9b", 9)],
)
def test_size_option_has_a_unit(text, size):
    assert values.size_in_bytes("o", text) == size


@pytest.mark.parametrize("text", ["0", "", "8mbit", "-1k", "k"])
def test_invalid_size_option_is_refused(text):
    with pytest.raises(OptionError, match="needed a size above 0"):
        values.size_in_bytes("o", text)


@pytest.mark.parametrize("text", ["-1", "1.0", "", "one", "0x1", "٣"])  # Arabic digits
def test_number_option_consists_of_ascii_digits(text):
    with pytest.raises(OptionError, match="needed a whole number from 0 on"):
        values.whole_number("o", text)


def test_number_option_with_too_many_digits_is_refused():
    with pytest.raises(OptionError, match=r"from 1 on, of at most 18 digits, found '9{40}'"):
        values.whole_number("o", "9" * 40, 1)


def test_option_number_below_its_minimum_is_refused():
    assert values.whole_number("o", " 3 ", 3) == 3
    with pytest.raises(OptionError, match="from 3 on, found '2'"):
        values.whole_number("o", "2", 3)


@pytest.mark.parametrize(("text", "truth"), [("true", True), (" FALSE ", False)])
def test_boolean_options_are_true_or_false(text, truth):
    assert values.boolean("o", text) is truth


@pytest.mark.parametrize("text", ["1", "yes", "", "truee"])
def test_boolean_option_takes_true_and_false_only(text):
    with pytest.raises(OptionError, match="needed true or false"):
        values.boolean("o", text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-15 00:13:20+02:00", 1_700_000_000_000),
        ("2023-11-14", 1_699_920_000_000),
        ("2023-11-14T22:13:20.5Z", 1_700_000_000_500),
        ("2023-11-14 22:13:20,123456789", 1_700_000_000_123),
        ("2023-11-15T00:13:20.123+0200", 1_700_000_000_123),
        ("2023-11-14T16Z", 1_699_977_600_000),
        ("2023-11-14t23:13 +01", 1_700_000_000_000 - 20_000),
        ("2023-11-14T17:43:20-04:30", 1_700_000_000_000),
        ("2023-11-15T03:58:20+0545", 1_700_000_000_000),
    ],
)
def test_timestamp_option_is_milliseconds_or_iso_in_utc(text, ms):
    assert values.timestamp("o", text) == ms


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "2023-02-29",
        "2023-11-14T25:00",
        "2023-11-14T12:00+99:00",
        "2023-W05-6",
        "2023-11-14x12:00",
        "20231114T221320Z",
    ],
)
def test_invalid_timestamp_option_is_refused_by_every_python(text):
    with pytest.raises(OptionError, match=re.escape(f"found {text!r}")):
        values.timestamp("o", text)


def test_plain_digits_are_not_parsed_as_a_compact_iso_date():
    assert values.time_in_ms("20231114") is None
    assert values.time_in_ms("2023111412000") is None


def test_date_without_hyphens_is_refused_with_advice():
    with pytest.raises(OptionError, match="found 20231114: if this is a day, write 2023-11-14"):
        values.timestamp("o", "20231114")


@pytest.mark.parametrize("text", ["2026", "202601", "20231314", "99999999"])
def test_timestamp_within_two_days_of_1970_is_refused(text):
    with pytest.raises(
        OptionError, match=r"found \d+, which is within the first two days of 1970: write a"
    ):
        values.timestamp("o", text)
    for small in (0, 1, 1_000):
        assert values.timestamp("o", str(small)) == small


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 1}}'])
def test_json_option_must_be_an_object_with_unique_names(text):
    with pytest.raises(OptionError, match="option o"):
        values.json_object("o", text)


# ---- the table of options


def test_option_names_differ_in_more_than_their_case():
    assert len({name.lower() for name in OPTIONS}) == len(OPTIONS)


def test_option_aliases_lead_to_options_that_are_no_aliases():
    for name, option in OPTIONS.items():
        assert option.uses
        assert option.meaning
        if option.alias_of is not None:
            assert OPTIONS[option.alias_of].alias_of is None, name


def test_every_option_use_has_its_required_options():
    for use in Use:
        assert use in OPTIONS["namesrvAddr"].uses
        assert use in OPTIONS["topic"].uses


# ---- topics are selected by name, pattern and namespace


def test_source_reads_exactly_the_named_topics():
    named = Selection(topics=("orders", "eu%paid"), namespace="eu")
    assert selects(named, "orders")
    assert selects(named, "eu%paid")
    assert not selects(named, "paid")


@pytest.mark.parametrize(
    ("pattern", "namespace", "topic", "is_selected"),
    [
        ("orders.*", None, "orders-1", True),
        ("orders", None, "orders-1", False),
        (".*", None, "%RETRY%group", False),
        (".*", None, "SCHEDULE_TOPIC_XXXX", False),
        ("orders.*", "eu", "eu%orders-1", True),
        ("orders.*", "eu", "orders-1", False),
        ("orders.*", "eu", "us%orders-1", False),
        ("orders.*", None, "eu%orders-1", False),
    ],
)
def test_topic_pattern_matches_names_within_the_namespace(pattern, namespace, topic, is_selected):
    assert selects(Selection(pattern=pattern, namespace=namespace), topic) is is_selected


@pytest.mark.parametrize("topic", ["TBW102", "RMQ_SYS_TRACE_TOPIC", "%DLQ%group", "DefaultCluster"])
def test_topics_of_brokers_and_groups_are_recognized(topic):
    assert is_broker_topic(topic)
    assert not is_broker_topic("orders")
