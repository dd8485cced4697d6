"""SQL comparisons over text columns equal those of each row."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.messages.sql_expressions import FLOATS, INTEGERS, VALUES

from rocketpoll.broker.filter.sql_columns import (
    FAILED,
    FALSE,
    NULL,
    TRUE,
    TextColumn,
    compare_columns,
    evaluate_state,
)
from rocketpoll.broker.filter.sql_expression import Comparison, Equal, Property
from rocketpoll.broker.filter.sql_parser import compile_sql

columns = st.lists(st.sampled_from(VALUES) | st.none(), max_size=12)
SIGNS = ("=", "<", "<=", ">", ">=")


def texts(values):
    return TextColumn(pa.array(values, pa.string()))


def properties(value):
    return {} if value is None else {"a": value}


def test_text_column_evaluates_each_distinct_value_once():
    column = texts(["x", None, "y", "x", "x"])
    assert column.values == ["x", "y"]
    assert column.row_values.tolist() == [0, 2, 1, 0, 0]


def test_sql_text_comparison_is_true_false_or_null():
    column = texts(["5", "6", "x", None])
    assert column.states(compile_sql("a > 5").condition, "a").tolist() == [
        FALSE,
        TRUE,
        FAILED,
        NULL,
    ]
    assert column.states(compile_sql("a = 'x'").condition, "a").tolist() == [
        FALSE,
        FALSE,
        TRUE,
        NULL,
    ]
    assert column.states(compile_sql("a CONTAINS 'x'").condition, "a").tolist() == [
        FALSE,
        FALSE,
        TRUE,
        FALSE,
    ]


def test_text_column_parses_numbers_once_for_each_java_type():
    column = texts(["5", "3000000000"])
    assert column.numbers(1) is column.numbers(7)
    assert column.numbers(1).states.tolist() == [0, FAILED, NULL]
    assert column.numbers(1 << 40).states.tolist() == [0, 0, NULL]
    assert column.numbers(0.5) is column.numbers(7.5)


def test_sort_keys_of_doubles_keep_their_order():
    ordered = ["-Infinity", "-5.5", "-0.0", "0.0", "5e-324", "5.5", "Infinity", "NaN"]
    keys = texts(ordered).numbers(0.5).keys[:-1]
    assert (np.diff(keys.astype(object)) > 0).all()


@pytest.mark.parametrize("constant", [*INTEGERS, *FLOATS])
@given(columns)
def test_column_number_comparison_equals_row_comparison(constant, values):
    for sign in SIGNS:
        for text in (f"a {sign} {constant!r}", f"a {sign} -{constant!r}"):
            condition = compile_sql(text).condition
            expected = [evaluate_state(condition, properties(value)) for value in values]
            assert texts(values).states(condition, "a").tolist() == expected, text


@pytest.mark.parametrize(
    "text",
    [
        "a = 'x'", "a = ''", "a IN ('x', '5', 'true')", "a NOT IN ('x')", "a CONTAINS '5'",
        "a NOT STARTSWITH '5'", "a ENDSWITH ''", "a NOT ENDSWITH ''", "a IS NULL", "5 = a",
        "5.5 >= a", "a = TRUE", "TRUE = a", "a = a", "a < a", "a = - -5", "-a > 5", "'x' = a",
        "(a > 5) CONTAINS 'x'", "a",
    ],
)  # fmt: skip
@given(columns)
def test_column_condition_equals_row_condition(text, values):
    condition = compile_sql(text).condition
    expected = [evaluate_state(condition, properties(value)) for value in values]
    assert texts(values).states(condition, "a").tolist() == expected


@given(
    st.lists(st.tuples(st.sampled_from(VALUES) | st.none(), st.sampled_from(VALUES) | st.none()))
)
def test_text_columns_are_compared_row_by_row(pairs):
    left, right = texts([pair[0] for pair in pairs]), texts([pair[1] for pair in pairs])
    for sign in SIGNS:
        sides = Property("a"), Property("b")
        condition = Equal(*sides) if sign == "=" else Comparison(sides[0], sign, sides[1])
        expected = [
            evaluate_state(
                condition,
                {name: text for name, text in zip("ab", pair, strict=True) if text is not None},
            )
            for pair in pairs
        ]
        assert compare_columns(left, sign, right).tolist() == expected, sign
