"""Messages sent from the console: produced, copied and edited; errors appear next to
their field."""

import base64
import json
import logging
import shlex
from datetime import datetime, timedelta, timezone
from urllib.parse import quote

import pytest
from support.brokers.broker_kinds import wait_until
from support.programs.web_console import served, staged

from rmq_spark.cli.console.forms.message_forms import TYPED_BYTES_MAX
from rmq_spark.cli.console.guard import AUDIT_LOGGER
from rmq_spark.wire.message.message_id import RecallHandle
from rocketpoll import EmbeddedBroker, Message, Producer

QUOTED = """'"><script>alert(1)</script>"""


@pytest.fixture
def topic(cluster):
    return cluster.topic(queues=1)


def typed(topic, **changed):
    """Return the fields that a browser sends with the first form."""
    return {"topic": topic, "tag": "", "keys": "", "properties": "", "sharding_key": "",
            "delay": "0", "deliver": "", "flag": "0", "format": "text", "body": "hello",
            **changed}  # fmt: skip


def with_session(console, fields):
    """Add the fields of the session to the fields of a form."""
    page = console.read("/produce")
    return {**fields, **{name: page.form(name)[-1] for name in ("csrf", "mark")}}


def preview(console, topic, **changed):
    return console.post("/produce/preview", with_session(console, typed(topic, **changed)))


def first_form(page):
    """Return the fields of a preview's first form, which sends."""
    given = {}
    for name, value in page.fields:
        given.setdefault(name, value)
    return given


def sent(run, topic, *options):
    return [json.loads(line) for line in run("consume", topic, "-o", "json", *options).lines]


def test_message_is_sent_once_as_it_was_previewed(console, run, topic, caplog):
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    console.sign_in()
    body = '{"a":\r\n "€"}'
    given = {"tag": "paid", "keys": "k-1  k-2", "properties": "colour=red=1\r\n\r\nsize= 2",
             "format": "json", "body": body, "flag": "-7", "sharding_key": QUOTED}  # fmt: skip
    shown = preview(console, topic, **given)
    assert shown.status == 200
    assert "Nothing has been sent." in shown.text
    assert sent(run, topic) == []
    form = first_form(shown.page)
    assert "1 message was sent" not in shown.text
    assert f"One message was sent to {topic}" in console.post("/produce", form).text
    assert console.post("/produce", form).status == 409
    [found] = sent(run, topic)
    assert found["body"] == body.replace("\r\n", "\n")
    assert (found["tags"], found["keys"], found["flag"]) == ("paid", ["k-1", "k-2"], -7)
    assert found["properties"] == {"colour": "red=1", "size": " 2"}
    assert found["sharding_key"] == QUOTED
    lines = [record.getMessage() for record in caplog.records if "/produce" in record.getMessage()]
    assert len(lines) == 2
    assert f"sent 13 bytes to {topic}" in lines[0]
    assert body.encode().hex() not in lines[0]
    assert "refused: This form has been submitted already." in lines[1]


def test_shown_command_sends_the_same_message(console, run, topic, cluster):
    console.sign_in()
    given = {"body": 'it\'s \\n "x"', "keys": "a b", "tag": "t", "properties": "p=$HOME `id`"}
    text = preview(console, topic, **given).page.text
    line = text[text.index("printf") : text.index(" Copy")]
    printf, pipe, command = line.partition(" | rocketpoll ")
    assert pipe
    words = shlex.split(command)
    assert words[-2:] == ["--namesrv", cluster.name_server]
    assert run(*words, stdin=shlex.split(printf)[2].encode() + b"\n").code == 0
    [found] = sent(run, topic)
    assert (found["body"], found["keys"], found["tags"]) == (given["body"], ["a", "b"], "t")
    assert found["properties"] == {"p": "$HOME `id`"}


FAULTS = [
    ("topic", "", "Enter a topic."),
    ("topic", "a b", "letters, digits and % | _ -"),
    ("topic", "SCHEDULE_TOPIC_XXXX", "a topic that the broker does not reserve"),
    ("topic", "no-such-topic-here", "There is no topic no-such-topic-here. Create it"),
    ("body", "", "Enter a body."),
    ("body", "x" * (TYPED_BYTES_MAX + 1), "The body has 262,145 bytes; a form takes up to 262,144"),
    ("body", "bell \a", "Here are its bytes"),
    ("body", "\u202etxt", "Here are its bytes"),
    ("tag", "a\x01b", "control characters"),
    ("properties", "colour", "'colour' has no name or no value. Write NAME=VALUE."),
    ("properties", "colour=", "has no name or no value"),
    ("properties", "a=1\r\na=2", "'a' occurs twice"),
    ("properties", "UNIQ_KEY=1", "names that RocketMQ does not reserve"),
    ("properties", "a=" + "x" * 33_000, "at most 32255 bytes"),
    ("delay", "19", "Enter a whole number from 0 to 18."),
    ("deliver", "tomorrow", "Enter a duration such as 90s"),
    ("deliver", "2020-01-31T12:00", "That time has passed."),
    ("flag", "9999999999", "Enter a whole number from"),
    ("format", "xml", "Choose one of text, json, hex."),
]


@pytest.mark.parametrize(("field", "value", "says"), FAULTS)
def test_invalid_message_form_names_the_field_and_keeps_the_input(
    console, run, topic, field, value, says
):
    console.sign_in()
    given = {field: value, "keys": "kept-key"}
    for path in ("/produce/preview", "/produce"):
        answer = console.post(path, with_session(console, {**typed(topic), **given}))
        assert answer.status == 400
        assert says in answer.text
        [wrong] = [each for _, each in answer.page.elements if "aria-invalid" in each]
        assert wrong["name"] == field
        assert "kept-key" in answer.page.form("keys")
    assert sent(run, topic) == []


@pytest.mark.parametrize(
    ("body_format", "body", "says"),
    [
        ("json", '{"a": }', "Not JSON: Expecting value in line 1, column 7"),
        ("json", '{"a":\r\n1,}', "in line 2, column 3"),
        ("json", "NaN", "NaN is not a JSON number"),
        ("json", "[" * 100_000, "nested too deeply"),
        ("json", "1" * 5_000, "Exceeds the limit"),
        ("hex", "68 6", "The last byte has one digit"),
        ("hex", "0x68", "'x' is not a hex digit"),
    ],
)
def test_invalid_json_or_hex_in_a_message_form_is_refused_with_its_position(
    console, topic, body_format, body, says
):
    answer = preview(console.sign_in(), topic, format=body_format, body=body)
    assert (answer.status, says in answer.text) == (400, True), answer.text[:2_000]


def test_hex_body_is_sent_as_its_bytes(console, run, topic):
    answer = preview(console.sign_in(), topic, format="hex", body="00 ff\r\n0a0D")
    console.post("/produce", first_form(answer.page))
    assert sent(run, topic)[0]["body_base64"] == "AP8KDQ=="


def test_console_message_copy_keeps_every_field(console, run, cluster, topic):
    other = cluster.topic(queues=1)
    line = {"body_base64": "AAEC/w0K", "keys": ["k"], "tags": "t", "flag": 3,
            "properties": {"n": "a\nb", "é": "="}}  # fmt: skip
    run("produce", topic, "--json", stdin=json.dumps(line).encode())
    at = f"/topics/{topic}/{cluster.broker_name}/0/0/copy"
    console.sign_in()
    assert topic in console.read(at).form("to")
    answer = console.get(f"{at}?to={other}")
    assert "new message with a new id" in answer.text
    pipe = f"--queue {cluster.broker_name}:0 --offset 0 -n 1 -o json"
    assert f"rocketpoll consume {topic} {pipe} --namesrv" in answer.text
    form = first_form(answer.page)
    assert console.post(at, {**form, "id": "another"}).status == 200
    assert sent(run, other) == []
    form = first_form(console.get(f"{at}?to={other}").page)
    assert "sent" in console.post(at, form).text
    assert console.post(at, form).status == 409
    [found] = sent(run, other)
    [original] = sent(run, topic)
    assert {name: found[name] for name in line} == line
    assert found["id"] != original["id"]


def test_edited_message_is_prefilled_and_says_what_a_form_cannot_hold(console, run, cluster, topic):
    console.sign_in()
    for number, (body, kind) in enumerate(
        [(b'\n{"a": 1}', "json"), (b"\nplain", "text"), (b"a\r\nb", "hex"), (b"\xff", "hex")]
    ):
        encoded = base64.b64encode(body).decode()
        line = {"body_base64": encoded, "properties": {"n": "a\nb", "colour": "red"}}
        run("produce", topic, "--json", stdin=json.dumps(line).encode())
        page = console.read(f"/topics/{topic}/{cluster.broker_name}/0/{number}/edit")
        assert "Property 'n' is left out" in page.text
        [chosen] = [given["value"] for tag, given in page.elements
                    if tag == "option" and "selected" in given and given["value"] in
                    ("text", "json", "hex")]  # fmt: skip
        assert chosen == kind
        assert "colour=red" in page.text
    large = "x" * (TYPED_BYTES_MAX + 1)
    run("produce", topic, stdin=large.encode())
    page = console.read(f"/topics/{topic}/{cluster.broker_name}/0/4/edit")
    assert "Edit the message in a file" in page.text
    assert "> message.json" in page.text


def test_body_of_four_mebibytes_is_copied_and_refused_in_a_form(console, run, cluster, topic):
    body = b"m" * (4 * 1024 * 1024)
    run("produce", topic, stdin=body)
    console.sign_in()
    at = f"/topics/{topic}/{cluster.broker_name}/0/0/copy"
    assert "sent" in console.post(at, first_form(console.get(f"{at}?to={topic}").page)).text
    assert [len(each["body"]) for each in sent(run, topic)] == [len(body)] * 2
    answer = preview(console, topic, body=body.decode())
    assert answer.status == 413
    assert b"rocketpoll produce TOPIC FILE --whole" in answer.body


def test_read_only_console_shows_the_commands_and_refuses_forms(addresses, run, cluster, topic):
    run("produce", topic, stdin=b"one")
    at = f"/topics/{topic}/{cluster.broker_name}/0/0"
    with served(addresses[0], writes=False) as browser:
        end = f"--namesrv {cluster.name_server}"
        page = browser.read(f"/produce?topic={topic}")
        assert f"echo 'hello' | rocketpoll produce {topic} {end}" in page.text
        assert "produce" in browser.read(f"{at}/copy?to={topic}").text
        assert (
            f"rocketpoll produce {topic} message.json --json {end}"
            in browser.read(f"{at}/edit").text
        )
        browser.sign_in()
        for path in ("/produce", "/produce/preview", f"{at}/copy"):
            assert browser.post(path, typed(topic)).status == 403
    assert len(sent(run, topic)) == 1


def test_forged_console_forms_send_no_message(console, run, topic):
    fields = with_session(console.sign_in(), typed(topic))
    for path in ("/produce", "/produce/preview"):
        assert console.post(path, {**fields, "csrf": "guess"}).status == 403
        assert console.post(path, fields, Origin="http://evil.example").status == 403
    assert console.post("/produce", {**fields, "mark": ""}).status == 409
    console.cookie = None
    assert console.post("/produce", fields).status == 403
    assert "Sign in to send" in console.read("/produce").text
    assert sent(run, topic) == []


def test_hostile_text_in_message_forms_is_escaped_and_round_trips(console, topic):
    console.sign_in()
    given = {"body": f"</textarea>{QUOTED}", "keys": QUOTED, "properties": f"n={QUOTED}"}
    answer = preview(console, topic, **given)
    assert answer.status == 200
    assert [tag for tag, _ in answer.page.elements].count("script") == 1
    form = first_form(answer.page)
    assert bytes.fromhex(form["body"]).decode() == given["body"]
    assert form["keys"] == QUOTED
    assert form["properties"] == given["properties"]


def test_delayed_message_is_not_linked_before_its_delivery(console, topic):
    answer = preview(console.sign_in(), topic, delay="1")
    assert "delivered after its delay" in console.post("/produce", first_form(answer.page)).text


@pytest.fixture
def has_timers(kind):
    if kind == "4.9.7":
        pytest.skip("RocketMQ 4.9 has no timers")


@pytest.mark.usefixtures("has_timers")
def test_timer_message_is_sent_listed_and_recalled_with_audit(console, run, topic, caplog):
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    console.sign_in()
    shown = preview(console, topic, deliver="2h", body="later")
    assert "2h after it is sent" in shown.text
    assert "--delay 2h" in shown.text
    answer = console.post("/produce", first_form(shown.page))
    assert "It is delivered at its time." in answer.text
    [recall] = [link for link in answer.page.links if link.startswith("/recall?")]
    wait_until("it waits", lambda: "Waiting timers 1" in console.read(f"/topics/{topic}").text)
    assert f"{topic} 1 0 - 1" in console.read(f"/topics?q={topic}").text
    listed = console.read(f"/topics/{topic}?tab=timers")
    assert "later" in listed.text
    [listed_recall] = [link for link in listed.links if link.startswith("/recall?")]
    assert listed_recall == recall
    plan = console.read(recall)
    assert "Nothing has been recalled." in plan.text
    done = console.post("/recall", plan.fields)
    assert "The recall is stored." in done.text
    wait_until(
        "no timer is listed",
        lambda: (
            "No message of this topic waits" in console.read(f"/topics/{topic}?tab=timers").text
        ),
    )
    assert console.post("/recall", plan.fields).status == 409
    [line, _] = [text for text in map(logging.LogRecord.getMessage, caplog.records)
                 if "POST /recall" in text]  # fmt: skip
    assert f"of {topic}" in line
    assert sent(run, topic) == []


@pytest.mark.usefixtures("has_timers")
def test_timer_for_a_time_keeps_the_time_of_its_preview(console, topic):
    console.sign_in()
    at = datetime.now(timezone.utc).astimezone() + timedelta(hours=30)
    shown = preview(console, topic, deliver=f"{at:%Y-%m-%dT%H:%M}")
    due = at.replace(second=0, microsecond=0)
    form = first_form(shown.page)
    assert datetime.fromisoformat(form["deliver"]) == due
    assert f"--at {due.astimezone(timezone.utc):%Y-%m-%dT%H:%M}" in shown.text
    assert "It is delivered at its time." in console.post("/produce", form).text


def test_recall_needs_a_handle_and_a_session(addresses, console):
    assert console.get("/recall?handle=x").status == 400
    assert console.post("/recall", {"handle": "x"}).status in (401, 403)
    over = RecallHandle("T", "broker-a", 1_000, "ID").encode()
    assert "Its time of delivery has passed" in console.read(f"/recall?handle={over}").text
    with served(addresses[0], writes=False) as reader:
        assert "Start it with --writes" in reader.read(f"/recall?handle={over}").text


def test_recall_at_a_broker_that_forbids_it_names_the_setting():
    """RocketMQ 5 forbids it by default."""
    with (
        EmbeddedBroker(recallMessageEnable=False) as broker,
        Producer("P", broker.address) as producer,
        served(broker.address) as browser,
    ):
        handle = producer.send(Message("T", b"later", deliver_after="2h")).recall_handle
        plan = browser.sign_in().read(f"/recall?handle={quote(handle, safe='')}")
        refused = browser.post("/recall", plan.fields)
    assert refused.status == 403
    assert "Set recallMessageEnable=true at the broker" in refused.text


def test_message_page_leads_to_copy_and_edit(console, cluster):
    stage = staged(cluster)
    at = f"/topics/{stage.topic}/{stage.broker}/0/0"
    assert {f"{at}/copy", f"{at}/edit"} <= set(console.read(at).links)
    assert f"/produce?topic={stage.topic}" in console.read(f"/topics/{stage.topic}").links
