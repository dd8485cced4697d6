"""Numbers, booleans and texts are parsed and compared as in Java."""

from math import inf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.sql_expressions import VALUES

from rocketpoll.broker.filter.java_values import (
    compare,
    is_integer,
    parse_boolean,
    parse_double,
    parse_integer,
    parse_numbers,
)

INTEGER, LONG = 1, 1 << 40


def is_refused(parse, *arguments):
    try:
        parse(*arguments)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5.0), (" \t5.5\n", 5.5), (".5", 0.5), ("5.", 5.0), ("+1E+3", 1000.0), ("5f", 5.0),
        ("-5.5D", -5.5), ("Infinity", inf), ("-Infinity", -inf), ("1e400", inf),
        ("0x1p3", 8.0), ("-0X1.8P+1f", -3.0),
        ("0x1p99999", inf), ("-0x1p99999", -inf), ("0x1p-99999", 0.0),
    ],
)  # fmt: skip
def test_java_doubles_are_parsed_from_text(text, number):
    assert parse_double(text) == number


@pytest.mark.parametrize("text", ["NaN", "+NaN", "-NaN"])
def test_nan_is_parsed_as_a_double(text):
    assert isnan(parse_double(text))


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "nan", "inf", "infinity", "NaNf", "InfinityD", "1_000", "5L", "5ff", "e5", "5e",
        ".", "-", "--5", "0x1", "0x1f", "0xp1", "0x1p", "0x1p 1", "\u00a05", "\u0663", "1,5", "1-2",
        "f", "d", "\ud800",
    ],
)  # fmt: skip
def test_texts_that_java_refuses_are_no_doubles(text):
    assert is_refused(parse_double, text)


def test_sql_integer_width_follows_the_comparison():
    assert parse_integer("-2147483648", INTEGER) == -2147483648
    assert parse_integer("2147483648", LONG) == 2147483648
    assert is_refused(parse_integer, "2147483648", INTEGER)
    assert is_refused(parse_integer, "9223372036854775808", LONG)


def test_sql_integer_range_equals_that_of_java():
    assert is_integer(2147483647)
    assert not is_integer(2147483648)
    assert not is_integer(-2147483648)  # only ever the negative of a long


def test_leading_zeros_and_digits_of_other_scripts_are_read_as_java_reads_them():
    assert parse_integer("-" + "0" * 5000 + "7", INTEGER) == -7
    assert parse_integer("+" + "0" * 5000, INTEGER) == 0
    assert parse_integer("\u0663\uff15", INTEGER) == 35
    for text in ("\U0001d7d3", "9" * 5000, "0" * 50 + "x", "5 ", "", "5.0"):
        assert is_refused(parse_integer, text, LONG)


def test_parse_boolean_accepts_only_true_in_any_case():
    assert [parse_boolean(text) for text in ("true", "TRUE", "tRuE", "true ", "yes", "1", "")] == [
        True, True, True, False, False, False, False,
    ]  # fmt: skip


def test_doubles_are_ordered_totally():
    ordered = [-inf, -5.5, -0.0, 0.0, 5e-324, 5.5, inf, float("nan")]
    for place, left in enumerate(ordered):
        for other, right in enumerate(ordered):
            order = compare(left, right)
            assert (order > 0, order < 0) == (place > other, place < other), (left, right)


def test_text_values_are_converted_for_comparison_as_in_java():
    assert compare("10", 9) > 0
    assert compare(9, "10") < 0
    assert compare("1e1", 10.0) == 0
    assert compare("TRUE", True) == 0
    assert compare("yes", False) == 0
    assert compare(5, 5.0) == 0
    assert compare(1 << 62, 5.5) > 0


def test_comparison_of_booleans_with_numbers_fails_as_in_java():
    assert compare(True, 1) == compare(1, True) == compare(0.5, False) == -1


def test_java_fails_to_convert_a_text_on_the_right_of_a_boolean():
    assert is_refused(compare, True, "true")


columns = st.lists(
    st.sampled_from(VALUES) | st.from_regex(r"-?[0-9]{1,12}", fullmatch=True), max_size=8
)


@given(columns | st.lists(st.integers(0, 10**12).map(str)), st.sampled_from([INTEGER, LONG, 0.5]))
def test_parse_numbers_equals_parsing_each_text(texts, like):
    def alone(text):
        try:
            return parse_double(text) if isinstance(like, float) else parse_integer(text, like)
        except ValueError:
            return None

    assert list(map(repr, parse_numbers(texts, like))) == [repr(alone(text)) for text in texts]
