"""Topic forms: create a topic, alter its settings, delete it; each with a preview, then a button.

    create    name, queues, permission, attributes ──> where ──> created
    alter     settings ──> before and after, broker by broker ──> altered
    delete    what is lost ──> the name, typed ──> deleted

The preview of an alteration names messages that consumers would no longer read. An alteration is
made only if the settings are still those of the preview.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from rmq_spark.cli.cluster.topic_settings import (
    DEFAULT_QUEUES,
    PERMS,
    QUEUES_MAX,
    TopicChange,
    TopicEdit,
    apply_edit,
    new_topic_config,
    perm_text,
    plan_creation,
    plan_edit,
)
from rmq_spark.cli.console.forms.fields import FormInput
from rmq_spark.cli.console.guard import PageError, form_fields
from rmq_spark.cli.console.layout import Page
from rmq_spark.cli.console.markup import components as ui
from rmq_spark.cli.console.markup.html import Html, el, join, path
from rmq_spark.cli.console.visit import Visit, group_path, topic_path
from rmq_spark.cli.groups.group_state import queue_text
from rmq_spark.cli.shell.failures import Failure
from rmq_spark.client.admin.lag import total_lag
from rmq_spark.client.arguments import check_topic
from rmq_spark.errors import format_count
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.bodies.operators import TopicOffset
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import is_system_group, is_system_topic

_CREATE_FIELDS: Final = ("name", "queues", "perm", "attributes", "cluster")
_ALTER_FIELDS: Final = ("read_queues", "write_queues", "perm", "attributes")
_PERM_TITLES: Final = {
    "rw": "rw: read and write",
    "r": "r: read only",
    "w": "w: write only",
    "none": "none",
}
_UNCHANGED: Final = ""
_CREATE_COLUMNS: Final = ("Broker.grow", "Queues.number", "Permission", "Attributes.wide")
_ALTER_COLUMNS: Final = ("Broker", "Setting.grow", "Now", "After")
_GROUP_COLUMNS: Final = ("Group.grow", "Members.number", "Behind.number")


# ---- create


def create_form(visit: Visit) -> Page:
    """Return the page with the form of a new topic, and its plan once the form has a name."""
    form = FormInput(visit.request.query)
    if not form.text("queues"):
        defaults = {"queues": str(DEFAULT_QUEUES), "perm": "rw"}
        form = FormInput([*defaults.items(), ("name", form.text("name"))])
        return _create_page(visit, form)
    return _create_plan_page(visit, form)


def create(visit: Visit) -> Page:
    """Create a topic, and return the page that confirms it."""
    form = FormInput(visit.request.form)
    config = _read_creation(form)
    if config is None:
        page = _create_page(visit, form)
        return replace(page, outcome=f"refused: {', '.join(form.faults)}")
    name, cluster = config.topic_name, form.text("cluster") or None
    masters = plan_creation(visit.admin, [name], cluster)
    visit.admin.create_topic(name, cluster=cluster, config=config)
    queues = format_count(config.read_queue_nums, "queue")
    done = el(
        "div.card.notice",
        ui.badge("created", "good"), f" {name} has {queues} on {', '.join(masters)}.",
    )  # fmt: skip
    links = el(
        "p.actions",
        el("a.button", f"Show {name}", href=topic_path(name)),
        el("a.button", "Send a message", href=path("produce", topic=name)),
    )
    return _page("Created", join(done, links))


def _read_creation(form: FormInput) -> TopicConfig | None:
    name, queues, perm = form.text("name"), 0, ""
    attributes: Mapping[str, str] = {}
    with form.faults_of("name"):
        if not name:
            raise ValueError("Enter a name.")
        check_topic(name)
        if is_system_topic(name):
            raise ValueError("RocketMQ reserves this name. Choose another.")
    with form.faults_of("queues"):
        queues = form.number("queues", 1, QUEUES_MAX)
    with form.faults_of("perm"):
        perm = form.choice("perm", PERMS)
    with form.faults_of("attributes"):
        attributes = form.pairs("attributes")
    if form.faults:
        return None
    return new_topic_config(name, queues, perm, attributes)


def _create_plan_page(visit: Visit, form: FormInput) -> Page:
    config = _read_creation(form)
    if config is None:
        return _create_page(visit, form)
    name, cluster = config.topic_name, form.text("cluster") or None
    try:
        masters = plan_creation(visit.admin, [name], cluster)
    except Failure as error:
        link = el("a", "Show it", href=topic_path(name))
        form.faults["name"] = [f"{error.problem}. ", link, ", or choose another name."]
        return _create_page(visit, form)
    attributes = dict(config.attributes or {})
    shown = ", ".join(f"{key}={value}" for key, value in sorted(attributes.items()))
    rows = [
        ui.HtmlTableRow((broker, config.read_queue_nums, perm_text(config.perm), shown))
        for broker in masters
    ]
    options = ["--queues", str(config.read_queue_nums), "--perm", perm_text(config.perm)]
    options += _attribute_options(attributes)
    options += ["--cluster", cluster] if cluster else []
    fields = [(each, form.raw(each)) for each in _CREATE_FIELDS]
    content = join(
        el("p", ui.badge("dry run"), " Nothing has been created. ", el("strong", name),
           " would be:"),
        ui.table(_CREATE_COLUMNS, rows),
        visit.confirmation(
            f"Create {name}", fields, "/create-topic", path("create-topic", **dict(fields)),
            "/topics",
        ),
        ui.card("On the command line", visit.command("topic create", name, options=options)),
        ui.card("Change it", _create_form(visit, form, el("button", "Preview", type="submit"))),
    )  # fmt: skip
    return _page("Create a topic", content)


def _create_page(visit: Visit, form: FormInput) -> Page:
    button = el("button.primary", "Preview", type="submit")
    return replace(_page("Create a topic", _create_form(visit, form, button)), status=form.status)


def _create_form(visit: Visit, form: FormInput, button: Html) -> Html:
    clusters = sorted(visit.admin.cluster_info().cluster_addr_table)
    options = [("", "All clusters"), *((each, each) for each in clusters)]
    return el(
        "form.card.pad.sheet",
        form.text_field("name", "Name", "Letters, digits and % | _ -", required=True),
        el("div.row",
           form.text_field("queues", "Queues", "Read and write queues on each broker.",
                           inputmode="numeric", required=True),
           form.select_field("perm", "Permission", _PERM_TITLES.items()),
           form.select_field("cluster", "Cluster", options) if len(clusters) > 1 else None),
        form.area_field("attributes", "Attributes", "Of RocketMQ 5, one a line: NAME=VALUE, for "
                        "example message.type=FIFO", rows=2),
        el("div.actions", button),
        action="/create-topic",
    )  # fmt: skip


# ---- alter


def alter_card(topic: str, configs: Mapping[str, TopicConfig]) -> Html:
    """Return the form that asks for a preview of changed settings, for the topic's page."""

    def same(value_of: Callable[[TopicConfig], object]) -> str:
        values = {str(value_of(config)) for config in configs.values()}
        return values.pop() if len(values) == 1 else ""

    form = FormInput(
        [
            ("read_queues", same(lambda config: config.read_queue_nums)),
            ("write_queues", same(lambda config: config.write_queue_nums)),
            ("perm", same(lambda config: perm_text(config.perm))),
        ]
    )
    delete = el("a.button", "Delete the topic", href=topic_path(topic, "delete"))
    return ui.card("Change settings", _alter_form(topic, form), header_content=delete)


def alter_plan(visit: Visit) -> Page:
    """Return the settings before and after a change, and the form that makes it."""
    return _alter_plan_page(visit, FormInput(visit.request.query))


def alter(visit: Visit) -> Page:
    """Change the settings of a topic if they are those of the preview, and report it."""
    topic, form = visit.request.segments[1], FormInput(visit.request.form)
    edit = _read_edit(form)
    if edit is None:
        page = _alter_page(topic, form)
        return replace(page, outcome=f"refused: {', '.join(form.faults)}")
    changes = plan_edit(visit.admin, topic, edit)
    if form.text("seen") != _digest(changes):
        notice = ui.alert(
            "The settings have changed since the preview",
            "Nothing was changed. The table shows the present settings.",
        )
        page = _alter_plan_page(visit, form, notice)
        return replace(page, outcome="nothing changed: the settings differ from the preview")
    apply_edit(visit.admin, topic, edit, changes)
    content = join(
        el("div.card.notice", ui.badge("altered", "good"), f" {topic} has its new settings."),
        _change_table(changes),
        el("p", el("a.button", f"Back to {topic}", href=topic_path(topic, tab="settings"))),
    )
    return _page("Altered", content, topic)


def _read_edit(form: FormInput) -> TopicEdit | None:
    """Return the settings to change, or None if a field has a fault; empty fields are ignored."""
    numbers: dict[str, int | None] = {"read_queues": None, "write_queues": None}
    perm, attributes = None, {}
    for name in numbers:
        with form.faults_of(name):
            numbers[name] = form.number(name, 1, QUEUES_MAX) if form.text(name) else None
    with form.faults_of("perm"):
        perm = form.choice("perm", PERMS) if form.text("perm") else None
    with form.faults_of("attributes"):
        attributes = form.pairs("attributes")
    if form.faults:
        return None
    return TopicEdit(numbers["read_queues"], numbers["write_queues"], perm, attributes)


def _alter_plan_page(visit: Visit, form: FormInput, notice: Html | None = None) -> Page:
    topic = visit.request.segments[1]
    edit = _read_edit(form)
    if edit is None:
        return _alter_page(topic, form)
    changes = plan_edit(visit.admin, topic, edit)
    if all(change.old == _comparable(change) for change in changes):
        content = join(
            notice,
            ui.empty_state("Nothing to change", f"{topic} has these settings already."),
            _alter_form(topic, form),
        )
        return _page("Alter", content, topic)
    fields = [(name, form.raw(name)) for name in _ALTER_FIELDS]
    options = [
        word
        for name, value in (
            ("--read-queues", edit.read_queues),
            ("--write-queues", edit.write_queues),
            ("--perm", edit.perm),
        )
        if value is not None
        for word in (name, str(value))
    ]
    options += _attribute_options(edit.attributes or {})
    action = topic_path(topic, "alter")
    content = join(
        notice,
        el("p", ui.badge("dry run"), " Nothing has been changed. ", el("strong", topic),
           " would have:"),
        _change_table(changes),
        _unread_notice(changes, visit.admin.topic_offsets(topic)),
        visit.confirmation(
            f"Alter {topic}",
            [*fields, ("seen", _digest(changes))],
            action,
            topic_path(topic, "alter", **dict(fields)),
            topic_path(topic, tab="settings"),
        ),
        ui.card("On the command line", visit.command("topic alter", topic, options=options)),
        ui.card("Change it", _alter_form(topic, form)),
    )  # fmt: skip
    return _page("Alter", content, topic)


def _alter_page(topic: str, form: FormInput) -> Page:
    return replace(_page("Alter", _alter_form(topic, form), topic), status=form.status)


def _alter_form(topic: str, form: FormInput) -> Html:
    perms = [(_UNCHANGED, "unchanged"), *_PERM_TITLES.items()]
    return el(
        "form.card.pad.sheet",
        el("div.row",
           form.text_field("read_queues", "Read queues", "Queues that consumers read.",
                           inputmode="numeric"),
           form.text_field("write_queues", "Write queues", "Queues that producers write to.",
                           inputmode="numeric"),
           form.select_field("perm", "Permission", perms)),
        form.area_field("attributes", "Attributes to set", "One a line: NAME=VALUE. Others stay.",
                        rows=2),
        el("p.hint", "An empty field changes nothing. To remove queues, lower the write queues "
           "first, and the read queues when consumers have read the rest."),
        el("div.actions", el("button", "Preview", type="submit")),
        action=topic_path(topic, "alter"),
    )  # fmt: skip


def _change_table(changes: Sequence[TopicChange]) -> Html:
    rows = []
    for broker, old, new in changes:
        attributes = {**(old.attributes or {}), **(new.attributes or {})}
        settings: list[tuple[str, object, object]] = [
            ("Read queues", old.read_queue_nums, new.read_queue_nums),
            ("Write queues", old.write_queue_nums, new.write_queue_nums),
            ("Permission", perm_text(old.perm), perm_text(new.perm)),
            *(
                (name, (old.attributes or {}).get(name, "-"), value)
                for name, value in sorted(attributes.items())
            ),
        ]
        for name, before, after in settings:
            shown = el("strong", str(after)) if before != after else str(after)
            rows.append(ui.HtmlTableRow((broker, name, str(before), shown)))
    return ui.table(_ALTER_COLUMNS, rows)


def _unread_notice(
    changes: Sequence[TopicChange], offsets: Mapping[MessageQueue, TopicOffset]
) -> Html | None:
    """Return a warning about messages in queues that consumers would no longer read."""
    read = {change.broker_name: change.new.read_queue_nums for change in changes}
    hidden = {
        queue: held.max_offset - held.min_offset
        for queue, held in offsets.items()
        if queue.queue_id >= read.get(queue.broker_name, queue.queue_id + 1)
        and held.max_offset > held.min_offset
    }
    if not hidden:
        return None
    names = ", ".join(queue_text(queue) for queue in sorted(hidden)[:5])
    names += ", ..." if len(hidden) > 5 else ""
    count = format_count(sum(hidden.values()), "message")
    return ui.alert(
        f"Consumers would no longer read {count}",
        f"They are in {names}. Let consumers read them before you lower the read queues.",
    )


def _comparable(change: TopicChange) -> TopicConfig:
    return replace(change.new, attributes=change.new.attributes or change.old.attributes)


def _digest(changes: Sequence[TopicChange]) -> str:
    text = "\n".join(f"{change.broker_name} {change.old}" for change in changes)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# ---- delete


def deletion(visit: Visit) -> Page:
    """Return the page that shows what deleting a topic loses, with the form that deletes it."""
    return _deletion_page(visit, FormInput())


def delete(visit: Visit) -> Page:
    """Delete a topic whose name was typed, and return the page that confirms it."""
    topic, form = visit.request.segments[1], FormInput(visit.request.form)
    _check_deletable(topic)
    offsets = visit.admin.topic_offsets(topic)
    if form.text("name") != topic:
        form.faults["name"] = f"Type {topic} to confirm."
        return replace(_deletion_page(visit, form), outcome="refused: another name was typed")
    count = format_count(_messages(offsets), "message")
    visit.admin.delete_topic(topic)
    done = el("div.card.notice", ui.badge("deleted", "good"), f" {topic} with {count}.")
    page = _page("Deleted", join(done, el("p", el("a.button", "Topics", href="/topics"))))
    return replace(page, outcome=f"deleted with {count}")


def _deletion_page(visit: Visit, form: FormInput) -> Page:
    topic = visit.request.segments[1]
    _check_deletable(topic)
    offsets = visit.admin.topic_offsets(topic)
    rows = [
        ui.HtmlTableRow(
            (
                el("a", group, href=group_path(group)),
                len(visit.admin.members(group)),
                total_lag(visit.admin.lag(group, topic)),
            )
        )
        for group in sorted(visit.admin.groups_of_topic(topic))
        if not is_system_group(group)
    ]
    action = topic_path(topic, "delete")
    last = max((each.last_update_timestamp for each in offsets.values()), default=0)
    content = join(
        el("p", "Deleting ", el("strong", topic), " loses all of its messages, on all brokers. "
           "This cannot be undone."),
        ui.figures([("Messages", _messages(offsets)), ("Queues", len(offsets)),
                    ("Last stored", ui.age(last))]),
        ui.card("Groups that consume it", ui.table(_GROUP_COLUMNS, rows)) if rows else None,
        ui.card("Confirm", _delete_form(visit, topic, form, action)),
        ui.card("On the command line", visit.command("topic delete", topic)),
    )  # fmt: skip
    return replace(_page("Delete", content, topic), status=form.status)


def _delete_form(visit: Visit, topic: str, form: FormInput, action: str) -> Html:
    if visit.session is None or not visit.is_writable:
        return visit.confirmation("Delete", (), action, action, topic_path(topic))
    return el(
        "form.card.pad.sheet",
        form.text_field("name", f"Type {topic} to confirm", required=True),
        ui.hidden_fields(form_fields(visit.session)),
        el(
            "div.actions",
            el("button.danger", f"Delete {topic}", type="submit"),
            el("a.button", "Cancel", href=topic_path(topic, tab="settings")),
        ),
        action=action,
        method="post",
    )


def _check_deletable(topic: str) -> None:
    if is_system_topic(topic):
        raise PageError(
            HTTPStatus.BAD_REQUEST,
            f"{topic} is a topic of RocketMQ itself.",
            "Brokers need it, so it cannot be deleted here.",
        )


def _messages(offsets: Mapping[MessageQueue, TopicOffset]) -> int:
    return sum(each.max_offset - each.min_offset for each in offsets.values())


def _attribute_options(attributes: Mapping[str, str]) -> list[str]:
    return [word for pair in sorted(attributes.items()) for word in ("--attribute", "=".join(pair))]


def _page(title: str, content: Html, topic: str = "") -> Page:
    trail = [("Topics", "/topics")]
    if topic:
        trail.append((topic, topic_path(topic)))
    return Page(title, content, "topics", trail)
