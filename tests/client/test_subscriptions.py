"""Subscriptions by tags and SQL as brokers read them."""

import pytest
from support.messages.received_messages import received

from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.subscriptions import (
    _warn_once,
    by_sql,
    by_tag,
    filter_by_tags,
    subscription_data,
)
from rmq_spark.wire.message.properties import tags_code


@pytest.mark.parametrize("expression", ["*", "", "  ", " * "])
def test_star_or_empty_subscription_matches_all(expression):
    data = subscription_data("T", by_tag(expression), 7)
    assert (data.sub_string, data.tags_set, data.code_set, data.sub_version) == (
        "*",
        set(),
        set(),
        7,
    )


def test_tag_subscription_contains_names_and_hashes():
    data = subscription_data("T", by_tag(" red ||blue|| || 中文 "), 0)
    assert data.sub_string == "red ||blue|| || 中文"
    assert data.tags_set == {"red", "blue", "中文"}
    assert data.code_set == {tags_code(tag) for tag in data.tags_set}
    assert data.expression_type == "TAG"


@pytest.fixture
def warnings(caplog):
    """Return the warnings about subscriptions, as in a new process."""
    _warn_once.cache_clear()
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    "tag",
    ["paid,refunded", "paid refunded", "paid|refunded", "a;b", "a > 5 AND b = 'x'", "size>3"],
)
def test_tag_with_separators_is_warned_about_once(tag, warnings):
    for _ in range(2):
        data = subscription_data("T", by_tag(f"{tag} || red"), 0)
        assert data.tags_set == {tag, "red"}
    (told,) = warnings()
    assert f"one tag {tag!r}" in told or f'one tag "{tag}"' in told
    assert "Separate several by ||" in told
    assert "by_sql(" in told


@pytest.mark.parametrize("expression", ["*", "", "a||b", " a || b-c_1.d ", "中文", "a&b/c:d"])
def test_usual_tags_give_no_warning(expression, warnings):
    subscription_data("T", by_tag(expression), 0)
    subscription_data("T", by_sql("a > 5"), 0)
    assert warnings() == []


def test_sql_subscription_is_passed_unchanged():
    data = subscription_data("T", by_sql("a > 3 || b"), 9)
    assert (data.sub_string, data.expression_type, data.sub_version) == ("a > 3 || b", "SQL92", 9)
    assert data.tags_set == set()


@pytest.mark.parametrize(
    ("selector", "why"), [(by_sql(" "), "a condition in SQL92"), (by_tag("||"), r"red \|\| blue")]
)
def test_selector_that_matches_nothing_is_refused(selector, why):
    with pytest.raises(MessageRejected, match=why):
        subscription_data("T", selector, 0)


def test_subscription_to_an_invalid_topic_name_is_refused():
    with pytest.raises(MessageRejected, match="topic"):
        subscription_data("a topic", by_tag(), 0)


def test_tags_are_compared_by_text():
    messages = [received(0, tags="Aa"), received(1, tags="BB"), received(2)]
    assert tags_code("Aa") == tags_code("BB")
    assert filter_by_tags(messages, subscription_data("T", by_tag("Aa"), 0)) == messages[:1]
    assert filter_by_tags(messages, subscription_data("T", by_tag(), 0)) == messages
    assert filter_by_tags(messages, subscription_data("T", by_sql("a = 1"), 0)) == messages
