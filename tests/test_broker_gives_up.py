"""Whenever a broker discards something, its log, a metric, health and the console say so.

There is a case for each row of the operating guide's table, and for each line of the log that it
quotes: the event, the line, the counter that must grow, and the output of health and console.
"""

from __future__ import annotations

import errno
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from support.brokers.in_process import tell
from support.brokers.metrics_endpoint import scrape
from support.clients.pops import pop
from support.clients.remoting_clients import pull_request, send_request
from support.disks.faulty_disk import Fault, FillingDisk
from support.stores.small_store import encoded, message
from support.stores.staged_batches import sized

from rmq_spark.cli.cluster.cluster_command import BrokerStatus, check_broker
from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig
from rmq_spark.wire.bodies.operators import KVTable
from rmq_spark.wire.bodies.staged_batches import CommitBatchRequestBody, StagedAttempt
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import BatchRequestHeader, StageChunkRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.isa_l import crc32
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.staging import commit_table

ROOT = Path(__file__).parent.parent
LOSS = re.compile(
    r"_(cut|deleted|dropped|evicted|expired|failed|given_up|holes|lost|put_off|refused)"
    r"(_bytes)?(_total)?$"
)
"""Endings of the names of metrics that count losses."""

HOUR_MS = 3_600_000
IN_FIRST_BODY = 88
"""Position in the log of the first byte of the first message's body."""
COUNTED = {
    "Closed connections": "connectionsCut",
    "Damaged ranges": "damagedRanges",
    "Failed sends": "putMessageFailedTimes",
    "Pulls answered early": "pullsPutOff",
    "Refused clients": "clientsRefused",
    "Refused requests": "requestsRefused",
}
"""Figures of the console's page of charts, and the keys under which brokers report them."""


class Clock:
    """A time of day that tests move forward."""

    ahead_ms = 0

    def __call__(self):
        return time.time_ns() // 1_000_000 + self.ahead_ms


def root_of(broker):
    return broker.limits.store.store_path_root_dir


def damage(root, position=100, file=0):
    """Change a byte of a log file."""
    path = sorted((root / "commitlog").iterdir())[file]
    with path.open("r+b") as log:
        log.seek(position)
        byte = log.read(1)[0]
        log.seek(position)
        log.write(bytes([byte ^ 0x40]))


async def clean(broker):
    broker.controller.housekeeping.clean()
    await broker.controller.housekeeping.wait_idle()


async def fill_disk(broker, disk):
    """Let the disk be so full that the oldest messages are deleted."""
    client = await broker.connect()
    await client.put(*["x" * 1_000] * 40, topic="filler")
    disk.ratio = 0.87
    await clean(broker)
    assert broker.store.state().min_offset > 0
    disk.ratio = 0.5


async def send_back(client, result_offset=0, **more):
    """Send a message back, as a consumer does after a failure."""
    header = {"group": "G", "offset": str(result_offset), "delayLevel": "0", "originTopic": "T"}
    code = RequestCode.CONSUMER_SEND_MSG_BACK
    assert (await client.ask(code, ext_fields={**header, **more})).code == 0


async def stage(client, sink, batch_id, chunks=1):
    """Stage rows; return the request that commits them."""
    crc = 0
    for number in range(chunks):
        _, _, body = sized(["a", "b"], "T", 0)
        header = StageChunkRequestHeader(sink, batch_id, "query", "a", number, "T", 0, "TBW102")
        answer = await client.call(request(RequestCode.STAGE_CHUNK, header, body))
        assert answer.code == 0, answer.remark
        crc = crc32(body, crc)
    attempt = StagedAttempt(attempt="a", chunks=chunks, rows=2 * chunks, crc=crc)
    body = encode_body(CommitBatchRequestBody(attempts=(attempt,)))
    return request(RequestCode.COMMIT_BATCH, BatchRequestHeader(sink, batch_id, "query"), body)


def request(code, header, body):
    ext_fields = HEADERS[code].request.encode(header)
    return RemotingCommand(code, opaque=1, ext_fields=ext_fields, body=body)


async def staging_client(broker):
    client = await broker.connect()
    await client.agree(Extension.STAGED_BATCHES)
    return client


async def too_many_connections(broker, _):
    client = await broker.connect()
    assert await (await broker.connect()).closed() == b""
    return client


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
    await send_back(client)


async def disk_is_full(broker, disk):
    broker.make_topic("T")
    disk.ratio = 0.95
    await clean(broker)
    client = await broker.connect()
    assert (await client.call(send_request("a"))).code != 0


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


# ---- retention


async def messages_expire_unconsumed(broker, _):
    broker.make_topic("T")
    client = await broker.connect()
    await client.put(*["x" * 1_000] * 40)
    broker.controller.tables.offsets.commit("billing", "T", 0, 0)
    broker.clock.ahead_ms += 80 * HOUR_MS
    await client.put("new")
    await clean(broker)


async def full_disk_deletes_young_messages(broker, disk):
    await fill_disk(broker, disk)


async def delayed_message_is_deleted_before_it_is_due(broker, disk):
    client = await broker.connect()
    await client.put("lost", properties={"DELAY": "18"})
    await fill_disk(broker, disk)
    broker.move(7_300)
    await broker.until(lambda: broker.controller.schedule.dropped_total)


async def timer_message_is_deleted_before_it_is_due(broker, disk):
    client = await broker.connect()
    await client.put("lost", properties={"TIMER_DELAY_MS": str(HOUR_MS)})
    await fill_disk(broker, disk)
    broker.clock.ahead_ms += 2 * HOUR_MS
    broker.move(7_200)
    await broker.until(lambda: broker.controller.timers.dropped_total)


# ---- transactions and pops


async def half_message(broker):
    broker.make_topic("T")
    client = await broker.connect()
    properties = {"TRAN_MSG": "true", "PGROUP": "P", "UNIQ_KEY": "0A0B"}
    answer = await client.call(send_request("half", properties=properties, sys_flag=4))
    assert answer.code == 0, answer.remark
    return client


async def producer_does_not_answer_checks(broker, _):
    await half_message(broker)
    transactions = broker.controller.transactions
    for _ in range(4):
        broker.clock.ahead_ms += 31_000
        broker.move(31)
        await broker.until(lambda: transactions.checks_total or transactions.given_up_total)
    await broker.until(lambda: broker.controller.tables.topics.get("TRANS_CHECK_MAX_TIME_TOPIC"))
    broker.controller.tables.topics.save()
    broker.move(2)
    await broker.until(lambda: transactions.given_up_total)


async def half_message_is_damaged(broker, _):
    await half_message(broker)
    damage(root_of(broker), IN_FIRST_BODY)
    broker.move(31)
    await broker.until(lambda: broker.controller.transactions.lost_total)


async def half_message_is_deleted(broker, disk):
    broker.move(31)  # a first round of checks, which begins with the first existing message
    await broker.connect()
    await half_message(broker)
    await fill_disk(broker, disk)
    broker.move(31)
    await broker.until(lambda: broker.controller.transactions.lost_total)


async def popped_message_is_damaged(broker, _):
    broker.make_topic("T")
    client = await broker.connect()
    await client.put("lost")
    assert len(await pop(client)) == 1
    damage(root_of(broker), IN_FIRST_BODY)
    await redelivered(broker, client)


async def retry_topic_of_a_popped_message_is_deleted(broker, _):
    broker.make_topic("T")
    client = await broker.connect()
    await client.put("lost")
    assert len(await pop(client)) == 1
    retries = "%RETRY%G_T"
    broker.make_topic(retries, queues=1)
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": retries})
    await redelivered(broker, client)


async def redelivered(broker, client):
    """Advance the clock by the invisible time, and run the work that is due."""
    for _ in range(40):
        broker.clock.ahead_ms += 500
        broker.move(0.5)
        for _ in range(3):
            await client.ask(0)
    await broker.until(lambda: broker.controller.revive.dropped_total)


# ---- failed messages


async def failed_message_is_too_large_to_be_stored_again(broker, _):
    broker.make_topic("T")
    room = broker.limits.store.mapped_file_size_commit_log
    body = "x" * (room - 8 - len(encoded(message(""))))
    assert broker.store.put_message(message(body)).is_stored
    await send_back(await broker.connect())


async def message_has_failed_too_often(broker, _):
    broker.make_topic("T")
    client = await broker.connect()
    await client.put("poison")
    await send_back(client, delayLevel="-1")


# ---- staged batches


async def staged_rows_are_never_committed(broker, _):
    broker.make_topic("T")
    await stage(await staging_client(broker), "sink", 0)
    broker.clock.ahead_ms += 25 * HOUR_MS
    await clean(broker)


async def there_are_too_many_sinks(broker, _):
    broker.make_topic("T")
    client = await staging_client(broker)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit_table, "SINKS_MAX", 1)
        for sink in ("old", "new"):
            broker.clock.ahead_ms += 8 * 24 * HOUR_MS
            answer = await client.call(await stage(client, sink, 0))
            assert answer.code == 0, answer.remark


async def chunk_of_a_batch_is_damaged(broker, _):
    broker.make_topic("T")
    client = await staging_client(broker)
    commit = await stage(client, "sink", 0, chunks=3)
    last = max((root_of(broker) / "staging" / "sink").iterdir())
    data = last.read_bytes()
    last.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert (await client.call(commit)).code != 0


# ---- limits and clients


async def there_are_too_many_topics(broker, _):
    client = await broker.connect()
    await client.put("a", topic="T10")
    assert (await client.call(send_request("a", topic="T11"))).code != 0


async def requester_is_not_connected(broker, _):
    client = await broker.connect()
    properties = {"REPLY_TO_CLIENT": "nobody", "CORRELATION_ID": "c", "MSG_TYPE": "reply"}
    topic = "DefaultCluster_REPLY_TOPIC"
    reply = send_request("a", topic, code=RequestCode.SEND_REPLY_MESSAGE, properties=properties)
    assert (await client.call(reply)).code != 0


# ---- starts after an unclean end


async def write_messages(broker):
    broker.make_topic("T")
    await (await broker.connect()).put(*["x" * 1_000] * 20)


async def do_nothing(broker, _):
    await broker.connect()


def delete_a_file(root):
    min((root / "commitlog").iterdir()).unlink()


def damage_after_a_crash(root):
    damage(root, 3_000)
    (root / "abort").touch()


def damage_and_delete_queues(root):
    damage(root, 3_000)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")


class GivenUp(NamedTuple):
    """A case: its row in the guide begins with ``row``, and the row quotes ``line``."""

    row: str
    line: str | None
    story: Callable[..., Any]
    settings: Mapping[str, Any] = MappingProxyType({})
    counter: str | None = None
    """The metric, if the row has several."""
    between: Callable[[Path], None] | None = None
    """Runs between a broker that writes messages and the start of the story."""


SMALL_FILES = {"mappedFileSizeCommitLog": 8_192, "maxMessageSize": 4_096}
CASES = [
    GivenUp(
        "messages older than",
        "Groups that had not consumed them",
        messages_expire_unconsumed,
        {**SMALL_FILES, "deleteWhen": ";".join(f"{hour:02}" for hour in range(24))},
    ),
    GivenUp(
        "messages older than",
        "deleted 2 files of the commit log",
        messages_expire_unconsumed,
        {**SMALL_FILES, "deleteWhen": ";".join(f"{hour:02}" for hour in range(24))},
        "rocketpoll_files_deleted_total",
    ),
    GivenUp(
        "younger messages", "The disk is 87% full", full_disk_deletes_young_messages, SMALL_FILES
    ),
    GivenUp(
        "younger messages",
        "deleted 2 files of the commit log",
        full_disk_deletes_young_messages,
        SMALL_FILES,
    ),
    GivenUp(
        "delayed messages",
        "delayed message ... is not delivered",
        topic_of_a_delayed_message_is_deleted,
    ),
    GivenUp(
        "delayed messages",
        "were deleted with old files",
        delayed_message_is_deleted_before_it_is_due,
        SMALL_FILES,
    ),
    GivenUp(
        "timer messages",
        "timer message ... is not delivered",
        topic_of_a_timer_message_is_deleted,
    ),
    GivenUp(
        "timer messages",
        "was deleted with old files",
        timer_message_is_deleted_before_it_is_due,
        SMALL_FILES,
    ),
    GivenUp(
        "transactions whose producer",
        "half message ... is given up",
        producer_does_not_answer_checks,
        {"transactionCheckMax": 1},
    ),
    GivenUp(
        "messages of transactions",
        "a damaged message of transactions is skipped",
        half_message_is_damaged,
    ),
    GivenUp(
        "messages of transactions",
        "checks of transactions continue at",
        half_message_is_deleted,
        {**SMALL_FILES, "mappedFileSizeConsumeQueue": 400},
    ),
    GivenUp("popped messages", "cannot be redelivered", popped_message_is_damaged),
    GivenUp(
        "popped messages",
        "popped message ... is not delivered",
        retry_topic_of_a_popped_message_is_deleted,
    ),
    GivenUp(
        "failed messages that are too large",
        "cannot become a dead letter",
        failed_message_is_too_large_to_be_stored_again,
        {"maxMessageSize": 1 << 20},
    ),
    GivenUp("failed messages of a group", "has no retry queues", group_has_no_retry_queues),
    GivenUp("further retries", None, message_has_failed_too_often),
    GivenUp(
        "damaged ranges",
        "is damaged: no message is read from",
        do_nothing,
        SMALL_FILES,
        between=damage_after_a_crash,
    ),
    GivenUp(
        "damaged ranges",
        "the commit log is damaged from",
        do_nothing,
        {**SMALL_FILES, "checkWholeLogBytes": 0},
        between=damage_and_delete_queues,
    ),
    GivenUp(
        "parts of the log",
        "the messages between are lost",
        do_nothing,
        SMALL_FILES,
        between=delete_a_file,
    ),
    GivenUp(
        "staged rows",
        "staged more than a day ago and never committed",
        staged_rows_are_never_committed,
    ),
    GivenUp("the sink that", "is forgotten to make room", there_are_too_many_sinks),
    GivenUp(
        "rows of a commit",
        "is rolled back, and its sink can commit it again",
        chunk_of_a_batch_is_damaged,
    ),
    GivenUp("messages while the disk is full", "messages are refused", disk_is_full),
    GivenUp(
        "messages while the disk is full", "the commit log is not written", disk_takes_no_messages
    ),
    GivenUp("topics, groups", "already, the maximum", there_are_too_many_topics, {"maxTopics": 1}),
    GivenUp("held pulls", "Raise maxHolds", too_many_pulls_wait, {"maxHolds": 1}),
    GivenUp("held pulls", "all pulls can be held again", pulls_have_room_again, {"maxHolds": 1}),
    GivenUp("new clients", "refused new clients", too_many_connections, {"maxConnections": 1}),
    GivenUp(
        "clients that fall silent",
        "closed:",
        frame_too_long,
        {"maxFrameBytes": 4_096, "maxMessageSize": 4_096},
    ),
    GivenUp(
        "clients that fall silent",
        "closed:",
        client_does_not_finish_a_first_header,
        {"firstFrameTimeoutMills": 3_000},
    ),
    GivenUp("clients that fall silent", "closed:", client_sends_another_protocol),
    GivenUp("clients that fall silent", "closed:", member_falls_silent),
    GivenUp("replies", "SEND_REPLY_MESSAGE of", requester_is_not_connected),
]


class GuideRow(NamedTuple):
    given_up: str
    levels: list[str]
    lines: list[str]
    """Parts of log lines that the row quotes."""
    metrics: list[str]
    alerts: list[str]
    shown: str
    """The last cell: health and console."""


GUIDE = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")


def guide_rows():
    """Return the rows of the operating guide's table of losses."""
    section = GUIDE.partition("## What the broker gives up\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| ")][1:]
    return [
        GuideRow(
            given_up.strip(),
            re.findall("INFO|WARNING|ERROR", log),
            [each for each in re.findall(r"`([^`]+)`", log) if " " in each or "_" not in each],
            re.findall(r"`(\w+)`", metrics),
            re.findall(r"\w+", alerts),
            shown.strip(),
        )
        for given_up, log, metrics, alerts, shown in rows
    ]


def row_of(case):
    [row] = [each for each in guide_rows() if each.given_up.startswith(case.row)]
    return row


def test_operating_guide_lists_metric_and_alert_of_every_loss():
    """Every metric exists, every alert is a rule, and every quoted line of the log has
    a case here."""
    rows = guide_rows()
    rules = (ROOT / "deploy/prometheus/rocketpoll.rules.yml").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| `(rocket\w+)` \|", GUIDE, re.MULTILINE))
    named = set()
    for row in rows:
        assert row.metrics, row.given_up
        named |= set(row.metrics)
        for alert in row.alerts:
            assert f"alert: {alert}\n" in rules, row.given_up
    assert named <= known
    assert {name for name in known if LOSS.search(name)} <= named
    assert {(row_of(case).given_up, case.line) for case in CASES if case.line} == {
        (row.given_up, line) for row in rows for line in row.lines
    }
    assert {row_of(case).given_up for case in CASES} == {row.given_up for row in rows}


def pattern_of(line):
    """Return the regular expression of a quoted line: its numbers vary, and ... is any text."""
    return re.sub(r"\d+", r"\\d+", re.escape(line).replace(re.escape("..."), ".+"))


async def runtime_of(client):
    answer = await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    return decode_body(KVTable, answer.body).table


def named_kinds(shown, how):
    """Return the kinds of losses that a cell names after "fails" or "warns"."""
    return re.findall(rf"{how}(?:, when it is found)?: ([a-z ]+)", shown)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.story.__name__}-{case.line}")
def test_every_loss_of_the_broker_is_logged_counted_and_shown(tmp_path, caplog, case):
    caplog.set_level("INFO")
    row, disk, clock = row_of(case), FillingDisk(LocalDisk()), Clock()
    settings = {"metricsPort": 0, **case.settings}
    if case.between is not None:
        tell(write_messages, tmp_path, disk, clock, **settings)
        case.between(tmp_path)
        caplog.clear()

    async def story(broker):
        broker.clock = clock
        client = await case.story(broker, disk) or await broker.connect()
        samples = await scrape(broker.controller.metrics_port)
        metrics = [case.counter] if case.counter else row.metrics[:1]
        assert all(samples(each) > 0 for each in metrics)
        info = await runtime_of(client)
        checks = {
            check.subject.removeprefix("broker a: "): check
            for check in check_broker(BrokerStatus("C", "a", 0, "a:1", info))
        }
        fails, warns = (named_kinds(row.shown, how) for how in ("fails", "warns"))
        assert all(not checks[kind].is_ok for kind in fails), checks
        assert all(checks[kind].state == "warning" for kind in warns), checks
        counted = re.findall(r"\*([A-Z][a-z ]+)\*", row.shown)
        assert fails or warns or counted
        assert all(int(info[COUNTED[each]]) for each in counted if each in COUNTED), info

    tell(story, tmp_path, disk, clock, **settings)
    lines = [each.getMessage() for each in caplog.records if each.levelname in row.levels]
    if case.line is not None:
        assert any(re.search(pattern_of(case.line), line) for line in lines), lines
