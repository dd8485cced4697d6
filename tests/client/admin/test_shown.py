"""Notebook output of admin results: short, in columns, and without active content."""

import pickle
from html.parser import HTMLParser

import pytest

from rmq_spark.client.admin.lag import Lag
from rmq_spark.client.admin.table_display import (
    CHARACTERS_MAX,
    ROWS_MAX,
    LagTable,
    MessageTable,
    format_html,
    format_text,
)
from rmq_spark.client.message import to_message
from rmq_spark.wire.message.record import StoredMessage, decode_record, encode_record
from rmq_spark.wire.message_queue import MessageQueue

SCRIPT = "<script>alert('1 & 2')</script>"


def message(body=b"one"):
    stored = StoredMessage("orders", body, queue_offset=7, store_timestamp=1_769_860_800_123)
    return to_message(decode_record(encode_record(stored)), "broker-a")


class Page(HTMLParser):
    """Collects the tags and the texts of a page."""

    def __init__(self, html):
        super().__init__()
        self.tags = set()
        self.texts = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert not attrs

    def handle_data(self, data):
        self.texts.append(data)


def test_notebook_message_table_has_columns():
    assert repr(MessageTable([message(), message(b"zwei")])) == (
        "2 messages of orders\n"
        "queue  offset  tags  keys  stored (UTC)             body\n"
        "0      7                   2026-01-31 12:00:00.123  one\n"
        "0      7                   2026-01-31 12:00:00.123  zwei"
    )
    page = Page(MessageTable([message()])._repr_html_())
    assert page.texts[0] == "1 message of orders"
    assert page.texts[-1] == "one"


def test_message_table_shows_first_messages_and_cuts_bodies():
    shown = repr(MessageTable([message(b"x" * 10_000_000)] * 1_020))
    assert shown.startswith("1,020 messages of orders\n")
    assert shown.endswith(f"  {'x' * CHARACTERS_MAX}...\nand 1,000 more")
    assert shown.count("\n") == ROWS_MAX + 2
    assert len(MessageTable([message(b"x" * 10_000_000)] * 1_020)._repr_html_()) < 10_000


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("ö€".encode(), "ö€"),
        (b"\xff\x00", r"b'\xff\x00'"),
        (b"\x1b[31mred\n", r"\x1b[31mred\n"),
        ("€".encode() * 200, "€" * CHARACTERS_MAX + "..."),
        (b"x" + "€".encode() * 200, "x" + "€" * (CHARACTERS_MAX - 1) + "..."),
    ],
)
def test_message_table_repr_shows_the_body_as_text_or_bytes_in_one_line(body, shown):
    assert repr(MessageTable([message(body)])).endswith(f"  {shown}")


def test_message_table_html_escapes_content():
    page = Page(MessageTable([message(SCRIPT.encode())])._repr_html_())
    assert "script" not in page.tags
    assert page.texts[-1] == SCRIPT
    assert "script" not in Page(format_html(SCRIPT, [SCRIPT], [[SCRIPT]], 1)).tags


def test_notebook_message_lists_are_still_lists():
    one = message()
    messages = MessageTable([one])
    assert messages == [one]
    assert isinstance(messages, list)
    assert pickle.loads(pickle.dumps(messages)) == messages  # noqa: S301  # the test's own data
    assert repr(MessageTable()) == "0 messages"
    assert MessageTable()._repr_html_() == "<div>0 messages</div>"


def test_timestamp_beyond_the_calendar_is_shown_as_a_number():
    stored = StoredMessage("orders", b"x", store_timestamp=(1 << 63) - 1)
    assert f"{(1 << 63) - 1} ms" in repr(
        MessageTable([to_message(decode_record(encode_record(stored)), "b")])
    )


def test_notebook_lag_table_has_queues_and_a_total():
    lags = LagTable(
        [Lag(MessageQueue("orders", "broker-a", n), 10, n or None, 0) for n in range(2)]
    )
    assert repr(lags) == (
        "19 messages behind, in 2 queues\n"
        "queue              committed  end  behind\n"
        "orders broker-a 0  nothing    10   10\n"
        "orders broker-a 1  1          10   9"
    )
    assert Page(lags._repr_html_()).texts[-4:] == ["orders broker-a 1", "1", "10", "9"]
    first, _ = lags
    assert lags == (first, lags[1])
    assert pickle.loads(pickle.dumps(lags)) == lags  # noqa: S301  # the test's own data


def test_notebook_table_without_rows_is_not_drawn():
    assert format_text("nothing", ["a"], [], 0) == "nothing"
    assert format_html("nothing", ["a"], [], 0) == "<div>nothing</div>"
