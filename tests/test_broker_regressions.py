"""Past bugs of RocketMQ's brokers, each tested on a whole broker of ours."""

import asyncio
import random

import pytest
from support.brokers.in_process import on_broker, tell
from support.clients.remoting_clients import batch_request, pull_request, pulled, send_request
from support.disks.faulty_disk import FaultyDisk
from support.stores.small_store import message

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.members import UpdateConsumerOffsetRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rocketpoll.broker.store.files.disk import LocalDisk

pytestmark = pytest.mark.usefixtures("on_each_loop")

FLUSHES = ["ASYNC_FLUSH", "SYNC_FLUSH"]


@pytest.mark.parametrize("flush_disk_type", FLUSHES)
def test_r1_a_message_between_finding_nothing_and_being_held_wakes_its_pull(
    tmp_path, flush_disk_type
):
    """`make holds` runs 100,000 rounds of this from outside."""

    async def story(broker):
        consumer, producer = await broker.connect(), await broker.connect()
        await producer.put("0")
        processor = broker.controller.processors.pull
        suspend = processor._suspend
        stored = []

        def suspend_late(held):
            stored.append(broker.store.put_message(message(str(len(stored) + 1))))
            broker.store.flush_future(stored[-1].end_offset).result(10)
            return suspend(held)

        processor._suspend = suspend_late
        for number in range(1, 100):
            consumer.send(pull_request(number, suspend_ms=60_000, opaque=number))
            found = pulled(await consumer.receive())
            assert (found.opaque, found.bodies) == (number, [str(number)])
        assert broker.holds.rescued_total == 0

    tell(story, tmp_path, flushDiskType=flush_disk_type)


@on_broker
async def test_r3_pull_held_while_others_of_its_queue_are_released_is_not_lost(broker):
    broker.make_topic("T", queues=1)
    dice = random.Random(3)
    producer = await broker.connect()
    clients = [await broker.connect() for _ in range(8)]
    offsets = dict.fromkeys(clients, 0)

    async def consume(client):
        while offsets[client] < 200:
            found = await client.pull(offsets[client], suspend_ms=60_000)
            assert found.bodies == [str(n) for n in range(offsets[client], found.next_offset)]
            offsets[client] = found.next_offset

    consumers = [asyncio.ensure_future(consume(client)) for client in clients]
    for number in range(200):
        producer.send(send_request(number, flag=2))
        if dice.random() < 0.7:
            await asyncio.sleep(0)
    await asyncio.gather(*consumers)
    assert (broker.holds.hold_count, broker.holds.queue_count, broker.holds.rescued_total) == (
        0,
        0,
        0,
    )


@pytest.mark.parametrize("flush_disk_type", FLUSHES)
@pytest.mark.parametrize("long_polling", [True, False])
def test_r7_the_last_message_of_a_quiet_topic_is_seen(tmp_path, flush_disk_type, long_polling):
    async def story(broker):
        producer, consumer = await broker.connect(), await broker.connect()
        answer = await producer.call(batch_request(*range(15)))
        assert answer.code == 0
        assert (await consumer.pull(0)).bodies == [str(number) for number in range(15)]
        consumer.send(pull_request(15, suspend_ms=60_000))
        await broker.held(1)
        await producer.put("last")
        if not long_polling:
            broker.move(2)
        assert pulled(await consumer.receive()).bodies == ["last"]
        assert broker.holds.rescued_total == 0

    tell(story, tmp_path, flushDiskType=flush_disk_type, longPollingEnable=long_polling)


# ---- offsets


def update_request(group, queue_id, offset, opaque=1):
    header = UpdateConsumerOffsetRequestHeader(group, "T", queue_id, offset)
    codec = HEADERS[RequestCode.UPDATE_CONSUMER_OFFSET].request
    return RequestCode.UPDATE_CONSUMER_OFFSET, {
        "ext_fields": codec.encode(header),
        "opaque": opaque,
    }


@on_broker
async def test_r22_first_commits_of_a_group_at_the_same_moment_are_all_kept(broker):
    broker.make_topic("T", queues=16)
    clients = [await broker.connect() for _ in range(16)]
    producer = await broker.connect()
    for queue in range(16):
        await producer.put("a", "b", queue_id=queue)
    for number in range(20):
        group = f"G{number}"
        asked = []
        for queue, client in enumerate(clients):
            code, named = update_request(group, queue, 1)
            by_pull = queue % 2
            asked.append(
                client.pull(2, queue_id=queue, group=group, commit_offset=1)
                if by_pull
                else client.ask(code, **named)
            )
        await asyncio.gather(*asked)
        stored = broker.controller.tables.offsets.queues(group, "T")
        assert dict(stored) == dict.fromkeys(range(16), 1)


def shrunk():
    """Return settings and a disk with which `clean` deletes all files but the last."""
    small = {
        "mappedFileSizeCommitLog": 8_192,
        "maxMessageSize": 4_096,
        "mappedFileSizeConsumeQueue": 400,
    }
    ratios = {"diskMaxUsedSpaceRatio": 1, "diskSpaceCleanForciblyRatio": 1}
    disk = FaultyDisk(LocalDisk(), capacity=1 << 20)
    return disk, {**small, **ratios}


def give_up_old_files(broker):
    while broker.store.clean():
        pass
    low, high = broker.store.queue_offsets("T", 0)
    assert 0 < low < high
    return low, high


def test_r26_pull_from_any_offset_finds_a_legal_offset_in_one_more_pull(tmp_path):
    disk, settings = shrunk()

    async def story(broker):
        client = await broker.connect()
        await client.put(*["x" * 1_000] * 30)
        low, high = give_up_old_files(broker)
        for offset in (-(1 << 63), -1, 0, low - 1, low, high - 1, high, high + 1, (1 << 63) - 1):
            found = await client.pull(offset)
            if found.code == 21:
                found = await client.pull(found.next_offset)
            assert found.code in {0, 19}

    tell(story, tmp_path, disk, **settings)


def test_r27_the_smallest_offset_can_be_read_after_any_deletion(tmp_path):
    disk, settings = shrunk()

    async def first(broker):
        client = await broker.connect()
        for _ in range(4):
            await client.put(*["x" * 1_000] * 20)
            low, high = give_up_old_files(broker)
            place = {"topic": "T", "queueId": 0}
            assert await client.offset(RequestCode.GET_MIN_OFFSET, **place) == low
            assert await client.offset(RequestCode.GET_MAX_OFFSET, **place) == high
            found = await client.pull(low)
            assert (found.code, found.min_offset, found.max_offset) == (0, low, high)
            assert found.messages[0].queue_offset == low

    async def second(broker):
        client = await broker.connect()
        low = await client.offset(RequestCode.GET_MIN_OFFSET, topic="T", queueId=0)
        assert low > 0
        assert (await client.pull(low)).messages[0].queue_offset == low

    tell(first, tmp_path, disk, **settings)
    tell(second, tmp_path, **settings)
