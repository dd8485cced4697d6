"""Errors of filters name position, need and found text."""

from rmq_spark.errors import RocketPollError
from rocketpoll.broker.filter.errors import FilterError


def test_filter_error_names_position_need_and_found_text():
    error = FilterError("SQL92 expression", at=7, needed="a value", found=")")
    assert str(error) == "SQL92 expression at character 7: needed a value, found ')'"
    assert (error.subject, error.at, error.needed, error.found) == (
        "SQL92 expression",
        7,
        "a value",
        "')'",
    )
    assert isinstance(error, RocketPollError)


def test_filter_error_about_a_whole_text_is_short_and_has_no_position():
    error = FilterError("TAG subscription of T", needed="at most 10 characters", found="x" * 10_000)
    assert str(error).startswith("TAG subscription of T: needed at most 10 characters, found 'xxx")
    assert len(str(error)) < 150
