"""Timer messages of a whole broker: sends, recalls, restarts, and clock changes."""

import pytest
from support.brokers.in_process import on_broker, tell
from support.clients.remoting_clients import pull_request, pulled, send_request
from support.disks.faulty_disk import ManualClock

from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.configs import TimerMetricsSerializeWrapper
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.message.message_id import RecallHandle, decode_recall_handle

pytestmark = pytest.mark.usefixtures("on_each_loop")

HOUR_MS = 3_600_000


async def settled(broker):
    """Wait until the broker has done the work that is due now."""
    client = await broker.connect()
    for _ in range(3):
        await client.ask(0)


def timer(text, **properties):
    return send_request(text, properties={"UNIQ_KEY": f"id-{text}", **properties})


async def recall(client, handle):
    fields = {"topic": "T", "recallHandle": handle, "producerGroup": "G"}
    return await client.ask(RequestCode.RECALL_MESSAGE, ext_fields=fields)


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_timer_message_wakes_a_held_pull_at_its_time(tmp_path, flush):
    async def story(broker):
        broker.make_topic("T")
        consumer, producer = await broker.connect(), await broker.connect()
        consumer.send(pull_request(0, suspend_ms=60_000))
        await broker.held(1)
        assert (await producer.call(timer("later", TIMER_DELAY_MS="4321"))).code == 0
        await broker.until(lambda: broker.controller.timers.pending == 1)
        broker.move(3)
        await settled(broker)
        assert broker.holds.hold_count == 1
        broker.move(1.322)
        assert pulled(await consumer.receive()).bodies == ["later"]

    tell(story, tmp_path, flushDiskType=flush)


@pytest.mark.parametrize(
    "properties", [{"TIMER_DELIVER_MS": "1"}, {"TIMER_DELAY_SEC": "0"}, {"TIMER_DELAY_MS": "-5"}]
)
@on_broker
async def test_timer_message_that_is_due_is_stored_at_once(broker, properties):
    broker.make_topic("T")
    client = await broker.connect()
    answer = await client.call(timer("now", **properties))
    assert answer.code == ResponseCode.SUCCESS
    assert "recallHandle" not in answer.ext_fields
    assert (await client.pull(0)).bodies == ["now"]


def test_timer_messages_are_delivered_once_after_a_restart(tmp_path):
    clock = ManualClock()

    async def first(broker):
        broker.make_topic("T")
        client = await broker.connect()
        for number in range(40):
            await client.call(timer(str(number), TIMER_DELAY_MS=str(1_000 + 100 * number)))
        await broker.until(lambda: broker.controller.timers.pending == 40)
        broker.move(2.05)
        clock.now_ms += 2_050
        await broker.until(lambda: broker.store.queue_offsets("T", 0).next >= 11)

    async def second(broker):
        await broker.until(lambda: broker.store.queue_offsets("T", 0).next >= 21)
        broker.move(60)
        await broker.until(lambda: broker.store.queue_offsets("T", 0).next == 40)
        await settled(broker)
        bodies = (await (await broker.connect()).pull(0)).bodies
        bodies += (await (await broker.connect()).pull(len(bodies))).bodies
        assert bodies == [str(number) for number in range(40)]

    tell(first, tmp_path, now_ms=clock)
    clock.now_ms += 3_050
    tell(second, tmp_path, now_ms=clock)


@pytest.mark.parametrize("set_by_ms", [-HOUR_MS, HOUR_MS])
def test_timer_messages_of_a_broker_do_not_depend_on_the_time_of_day(tmp_path, set_by_ms):
    clock = ManualClock()

    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await client.call(timer("before", TIMER_DELIVER_MS=str(clock.now_ms + 5_000)))
        await broker.until(lambda: broker.controller.timers.pending == 1)
        clock.now_ms += set_by_ms
        await client.call(timer("after", TIMER_DELIVER_MS=str(clock.now_ms + 5_000)))
        await broker.until(lambda: broker.controller.timers.pending == 2)
        broker.move(3.5)
        await settled(broker)
        assert broker.store.queue_offsets("T", 0).next == 0
        broker.move(1.51)
        await broker.until(lambda: broker.store.queue_offsets("T", 0).next == 2)

    tell(story, tmp_path, now_ms=clock)


def test_recalled_timer_message_is_not_delivered_and_not_counted(tmp_path):
    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        sent = await client.call(timer("x", TIMER_DELAY_SEC="30"))
        await client.call(timer("y", TIMER_DELAY_SEC="30"))
        await broker.until(lambda: broker.controller.timers.pending == 2)
        answer = await client.ask(RequestCode.GET_TIMER_METRICS)
        counts = decode_body(TimerMetricsSerializeWrapper, answer.body).timing_count
        assert {topic: each.count for topic, each in counts.items()} == {"T": 2}
        handle = sent.ext_fields["recallHandle"]
        assert decode_recall_handle(handle)[:2] == ("T", "broker-a")
        answer = await recall(client, handle)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext_fields == {"msgId": "id-x", "MSG_REGION": "North"}
        broker.move(31)
        await broker.until(lambda: broker.store.queue_offsets("T", 0).next == 1)
        assert broker.controller.timers.pending == 0
        assert (await client.pull(0)).bodies == ["y"]
        assert broker.controller.timers.recalled_total == 1

    tell(story, tmp_path, now_ms=ManualClock(), regionId="North")


def test_recall_is_refused_with_rocketmqs_codes(tmp_path):
    async def story(broker):
        broker.make_topic("T")
        broker.make_topic("U")
        client = await broker.connect()
        handle = (await client.call(timer("x", TIMER_DELAY_SEC="30"))).ext_fields["recallHandle"]
        fields = {"topic": "U", "recallHandle": handle}
        assert (await client.ask(RequestCode.RECALL_MESSAGE, ext_fields=fields)).code == 604
        fields = {"topic": "N", "recallHandle": handle}
        assert (await client.ask(RequestCode.RECALL_MESSAGE, ext_fields=fields)).code == 17
        assert (await recall(client, "no handle")).code == 604
        over = RecallHandle("T", "broker-a", 1_000, "id-x").encode()
        assert (await recall(client, over)).code == 604

    async def forbidden(broker):
        assert (await recall(await broker.connect(), "x")).code == ResponseCode.NO_PERMISSION

    tell(story, tmp_path)
    tell(forbidden, tmp_path, recallMessageEnable=False)


@on_broker(timerWheelEnable=False)
async def test_timer_messages_are_refused_when_they_are_disabled(broker):
    broker.make_topic("T")
    answer = await (await broker.connect()).call(timer("x", TIMER_DELAY_SEC="3"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "accurate timer message is not enabled, timerWheelEnable is false"
