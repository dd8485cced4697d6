"""Numbers as Java parses them."""

import pytest
from hypothesis import given
from support.messages.wire_strategies import int32, int64

from rmq_spark.wire.remoting.java_numbers import parse_int32, parse_int64


@given(int32)
def test_java_32_bit_numbers_are_parsed(number):
    assert parse_int32(str(number)) == parse_int64(str(number)) == number


@given(int64)
def test_java_64_bit_numbers_are_parsed(number):
    assert parse_int64(str(number)) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("+5", 5), ("-0", 0), ("007", 7), ("\u0663", 3)],
    ids=["plus", "minus", "zeros", "arabic"],
)
def test_java_numbers_are_parsed(text, number):
    assert parse_int32(text) == parse_int64(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "+-1",
        "1_0",
        " 12",
        "12 ",
        "12\n",
        "- 1",
        "0x10",
        "1.0",
        "1e3",
        "1L",
        "\u00b2",
        "9" * 41,
    ],
)
@pytest.mark.parametrize("parse", [parse_int32, parse_int64])
def test_text_that_java_refuses_is_no_number(parse, text):
    with pytest.raises(ValueError, match=r"^$"):
        parse(text)


def test_java_numbers_out_of_range_are_refused():
    for text in ("2147483648", "-2147483649"):
        with pytest.raises(ValueError, match=r"^$"):
            parse_int32(text)
    for text in ("9223372036854775808", "-9223372036854775809"):
        with pytest.raises(ValueError, match=r"^$"):
            parse_int64(text)
