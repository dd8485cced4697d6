"""Unreadable messages and every reader of many messages: no other message is lost, and each bad one
is reported with its position."""

import asyncio
import base64
import json
import logging
import re
import subprocess
import sys
from collections import Counter

import pytest
from support.brokers.broker_kinds import wait_until
from support.messages.bad_messages import KEY, UNREADABLE, bad_topic
from support.programs.web_console import served
from support.spark.source_queries import options_for, schema_of

from rmq_spark.cli.main import main
from rmq_spark.client.errors import GroupNotFound, ManifestError, MessageRejected, MessageUnreadable
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.reading.bulk_pull import stored_messages
from rmq_spark.client.reading.read_bounds import ReadRange
from rmq_spark.errors import BodyError
from rmq_spark.spark.plan.partition_planner import OffsetRange
from rmq_spark.spark.read.partition_reader import read_range
from rmq_spark.spark.schemas.columns import arrow_schema_of
from rocketpoll import (
    Admin,
    ConsumeFromWhere,
    LitePullConsumer,
    LitePullSettings,
    PushConsumer,
    PushSettings,
    aio,
)

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
PATIENCE_S = 30


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    with bad_topic(tmp_path_factory.mktemp("store")) as topic:
        yield topic


@pytest.fixture
def run(bad, capsysbinary, monkeypatch):
    """Return a function that runs a command and returns its exit code, stdout and stderr."""
    monkeypatch.setenv("NAMESRV_ADDR", bad.broker.address)

    def ran(*arguments):
        capsysbinary.readouterr()
        code = main([str(each) for each in arguments])
        out, err = capsysbinary.readouterr()
        return code, out, err.decode()

    return ran


def named_in(text):
    """Return the offsets of the messages that a text reports as unreadable."""
    return {int(at) for at in re.findall(r"@(\d+) \(\S+\) cannot be read: ", text)}


def unreadable(bad):
    """Return the offsets of the messages that brokers serve as they were sent."""
    return {at for at, name in bad.bad.items() if name in UNREADABLE}


# ---- the command line


def test_consume_prints_every_message_and_names_those_that_cannot_be_read(bad, run):
    code, out, err = run("consume", bad.topic, "-f", r"%o\n")
    assert [int(line) for line in out.splitlines()] == sorted({*bad.sound, *bad.bad})
    assert (code, named_in(err)) == (0, set(bad.bad))


def test_consume_as_json_has_the_stored_bodies_with_the_faults(bad, run):
    code, out, err = run("consume", bad.topic, "-o", "json")
    rows = {row["offset"]: row for row in map(json.loads, out.splitlines())}
    assert {at: rows[at]["body"].encode() for at in bad.sound} == bad.sound
    assert {at for at, row in rows.items() if "fault" in row} == set(bad.bad)
    [garbage] = [rows[at] for at, name in bad.bad.items() if name == "garbage as zlib"]
    assert base64.b64decode(garbage["body_base64"]) == b"this is no stream"
    assert (code, named_in(err)) == (0, set(bad.bad))


@pytest.mark.parametrize("output", [["-o", "raw"], ["-o", "hex"], ["-f", r"%s\n"]])
def test_consume_of_bodies_alone_leaves_out_those_that_cannot_be_read_and_fails(bad, run, output):
    code, out, err = run("consume", bad.topic, *output)
    bodies = [
        bytes.fromhex(each.decode()) if "hex" in output else each for each in out.split(b"\n")
    ]
    assert Counter(filter(None, bodies)) == Counter(bad.sound.values())
    assert (code, named_in(err)) == (1, set(bad.bad))
    assert f"cannot read the bodies of {len(bad.bad)} messages, named above" in err


def test_consume_as_text_shows_no_bytes_of_a_body_that_cannot_be_read(bad, run):
    code, out, err = run("consume", bad.topic)
    lines = out.decode().splitlines()
    assert len(lines) == len(bad.sound) + len(bad.bad)
    assert "this is no stream" not in "".join(line.rsplit("found", 1)[0] for line in lines)
    assert sum("cannot be read: " in line for line in lines) == len(bad.bad)
    assert (code, named_in(err)) == (0, set(bad.bad))


def test_consume_stops_after_as_many_as_are_wanted(bad, run):
    assert run("consume", bad.topic, "-n", 2, "-f", r"%o\n")[:2] == (0, b"0\n1\n")


@pytest.mark.parametrize("tags", [[], ["--tags", "t"]])
def test_consume_by_key_finds_sound_messages_beside_those_that_cannot_be_read(bad, run, tags):
    code, out, err = run("consume", bad.topic, "--key", KEY, "-o", "json", *tags)
    found = {row["offset"]: row.get("fault") for row in map(json.loads, out.splitlines())}
    assert {at for at, body in bad.sound.items() if body.startswith(b"sound")} <= set(found)
    if not tags:  # the index leaves out records that are damaged in the log
        assert {at for at in found if found[at]} == unreadable(bad)
    assert (code, named_in(err)) == (0, {at for at in found if found[at]})


def test_consume_with_tags_brings_all_sound_messages(bad, run):
    _, out, _ = run("consume", bad.topic, "--tags", "t", "-o", "json")
    found = [row for row in map(json.loads, out.splitlines()) if "fault" not in row]
    assert [row["body"] for row in found] == [
        body.decode() for body in bad.sound.values() if body.startswith(b"sound")
    ]


def test_message_shows_the_fault_and_place_of_one_that_cannot_be_read(bad, run):
    with Admin(bad.broker.address) as admin:
        for at in unreadable(bad):
            message_id = admin.message_at(bad.queue, at).offset_message_id
            code, out, err = run("message", message_id, "--topic", bad.topic, "-o", "json")
            shown = json.loads(out)
            assert (code, shown["offset"], shown["broker"]) == (0, at, "broker-a"), err
            assert shown["fault"]


def test_tail_skips_and_names_unreadable_messages_and_writes_nothing(bad):
    command = [sys.executable, "-m", "rocketpoll", "consume", bad.topic, "--follow"]
    arguments = ["-n", str(len(bad.sound)), "-f", r"%o\n", "--namesrv", bad.broker.address]
    for _ in range(2):
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=60, check=True
        )
        assert [int(line) for line in done.stdout.splitlines()] == sorted(bad.sound)
        named = {int(at) for at in re.findall(r"at offset (\d+) of .*skipped: ", done.stderr)}
        assert named == {at for at in bad.bad if at < max(bad.sound)}
    with Admin(bad.broker.address) as admin:
        assert "%DLQ%TOOLS_CONSUMER" not in admin.topics()


# ---- lookups


def test_lookups_bring_every_message_and_a_fault_with_those_that_cannot_be_read(bad):
    with Admin(bad.broker.address) as admin:
        by_key = {each.queue_offset: each for each in admin.messages_by_key(bad.topic, KEY)}
        assert {at for at, each in by_key.items() if each.fault} == unreadable(bad)
        for at in (*bad.sound, *bad.bad):
            found = admin.message_at(bad.queue, at)
            assert (found.topic, found.queue, found.queue_offset) == (bad.topic, bad.queue, at)
            assert (found.fault is None) is (at in bad.sound)
            if at in bad.sound:
                assert found.body == bad.sound[at]
            else:
                with pytest.raises(BodyError, match=f"of T on broker-a at offset {at}: .*found"):
                    found.json()


def test_embedded_messages_include_unreadable_ones(bad):
    found = {each.queue_offset: each for each in bad.broker.messages(bad.topic)}
    assert {at: found[at].body for at in found if found[at].fault is None} == bad.sound
    assert {at for at in found if found[at].fault} == set(bad.bad)
    assert all(isinstance(each.delay_level, int) for each in found.values())
    assert "cannot be read: compressed body" in repr(bad.broker.messages(bad.topic))


def test_record_with_a_damaged_size_hides_no_later_record(bad, monkeypatch):
    """The record is damaged in transit: a broker finds its own records by the consume queue."""
    from rmq_spark.client.reading import bulk_pull  # noqa: PLC0415  # imported late: only this test needs it

    real = bulk_pull.BulkPull.__iter__

    def damaged(pull):
        for chunk in real(pull):
            records = bytearray(chunk.records)
            first = int.from_bytes(records[:4], "big")
            if int.from_bytes(records[first + 20 : first + 28], "big") == 1:
                records[first : first + 4] = b"\x7f\xff\xff\xff"
            yield chunk._replace(records=bytes(records))

    monkeypatch.setattr(bulk_pull.BulkPull, "__iter__", damaged)
    with Admin(bad.broker.address) as admin:
        end = len(bad.sound) + len(bad.bad)
        span = ReadRange(bad.queue, bad.broker.address, 0, end)
        found = list(stored_messages(admin.instance.api, span))
    assert [each.queue_offset for each in found] == list(range(end))
    assert "totalSize" in found[1].fault


# ---- tables


def test_read_table_without_bodies_has_all_rows_despite_bad_messages(bad):
    with Admin(bad.broker.address) as admin:
        table = admin.read_table(bad.topic, columns=["queueOffset"], on_bad_record="null")
    assert table.column("queueOffset").to_pylist() == list(range(len(bad.sound) + len(bad.bad)))


def test_read_table_with_bodies_names_the_unreadable_message(bad):
    with Admin(bad.broker.address) as admin:
        for at in bad.bad:
            with pytest.raises(MessageUnreadable, match=f"^the message at offset {at} of queue 0"):
                admin.read_table(bad.topic, start={bad.queue: at})


@pytest.mark.parametrize("how", ["null", "skip"])
def test_bad_records_in_a_table_are_null_or_skipped_and_logged(bad, how, caplog):
    columns = ["queueOffset", "body"]
    rows = bad.broker.read_table(bad.topic, columns=columns, on_bad_record=how).to_pylist()
    assert {row["queueOffset"]: row["body"] for row in rows if row["body"] is not None} == bad.sound
    assert {row["queueOffset"] for row in rows if row["body"] is None} == (
        set(bad.bad) if how == "null" else set()
    )
    assert {int(at) for at in re.findall(r"at offset (\d+) of", caplog.text)} == set(bad.bad)


def test_read_table_refuses_unknown_on_bad_record_value(bad):
    with pytest.raises(MessageRejected, match="on_bad_record: needed one of fail, null, skip"):
        bad.broker.read_table(bad.topic, on_bad_record="ignore")
    with pytest.raises(MessageRejected, match="only the Spark source sends dead letters"):
        bad.broker.read_table(bad.topic, on_bad_record="dead_letter")


@pytest.mark.parametrize("how", ["null", "skip"])
def test_spark_task_reads_all_readable_messages(bad, how, caplog):
    schema = arrow_schema_of(schema_of("body binary, queueOffset bigint"))
    options = options_for(bad.broker, bad.topic, onBadRecord=how)
    end = len(bad.sound) + len(bad.bad)
    rows = [
        row
        for batch in read_range(options, schema, OffsetRange(bad.queue, 0, end))
        for row in batch.to_pylist()
    ]
    assert {row["queueOffset"]: row["body"] for row in rows if row["body"] is not None} == bad.sound
    assert {row["queueOffset"] for row in rows if row["body"] is None} == (
        set(bad.bad) if how == "null" else set()
    )
    assert {int(at) for at in re.findall(r"offset (\d+) of", caplog.text)} == set(bad.bad)


# ---- consumers


def _taken(bad, group, step):
    with Admin(bad.broker.address) as admin:

        def is_done():
            step()
            try:
                [lag] = admin.lag(group, bad.topic)
            except GroupNotFound:  # it has sent no heartbeat yet
                return False
            return lag.consumer_offset == len(bad.sound) + len(bad.bad)

        wait_until("all is committed", is_done, PATIENCE_S)


def _lite_settings(**more):
    return LitePullSettings(
        consume_from_where=FIRST,
        persist_consumer_offset_interval_ms=100,
        auto_commit_interval_ms=1_000,
        **more,
    )


def _lite(bad):
    seen = []
    with LitePullConsumer("lite", bad.broker.address, _lite_settings()) as consumer:
        consumer.subscribe(bad.topic)
        _taken(bad, "lite", lambda: seen.extend(consumer.poll(100)))
    return seen


def _push(bad, name="push", listener="listener"):
    seen = []
    settings = PushSettings(consume_from_where=FIRST, persist_consumer_offset_interval_ms=100)
    listen = {listener: lambda messages, _: seen.extend(messages)}
    with PushConsumer(name, bad.broker.address, settings=settings, **listen) as consumer:
        consumer.subscribe(bad.topic)
        _taken(bad, name, lambda: None)
    return seen


def _orderly(bad):
    return _push(bad, "orderly", "orderly_listener")


def _aio(bad):
    async def story():
        seen = []
        async with aio.Consumer("aio", bad.broker.address, _lite_settings()) as consumer:
            await consumer.subscribe(bad.topic)
            while len(seen) < len(bad.sound):
                seen += await consumer.poll(1_000)
            while (await consumer.committed(bad.queue)) != len(bad.sound) + len(bad.bad):
                await consumer.poll(100)
        return seen

    return asyncio.run(asyncio.wait_for(story(), 2 * PATIENCE_S))


@pytest.mark.parametrize("consume", [_lite, _push, _orderly, _aio])
def test_consumer_gets_all_readable_messages_and_dead_letters_the_others(bad, consume, caplog, run):
    group = consume.__name__.removeprefix("_")
    with caplog.at_level(logging.ERROR, "rmq_spark.client.consumer"):
        seen = consume(bad)
    assert {each.queue_offset: each.body for each in seen} == bad.sound
    named = {int(at) for at in re.findall(r"at offset (\d+) of \S+", caplog.text)}
    assert named == set(bad.bad)
    over = next(at for at, name in bad.bad.items() if name == "over the limit")
    [line] = [each for each in caplog.messages if f"at offset {over} of" in each]
    assert "needed at most 16777216 bytes inflated" in line
    assert "damaged" not in line
    code, out, err = run("dlq", "show", group, "-f", r"%i\n")
    assert (code, len(out.splitlines())) == (0, len(bad.bad)), err
    _letters_can_be_resent_but_those_that_cannot_be_read(run, group)


def _letters_can_be_resent_but_those_that_cannot_be_read(run, group):
    _, out, _ = run("dlq", "show", group, "-o", "json")
    letters = [json.loads(line) for line in out.splitlines()]
    faults = [letter["id"] for letter in letters if "fault" in letter]
    code, out, err = run("dlq", "resend", group, "--all", "--dry-run", "-o", "json")
    assert code == 0, err
    rows = json.loads(out)
    assert len(rows) == len(letters)
    assert {row["dead_letter"] for row in rows if row["fault"]} >= set(faults)
    assert all(
        re.search(r"broker-a:0@\d+ cannot be read: ", row["fault"])
        for row in rows
        if row["dead_letter"] in faults
    )


def test_dead_letters_that_can_be_read_are_shown_and_resent_beside_one_that_cannot(bad, run):
    """Every message fails in the listener, so readable and unreadable ones become dead letters."""
    settings = PushSettings(
        consume_from_where=FIRST, persist_consumer_offset_interval_ms=100, max_reconsume_times=0
    )

    def fail(_, context):
        context.delay_level_when_next_consume = -1
        raise ValueError

    with PushConsumer("failing", bad.broker.address, listener=fail, settings=settings) as consumer:
        consumer.subscribe(bad.topic)
        _taken(bad, "failing", lambda: None)
    code, out, _ = run("dlq", "show", "failing", "-o", "json")
    letters = [json.loads(line) for line in out.splitlines()]
    sound = [each for each in letters if "fault" not in each]
    assert Counter(each.get("body", "").encode() for each in sound) >= Counter(bad.sound.values())
    assert code == 0
    chosen = next(each for each in sound if each.get("body") == "sound 0")
    before = len(bad.broker.messages(bad.topic))
    assert run("dlq", "resend", "failing", chosen["id"], "--dry-run")[0] == 0
    assert len(bad.broker.messages(bad.topic)) == before


# ---- commits


def test_unreadable_manifest_is_named_by_its_place(bad):
    with pytest.raises(
        ManifestError,
        match=r"the message at offset 0 of queue 0 of .* \(\w+\) cannot be read: comp",
    ):
        bad.read_as_commits()


# ---- groups and the console


def test_group_describe_works_at_an_unreadable_message(bad, run):
    for at in bad.bad:
        with ClientInstance(bad.broker.address) as instance:
            address = bad.broker.address
            instance.api.update_consumer_offset(address, "at", bad.queue, at, is_one_way=False)
        code, out, err = run("group", "describe", "at", "-o", "json")
        assert code == 0, err
        assert f'"committed": {at}' in out.decode()


def test_pages_of_the_console_show_every_message(bad):
    with served(bad.broker.address) as browser:
        for at in (*bad.sound, *bad.bad):
            page = browser.ask("GET", f"/topics/{bad.topic}/broker-a/0/{at}")
            assert page.status == 200, (at, page.text)
            if at in bad.bad:
                assert "cannot be read" in page.text, at
