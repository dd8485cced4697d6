"""SQL expressions: nulls, precedence, types, and comparison with a second implementation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.sql_expressions import (
    VALUES,
    random_condition,
    random_properties,
    second_opinion,
)

from rocketpoll.broker.filter.sql_columns import evaluate_state
from rocketpoll.broker.filter.sql_expression import (
    And,
    Between,
    Comparison,
    Equal,
    Expression,
    Literal,
    Negation,
    Not,
    Property,
    SqlExpression,
)
from rocketpoll.broker.filter.sql_parser import compile_sql

STATES = ("FALSE", "TRUE", "NULL", "FAILED")
PRESENT, MISSING = {"a": "5", "b": "x"}, {}


def value(text, properties):
    return STATES[evaluate_state(compile_sql(text).condition, properties)]


def test_missing_sql_property_is_null_and_does_not_match():
    assert (
        value("a = 5", MISSING) == value("a > 5", MISSING) == value("a IN ('5')", MISSING) == "NULL"
    )
    assert not compile_sql("a = 5 OR NOT (a = 5)").evaluate(MISSING)
    assert compile_sql("a IS NULL").evaluate(MISSING)


def test_sql_comparison_of_wrong_types_fails_unless_short_circuited():
    assert value("b > 5", PRESENT) == value("NOT (b > 5)", PRESENT) == "FAILED"
    assert value("b > 5 OR a = 5", PRESENT) == "FAILED"
    assert value("a = 5 OR b > 5", PRESENT) == "TRUE"
    assert value("a = 6 AND b > 5", PRESENT) == "FALSE"
    assert not compile_sql("b > 5").evaluate(PRESENT)


@given(st.randoms(use_true_random=False))
def test_sql_evaluation_agrees_with_a_second_implementation(random):
    condition, properties = random_condition(random), random_properties(random)
    assert STATES[evaluate_state(condition, properties)] == second_opinion(condition, properties)
    assert SqlExpression(condition).evaluate(properties) == (
        second_opinion(condition, properties) == "TRUE"
    )


@given(st.sampled_from(VALUES), st.sampled_from(VALUES), st.sampled_from(["<", "<=", ">", ">="]))
def test_sql_comparison_agrees_with_a_second_implementation_for_all_value_pairs(left, right, sign):
    for condition in (
        Comparison(Property("a"), sign, Property("b")),
        Equal(Property("a"), Property("b")),
    ):
        properties = {"a": left, "b": right}
        assert STATES[evaluate_state(condition, properties)] == second_opinion(
            condition, properties
        )


def test_sql_between_evaluates_its_operand_once():
    class Counted(Expression):
        asked = 0

        def value(self, properties):  # noqa: ARG002  # signature of a node
            self.asked += 1
            return 5

    counted = Counted()
    nested = counted
    for _ in range(30):
        nested = Negation(Between(nested, Literal(1), Literal(9)))
    assert nested.value({}) is None
    assert counted.asked == 1


def test_compiled_sql_knows_its_depth_and_property_names():
    condition = compile_sql("a = 5 AND (b IN ('x') OR NOT c) AND 5 > d").condition
    assert isinstance(condition, And)
    assert condition.names == {"a", "b", "c", "d"}
    assert condition.depth == 5
    assert Not(Literal(None)).depth == 2


def test_base_expression_cannot_be_evaluated():
    with pytest.raises(NotImplementedError):
        Expression().value({})
