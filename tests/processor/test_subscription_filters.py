"""From what a client subscribes to, to the filter of its pulls."""

from __future__ import annotations

import pytest

from rmq_spark.wire.bodies.clients import SubscriptionData
from rmq_spark.wire.codes import ResponseCode
from rocketpoll.broker.config import FilterLimits
from rocketpoll.broker.processor.request import RequestRejected
from rocketpoll.broker.processor.subscription_filters import SubscriptionFilters

FILTERS = SubscriptionFilters(FilterLimits(expression_bytes_max=40, depth_max=3, nodes_max=5))


def sql(text):
    return SubscriptionData(topic="T", sub_string=text, expression_type="SQL92")


def refusal(ask, *asked):
    with pytest.raises(RequestRejected) as raised:
        ask(*asked)
    return raised.value.code


@pytest.mark.parametrize("text", ["*", None, ""])
def test_who_wants_everything_has_no_filter(text):
    assert FILTERS.filter_of(FILTERS.subscription_of("T", text, None)) is None


def test_tags_and_expressions_have_filters_that_are_remembered():
    tags = FILTERS.subscription_of("T", "A || B", "TAG")
    assert tags.tags_set == {"A", "B"}
    assert [FILTERS.filter_of(tags).matches_code(code) for code in (65, 66, 67)] == [True, True, False]
    assert FILTERS.filter_of(tags) is FILTERS.filter_of(FILTERS.subscription_of("T", "A || B", "TAG"))
    assert FILTERS.filter_of(sql("a = 1")) is FILTERS.filter_of(sql("a = 1"))
    assert FILTERS.filter_of(sql("a = 1")).needs_messages


def test_however_many_subscriptions_there_are_each_has_its_own_filter():
    filters = SubscriptionFilters(FilterLimits())
    for number in range(3_000):
        subscription = SubscriptionData(topic="T", sub_string=f"{number}", code_set=frozenset([number]))
        found = filters.filter_of(subscription)
        assert found is filters.filter_of(subscription)
        assert [found.matches_code(code) for code in (number, number + 1)] == [True, False]
    assert len(filters._filters) <= 1_024


@pytest.mark.parametrize(
    "text", ["a =", "a = 1 OR b = 2 OR c = 3", "a IN ('" + "x" * 40 + "')", "((((a = 1))))"]
)
def test_an_expression_that_is_wrong_or_costs_too_much_is_refused(text):
    assert refusal(FILTERS.filter_of, sql(text)) is ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert refusal(FILTERS.check, sql(text)) is ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_a_subscription_that_cannot_be_is_refused():
    assert refusal(FILTERS.subscription_of, "T", "||", None) is ResponseCode.SUBSCRIPTION_PARSE_FAILED
    other = SubscriptionData(topic="T", sub_string="x", expression_type="XPATH")
    assert refusal(FILTERS.filter_of, other) is ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_without_filters_by_properties_only_tags_are_taken():
    filters = SubscriptionFilters(FilterLimits(enable_property_filter=False))
    assert filters.filter_of(filters.subscription_of("T", "A", None)) is not None
    assert refusal(filters.filter_of, sql("a = 1")) is ResponseCode.SYSTEM_ERROR
