"""Subscriptions become filters by tags or SQL."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.stores.small_store import message

from rmq_spark.wire.bodies.clients import SubscriptionData
from rmq_spark.wire.chunk import RecordChunk
from rmq_spark.wire.message.properties import tags_code
from rmq_spark.wire.message.record import encode_record
from rocketpoll.broker.filter.errors import FilterError
from rocketpoll.broker.filter.filter_limits import FilterLimits
from rocketpoll.broker.filter.sql_filter import SqlFilter
from rocketpoll.broker.filter.subscription import (
    TAGS_CHARACTERS_MAX,
    build_subscription_data,
    message_filter,
)
from rocketpoll.broker.filter.tags_filter import TagsFilter
from rocketpoll.broker.store.read.entry_selection import MessageFilter

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("text", [None, "", "*"])
@pytest.mark.parametrize("kind", ["TAG", None, ""])
def test_empty_and_star_subscriptions_match_everything(text, kind):
    subscription = build_subscription_data("T", text, kind)
    assert subscription == SubscriptionData(topic="T", sub_string="*")
    assert message_filter(subscription) is None


def test_tags_are_separated_by_double_bars():
    subscription = build_subscription_data("T", " TagA||\tTagB ||  || Tag C|D\n")
    tags = {"TagA", "TagB", "Tag C|D"}
    assert subscription.sub_string == " TagA||\tTagB ||  || Tag C|D\n"
    assert subscription.tags_set == tags
    assert subscription.code_set == set(map(tags_code, tags))
    assert subscription.expression_type == "TAG"


def test_tag_filter_by_codes_or_by_text_is_built_from_a_subscription():
    subscription = build_subscription_data("T", "TagA || TagB")
    by_code, by_text = message_filter(subscription), message_filter(subscription, by_text=True)
    assert isinstance(by_code, TagsFilter)
    assert isinstance(by_text, TagsFilter)
    assert (by_code.codes, by_code.tags) == (subscription.code_set, None)
    assert (by_text.codes, by_text.tags) == (subscription.code_set, subscription.tags_set)


def test_tag_subscription_without_codes_gets_them_from_its_text():
    bare = SubscriptionData(topic="T", sub_string="TagA || TagB")
    with_codes = SubscriptionData(
        topic="T", sub_string="TagA", code_set=frozenset([tags_code("TagA")])
    )
    assert message_filter(bare).codes == {tags_code("TagA"), tags_code("TagB")}
    assert message_filter(with_codes, by_text=True).tags == {"TagA"}


def test_tag_codes_of_a_client_are_trusted_as_by_rocketmq():
    subscription = SubscriptionData(topic="T", sub_string="TagA", code_set=frozenset([42]))
    assert message_filter(subscription).codes == {42}


def test_subscription_of_blank_tags_matches_no_message():
    wanted = message_filter(build_subscription_data("T", " || "))
    assert not wanted.codes


@pytest.mark.parametrize("text", ["||", "||||"])
def test_subscription_of_bars_alone_is_refused(text):
    with pytest.raises(FilterError, match=r"TAG subscription of T: needed a tag next to \|\|"):
        build_subscription_data("T", text)


def test_tag_subscription_text_has_a_length_limit():
    assert build_subscription_data("T", "x" * TAGS_CHARACTERS_MAX).tags_set == {
        "x" * TAGS_CHARACTERS_MAX
    }
    with pytest.raises(FilterError, match="at most 65536 characters"):
        build_subscription_data("T", "x" * TAGS_CHARACTERS_MAX + "x")


def test_sql_subscription_is_compiled_when_its_filter_is_made():
    subscription = build_subscription_data("T", "a > 5", "SQL92")
    assert subscription == SubscriptionData(topic="T", sub_string="a > 5", expression_type="SQL92")
    wanted = message_filter(subscription)
    assert isinstance(wanted, SqlFilter)
    assert wanted.expression.evaluate({"a": "6"})
    with pytest.raises(FilterError, match="SQL92 expression at character 3"):
        message_filter(build_subscription_data("T", "a ! 5", "SQL92"))
    with pytest.raises(FilterError, match="at most 4 bytes"):
        message_filter(subscription, FilterLimits(expression_bytes_max=4))


@pytest.mark.parametrize("text", [None, ""])
def test_sql_subscription_without_an_expression_is_refused(text):
    with pytest.raises(FilterError, match="SQL92 subscription of T: needed an expression"):
        build_subscription_data("T", text, "SQL92")


def test_unknown_expression_type_is_refused():
    with pytest.raises(FilterError, match="needed TAG or SQL92 as its type, found 'REGEX'"):
        message_filter(build_subscription_data("T", "a.*", "REGEX"))


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_retry_topics_and_class_filters_are_not_filtered(kind):
    assert message_filter(build_subscription_data("%RETRY%group", "a = 5", kind)) is None
    by_class = SubscriptionData(topic="T", sub_string="com.Filter", class_filter_mode=True)
    assert message_filter(by_class) is None


def test_subscription_filters_implement_the_message_filter_of_the_store():
    filters: list[MessageFilter | None] = [
        message_filter(build_subscription_data("T", "TagA")),
        message_filter(build_subscription_data("T", "a = 5", "SQL92")),
    ]
    for each in filters:
        assert callable(each.by_tags_code)
        assert callable(each.by_messages)


def test_single_message_filter_does_not_import_numpy():
    script = """if True:
        import sys
        from rocketpoll.broker.filter.subscription import build_subscription_data, message_filter
        assert message_filter(build_subscription_data("T", "*")) is None
        over_five = message_filter(build_subscription_data("T", "a > 5", "SQL92"))
        assert over_five.expression.evaluate({"a": "6"})
        tags = message_filter(build_subscription_data("T", "TagA"), by_text=True)
        assert not tags.matches_code(7)
        print(*sorted({"numpy", "pyarrow"} & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.split() == []


# ---- tag filters by code and by text


TAGS = ["TagA", "polygenelubricants", "AaAa", "BBBB", None]
CHUNK = RecordChunk(b"".join(encode_record(message("x", tags=tags)) for tags in TAGS))
CODES = np.array([tags_code(tags) for tags in TAGS], np.int64)


def of(*tags, by_text=False):
    return TagsFilter(frozenset(map(tags_code, tags)), frozenset(tags) if by_text else None)


@pytest.mark.parametrize("by_text", [True, False])
def test_tag_filter_matches_the_codes_of_its_tags(by_text):
    wanted = of("TagA", "polygenelubricants", by_text=by_text)
    expected = [True, True, False, False, False]
    assert wanted.by_tags_code(CODES).tolist() == expected
    assert [wanted.matches_code(code) for code in CODES.tolist()] == expected
    assert not of(by_text=by_text).by_tags_code(CODES).any()


def test_tags_filter_distinguishes_tags_of_equal_hash():
    wanted = of("AaAa", by_text=True)
    assert wanted.by_tags_code(CODES).tolist() == [False, False, True, True, False]
    assert wanted.by_messages(CHUNK).tolist() == [False, False, True, False, False]


def test_tag_filter_by_code_does_not_read_messages():
    wanted = of("AaAa")
    assert wanted.by_messages(CHUNK) is None
    assert not wanted.needs_messages
    assert of("AaAa", by_text=True).needs_messages


def test_tag_code_is_compared_by_the_lower_32_bits():
    code = tags_code("polygenelubricants")
    fields = [code, code + (1 << 32), code & 0xFFFFFFFF, code + 1]
    wanted = of("polygenelubricants")
    assert wanted.by_tags_code(np.array(fields, np.int64)).tolist() == [True, True, True, False]
    assert [wanted.matches_code(field) for field in fields] == [True, True, True, False]
