"""Every form of the console that changes something leaves one line in the audit log."""

from urllib.parse import quote

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import Clients
from support.programs.web_console import staged
from support.suite.log_records import lines_of

from rmq_spark.cli.console.guard import AUDIT_LOGGER
from rmq_spark.cli.console.site import POST_ROUTES, PREVIEWS
from rmq_spark.client.consumer.dispatch.listeners import ConsumeConcurrentlyStatus


def form_of(page):
    """Return the fields of a preview's first form, which makes the change."""
    given = {}
    for name, value in page.fields:
        given.setdefault(name, value)
    return given


def preview_of_a_message(browser, topic, **typed):
    session = form_of(browser.read("/produce"))
    given = {
        **dict.fromkeys(("tag", "keys", "properties", "sharding_key", "deliver"), ""),
        "topic": topic,
        "body": "secret content",
        "format": "text",
        "delay": "0",
        "flag": "0",
    }
    return browser.post("/produce/preview", {**session, **given, **typed}).page


def create_topic(browser, cluster):
    name = f"{cluster.topic(queues=1)}-new"
    page = browser.read(f"/create-topic?name={name}&queues=1&perm=rw&attributes=")
    return "/create-topic", form_of(page), f"name={name}"


def alter_topic(browser, cluster):
    topic = cluster.topic(queues=1)
    at = f"/topics/{topic}/alter"
    page = browser.read(f"{at}?read_queues=2&write_queues=2&perm=rw&attributes=")
    return at, form_of(page), "write_queues=2"


def delete_topic(browser, cluster):
    topic = staged(cluster).topic
    at = f"/topics/{topic}/delete"
    return at, {**form_of(browser.read(at)), "name": topic}, "deleted with 12 messages"


def copy_message(browser, cluster):
    stage = staged(cluster)
    at = f"/topics/{stage.topic}/{stage.broker}/0/0/copy"
    return at, form_of(browser.read(f"{at}?to={stage.topic}")), f"to {stage.topic}"


def send_message(browser, cluster):
    topic = cluster.topic(queues=1)
    return "/produce", form_of(preview_of_a_message(browser, topic)), f"sent 14 bytes to {topic}"


def recall_message(browser, cluster):
    topic = cluster.topic(queues=1)
    form = form_of(preview_of_a_message(browser, topic, deliver="2h"))
    [recall] = [
        link for link in browser.post("/produce", form).page.links if link.startswith("/recall?")
    ]
    return "/recall", form_of(browser.read(recall)), f"of {topic}"


def seek_group(browser, cluster):
    stage = staged(cluster)
    at = f"/groups/{stage.group}/seek"
    return at, form_of(browser.read(f"{at}?to=start&topic={stage.topic}")), "to=start"


def resend_dead_letter(browser, cluster):
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, "poison", queues=1)
    fail = lambda *_: ConsumeConcurrentlyStatus.RECONSUME_LATER  # noqa: E731  # a listener
    member = Clients(cluster).push(fail, group, topic, max_reconsume_times=0)
    wait_until("the dead letter", lambda: cluster.dead_letters(group) == 1)
    member.shutdown()
    at = f"/dead-letters/{group}/resend"
    [place] = browser.read(f"/dead-letters/{group}").form("at")
    return at, form_of(browser.read(f"{at}?at={quote(place)}")), "1 of 1 sent"


WRITES = {
    ("create-topic",): create_topic,
    ("topics", "*", "alter"): alter_topic,
    ("topics", "*", "delete"): delete_topic,
    ("topics", "*", "*", "*", "*", "copy"): copy_message,
    ("produce",): send_message,
    ("recall",): recall_message,
    ("groups", "*", "seek"): seek_group,
    ("dead-letters", "*", "resend"): resend_dead_letter,
}


def test_every_form_of_the_console_that_changes_something_is_tried_here():
    assert set(WRITES) == set(POST_ROUTES) - PREVIEWS


@pytest.mark.parametrize("prepare", WRITES.values(), ids=["/".join(each) for each in WRITES])
def test_change_leaves_one_audit_line_and_so_does_its_repetition(console, cluster, caplog, prepare):
    caplog.set_level("INFO", AUDIT_LOGGER)
    console.sign_in()
    path, form, said = prepare(console, cluster)
    caplog.clear()
    answer = console.post(path, form)
    assert answer.status == 200, answer.text
    [line] = lines_of(caplog, AUDIT_LOGGER)
    assert line.startswith("session ")
    assert f" at 127.0.0.1 without credentials: POST {path} " in line
    assert said in line
    outcome = line.rpartition(f"POST {path} ")[2]
    assert not any(f": {word}" in outcome for word in ("refused", "failed", "nothing"))
    assert form["csrf"] not in line
    assert form["mark"] not in line
    assert "secret content" not in line
    caplog.clear()
    assert console.post(path, form).status == 409
    [again] = lines_of(caplog, AUDIT_LOGGER)
    assert "refused: This form has been submitted already." in again


def test_preview_leaves_no_audit_line(console, cluster, caplog):
    caplog.set_level("INFO", AUDIT_LOGGER)
    console.sign_in()
    caplog.clear()
    assert "Nothing has been sent." in preview_of_a_message(console, cluster.topic(queues=1)).text
    assert lines_of(caplog, AUDIT_LOGGER) == []
