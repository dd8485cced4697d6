"""Groups in the console: why one is stuck, the preview of a seek, and that a seek happens once."""

import threading
import time

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import Clients
from support.programs.web_console import served, staged

from rmq_spark.client.consumer.dispatch.listeners import ConsumeOrderlyStatus


@pytest.fixture
def stage(cluster):
    return staged(cluster)


def fields(page, **changed):
    """Return the fields of the form on a page."""
    wanted = ("to", "topic", "queue", "seen", "csrf", "mark")
    return {**{name: page.form(name)[-1] for name in wanted if page.form(name)}, **changed}


def offsets(cluster, stage):
    return [cluster.stored_offset(stage.group, stage.topic, each) for each in range(2)]


def test_groups_are_listed_with_their_lag(console, stage):
    text = console.read(f"/groups?q={stage.group}").text
    assert f"{stage.group} offline, behind 0 4" in text
    assert "TOOLS_CONSUMER" not in console.read("/groups").text


def test_group_page_of_an_offline_group_shows_lag(console, stage):
    page = console.read(f"/groups/{stage.group}")
    assert "No consumer is online." in page.text
    assert f"{stage.topic} {stage.broker}:0 2 6 4" in page.text
    assert f"/topics/{stage.topic}/{stage.broker}/0/2" in page.links
    assert console.get("/groups/nobody-at-all").status == 404


def test_group_page_shows_the_members(console, cluster):
    topic, group = cluster.topic(queues=2), cluster.group()
    consumer = Clients(cluster).lite(group, topic)
    wait_until("both queues", lambda: len(consumer.assignment()) == 2)
    text = console.read(f"/groups/{group}").text
    assert "PYTHON 2" in text
    assert "No consumer is online." not in text


@pytest.mark.parametrize(
    ("kind_of_listener", "said"),
    [
        ("fails", "Its member has just tried it: the listener fails"),
        ("hangs", "the listener hangs"),
    ],
)
def test_group_page_diagnoses_a_failing_or_hanging_listener(
    console, cluster, monkeypatch, kind_of_listener, said
):
    topic, group = cluster.topic(queues=1), cluster.group()
    ends = threading.Event()

    def listen(_, __):
        if kind_of_listener == "hangs":
            ends.wait(60)
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    later_s = {"fails": 27, "hangs": 60}[kind_of_listener]
    monkeypatch.setattr(
        "rmq_spark.cli.console.pages.groups_page.current_time_ms",
        lambda: int((time.time() + later_s) * 1_000),
    )
    member = Clients(cluster).push(listen, group, topic, orderly=True)
    try:
        wait_until("its queue", lambda: cluster.queue(topic) in member.assignment())
        cluster.send(topic, "poison", queues=1)
        wait_until("a diagnosis", lambda: said in console.read(f"/groups/{group}").text)
    finally:
        ends.set()


def test_group_page_draws_the_lag_over_time(console, cluster, stage):
    def lines():
        page = console.read(f"/groups/{stage.group}")
        return [
            given for tag, given in page.elements if tag == "path" and given.get("class") == "line"
        ]

    console.read(f"/groups/{stage.group}")
    console.site._history.sample_watches()
    wait_until("a line for the group and one for each queue", lambda: len(lines()) == 3)


def test_group_seek_page_skips_one_message_once(console, cluster, stage):
    seek = f"/groups/{stage.group}/seek"
    [skip] = [each for each in console.read(f"/groups/{stage.group}").links if "to=%2B1" in each]
    dry = console.sign_in().read(skip)
    assert f"{stage.topic} {stage.broker}:0 2 3 +1 3" in dry.text
    assert f"rocketpoll group seek {stage.group} --to +1" in dry.text
    assert offsets(cluster, stage) == [2, 6]

    done = console.post(seek, fields(dry))
    assert (done.status, "moved" in done.text) == (200, True)
    assert offsets(cluster, stage) == [3, 6]
    again = console.post(seek, fields(dry))
    assert (again.status, "submitted already" in again.text) == (409, True)
    stale = console.post(seek, fields(dry, mark="another"))
    assert "offsets have changed since the preview" in stale.text
    assert offsets(cluster, stage) == [3, 6]
    assert console.post(seek, fields(stale.page)).status == 200
    assert offsets(cluster, stage) == [4, 6]


def test_submitted_rewind_form_moves_the_group(console, cluster, stage):
    dry = console.sign_in().read(f"/groups/{stage.group}/seek?to=start")
    assert console.post(f"/groups/{stage.group}/seek", fields(dry)).status == 200
    assert offsets(cluster, stage) == [0, 0]


@pytest.mark.parametrize("to", ["earliest", "Latest", "start", "end", "-1h", "2020-01-31", "00:00"])
def test_seek_takes_every_form_of_a_position(console, stage, to):
    assert (
        "would continue from these offsets"
        in console.read(f"/groups/{stage.group}/seek?to={to}").text
    )


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "No position given."),
        ("to=soon", "'soon' is not a position. Write start (or earliest), end"),
        ("to=25:00", "25:00 is not a time"),
        ("to=end&queue=x", "'x' is not a queue"),
        ("to=end&topic={topic}&queue=77", "has no queue 77"),
        ("to=end&topic=not-there", "There is no topic not-there"),
    ],
)
def test_invalid_seek_form_is_refused_with_the_reason(console, stage, query, said):
    answer = console.get(f"/groups/{stage.group}/seek?{query.format(topic=stage.topic)}")
    assert answer.status in (400, 404)
    assert said in answer.text


def test_group_seek_page_needs_session_csrf_token_and_post(console, cluster, stage):
    seek = f"/groups/{stage.group}/seek"
    before = offsets(cluster, stage)
    wish = {"to": "start"}
    assert "Sign in to apply" in console.read(f"{seek}?to=start").text
    assert console.post(seek, wish).status == 403
    form = fields(console.sign_in().read(f"{seek}?to=start"))
    assert console.post(seek, wish).status == 403
    assert console.post(seek, {**form, "csrf": "x"}).status == 403
    assert console.post(seek, form, Origin="http://evil.com").status == 403
    assert console.post(seek, form, **{"Sec-Fetch-Site": "cross-site"}).status == 403
    assert console.post(seek, form, Host="evil.com").status == 403
    assert console.get(f"{seek}?to=start&csrf={form['csrf']}&mark=1").status == 200
    assert offsets(cluster, stage) == before


def test_read_only_console_refuses_a_seek(addresses, cluster, stage):
    with served(addresses[0], writes=False) as browser:
        browser.sign_in()
        seek = f"/groups/{stage.group}/seek"
        assert "Start it with --writes" in browser.read(f"{seek}?to=start").text
        assert browser.post(seek, {"to": "start"}).status == 403
        assert offsets(cluster, stage) == [2, 6]
