"""SQL filters over columns match the same rows as over single messages."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from support.messages.sql_expressions import NAMES, random_condition, random_properties

from rocketpoll.broker.filter.sql_columns import matching_rows
from rocketpoll.broker.filter.sql_expression import SqlExpression
from rocketpoll.broker.filter.sql_parser import compile_sql


class Columns:
    """A chunk with the properties of messages only."""

    def __init__(self, maps):
        self._maps = maps
        self.asked = []

    def values(self, name):
        self.asked.append(name)
        return pa.array([properties.get(name) for properties in self._maps], pa.string())


def matches(text, maps):
    return matching_rows(compile_sql(text), Columns(maps), len(maps)).tolist()


@given(st.randoms(use_true_random=False))
def test_sql_expression_matches_columns_as_it_matches_single_messages(random):
    expression = SqlExpression(random_condition(random))
    maps = [random_properties(random) for _ in range(random.randint(0, 6))]
    together = matching_rows(expression, Columns(maps), len(maps)).tolist()
    assert together == [expression.evaluate(properties) for properties in maps]


def test_column_filter_short_circuits_like_the_row_filter():
    maps = [{"a": "5", "b": "x"}, {"a": "6", "b": "7"}, {"b": "x"}, {}]
    assert matches("a = 5 OR b > 5", maps) == [True, True, False, False]
    assert matches("b > 5 OR a = 5", maps) == [False, True, False, False]
    assert matches("NOT (a = 6 AND b > 5)", maps) == [True, False, False, False]


def test_sql_expression_without_properties_matches_all_rows_alike():
    assert matches("TRUE", [{}, {"a": "5"}]) == [True, True]
    assert matches("NULL OR 'x' = 5", [{}, {"a": "5"}]) == [False, False]
    assert matches("TRUE", []) == []


def test_conditions_on_two_properties_can_be_compared():
    maps = [{"a": "5", "b": "6"}, {"a": "5", "b": "5"}, {"a": "5"}, {}]
    assert matches("(a = 5) = (b = 5)", maps) == [False, True, False, True]
    assert matches("a NOT BETWEEN b AND 4", maps) == [True, True, True, False]


def test_sql_columns_decode_each_used_property_once():
    columns = Columns([dict.fromkeys(NAMES, "5")] * 3)
    expression = compile_sql("a = 5 AND (b > a OR a < 7) AND (b = 5) = (a = 5)")
    assert matching_rows(expression, columns, 3).tolist() == [True] * 3
    assert sorted(columns.asked) == ["a", "b"]
