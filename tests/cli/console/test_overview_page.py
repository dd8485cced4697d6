"""The overview: stuck groups, dead letters and the release, with few requests for each view."""

import re
import threading
import time
from datetime import timedelta

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.conformance_clients import Clients
from support.programs.web_console import requests_of, served, with_topics

from rmq_spark import __version__
from rmq_spark.cli.console import survey
from rmq_spark.cli.groups import diagnosis
from rmq_spark.client.consumer.dispatch.listeners import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
)
from rmq_spark.client.errors import ClientError
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.operators import RecentLoss
from rocketpoll import Admin, EmbeddedBroker, Message, Producer, PushConsumer, SimpleConsumer


@pytest.fixture
def is_impatient(monkeypatch):
    """Make groups count as stuck at once, and never reuse a survey."""
    monkeypatch.setattr(diagnosis, "WAIT_MS", 0)
    monkeypatch.setattr(diagnosis, "STILL_MS", 1)
    monkeypatch.setattr(survey, "STILL_MS", 5)
    monkeypatch.setattr(survey, "AGE_SECONDS_MAX", 0.0)
    monkeypatch.setattr(survey, "_PAUSE_FACTOR", 0.0)


def badges(page, kind):
    """Return the links and words of a page's badges of one kind."""
    return [given.get("href") for _, given in page.elements if given.get("class") == kind]


@pytest.mark.usefixtures("is_impatient")
def test_overview_names_stuck_groups_as_lists_and_the_group_do(console, cluster):
    topic, group = cluster.topic(queues=1), cluster.group()
    member = Clients(cluster).push(
        lambda *_: ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, group, topic, orderly=True
    )
    wait_until("its queue", lambda: cluster.queue(topic) in member.assignment())
    cluster.send(topic, "poison", queues=1)
    wait_until("stuck", lambda: f"{group} stuck" in console.read("/").text)
    page = console.read("/")
    assert "group is stuck" in page.text or "groups are stuck" in page.text
    assert len(badges(page, "badge bad")) >= 2
    assert "/groups?state=stuck" in page.links
    for path in (f"/groups?q={group}", "/groups?state=stuck"):
        assert f"{group} stuck 1 1" in console.read(path).text
    assert f"{group} 1 1 stuck" in console.read(f"/topics/{topic}?tab=groups").text
    wait_until(
        "the same on its page",
        lambda: f"Stuck: {topic}" in console.read(f"/groups/{group}").text,
    )
    member.shutdown()
    wait_until("offline", lambda: f"{group} offline, behind" in console.read("/").text)
    assert "No group is stuck" in console.read(f"/groups?state=stuck&q={group}").text


def test_overview_counts_dead_letters_and_shows_the_release(tmp_path):
    with EmbeddedBroker(tmp_path / "store") as broker, served(broker.address) as browser:
        assert f"rocketpoll {__version__}" in browser.read("/").text
        assert "Dead letters 0" in browser.read("/").text
        broker.create_topic("%DLQ%billing", 1)
        broker.send("%DLQ%billing", "one", "two")
        wait_until("them", lambda: "2 dead letters" in browser.read("/").text)
        assert badges(browser.read("/"), "badge warn") == ["/dead-letters"]


def test_overview_lists_a_group_that_has_only_failed_messages_to_try_again():
    with EmbeddedBroker() as broker, served(broker.address) as browser:
        broker.send("orders", "poison")
        failed = threading.Event()

        def fail(*_):
            failed.set()
            return ConsumeConcurrentlyStatus.RECONSUME_LATER

        with Admin(broker.address) as admin:
            with PushConsumer("billing", broker.address, listener=fail, start="earliest") as member:
                member.subscribe("orders")
                wait_until("the first try", failed.is_set)
                wait_until("its end", lambda: not admin.describe_group("billing").behind)
            broker.clock.advance(timedelta(minutes=5))
            wait_until("its retry", lambda: admin.describe_group("billing").waiting_for_retry)
        wait_until(
            "the group",
            lambda: (
                "billing offline 1 failed message due for another try" in browser.read("/").text
            ),
        )


@pytest.mark.deep
def test_overview_of_a_thousand_groups_costs_few_requests_and_says_what_it_knows(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(survey, "WAIT_SECONDS_MAX", 0.0)
    store = with_topics(tmp_path / "store", 1, groups=1_000, committed=(0,))
    with EmbeddedBroker(store) as broker, served(broker.address) as browser:
        broker.send("topic-00000", "one")
        assert requests_of(browser, "/") < 20
        assert "of 1,000 groups so far." in browser.read("/").text
        wait_until("all groups", lambda: "so far" not in browser.read("/").text, 120)
        assert "offline, behind" in browser.read("/").text


def test_overview_reports_messages_that_were_deleted_because_the_disk_was_full(
    console, monkeypatch
):
    loss = RecentLoss(
        kind="deleted early",
        count=8_811,
        last_ms=int(time.time() * 1_000) - 120_000,
        text="the disk was full; billing had not read them",
    )
    notice = RecentLoss(kind="sink evicted", is_failure=False, count=1, last_ms=1, text="S is old")
    given = {"recentLosses": f"[{encode_body(notice).decode()}]"}
    real = Admin.broker_info
    monkeypatch.setattr(Admin, "broker_info", lambda *asked: {**real(*asked), **given})
    page = console.read("/")
    assert "Brokers: ok" in page.text
    assert re.search("sink evicted broker-a, [0-9]+ d ago S is old 1", page.text)
    given["recentLosses"] = f"[{encode_body(notice).decode()},{encode_body(loss).decode()}]"
    page = console.read("/")
    assert f"deleted early broker-a, 2 min ago {loss.text} 8,811 sink evicted" in page.text
    assert "Read the broker's log" in page.text
    assert "Brokers: ok" not in page.text


def test_overview_shows_no_losses_if_there_are_none(console):
    assert "Recent losses" not in console.read("/").text


def test_charts_page_counts_what_a_broker_has_refused(cluster):
    with EmbeddedBroker() as broker, served(broker.address) as browser:
        assert "Refused requests 0 Refused clients 0 Closed con" in browser.read("/charts").text
        with Admin(broker.address) as admin, pytest.raises(ClientError):
            admin.topic_size("no-such-topic")
        assert "Refused requests 0" not in browser.read("/charts").text


def test_overview_counts_what_waits_for_a_timer_an_end_or_an_acknowledgement():
    with EmbeddedBroker() as broker, served(broker.address) as browser:
        broker.create_topic("orders", queues=1)
        assert "Waiting timers 0 Half messages 0 Pops in flight 0" in browser.read("/").text
        with (
            Producer("P", broker.address) as producer,
            SimpleConsumer("G", broker.address) as consumer,
        ):
            consumer.subscribe("orders")
            assert consumer.receive(1, timeout_ms=100) == []
            producer.send(Message("orders", b"later", deliver_after="150m"))
            wait_until("a timer", lambda: "Next timer in 2 h" in browser.read("/").text)
            producer.send(Message("orders", b"now"))
            wait_until("a popped message", lambda: consumer.receive(1))
            waiting = "Waiting timers 1 Half messages 0 Pops in flight 1"
            assert waiting in browser.read("/").text
            assert "Waiting timers" in browser.read("/charts").text
            group = browser.read("/groups/G").text
            assert "In flight 1 Members 1" in group
            columns = "End Behind Waiting since In flight"
            assert re.search(f"{columns} orders broker-a:0 1 1 0 .*- 1 Members", group)
