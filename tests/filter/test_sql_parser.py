"""SQL texts: grammar, limits and errors."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.sql_expressions import SOUP, random_condition, random_soup, written

from rmq_spark.errors import RocketPollError
from rocketpoll.broker.filter.errors import FilterError
from rocketpoll.broker.filter.filter_limits import FilterLimits
from rocketpoll.broker.filter.sql_expression import And, Condition, Equal, Literal, Or, Property
from rocketpoll.broker.filter.sql_parser import compile_sql

WIDE = FilterLimits(expression_bytes_max=1 << 20, depth_max=200, nodes_max=1 << 16)

A_IS_1 = Equal(Property("a"), Literal(1))


@given(st.randoms(use_true_random=False))
def test_sql_expression_round_trips_through_text(random):
    condition = random_condition(random)
    expression = compile_sql(written(condition, random), WIDE)
    assert expression.condition == condition
    assert expression.ignored == ""


@given(
    st.text(max_size=60)
    | st.randoms(use_true_random=False).map(random_soup)
    | st.lists(st.sampled_from(SOUP)).map(" ".join)
)
def test_sql_parser_returns_an_expression_or_a_filter_error_for_any_text(text):
    limits = FilterLimits(expression_bytes_max=200, depth_max=6, nodes_max=20)
    try:
        expression = compile_sql(text, limits)
    except FilterError as error:
        assert error.needed
        return
    assert expression.condition.depth <= 7
    assert count(expression.condition) <= 20
    assert text.endswith(expression.ignored)
    assert expression.evaluate({"a": "5"}) in (True, False)


def count(node):
    return 1 + sum(map(count, node.operands))


@pytest.mark.parametrize(
    ("text", "at", "needed", "found"),
    [
        ("", 1, "a value, a property or (", "its end"),
        ("a =", 4, "a value, a property or (", "its end"),
        ("a = 5 AND", 10, "a value", "its end"),
        ("(a = 5", 7, "an operator or )", "its end"),
        ("a == 5", 4, "a value", "'='"),
        ("a != 5", 3, "a word of SQL92", "'!= 5'"),
        ("a NOT 5", 7, "BETWEEN, IN, CONTAINS", "'5'"),
        ("a IS 5", 6, "NULL or NOT NULL", "'5'"),
        ("a IS NOT 5", 10, "NULL", "'5'"),
        ("a = NULL", 3, "IS NULL in place of = NULL", "NULL"),
        ("a > 'x'", 3, "numbers and properties around >", "'x'"),
        ("TRUE < a", 6, "numbers and properties around <", "TRUE"),
        ("(a = 5) >= 5", 9, "numbers and properties around >=", "a condition"),
        ("a BETWEEN 5 AND 1", 3, "an upper bound of at least 5", "1"),
        ("a BETWEEN 5 1", 13, "AND between the bounds", "'1'"),
        ("a IN 'x'", 6, "( after IN", "\"'x'\""),
        ("a IN (5)", 7, "a string in the list", "'5'"),
        ("a IN ('x'", 10, ", or ) in the list", "its end"),
        ("5 IN ('x')", 3, "a property before IN", "5"),
        ("a CONTAINS b", 12, "a string after CONTAINS", "'b'"),
        ("TRUE = 5", 6, "TRUE, FALSE or a property after TRUE =", "5"),
        ("'x'", 1, "a condition", "'x'"),
        ("a = 5 OR 'x'", 10, "a condition", "'x'"),
        ("NOT -a", 5, "a condition", "a number with a sign"),
        ("NOT a IN ('x')", 7, "a property before IN", "a condition"),
        (
            "a = 9223372036854775808", 5,
            "an integer of at most 9223372036854775807", "'9223372036854775808'",
        ),
        ("a = 1e400", 5, "a number that a double can hold", "'1e400'"),
        ("a > 0.0", 5, "above 0.0 (0 is an integer)", "'0.0'"),
    ],
)  # fmt: skip
def test_sql_syntax_error_names_place_needed_and_found(text, at, needed, found):
    with pytest.raises(FilterError) as error:
        compile_sql(text)
    assert (error.value.at, error.value.found) == (at, found)
    assert needed in error.value.needed


@pytest.mark.parametrize(
    ("text", "ignored"),
    [
        ("a = 1", ""),
        ("a = 1 -- a comment\n", ""),
        ("a = 1 LIKE '#%' !", "LIKE '#%' !"),
        ("a = 1)", ")"),
        ("a = 1 + 2 > 3", "+ 2 > 3"),
        ("a = 1 -- no end of line", "-- no end of line"),
    ],
)
def test_text_after_a_sql_expression_is_ignored_and_reported(text, ignored):
    expression = compile_sql(text)
    assert expression.condition == A_IS_1
    assert expression.ignored == ignored


def test_sql_and_binds_tighter_than_or_without_nesting():
    condition = compile_sql("a = 1 OR a = 1 AND a = 1 AND a = 1 OR a = 1").condition
    assert condition == Or((A_IS_1, And((A_IS_1, A_IS_1, A_IS_1)), A_IS_1))


def test_comparison_after_is_null_is_ignored():
    assert compile_sql("a IS NULL > 5").ignored == "> 5"


def test_sql_expression_over_4096_bytes_is_refused():
    text = "a = 'é'".ljust(4_095)
    assert compile_sql(text).condition == Equal(Property("a"), Literal("é"))
    with pytest.raises(FilterError, match="at most 4096 bytes of UTF-8, found 4097 bytes"):
        compile_sql(text + " ")


def test_sql_expression_with_too_many_nodes_is_refused():
    eighty_five = " OR ".join(["a = 1"] * 85)
    assert count(compile_sql(eighty_five).condition) == 256
    with pytest.raises(FilterError, match="at most 256 values, properties and operators"):
        compile_sql(eighty_five + " OR a")


def test_sql_in_list_is_one_node_of_any_length():
    texts = ", ".join(f"'{number}'" for number in range(500))
    assert count(compile_sql(f"a IN ({texts})").condition) == 2


DEEP = {
    "parentheses": lambda levels: "(" * levels + "a" + ")" * levels,
    "NOT": lambda levels: "NOT " * levels + "a",
    "signs": lambda levels: "+" * levels + "a",
    "minus": lambda levels: "- " * (levels - 2) + "a IS NULL",
    "the left of =": lambda levels: "a" + " = TRUE" * (levels - 1),
    "the left of CONTAINS": lambda levels: "a" + " CONTAINS 'x'" * (levels - 1),
    "IS NULL": lambda levels: "a" + " IS NULL" * (levels - 1),
    "AND in OR in parentheses": lambda levels: "(b OR " * (levels // 2) + "a" + ")" * (levels // 2),
    "conditions in =": lambda levels: "b = (" * (levels // 2) + "a" + ")" * (levels // 2),
    "all at once": lambda levels: "NOT (b OR b AND " * (levels // 4) + "a" + ")" * (levels // 4),
}


@pytest.mark.parametrize("kind", DEEP)
def test_sql_nesting_is_limited_before_the_stack_overflows(kind):
    with pytest.raises(FilterError, match="at most 32 levels of nesting"):
        compile_sql(DEEP[kind](80))
    with pytest.raises(FilterError, match="at most 200 levels of nesting"):
        compile_sql(DEEP[kind](2_000), WIDE)


@pytest.mark.parametrize("kind", DEEP)
def test_sql_expression_at_the_depth_limit_is_compiled(kind):
    for limits in (FilterLimits(), WIDE):
        expression = compile_sql(DEEP[kind](limits.depth_max - 2), limits)
        assert isinstance(expression.condition, Condition)
        assert expression.condition.names <= {"a", "b"}
        assert expression.evaluate({"a": "5"}) in (True, False)


def test_equal_sql_text_is_compiled_once():
    text = written(random_condition(Random(3)), Random(3))
    assert compile_sql(text, WIDE) is compile_sql(
        text, FilterLimits(expression_bytes_max=1 << 20, depth_max=200, nodes_max=1 << 16)
    )


# ---- errors of filters name position, need and found text


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
