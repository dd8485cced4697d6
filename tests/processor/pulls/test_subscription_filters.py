"""Pull filters built from a client's subscription."""

import gc
import tracemalloc
from contextlib import suppress

import pytest

from rmq_spark.wire.bodies.clients import SubscriptionData
from rmq_spark.wire.codes import ResponseCode
from rocketpoll.broker.filter.filter_limits import FilterLimits
from rocketpoll.broker.filter.subscription import TAGS_MAX
from rocketpoll.broker.processor.pulls.subscription_filters import (
    CACHED_BYTES_MAX,
    SubscriptionFilters,
)
from rocketpoll.broker.processor.request import RequestRejected

FILTERS = SubscriptionFilters(FilterLimits(expression_bytes_max=40, depth_max=3, nodes_max=5))


def remembered_bytes(filters):
    return filters._by_text.bytes + filters._by_subscription.bytes


def sql(text):
    return SubscriptionData(topic="T", sub_string=text, expression_type="SQL92")


def refusal(ask, *asked):
    with pytest.raises(RequestRejected) as raised:
        ask(*asked)
    return raised.value.code


@pytest.mark.parametrize("text", ["*", None, ""])
def test_subscription_to_everything_has_no_filter(text):
    assert FILTERS.for_text("T", text, None) is None


def test_subscription_filters_of_tags_and_expressions_are_cached():
    tags = FILTERS.for_text("T", "A || B", "TAG")
    assert [tags.matches_code(code) for code in (65, 66, 67)] == [True, True, False]
    assert tags is FILTERS.for_text("T", "A || B", "TAG")
    assert FILTERS.for_subscription(sql("a = 1")) is FILTERS.for_subscription(sql("a = 1"))
    assert FILTERS.for_subscription(sql("a = 1")).needs_messages


def test_each_of_many_subscriptions_gets_its_own_filter():
    filters = SubscriptionFilters(FilterLimits())
    for number in range(3_000):
        subscription = SubscriptionData(
            topic="T", sub_string=f"{number}", code_set=frozenset([number])
        )
        found = filters.for_subscription(subscription)
        assert found is filters.for_subscription(subscription)
        assert [found.matches_code(code) for code in (number, number + 1)] == [True, False]
    assert remembered_bytes(filters) < 4 << 20


def tags_of(number, count):
    return "||".join(f"{number:x}.{tag:x}" for tag in range(count))


def memory_kept_by(filters, asks):
    """Return the bytes still in use when all requests were served and their clients have left."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for ask in asks:
        with suppress(RequestRejected):
            ask(filters)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return after - before


def many_kinds_of_long_subscriptions():
    """Return long subscriptions of all kinds: in pulls, in heartbeats, valid and invalid."""
    for number in range(10):
        yield lambda filters, n=number: filters.for_text("T", tags_of(n, 4_000), None)
        yield lambda filters, n=number: filters.for_text("T", tags_of(n, 300), "TAG")
        yield lambda filters, n=number: filters.for_text("T", f"a > {n} " + "x" * 240_000, "SQL92")
        yield lambda filters, n=number: filters.for_text("T", f"a > {n}", f"{n}" + "x" * 240_000)
        yield lambda filters, n=number: filters.for_text(
            "%RETRY%G", f"{n}" + "x" * 240_000, "XPATH"
        )
        yield lambda filters, n=number: filters.for_text("%RETRY%G", "*", f"{n}" + "x" * 240_000)
        yield lambda filters, n=number: filters.check(with_tags(n, "SQL92"))
        yield lambda filters, n=number: filters.for_subscription(with_tags(n, "SQL92"))
        yield lambda filters, n=number: filters.for_subscription(with_tags(n, "TAG"))


def with_tags(number, expression_type):
    return SubscriptionData(
        topic="T",
        sub_string=f"a > {number}",
        tags_set=frozenset(tags_of(number, 4_000).split("||")),
        code_set=frozenset(range(number, number + 4_000)),
        expression_type=expression_type,
    )


def test_filter_cache_is_bounded_in_bytes():
    filters = SubscriptionFilters(FilterLimits())
    assert memory_kept_by(filters, many_kinds_of_long_subscriptions()) < CACHED_BYTES_MAX
    assert 0 < remembered_bytes(filters) < CACHED_BYTES_MAX


def test_refused_filter_is_not_cached():
    filters = SubscriptionFilters(FilterLimits())
    for number in range(10):
        assert refusal(filters.for_text, "T", f"a > {number} AND", "SQL92")
        assert refusal(filters.for_text, "T", "||" * number + "||", "TAG")
        assert refusal(filters.for_text, "T", "x", f"XPATH{number}")
        assert refusal(filters.for_subscription, sql(f"a > {number} OR"))
        assert refusal(
            filters.check, SubscriptionData(topic="T", sub_string="x", expression_type="X")
        )
    assert remembered_bytes(filters) == 0


def test_subscription_with_too_many_tags_is_refused_with_their_limit():
    filters = SubscriptionFilters(FilterLimits())
    assert len(filters.for_text("T", tags_of(1, TAGS_MAX), None).codes) == TAGS_MAX
    with pytest.raises(RequestRejected, match=f"at most {TAGS_MAX} tags"):
        filters.for_text("T", tags_of(1, TAGS_MAX + 1), None)


@pytest.mark.parametrize(
    "text", ["a =", "a = 1 OR b = 2 OR c = 3", "a IN ('" + "x" * 40 + "')", "((((a = 1))))"]
)
def test_invalid_or_costly_sql_subscription_is_refused(text):
    assert refusal(FILTERS.for_subscription, sql(text)) is ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert refusal(FILTERS.check, sql(text)) is ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_invalid_subscription_text_or_type_is_refused():
    assert refusal(FILTERS.for_text, "T", "||", None) is ResponseCode.SUBSCRIPTION_PARSE_FAILED
    other = SubscriptionData(topic="T", sub_string="x", expression_type="XPATH")
    assert refusal(FILTERS.for_subscription, other) is ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_disabled_property_filter_accepts_only_tags():
    filters = SubscriptionFilters(FilterLimits(enable_property_filter=False))
    assert filters.for_text("T", "A", None) is not None
    assert refusal(filters.for_subscription, sql("a = 1")) is ResponseCode.SYSTEM_ERROR
