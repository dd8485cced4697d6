"""``produce --json`` and ``dlq resend`` send the same message that ``consume -o json`` printed.

Only U+0020 separates keys, as in the index and in Java's producers.
"""

from __future__ import annotations

import json

import click
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.messages.received_messages import received

from rmq_spark.cli.messages.dead_letters import original_message
from rmq_spark.cli.messages.message_text import renderer
from rmq_spark.cli.messages.produce_command import InputText, MessageDefaults, parse_messages
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.message import Message, MessageExt, decode_messages
from rmq_spark.client.subscriptions import by_tag, filter_by_tags, subscription_data
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import compress_body
from rmq_spark.wire.message.properties import RESERVED_NAMES
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rocketpoll import EmbeddedBroker

ID = "7F00000132FC5F901546746373D70000"
SETTINGS = MessageDefaults("copy", None, (), {}, None, 0)
WHITE = "\t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2028\u2029\u202f\u205f\u3000\ufeff\x7f\x9b"

texts = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\x01\x02")
    | st.sampled_from(WHITE),
    min_size=1,
    max_size=12,
)
keys = texts.map(lambda text: text.replace(" ", "_"))
names = texts.filter(lambda name: name not in RESERVED_NAMES)
messages = st.builds(
    Message,
    topic=st.just("T"),
    body=st.binary(min_size=1, max_size=60) | texts.map(str.encode),
    tags=st.none() | texts,
    keys=st.lists(keys, min_size=1, max_size=4) | st.none(),
    properties=st.dictionaries(names, texts, max_size=4),
    flag=st.integers(-(1 << 31), (1 << 31) - 1),
    sharding_key=st.none() | texts,
)


def stored(message: Message, topic: str = "T", *, is_compressed: bool = False) -> MessageExt:
    """Return the message as a consumer gets it."""
    body, flags = bytes(message.body), 0
    if is_compressed:
        flags = int(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_ZLIB)
        body = compress_body(body, MessageSysFlag.COMPRESSION_ZLIB)
    record = StoredMessage(
        topic, body, message.properties_text(ID), flag=message.flag, sys_flag=flags
    )
    [found] = decode_messages(encode_record(record), "broker-a")
    return found


def fields(message: Message):
    return (
        bytes(message.body),
        message.tags,
        tuple(message.keys or ()),
        dict(message.properties),
        message.flag,
        message.sharding_key,
    )


@given(messages, st.booleans())
def test_json_output_of_consume_produces_an_equal_message(message, is_compressed):
    line = renderer("json", None)(stored(message, is_compressed=is_compressed))
    [copy] = parse_messages([InputText("line 1", line)], SETTINGS, is_json=True)
    assert fields(copy) == fields(message)
    assert stored(copy).properties == stored(message).properties


@given(messages)
def test_resent_dead_letter_equals_the_original_message(message):
    letter = stored(message, "%DLQ%G")
    letter.properties["DLQ_ORIGIN_TOPIC"] = "T"
    assert fields(original_message(letter)) == fields(message)


@given(st.lists(keys, min_size=1, max_size=4))
def test_message_keys_are_separated_only_by_u_0020(given_keys):
    assert stored(Message("T", b"x", keys=given_keys)).keys == tuple(given_keys)
    assert stored(Message("T", b"x", keys="  ".join(given_keys))).keys == tuple(given_keys)


@given(texts.filter(lambda tag: "||" not in tag and tag.strip("".join(map(chr, range(33)))) == tag))
def test_consume_can_subscribe_to_any_tag_text(tag):
    assume(tag not in ("", "*"))
    found = subscription_data("T", by_tag(tag), 0)
    assert found.tags_set == {tag}
    message = stored(Message("T", b"x", tags=tag))
    assert filter_by_tags([message], found) == [message]
    assert subscription_data("T", by_tag(f" \t{tag}\r || other"), 0).tags_set == {tag, "other"}


@pytest.mark.parametrize("key", ["order\u00a042", "東京\u3000大阪", "a\tb", "a\x85b", "\u2003x"])
def test_message_key_with_unicode_white_space_is_found(key, run, monkeypatch):
    with EmbeddedBroker() as broker, Admin(broker.address) as admin:
        monkeypatch.setenv("NAMESRV_ADDR", broker.address)
        broker.create_topic("T", 1)
        broker.send("T", "one", keys=[key, "plain"])
        [found] = admin.messages_by_key("T", key)
        assert found.keys == (key, "plain")
        assert json.loads(run("consume", "T", "--key", key, "-o", "json").out)["keys"] == list(
            found.keys
        )
        copied = run("consume", "T", "-o", "json").out.encode()
        assert run("produce", "copy", "--json", stdin=copied).code == 0
        [copy] = admin.messages_by_key("copy", key)
        assert copy.properties["KEYS"] == found.properties["KEYS"]
        for part in key.split():
            assert admin.messages_by_key("T", part) == ()


def test_produce_refuses_a_line_of_an_unreadable_message():
    line = json.dumps({"body_base64": "AAAA", "fault": "compressed body at byte 0"}).encode()
    with pytest.raises(
        Failure, match=r"line 7: this message could not be read .*Remove the field fault"
    ):
        list(parse_messages([InputText("line 7", line)], SETTINGS, is_json=True))
    sound = json.dumps({"body_base64": "AAAA", "fault": None}).encode()
    assert [
        each.body for each in parse_messages([InputText("", sound)], SETTINGS, is_json=True)
    ] == [bytes(3)]


@pytest.mark.parametrize("flag", ["1", 1.5, True, 1 << 31])
def test_invalid_message_flag_is_refused_with_its_line(flag):
    line = json.dumps({"body": "x", "flag": flag}).encode()
    with pytest.raises((Failure, click.UsageError), match="line 1: flag"):
        list(parse_messages([InputText("line 1", line)], SETTINGS, is_json=True))


@pytest.mark.parametrize(
    ("text", "level"),
    [
        *[("3", 3), ("+3", 3), ("003", 3), ("\u0663", 3), (str((1 << 31) - 1), (1 << 31) - 1)],
        *[("-1", 0), ("soon", 0), ("", 0), ("3 ", 0), (str(1 << 31), 0), ("9" * 5_000, 0)],
    ],
)
def test_delay_level_property_is_parsed_as_in_java(text, level):
    message = received(1)
    message.properties.clear()
    message.properties["DELAY"] = text
    assert message.delay_level == level
