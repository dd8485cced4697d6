"""Whenever a broker gives up on something, its log, a metric and, for messages, its health say so.

One row for each case: the cause, the log line, and the counter that must grow. The rows for
messages that retention deletes are in test_deletion_log.py.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.brokers.in_process import tell
from support.brokers.metrics_endpoint import scrape
from support.clients.remoting_clients import pull_request, send_request
from support.disks.faulty_disk import Fault, FaultyDisk

from rmq_spark.wire.bodies.body_codec import decode_body
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig
from rmq_spark.wire.bodies.operators import KVTable
from rmq_spark.wire.codes import RequestCode
from rocketpoll.broker.store.files.disk import LocalDisk

ROOT = Path(__file__).parent.parent
LOSS = re.compile(
    r"_(cut|deleted|dropped|evicted|expired|failed|given_up|holes|lost|put_off|refused)"
    r"(_bytes)?(_total)?$"
)
"""Metrics of what is given up, by the ends of their names."""


async def too_many_connections(broker, _):
    await broker.connect()
    assert await (await broker.connect()).closed() == b""


async def frame_too_long(broker, _):
    client = await broker.connect()
    client.send(send_request("x" * 5_000))
    assert await client.closed() == b""


async def client_does_not_finish_a_first_header(broker, _):
    client = await broker.connect()
    client.send(bytes(3))
    await broker.until(lambda: broker.controller.server.in_flight_bytes)
    broker.move(4)
    assert await client.closed() == b""


async def client_sends_another_protocol(broker, _):
    client = await broker.connect()
    client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await client.closed()


async def member_falls_silent(broker, _):
    client = await broker.connect()
    await client.heartbeat("G", "T")
    broker.move(130)
    assert await client.closed() == b""


async def too_many_pulls_wait(broker, _):
    client = await broker.connect()
    broker.make_topic("T")
    client.send(pull_request(0, suspend_ms=60_000))
    await broker.held(1)
    other = await broker.connect()
    other.send(pull_request(0, suspend_ms=60_000))
    await broker.until(lambda: broker.holds.deferred_total)
    broker.move(5)
    await other.receive()


async def pulls_have_room_again(broker, disk):
    await too_many_pulls_wait(broker, disk)
    broker.move(5)
    await broker.until(lambda: broker.holds._deferred_before is None)


async def topic_of_a_delayed_message_is_deleted(broker, _):
    broker.make_topic("T")
    client = await broker.connect()
    await client.put("lost", properties={"DELAY": "1"})
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"})
    broker.move(2)
    await broker.until(lambda: broker.controller.schedule.dropped_total)


async def topic_of_a_timer_message_is_deleted(broker, _):
    broker.make_topic("T")
    client = await broker.connect()
    await client.put("lost", properties={"TIMER_DELAY_MS": "1000"})
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"})
    broker.move(3)
    await broker.until(lambda: broker.controller.timers.dropped_total)


async def group_has_no_retry_queues(broker, _):
    broker.make_topic("T")
    group = SubscriptionGroupConfig(group_name="G", retry_queue_nums=0)
    broker.controller.tables.groups.put(group)
    client = await broker.connect()
    await client.put("failed")
    code = RequestCode.CONSUMER_SEND_MSG_BACK
    header = {"group": "G", "offset": "0", "delayLevel": "0", "originTopic": "T"}
    assert (await client.ask(code, ext_fields=header)).code == 0


async def disk_takes_no_messages(broker, disk):
    broker.make_topic("T")
    client = await broker.connect()
    await client.put("a")
    disk.plan = [
        Fault(persistent=True, kinds=frozenset({"write"}), error=errno.ENOSPC),
    ]
    client.send(send_request("b"))
    assert (await client.receive()).code != 0
    disk.plan = ()


async def recent_loss(broker):
    """Return what the broker has lost recently, as health checks and the console show it."""
    answer = await (await broker.connect()).ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    return decode_body(KVTable, answer.body).table["recentLoss"]


class GivenUp(NamedTuple):
    story: Callable[..., Any]
    settings: dict[str, Any]
    line: str
    counter: str


ROWS = [
    GivenUp(
        too_many_connections,
        {"maxConnections": 1},
        "refused new clients: maxConnections 1; the last was",
        "rocketpoll_connections_refused_total",
    ),
    GivenUp(
        frame_too_long,
        {"maxFrameBytes": 4_096, "maxMessageSize": 4_096},
        "closed: .*needed 4 to 4092",
        "rocketpoll_connections_cut_total",
    ),
    GivenUp(
        client_does_not_finish_a_first_header,
        {"firstFrameTimeoutMills": 3_000},
        "closed: it sent no request",
        "rocketpoll_connections_cut_total",
    ),
    GivenUp(
        client_sends_another_protocol,
        {},
        "closed: .*HTTP",
        "rocketpoll_connections_cut_total",
    ),
    GivenUp(
        member_falls_silent, {}, "closed: no heartbeat for", "rocketpoll_connections_cut_total"
    ),
    GivenUp(
        too_many_pulls_wait,
        {"maxHolds": 1},
        "1 pulls are held .*Raise maxHolds",
        "rocketpoll_pulls_put_off_total",
    ),
    GivenUp(
        pulls_have_room_again,
        {"maxHolds": 1},
        "all pulls can be held again; 1 were answered early",
        "rocketpoll_pulls_put_off_total",
    ),
    GivenUp(
        topic_of_a_delayed_message_is_deleted,
        {},
        "delayed message .* is not delivered: its topic T was deleted",
        "rocketpoll_delayed_messages_dropped_total",
    ),
    GivenUp(
        topic_of_a_timer_message_is_deleted,
        {},
        "timer message .* is not delivered: its topic T was deleted",
        "rocketpoll_timers_dropped_total",
    ),
    GivenUp(
        group_has_no_retry_queues,
        {},
        "group G has no retry queues .* are dropped",
        "rocketpoll_failed_messages_dropped_total",
    ),
    GivenUp(
        disk_takes_no_messages,
        {},
        "No space left on device",
        "rocketpoll_puts_failed_total",
    ),
]


GUIDE = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")


def guide_rows():
    """Return the cells of the operating guide's table of what is given up."""
    section = GUIDE.partition("## What the broker gives up\n")[2].partition("\n## ")[0]
    return [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")][1:]


def test_operating_guide_lists_metric_and_alert_of_everything_given_up():
    """Its metrics exist, its alerts are rules, and each case of this file has a row."""
    rows = guide_rows()
    rules = (ROOT / "deploy/prometheus/rocketpoll.rules.yml").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| `(rocket\w+)` \|", GUIDE, re.MULTILINE))
    named = set()
    for given_up, _, metrics, alerts in rows:
        counters = re.findall(r"`(\w+)`", metrics)
        assert counters, given_up
        named |= set(counters)
        for alert in re.findall(r"\b(?:Rocketpoll|Consumer|Dead)\w+", alerts):
            assert f"alert: {alert}\n" in rules, given_up
    assert named <= known
    assert {name for name in known if LOSS.search(name)} <= named
    assert {row.counter for row in ROWS} <= named


SMALL_FILES = {"mappedFileSizeCommitLog": 8_192, "maxMessageSize": 4_096, "metricsPort": 0}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.story.__name__)
def test_everything_the_broker_gives_up_is_logged_and_counted(tmp_path, caplog, row):
    disk = FaultyDisk(LocalDisk())

    async def story(broker):
        await row.story(broker, disk)
        assert (await scrape(broker.controller.metrics_port))(row.counter) > 0
        healths = [health for *_, counters, health in guide_rows() if row.counter in counters]
        if all(health.strip().endswith(", health") for health in healths):
            assert await recent_loss(broker)

    tell(story, tmp_path, disk, metricsPort=0, **row.settings)
    lines = [
        record.getMessage() for record in caplog.records if record.levelname in {"WARNING", "ERROR"}
    ]
    assert any(re.search(row.line, line) for line in lines), lines


def test_start_that_does_not_find_all_of_the_log_shows_in_health(tmp_path):
    async def full(broker):
        await (await broker.connect()).put(*["x" * 1_000] * 20)
        assert await recent_loss(broker) == ""

    async def cut(broker):
        samples = await scrape(broker.controller.metrics_port)
        lost = samples("rocketpoll_log_lost_bytes")
        assert f"did not find {lost:,.0f} bytes of the commit log" in await recent_loss(broker)

    tell(full, tmp_path, **SMALL_FILES)
    min((tmp_path / "commitlog").iterdir()).unlink()
    tell(cut, tmp_path, **SMALL_FILES)
