"""Messages as text: formats, JSON, bodies, and the escaping of control characters."""

import io
import json
import sys
from dataclasses import replace

import click
import pytest

from rmq_spark.cli.messages.message_text import message_fields, renderer, write_bytes
from rmq_spark.client.message import MessageExt
from rmq_spark.wire.message_queue import MessageQueue

MESSAGE = MessageExt(
    topic="orders",
    body=b"one",
    properties={"KEYS": "k1 k2", "TAGS": "red", "UNIQ_KEY": "ID", "colour": "blue"},
    queue=MessageQueue("orders", "broker-a", 3),
    queue_offset=42,
    message_id="ID",
    offset_message_id="OFFSET-ID",
    commit_log_offset=7,
    born_timestamp=1_795_424_400_000,
    born_host="10.0.0.1:1",
    store_timestamp=1_795_424_400_123,
    store_host="10.0.0.2:2",
    reconsume_times=0,
    flag=0,
    sys_flag=0,
    prepared_transaction_offset=0,
)
HOSTILE = replace(MESSAGE, body=b"\x1b[2Jgone\r\n", properties={"TAGS": "\x1b]0;title\x07"})


@pytest.mark.parametrize(
    ("text_format", "expected"),
    [
        ("%t %b %p %o %T", b"orders broker-a 3 42 1795424400123"),
        ("%k|%g|%i|%S", b"k1 k2|red|ID|3"),
        ("%s %h", b"one colour=blue"),
        (r"\t\n\r\\\x00%%", b"\t\n\r\\\0%"),
        ("", b""),
    ],
)
def test_message_format_string_works_as_in_kcat(text_format, expected):
    assert renderer("text", text_format)(MESSAGE) == expected


@pytest.mark.parametrize("text_format", ["%q", "100%", "\\q", "end\\"])
def test_invalid_message_format_is_refused_with_advice(text_format):
    with pytest.raises(click.UsageError, match="Use %t"):
        renderer("text", text_format)


def test_message_bodies_are_printed_raw_or_in_hex():
    assert renderer("raw", None)(HOSTILE) == HOSTILE.body + b"\n"
    assert renderer("hex", None)(MESSAGE) == b"6f6e65\n"


def test_message_json_contains_all_fields():
    found = json.loads(renderer("json", None)(MESSAGE))
    assert (found["keys"], found["tags"], found["body"]) == (["k1", "k2"], "red", "one")
    assert found["properties"] == {"colour": "blue"}
    assert message_fields(replace(MESSAGE, body=b"\xff"))["body_base64"] == "/w=="


def test_message_line_escapes_terminal_control_characters():
    line = renderer("text", None)(HOSTILE).decode()
    assert line.endswith("orders broker-a:3@42  tags=\\x1b]0;title\\x07  \\x1b[2Jgone\\r\\n\n")
    assert renderer("text", None)(replace(MESSAGE, body=b"\xff")).endswith(b"b'\\xff'\n")


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def test_message_bytes_are_escaped_on_a_terminal_and_raw_in_a_pipe(monkeypatch):
    for kind, expected in (
        (Terminal, b"\\x1b[2Jgone\\r\n\tnext"),
        (io.TextIOWrapper, b"\x1b[2Jgone\r\n\tnext"),
    ):
        data = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", kind(data))
        write_bytes(b"\x1b[2Jgone\r\n\tnext")
        sys.stdout.flush()
        assert data.getvalue() == expected
