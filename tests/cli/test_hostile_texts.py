"""Hostile text in messages and names cannot send control sequences to the terminal.

Rich colors tables itself; all other output is text, line ends and tabs.
"""

import io
import json
import re
import sys
import unicodedata

import pytest
from support.brokers.broker_kinds import wait_until
from support.programs.cli_commands import EVERY

from rmq_spark.cli.main import main
from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.instance.instance import ClientInstance
from rocketpoll import (
    ConsumeFromWhere,
    EmbeddedBroker,
    Message,
    Producer,
    PushConsumer,
    PushSettings,
)

EVIL = "\xa0\u3000\U000e0001\x1b[2J\x1b]0;owned\x07\x9b5m\x7f\x85\u202e\u2028\x1b[5m"
STYLES = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\x1b\[[0-9]*[AK]|\r")
"""Escapes by which rich colors and redraws a table."""

VERBS = {
    "consume": ["consume T", r"consume T -f %s|%k|%g|%h|%i\n", "consume T --key {key}"],
    "tail": [],  # it waits for messages, and prints them as `consume --follow` does
    "message": ["message {id}", "message {id} --topic T", "message {evil}"],
    "group list": ["group list"],
    "group describe": ["group describe G", "group describe {evil}"],
    "group seek": ["group seek G --to start --dry-run"],
    "dlq list": ["dlq list"],
    "dlq show": ["dlq show F", r"dlq show F -f %s%k\n"],
    "dlq resend": ["dlq resend F --all --dry-run", "dlq resend F {evil}"],
    "topic list": ["topic list", "topic list --all"],
    "topic describe": ["topic describe T", "topic describe {evil}"],
    "cluster info": ["cluster info"],
    "cluster health": ["cluster health"],
    "store dump": ["store dump {store}"],
    "store stat": ["store stat {store}"],
    "store verify": ["store verify {store}"],
    "sink list": ["sink list"],
}
"""Calls of the verbs that print texts of other clients."""

OF_OUTPUTS = {
    verb: next((each.type.choices for each in command.params if each.name == "output"), ())
    for verb, command in EVERY.items()
}
CALLS = [
    (verb, f"{call} -o {output}" if output else call)
    for verb, calls in VERBS.items()
    for call in calls
    for output in ("", *(OF_OUTPUTS[verb] if " -f " not in call else ()))
]


class Terminal(io.TextIOWrapper):
    def __init__(self):
        super().__init__(io.BytesIO(), encoding="utf-8", errors="backslashreplace")

    def isatty(self):
        return True

    @property
    def text(self):
        self.flush()
        return self.buffer.getvalue().decode()


@pytest.fixture(scope="module")
def evil(tmp_path_factory):
    """Run a broker with hostile bodies, tags, keys, properties, message ids and client ids."""
    store = tmp_path_factory.mktemp("store")
    with EmbeddedBroker(store) as broker, Admin(broker.address) as admin:
        broker.create_topic("T", 1)
        with Producer("P", broker.address) as producer:
            message = Message(
                *("T", f"{EVIL}body".encode()),
                tags=f"{EVIL}tag",
                keys=[f"{EVIL}key"],
                properties={f"{EVIL}name": f"{EVIL}value", "lines": "a\nb\r\nc"},
                sharding_key=f"{EVIL}sharding",
            )
            result = producer.send(message)
            producer.send(Message("T", EVIL.encode("utf-16") + b"\xff\x1b[5m\x9b"))
        instance = ClientInstance(broker.address, heartbeat_interval_ms=200)
        instance.client_id = f"{EVIL}client"

        def fail(_, context):
            context.delay_level_when_next_consume = -1
            raise ValueError(EVIL)

        settings = PushSettings(
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
            persist_consumer_offset_interval_ms=100,
            max_reconsume_times=0,
        )
        with (
            PushConsumer("F", broker.address, listener=fail, settings=settings) as failing,
            PushConsumer(
                "G", instance=instance, listener=lambda *_: None, settings=settings
            ) as consumer,
        ):
            failing.subscribe("T")
            consumer.subscribe("T")
            wait_until("dead letters", lambda: "%DLQ%F" in admin.topics())
            wait_until("all of them", lambda: len(broker.messages("%DLQ%F")) == 2)
            wait_until("a member", lambda: admin.members("G"))
            yield {
                "address": broker.address,
                "id": result.message_id,
                "key": f"{EVIL}key",
                "evil": EVIL,
                "store": store,
            }


@pytest.fixture
def on_a_terminal(evil, monkeypatch):
    """Return a function that runs a command and returns everything that it writes to a terminal."""
    monkeypatch.setenv("NAMESRV_ADDR", evil["address"])
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")

    def ran(call):
        terminal = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            patch.setattr(sys, "stderr", terminal)
            main([word.format(**evil) for word in call.split(" ")])
        return terminal.text

    return ran


def steering(text):
    """Return the control characters of a text, and those that change its direction."""
    return [
        each
        for each in STYLES.sub("", text)
        if unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp") and each not in "\n\t"
    ]


@pytest.mark.parametrize(("verb", "call"), CALLS, ids=[call for _, call in CALLS])
def test_hostile_text_never_controls_the_terminal(on_a_terminal, verb, call):
    written = on_a_terminal(call)
    assert written
    assert steering(written) == []
    assert "\x1b[5m" not in written
    has_texts = verb in ("consume", "message", "dlq show", "group describe")
    if has_texts and not call.endswith(("hex", "message {id} -o csv", "T -o csv")):
        assert re.search(r"\\x1b\[5m|\\u001b\[5m|\\e\[5m|there is no|has a message", written)


def test_json_means_the_same_in_a_terminal_and_a_pipe(evil, on_a_terminal, run, monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", evil["address"])
    shown = [json.loads(line) for line in on_a_terminal("consume T -o json").splitlines()]
    piped = run("consume", "T", "-o", "json").out
    assert [json.loads(line) for line in piped.splitlines()] == shown
    assert shown[0]["body"] == f"{EVIL}body"
    described = run("group", "describe", "G", "-o", "json").out
    owners = [row["member"] for row in json.loads(described)["queues"]]
    on_terminal = json.loads(on_a_terminal("group describe G -o json"))
    assert owners == [row["member"] for row in on_terminal["queues"]]
    assert all(EVIL in owner for owner in owners)
    for text in (piped, described):  # it may reach a terminal through `head` or `less`
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


def test_csv_and_bodies_reach_a_program_as_they_are(evil, run, monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", evil["address"])
    assert f"{EVIL}client" in run("group", "describe", "G", "-o", "csv").out
    assert f"{EVIL}body" in run("consume", "T", "-n", 1, "-o", "raw").out
