"""Message forms: produce one message, send a copy of a stored one, edit a stored one and send it.

    produce, edit    the fields of a message ──> preview ──> the same fields, hidden ──> send
    copy             the position of a message ──> preview ──> the position ──> send

A previewed body is sent as bytes in hex, because browsers change newlines in fields. A copy takes
the body from the broker, so that it may have any size and bytes. Both are new messages with a new
id, like those of ``rocketpoll consume -o json | rocketpoll produce --json``.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from http import HTTPStatus
from typing import Final, NamedTuple, NoReturn
from urllib.parse import urlencode

from rmq_spark.cli.console.forms.fields import NOT_SHOWN, FormInput
from rmq_spark.cli.console.guard import form_fields
from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.bodies import render_body
from rmq_spark.cli.console.markup.html import NOTHING, Child, Html, el, is_verbatim, join, path
from rmq_spark.cli.console.visit import Visit, message_path, recall_path, topic_path
from rmq_spark.cli.groups.group_state import queue_text
from rmq_spark.cli.messages.message_text import sendable_fields, user_properties
from rmq_spark.cli.shell.failures import Failure, explain_error
from rmq_spark.cli.shell.output import json_line
from rmq_spark.cli.shell.parameter_types import parse_clock_or_day_ms
from rmq_spark.client.arguments import check_send_topic
from rmq_spark.client.errors import (
    BrokerRefused,
    ConnectionFailed,
    MessageRejected,
    NoNameServer,
    NoPermission,
    RouteNotFound,
    SendFailed,
    TopicNotUsable,
)
from rmq_spark.client.message import Message, MessageExt
from rmq_spark.client.producer.prepared_message import SendRules
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.results import SendResult
from rmq_spark.client.times import duration_ms
from rmq_spark.errors import RocketPollError, format_count, nearest_name
from rmq_spark.wire.compression import PLAIN_BYTES_MAX
from rmq_spark.wire.remoting.java_numbers import INT32_MAX

TYPED_BYTES_MAX: Final = 256 * 1024
"""The largest body, in bytes, that a form accepts."""

_GROUP: Final = "rocketpoll-console"
_PLACEHOLDER_ID: Final = "0" * 32
_COMMAND_BYTES_MAX: Final = 2 * 1024
"""The largest message that is shown within a command; for others, the command reads a file."""

_FORMATS: Final = (("text", "Text"), ("json", "JSON"), ("hex", "Hex"))
_DELAYS: Final = ("1 s", "5 s", "10 s", "30 s", *(f"{minutes} min" for minutes in range(1, 11)),
                  "20 min", "30 min", "1 h", "2 h")  # fmt: skip
"""RocketMQ's default delay levels; a broker may have others."""
_TEXT_FIELDS: Final = ("topic", "tag", "keys", "properties", "sharding_key", "delay", "deliver",
                       "flag")  # fmt: skip
_FIELD_OF: Final = {
    "topic": "topic",
    "tags": "tag",
    "one of keys": "keys",
    "property KEYS": "keys",
    "property TAGS": "tag",
    "property __SHARDINGKEY": "sharding_key",
    "sharding_key": "sharding_key",
    "body": "body",
    "delay_level": "delay",
    "deliver_after": "deliver",
    "deliver_at": "deliver",
    "flag": "flag",
}
"""The field of the form for each part of a message that an error may name."""

_NOT_STORED: Final = (BrokerRefused, ConnectionFailed, MessageRejected, NoNameServer,
                      RouteNotFound, TopicNotUsable)  # fmt: skip
"""Errors after which the message is certainly not stored."""


# ---- produce


def produce_form(visit: Visit) -> Page:
    """Return the page with the empty form, or with the command if nothing can be sent here."""
    topic = visit.request.parameter("topic")
    if visit.session is None or not visit.is_writable:
        hint = visit.enabling_hint("Sign in to send")
        command = visit.command("produce", topic or "TOPIC", stdin="echo 'hello' | ")
        return _page(topic, "Send a message", join(hint, command))
    form = FormInput([("topic", topic), ("delay", "0"), ("flag", "0"), ("format", "text")])
    return _page(topic, "Send a message", _form(visit, form))


def edit_form(visit: Visit) -> Page:
    """Return the page with the form that has the content of a stored message."""
    found = _readable(visit)
    is_large = len(found.body) > TYPED_BYTES_MAX
    if visit.session is None or not visit.is_writable or is_large:
        notice = visit.enabling_hint("Sign in to send")
        if is_large:
            notice = el("p.hint", f"The body has {ui.size(len(found.body))}; this form takes up to "
                        f"{ui.size(TYPED_BYTES_MAX)}. Edit the message in a file:")  # fmt: skip
        content = join(
            notice,
            ui.command_box(_consume_line(visit, found) + " > message.json"),
            visit.command("produce", found.topic, "message.json", options=["--json"]),
        )
        return _page(found.topic, "Edit and send", content, _origin(found))
    values, left_out = _values_of(found)
    notices = [el("p.notice.card", each) for each in left_out]
    content = join(notices, _form(visit, FormInput(values.items())))
    return _page(found.topic, "Edit and send", content, _origin(found))


def produce_preview(visit: Visit) -> Page:
    """Return the message that a form describes, and the form that sends it. Nothing is sent."""
    form = FormInput(visit.request.form)
    message = _read(visit, form)
    page = _form_page(visit, form) if message is None else _preview_page(visit, form, message)
    return replace(page, outcome=None)


def produce(visit: Visit) -> Page:
    """Send the message of a form, and return the page that reports where it is stored."""
    form = FormInput(visit.request.form)
    message = _read(visit, form)
    if message is None:
        page = _form_page(visit, form)
        return replace(page, outcome=f"refused: {', '.join(form.faults)}")
    try:
        result = _send(visit, message, SendRules(_GROUP))
    except RocketPollError as error:
        form.change(**_body_values(bytes(message.body)))
        return _failed_page(_preview_page(visit, form, message, _not_sent(visit, error)), error)
    return _sent_page(message, result)


def _read(visit: Visit, form: FormInput) -> Message | None:
    topic, tag, shard = form.text("topic"), form.text("tag"), form.text("sharding_key")
    keys: list[str] = []
    properties: dict[str, str] = {}
    delay = flag = 0
    deliver = _Delivery()
    body = b""
    if form.text("format") != "hex" and not is_verbatim(form.raw("body")):
        form.change(format="hex", body=form.raw("body").encode().hex(" "))
        form.faults["body"] = f"{NOT_SHOWN} Here are its bytes: check them, and preview again."
    with form.faults_of("topic"):
        if not topic:
            raise ValueError("Enter a topic.")
        check_send_topic(topic)
    with form.faults_of("tag"):
        pass
    with form.faults_of("keys"):
        keys = form.text("keys").split()
    with form.faults_of("format"):
        kind = form.choice("format", [key for key, _ in _FORMATS])
    if form.faults.keys().isdisjoint(("format", "body")):
        with form.faults_of("body"):
            body = _parse_body(form.raw("body"), kind)
    with form.faults_of("properties"):
        properties = form.pairs("properties")
    with form.faults_of("sharding_key"):
        pass
    with form.faults_of("delay"):
        delay = form.number("delay", 0, len(_DELAYS))
    with form.faults_of("deliver"):
        deliver = _parse_delivery(form.text("deliver"))
        if deliver != _Delivery() and delay:
            raise ValueError("Choose a delay level or a time, not both.")
    with form.faults_of("flag"):
        flag = form.number("flag", -INT32_MAX - 1, INT32_MAX)
    if form.faults:
        return None
    message = Message(
        topic,
        body,
        tags=tag or None,
        keys=keys or None,
        properties=properties,
        delay_level=delay,
        flag=flag,
        sharding_key=shard or None,
        deliver_after=deliver.after,
        deliver_at=deliver.at,
    )
    try:
        message.check()
        message.properties_text(_PLACEHOLDER_ID)
    except MessageRejected as error:
        hint = f"Needed {error.needed}, found {error.found}."
        form.faults[_FIELD_OF.get(error.what, "properties")] = hint
        return None
    fault = _topic_fault(visit, topic)
    if fault is not None:
        form.faults["topic"] = fault
        return None
    return message


class _Delivery(NamedTuple):
    """The delivery that a form requests: after a duration, or at a time, or at once."""

    after: str | None = None
    at: datetime | None = None


def _parse_delivery(text: str) -> _Delivery:
    if not text:
        return _Delivery()
    if not text.isdigit() and duration_ms(text) is not None:
        return _Delivery(after=text)
    now = time.time()
    try:
        at_ms = parse_clock_or_day_ms(text, now)
    except ValueError:
        raise ValueError(
            "Enter a duration such as 90s or 1h30m, or a time such as 18:00 or 2026-01-31T12:00."
        ) from None
    if at_ms <= now * 1_000:
        raise ValueError("That time has passed. Leave the field empty to deliver at once.")
    return _Delivery(at=datetime.fromtimestamp(at_ms / 1_000, timezone.utc))


def _parse_body(text: str, kind: str) -> bytes:
    if kind == "hex":
        digits = "".join(text.split())
        wrong = re.search("[^0-9a-fA-F]", digits)
        if wrong is not None:
            raise ValueError(f"{wrong[0]!r} is not a hex digit. Write bytes as 68 65 6c 6c 6f.")
        if len(digits) % 2:
            raise ValueError("The last byte has one digit. Write two hex digits for each byte.")
        body = bytes.fromhex(digits)
    else:
        body = text.encode(errors="replace")  # a form has no lone surrogates
    if not body:
        raise ValueError("Enter a body. RocketMQ's consumers fail on empty ones.")
    if len(body) > TYPED_BYTES_MAX:
        raise ValueError(
            f"The body has {len(body):,} bytes; a form takes up to {TYPED_BYTES_MAX:,}. Send it "
            "with rocketpoll produce TOPIC FILE --whole."
        )
    if kind == "json":
        _check_json(text)
    return body


def _check_json(text: str) -> None:
    try:
        json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"Not JSON: {error.msg} in line {error.lineno}, column {error.colno}. Correct it, or "
            "choose Text."
        ) from error
    except RecursionError as error:
        raise ValueError("The JSON is nested too deeply to check. Choose Text.") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"Not JSON: {name} is not a JSON number. Correct it, or choose Text.")


def _topic_fault(visit: Visit, topic: str) -> Child:
    """Return a notice if a topic does not exist, because a send might create it; else None.

    If the cluster does not answer, the send reports it.
    """
    admin = visit.admin
    try:
        admin.instance.routes.refresh(topic)
    except TopicNotUsable:
        return None
    except RouteNotFound:
        try:
            admin.masters()
            names = sorted(admin.topics())
        except RocketPollError:  # name servers forget the topics of brokers that are away
            return None
    except RocketPollError:
        return None
    else:
        return None
    near = nearest_name(topic, names)
    return [
        f"There is no topic {topic}. ",
        f"Did you mean {near}? " if near else None,
        el("a", "Create it", href=path("create-topic", name=topic)),
        ", or choose another.",
    ]


def _form_page(visit: Visit, form: FormInput) -> Page:
    topic = form.text("topic")
    content = _form(visit, form)
    return replace(_page(topic, "Send a message", content), status=form.status)


def _preview_page(visit: Visit, form: FormInput, message: Message, notice: Html = NOTHING) -> Page:
    if message.deliver_at is not None:  # 18:00 would be another time tomorrow
        form.change(deliver=_iso_text(message.deliver_at))
    fields = [(name, form.raw(name)) for name in _TEXT_FIELDS]
    sent = [*fields, ("format", "hex"), ("body", bytes(message.body).hex())]
    content = join(
        notice,
        _dry_run("This message would be:", message),
        visit.confirmation(
            f"Send to {message.topic}", sent, "/produce", "/produce", topic_path(message.topic)
        ),
        ui.card("On the command line", _produce_command(visit, message)),
        ui.card("Change it", _form(visit, form)),
    )
    return _page(message.topic, "Send a message", content)


def _form(visit: Visit, form: FormInput) -> Html:
    if visit.session is None:
        return NOTHING
    more = (
        form.text_field("sharding_key", "Sharding key", "Messages with the same key are in one "
                        "queue, in order."),
        form.text_field("deliver", "Deliver", "After a time such as 90s or 1h30m, or at one such "
                        "as 18:00 or 2026-01-31T12:00. Not on RocketMQ 4.9.", data_time=True),
        form.select_field("delay", "Delay level", _delay_options(), "A broker may have other "
                          "levels."),
        form.text_field("flag", "Flag", "A number for the application's own use.",
                        inputmode="numeric"),
    )  # fmt: skip
    is_open = any(
        name in form.faults or form.text(name) not in ("", "0")
        for name in ("sharding_key", "delay", "deliver", "flag")
    )
    return el(
        "form.card.pad.sheet",
        form.text_field("topic", "Topic", required=True),
        el("div.row",
           form.text_field("tag", "Tag", "One tag, by which consumers filter."),
           form.text_field("keys", "Keys", "Separated by spaces. Messages are found by them.")),
        form.area_field("body", "Body", f"Up to {ui.size(TYPED_BYTES_MAX)}.", rows=9,
                        data_bytes_max=TYPED_BYTES_MAX),
        form.select_field("format", "Body is", _FORMATS, "JSON is checked, and sent as typed. Hex "
                          "may have spaces."),
        form.area_field("properties", "Properties", "One a line: NAME=VALUE", rows=3),
        el("details", el("summary", "Order, delivery time, flag"), el("div.row", more),
           open=is_open),
        ui.hidden_fields(form_fields(visit.session)),
        el("div.actions", el("button.primary", "Preview", type="submit")),
        action="/produce/preview",
        method="post",
    )  # fmt: skip


def _delay_options() -> list[tuple[str, str]]:
    levels = [(str(level), f"Level {level}: {delay}") for level, delay in enumerate(_DELAYS, 1)]
    return [("0", "None"), *levels]


def _produce_command(visit: Visit, message: Message) -> Html:
    """Return the command that sends a message; one with a large body reads it from a file."""
    given = sendable_fields(message)
    line = json_line(given).decode().rstrip("\n")
    if len(line) <= _COMMAND_BYTES_MAX:
        stdin = f"printf '%s\\n' {shlex.quote(line)} | "
        options = ["--json", *_delivery_options(message)]
        return visit.command("produce", message.topic, options=options, stdin=stdin)
    options = ["--whole", *_delivery_options(message)]
    for name, value in (("--tags", message.tags), ("--sharding-key", message.sharding_key)):
        options += [name, value] if value else []
    for key in message.keys or ():
        options += ["--key", key]
    for pair in message.properties.items():
        options += ["--property", "=".join(pair)]
    options += ["--delay-level", str(message.delay_level)] if message.delay_level else []
    hint = "The body comes from a file; the command does not set the flag."
    return join(
        el("p.hint", hint), visit.command("produce", message.topic, "FILE", options=options)
    )


def _delivery_options(message: Message) -> list[str]:
    if isinstance(message.deliver_after, str):
        return ["--delay", message.deliver_after]
    return ["--at", _iso_text(message.deliver_at)] if message.deliver_at is not None else []


def _iso_text(when: datetime | str) -> str:
    return when if isinstance(when, str) else when.isoformat(timespec="milliseconds")


# ---- copies


def copy_plan(visit: Visit) -> Page:
    """Return the copy of a message that would be sent, and the form that does so."""
    found = _readable(visit)
    is_asked = "to" in dict(visit.request.query)
    to = visit.request.parameter("to")
    form = FormInput([("to", to if is_asked else found.real_topic)])
    if is_asked and (message := _copy_to(visit, form, found)) is not None:
        return _copy_page(visit, form, found, message)
    return _copy_page(visit, form, found)


def copy(visit: Visit) -> Page:
    """Send a copy of a message, and return the page that reports where it is stored."""
    found = _readable(visit)
    form = FormInput(visit.request.form)
    message = _copy_to(visit, form, found)
    if message is None:
        page = _copy_page(visit, form, found)
        return replace(page, outcome=f"refused: {', '.join(form.faults)}")
    if visit.request.field("id") != found.message_id:
        notice = ui.alert(
            "Another message is at this position since the preview",
            "Nothing was sent. The page shows the present message.",
        )
        page = _copy_page(visit, form, found, message, notice)
        return replace(page, outcome="nothing sent: another message is at this position")
    try:
        # brokers have accepted its size before
        result = _send(visit, message, SendRules(_GROUP, max_message_bytes=PLAIN_BYTES_MAX))
    except RocketPollError as error:
        page = _copy_page(visit, form, found, message, _not_sent(visit, error))
        return _failed_page(page, error)
    return _sent_page(message, result)


def _readable(visit: Visit) -> MessageExt:
    found = visit.message()
    if found.fault is not None:
        raise Failure(
            f"The message cannot be read: {found.fault}",
            "Download its stored bytes from its page, and send them with rocketpoll produce",
        )
    return found


def _copy_to(visit: Visit, form: FormInput, found: MessageExt) -> Message | None:
    to = form.text("to")
    with form.faults_of("to"):
        if not to:
            raise ValueError("Enter a topic.")
        check_send_topic(to)
    if "to" not in form.faults and (fault := _topic_fault(visit, to)) is not None:
        form.faults["to"] = fault
    if form.faults:
        return None
    return Message(
        to,
        found.body,
        tags=found.tags,
        keys=list(found.keys) or None,
        properties=user_properties(found),
        flag=found.flag,
        sharding_key=found.properties.get("__SHARDINGKEY"),
    )


def _copy_page(
    visit: Visit,
    form: FormInput,
    found: MessageExt,
    message: Message | None = None,
    notice: Html = NOTHING,
) -> Page:
    position = found.queue, found.queue_offset
    at = message_path(*position, "copy")
    choose = el(
        "form.card.pad.sheet",
        form.text_field("to", "Topic of the copy", required=True),
        el("div.actions", el("button", "Preview", type="submit"),
           el("a.button", "Edit it first", href=message_path(*position, "edit"))),
        action=at,
    )  # fmt: skip
    if message is None:
        page = _page(found.topic, "Send a copy", choose, _origin(found))
        return replace(page, status=form.status)
    to = message.topic
    pipe = _consume_line(visit, found) + " | "
    content = join(
        notice,
        _dry_run("This copy, a new message with a new id, would be:", message),
        visit.confirmation(
            f"Send to {to}",
            [("to", to), ("id", found.message_id)],
            at,
            f"{at}?{urlencode({'to': to})}",
            message_path(*position),
        ),
        ui.card(
            "On the command line", visit.command("produce", to, options=["--json"], stdin=pipe)
        ),
        ui.card("Another topic", choose),
    )
    return _page(found.topic, "Send a copy", content, _origin(found))


def _values_of(found: MessageExt) -> tuple[Mapping[str, str], list[str]]:
    """Return the fields of the form for a stored message, and what a form cannot hold."""
    left_out = []
    lines = []
    for name, value in user_properties(found).items():
        line = f"{name}={value}"
        is_line = is_verbatim(line) and "\n" not in line and name == name.strip() != ""
        if is_line and "=" not in name and value:
            lines.append(line)
        else:
            left_out.append(f"Property {ascii(name)[:80]} is left out: it is not one line of text.")
    named = {
        "tag": found.tags or "",
        "keys": " ".join(found.keys),
        "sharding_key": found.properties.get("__SHARDINGKEY", ""),
    }
    for name, text in named.items():
        if not is_verbatim(text) or "\n" in text or text != text.strip():
            left_out.append(
                f"The {name.replace('_', ' ')} is left out: it is not one line of text."
            )
            named[name] = ""
    if left_out:
        left_out.append("To keep all of it, send a copy as it is.")
    values = {
        "topic": found.real_topic,
        **named,
        "properties": "\n".join(lines),
        "delay": "0",
        "flag": str(found.flag),
        **_body_values(found.body),
    }
    return values, left_out


def _body_values(body: bytes) -> dict[str, str]:
    """Return the fields of a body: as JSON or text if a form returns that unchanged, else hex."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not is_verbatim(text):
        return {"format": "hex", "body": body.hex(" ")}
    return {"format": "json" if _is_json(body, text) else "text", "body": text}


def _is_json(body: bytes, text: str) -> bool:
    if not body.lstrip().startswith((b"{", b"[")):
        return False
    try:
        _check_json(text)
    except ValueError:
        return False
    return True


def _consume_line(visit: Visit, found: MessageExt) -> str:
    options = ["--queue", queue_text(found.queue), "--offset", str(found.queue_offset),
               "-n", "1", "-o", "json"]  # fmt: skip
    return visit.access.command("consume", found.topic, options=options)


# ---- both


def _send(visit: Visit, message: Message, rules: SendRules) -> SendResult:
    """Send a message with a new producer, because several forms may send at the same time."""
    group = f"{_GROUP}-{secrets.token_hex(4)}"
    with Producer(group, instance=visit.admin.instance, rules=rules) as producer:
        return producer.send(message)


def _dry_run(hint: str, message: Message) -> Html:
    body = bytes(message.body)
    view = render_body(body)
    cut = "" if view.shown_bytes is None else f", first {ui.size(view.shown_bytes)} shown"
    keys = [message.keys] if isinstance(message.keys, str) else message.keys or ()
    pairs: list[tuple[str, Child]] = [
        ("Topic", el("a", message.topic, href=topic_path(message.topic))),
        ("Tag", el("code", message.tags) if message.tags else "none"),
        ("Keys", [el("code.chip", key) for key in keys] or "none"),
        *((name, el("span.text", text)) for name, text in sorted(message.properties.items())),
    ]
    if message.sharding_key:
        pairs.append(("Sharding key", el("code", message.sharding_key)))
    if message.delay_level:
        pairs.append(("Delay", f"level {message.delay_level}"))
    if message.deliver_after is not None:
        pairs.append(("Delivered", f"{message.deliver_after} after it is sent"))
    if isinstance(message.deliver_at, datetime):
        pairs.append(("Delivered", ui.timestamp(round(message.deliver_at.timestamp() * 1_000))))
    if message.flag:
        pairs.append(("Flag", str(message.flag)))
    kind = el("span.hint", f"{view.kind}, {ui.size(len(body))}{cut}")
    return join(
        el("p", ui.badge("dry run"), " Nothing has been sent. ", hint),
        el("div.card.pad", ui.facts(pairs)),
        ui.card("Body", el("div.card.scroll", view.element), header_content=kind),
    )


def _not_sent(visit: Visit, error: RocketPollError) -> Html:
    explained = explain_error(error)
    texts = [explained.problem, explained.remedy]
    tries = error.tries if isinstance(error, SendFailed) else (error,)
    is_certain = all(isinstance(each, _NOT_STORED) for each in tries)
    if not is_certain:
        texts.append(
            "The message may be stored all the same. Look at the topic's newest messages before "
            "you send it again."
        )
    problem = "The message was not sent" if is_certain else "Sending failed"
    return ui.alert(problem, *map(visit.sentence, filter(None, texts)))


def _failed_page(page: Page, error: RocketPollError) -> Page:
    status = HTTPStatus.BAD_GATEWAY
    if isinstance(error, (NoPermission, TopicNotUsable)):
        status = HTTPStatus.FORBIDDEN
    elif isinstance(error, MessageRejected):
        status = HTTPStatus.BAD_REQUEST
    return replace(page, status=status, outcome=f"failed: {explain_error(error).problem}")


def _sent_page(message: Message, result: SendResult) -> Page:
    queue, queue_offset = result.queue, result.queue_offset
    location = f"{queue_text(queue)} at {queue_offset:,}"
    recall = NOTHING
    if message.has_timer:  # it waits in the broker's own topic, as with a delay level
        where: Child = " It is delivered at its time."
        location = "with a timer"
        if result.recall_handle is not None:
            recall = el("a.button", "Recall it", href=recall_path(result.recall_handle))
    elif message.delay_level:
        where = " It is delivered after its delay."
        location = f"with delay level {message.delay_level}"
    else:
        link = el("a", location, href=message_path(queue, queue_offset))
        where = [" It is stored in ", link, "."]
    topic = message.topic
    content = join(
        el("div.card.notice", ui.badge("sent", "good"), f" One message was sent to {topic}.",
           where),
        el("p.actions", el("a.button", f"Show {topic}", href=topic_path(topic)),
           el("a.button", "Send another", href=path("produce", topic=topic)), recall),
    )  # fmt: skip
    size = format_count(len(message.body), "byte")
    page = _page(topic, "Sent", content)
    return replace(page, outcome=f"sent {size} to {topic} {location} as {result.message_id}")


def _origin(found: MessageExt) -> tuple[str, str]:
    title = f"{queue_text(found.queue)} @ {found.queue_offset}"
    return title, message_path(found.queue, found.queue_offset)


def _page(topic: str, title: str, content: Html, *below: tuple[str, str]) -> Page:
    trail = [("Topics", "/topics")]
    if topic:
        trail.append((topic, topic_path(topic)))
    return Page(title, content, "topics", [*trail, *below])
