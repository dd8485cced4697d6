"""Delayed messages of a whole broker are never early and hardly late, even when the
clock is set."""

import asyncio
import shutil
import threading

import pytest
from support.brokers.in_process import on_broker, tell
from support.clients.remoting_clients import pull_request, pulled, send_request
from support.disks.faulty_disk import FaultyDisk, ManualClock
from support.suite.log_records import lines_of

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.members import ConsumerSendMsgBackRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.names import SCHEDULE_TOPIC

pytestmark = pytest.mark.usefixtures("on_each_loop")

HOUR_MS = 3_600_000
TEN_YEARS_MS = 10 * 365 * 24 * HOUR_MS
JUMPS_MS = {"an hour back": -HOUR_MS, "ten years on": TEN_YEARS_MS, "a second back": -1_000}


async def settled(broker):
    """Wait until the broker has done the work that is due now."""
    client = await broker.connect()
    for _ in range(3):
        await client.ask(0)


@on_broker
async def test_delayed_message_is_delivered_in_time_and_wakes_a_held_pull(broker):
    broker.make_topic("T")
    consumer, producer = await broker.connect(), await broker.connect()
    consumer.send(pull_request(0, suspend_ms=60_000))
    await broker.held(1)
    await producer.put("later", properties={"DELAY": "2"})
    broker.move(4)
    await settled(broker)
    assert broker.holds.hold_count == 1
    broker.move(1.1)
    assert pulled(await consumer.receive()).bodies == ["later"]


def test_delayed_message_is_delivered_despite_a_lowered_max_message_size(tmp_path):
    async def first(broker):
        broker.make_topic("T")
        await (await broker.connect()).put("x" * 3_000, properties={"DELAY": "2"})

    async def second(broker):
        client = await broker.connect()
        assert (await client.call(send_request("x" * 3_000))).code == ResponseCode.MESSAGE_ILLEGAL
        broker.move(5.1)
        await broker.until(lambda: broker.store.queue_offsets("T", 0) == (0, 1))
        assert (await client.pull(0)).bodies == ["x" * 3_000]

    tell(first, tmp_path)
    tell(second, tmp_path, maxMessageSize=2_000)


@on_broker
async def test_delayed_message_of_a_deleted_topic_is_not_delivered_to_the_recreated_one(broker):
    broker.make_topic("T")
    client = await broker.connect()
    await client.put("old", properties={"DELAY": "2"})
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"})
    broker.make_topic("T")
    await client.put("new", properties={"DELAY": "2"})
    broker.move(6)
    await broker.until(lambda: broker.store.queue_offsets("T", 0).next)
    await settled(broker)
    assert (await client.pull(0)).bodies == ["new"]


@on_broker(longPollingEnable=False)
async def test_delayed_messages_are_delivered_with_short_polling_too(broker):
    broker.make_topic("T")
    client = await broker.connect()
    await client.put("later", properties={"DELAY": "2"})
    broker.move(5.1)
    await broker.until(lambda: broker.store.queue_offsets("T", 0) == (0, 1))
    assert (await client.pull(0)).bodies == ["later"]


def test_delayed_messages_are_tried_again_when_the_store_could_not_be_read(
    tmp_path, monkeypatch, caplog
):
    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await client.put("later", properties={"DELAY": "2"})
        await client.ask(0)
        get_message = broker.store.get_message
        faults = [OSError(5, "Input/output error")]

        def fails_once(topic, *args, **kwargs):
            if topic == SCHEDULE_TOPIC and faults:
                raise faults.pop()
            return get_message(topic, *args, **kwargs)

        monkeypatch.setattr(broker.store, "get_message", fails_once)
        broker.move(5.1)
        await broker.until(lambda: not faults)
        broker.move(1)
        await broker.until(lambda: broker.store.queue_offsets("T", 0) == (0, 1))

    tell(story, tmp_path)
    assert "Input/output error" in caplog.text


# ---- simultaneous messages


def test_delays_of_several_levels_in_one_write_are_logged_without_errors(tmp_path, caplog):
    async def story(broker):
        broker.make_topic("T")
        consumer, producer = await broker.connect(), await broker.connect()
        consumer.send(pull_request(0, suspend_ms=60_000))
        await broker.held(1)
        delayed = [
            send_request("late", opaque=level, properties={"DELAY": str(level)})
            for level in (1, 2, 3)
        ]
        together = [*delayed, send_request("prompt", opaque=4)]
        producer.send(b"".join(each.encode() for each in together))
        assert pulled(await consumer.receive()).bodies == ["prompt"]
        assert {(await producer.receive()).code for _ in together} == {0}
        assert broker.holds.rescued_total == 0
        for delay_seconds, count in ((1, 2), (5, 3), (10, 4)):
            broker.move(delay_seconds)
            await broker.until(lambda count=count: broker.store.queue_offsets("T", 0) == (0, count))

    tell(story, tmp_path)
    assert lines_of(caplog) == []


def test_held_pulls_with_very_short_deadlines_are_answered_once(tmp_path, caplog):
    async def story(broker):
        broker.make_topic("T", queues=8)
        client = await broker.connect()
        for _ in range(30):
            pulls = [
                pull_request(0, queue_id=queue_id, suspend_ms=1, opaque=queue_id)
                for queue_id in range(8)
            ]
            client.send(b"".join(each.encode() for each in pulls))
            answers = [pulled(await client.receive()) for _ in pulls]
            assert sorted((each.opaque, each.code) for each in answers) == [
                (n, 19) for n in range(8)
            ]
        assert broker.holds.rescued_total == 0

    tell(story, tmp_path, suspendTimeoutMillsMin=1)
    assert lines_of(caplog) == []


# ---- the time of day


@pytest.mark.parametrize("before_ms", JUMPS_MS.values(), ids=JUMPS_MS)
@pytest.mark.parametrize("after_ms", JUMPS_MS.values(), ids=JUMPS_MS)
def test_delay_is_independent_of_clock_changes(tmp_path, before_ms, after_ms):
    clock = ManualClock()

    async def story(broker):
        client = await broker.connect()
        await client.put("stored by the clock as it was")
        clock.now_ms += before_ms
        await client.put("later", properties={"DELAY": "2"})
        clock.now_ms += after_ms
        broker.move(4)
        await settled(broker)
        assert broker.store.queue_offsets("T", 0).next == 1
        broker.move(1.1)
        await broker.until(lambda: broker.store.queue_offsets("T", 0).next == 2)

    tell(story, tmp_path, now_ms=clock)


def back_request(physical_offset):
    header = ConsumerSendMsgBackRequestHeader(physical_offset, "G", 0)
    codec = HEADERS[RequestCode.CONSUMER_SEND_MSG_BACK].request
    return {"ext_fields": codec.encode(header)}


@pytest.mark.parametrize("jump_ms", JUMPS_MS.values(), ids=JUMPS_MS)
def test_retry_backoff_is_independent_of_clock_changes(tmp_path, jump_ms):
    """A message that was sent back arrives again after 10, 30 and 60 s, and not at once
    each time."""
    clock = ManualClock()

    async def story(broker):
        client = await broker.connect()
        await client.put("fails")
        clock.now_ms += jump_ms
        (message,) = (await client.pull(0)).messages
        for tried, delay_seconds in enumerate((10, 30, 60)):
            code = RequestCode.CONSUMER_SEND_MSG_BACK
            assert (await client.ask(code, **back_request(message.physical_offset))).code == 0
            broker.move(delay_seconds - 2)
            await settled(broker)
            assert (await client.pull(tried, "%RETRY%G")).bodies == []
            broker.move(2.1)
            await broker.until(
                lambda tried=tried: broker.store.queue_offsets("%RETRY%G", 0).next == tried + 1
            )
            (message,) = (await client.pull(tried, "%RETRY%G")).messages
            assert message.reconsume_times == tried + 1
        assert broker.store.queue_offsets("%DLQ%G", 0) == (0, 0)

    tell(story, tmp_path, now_ms=clock)


def test_restart_after_a_clock_jump_delays_messages_by_one_level_at_most(tmp_path):
    """The log's times never go back: they stay ten years ahead when the clock is set right."""
    clock = ManualClock()

    async def first(broker):
        client = await broker.connect()
        clock.now_ms += TEN_YEARS_MS
        await client.put("years ahead")
        clock.now_ms -= TEN_YEARS_MS
        await client.put("later", properties={"DELAY": "2"})

    async def second(broker):
        clock.now_ms += 4_000
        broker.move(4)
        await settled(broker)
        assert broker.store.queue_offsets("T", 0).next == 1
        broker.move(1.1)
        await broker.until(lambda: broker.store.queue_offsets("T", 0).next == 2)
        client = await broker.connect()
        await client.put("after that", properties={"DELAY": "1"})
        await settled(broker)
        assert broker.store.queue_offsets("T", 0).next == 2
        broker.move(1.1)
        await broker.until(lambda: broker.store.queue_offsets("T", 0).next == 3)

    tell(first, tmp_path, now_ms=clock)
    tell(second, tmp_path, now_ms=clock)


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, 0], ids=["set back", "as it was"])
def test_kill_after_a_clock_jump_delays_messages_by_one_level_at_most(tmp_path, jump_ms):
    clock = ManualClock()
    root, as_killed = tmp_path / "store", tmp_path / "as killed"

    async def first(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await client.put("later", properties={"DELAY": "2"})
        assert (await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **back_request(0))).code == 0
        shutil.copytree(root, as_killed)  # a kill leaves the written data

    async def second(broker):
        start = asyncio.get_running_loop().time()
        for topic, delay_seconds in (("T", 5), ("%RETRY%G", 10)):
            wait_seconds = delay_seconds if jump_ms else delay_seconds - 3
            broker.move(start + wait_seconds - 0.5 - asyncio.get_running_loop().time())
            await settled(broker)
            assert broker.store.queue_offsets(topic, 0).next == 0
            broker.move(1.1)
            await broker.until(lambda topic=topic: broker.store.queue_offsets(topic, 0).next == 1)

    tell(first, root, now_ms=clock)
    clock.now_ms += 3_000 + jump_ms
    tell(second, as_killed, now_ms=clock)


def test_remaining_delay_after_restart_uses_the_wall_clock(tmp_path):
    clock = ManualClock()

    async def first(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await client.put("in time", properties={"DELAY": "3"})
        await client.put("while it was away", properties={"DELAY": "2"})
        await asyncio.sleep(0)

    async def second(broker):
        await broker.until(lambda: broker.store.queue_offsets("T", 0).next == 1)
        broker.move(2)
        await settled(broker)
        assert broker.store.queue_offsets("T", 0).next == 1
        broker.move(2.1)
        await broker.until(lambda: broker.store.queue_offsets("T", 0).next == 2)
        bodies = (await (await broker.connect()).pull(0)).bodies
        assert bodies == ["while it was away", "in time"]

    tell(first, tmp_path, now_ms=clock)
    clock.now_ms += 6_000
    tell(second, tmp_path, now_ms=clock)


def test_delivered_message_is_not_repeated_after_stop_with_slow_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "rocketpoll.broker.schedule.real_topic_delivery._FLUSH_TIMEOUT_SECONDS", 0.02
    )
    disk = FaultyDisk(slow="commitlog")

    async def first(broker):
        broker.make_topic("T")
        await (await broker.connect()).put("later", properties={"DELAY": "2"})
        written = broker.store.state().written_offset
        disk.keep_waiting()
        broker.move(5.1)
        await broker.until(lambda: broker.store.state().written_offset > written)
        threading.Timer(0.5, disk.let_go).start()

    async def second(broker):
        broker.move(30)
        await settled(broker)
        assert (await (await broker.connect()).pull(0)).bodies == ["later"]

    tell(first, tmp_path, disk, flushDiskType="SYNC_FLUSH")
    tell(second, tmp_path)


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "there"])
def test_missing_delay_offsets_at_start_are_logged_as_possible_repeats(tmp_path, caplog, lost):
    async def first(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await client.put("later", properties={"DELAY": "1"})
        broker.move(1.1)
        await broker.until(lambda: broker.store.queue_offsets("T", 0) == (0, 1))

    async def second(broker):
        await settled(broker)

    tell(first, tmp_path)
    if lost:
        for path in (tmp_path / "config").glob("delayOffset.json*"):
            path.unlink()
    tell(second, tmp_path)
    said = [
        each.message
        for each in caplog.records
        if "delayOffset.json and its backup are missing" in each.message
    ]
    assert len(said) == lost


def test_start_without_delayed_messages_logs_no_missing_delay_file(tmp_path, caplog):
    async def story(broker):
        await (await broker.connect()).put("at once")

    tell(story, tmp_path)
    tell(story, tmp_path)
    assert "delayOffset.json" not in caplog.text


def test_start_with_undelivered_delayed_messages_logs_nothing(tmp_path, caplog):
    async def first(broker):
        broker.make_topic("T")
        await (await broker.connect()).put("later", properties={"DELAY": "18"})

    async def second(broker):
        await settled(broker)

    for story in (first, second, second):
        tell(story, tmp_path)
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


def test_delayed_message_of_a_removed_level_is_delivered(tmp_path, caplog):
    """The level was removed between two starts, before anything was delivered."""

    async def first(broker):
        broker.make_topic("T")
        client = await broker.connect()
        for level in "23":
            await client.put(f"level {level}", properties={"DELAY": level})

    async def second(broker):
        broker.move(4.1)
        client = await broker.connect()
        await broker.until(lambda: broker.store.queue_offsets("T", 0) == (0, 2))
        assert sorted((await client.pull(0)).bodies) == ["level 2", "level 3"]

    tell(first, tmp_path, messageDelayLevel="2s 3s 4s")
    tell(second, tmp_path, messageDelayLevel="2s")
    assert "is damaged" not in caplog.text


@pytest.mark.parametrize(("levels", "is_told"), [("1s 72h", False), ("1s 4d 2s", True)])
def test_delay_levels_longer_than_retention_are_logged(tmp_path, levels, is_told, caplog):
    async def story(_):
        pass

    tell(story, tmp_path, messageDelayLevel=levels, fileReservedTime=72)
    assert ("delays of up to 96 hours, and fileReservedTime=72" in caplog.text) is is_told
