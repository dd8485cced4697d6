"""While a full disk blocks recovery, a broker never reports a wrong end of a queue."""

import errno
import shutil

import pytest
from support.brokers.in_process import tell
from support.clients.remoting_clients import pull_request, pulled, send_request
from support.disks.faulty_disk import FaultyDisk

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.message.properties import DELAY
from rmq_spark.wire.names import SCHEDULE_TOPIC
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.store.files.disk import LocalDisk

SYNC = {"flushDiskType": "SYNC_FLUSH", "checkpointIntervalMills": "3600000"}
COUNT = 40
GROUP = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
QUEUE = {"topic": "T", "queueId": "0"}
ENDS = {
    "the end": (RequestCode.GET_MAX_OFFSET, QUEUE),
    "the end, by a time": (
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        {**QUEUE, "timestamp": str(1 << 42)},
    ),
    "the first offset": (RequestCode.GET_MIN_OFFSET, QUEUE),
    "the first time": (RequestCode.GET_EARLIEST_MSG_STORETIME, QUEUE),
    "what a topic holds": (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}),
    "a group that is new": (RequestCode.QUERY_CONSUMER_OFFSET, {**GROUP, "consumerGroup": "New"}),
    "a group that is set to the end": (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": "T", "group": "G", "timestamp": "-1", "isForce": "true"},
    ),
}


def asked(code, fields):
    return RemotingCommand(code, opaque=1, ext_fields=dict(fields))


async def offset_of_group(client):
    answer = await client.call(asked(RequestCode.QUERY_CONSUMER_OFFSET, GROUP))
    return answer.code, int(answer.ext_fields["offset"])


async def filled(broker, noted):
    """Put all messages, with a checkpoint after ``noted`` of them; return the client."""
    broker.make_topic("T")
    client = await broker.connect()
    for number in range(COUNT):
        if number == noted:
            assert broker.store.save_checkpoint()
        await client.put(str(number))
    return client


@pytest.mark.parametrize("noted", [0, 10], ids=["nothing noted", "some noted"])
def test_start_on_a_full_disk_gives_no_wrong_queue_end_to_groups(tmp_path, caplog, noted):
    disk = FaultyDisk()

    async def first(broker):
        client = await filled(broker, noted)
        commit = {**GROUP, "commitOffset": str(COUNT)}
        assert (await client.call(asked(RequestCode.UPDATE_CONSUMER_OFFSET, commit))).code == 0
        broker.controller.tables.save()
        disk.lack(errno.ENOSPC)

    async def second(broker):
        client = await broker.connect()
        broker.move(1)
        assert broker.store.is_opening
        for queue_offset in (noted, COUNT - 1, COUNT, COUNT + 5):
            for suspend_ms in (None, 60_000):
                answer = await client.call(pull_request(queue_offset, suspend_ms=suspend_ms))
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, queue_offset
                assert "queue 0 of T" in answer.remark
                assert "No space left on device" in answer.remark
        for what, (code, fields) in ENDS.items():
            answer = await client.call(asked(code, fields))
            told = answer.code, "No space left on device" in (answer.remark or "")
            known = what in ("the first offset", "the first time", "a group that is new") and noted
            assert told == ((0, False) if known else (ResponseCode.SERVICE_NOT_AVAILABLE, True)), (
                what
            )
        assert (await client.call(asked(RequestCode.GET_BROKER_RUNTIME_INFO, {}))).code == 0
        if noted:
            assert pulled(await client.call(pull_request(0))).bodies == [
                str(n) for n in range(noted)
            ]
        assert await offset_of_group(client) == (0, COUNT)
        assert broker.holds.hold_count == 0
        disk.lack(None)
        broker.move(1)
        await broker.until(lambda: not broker.store.is_opening)
        assert (await client.pull(COUNT - 1)).bodies == [str(COUNT - 1)]
        for what, (code, fields) in ENDS.items():
            assert (
                await client.call(asked(code, fields))
            ).code != ResponseCode.SERVICE_NOT_AVAILABLE, what
        client.send(pull_request(COUNT, suspend_ms=60_000))
        await broker.held(1)
        other = await broker.connect()
        await other.put("after")
        assert pulled(await client.receive()).bodies == ["after"]
        assert await offset_of_group(client) == (0, COUNT)

    # In a small store, the ends of queues are read from their files as well.
    settings = {**SYNC, "checkWholeLogBytes": "0"} if noted else SYNC
    tell(first, tmp_path, disk, **settings)
    tell(second, tmp_path, disk, **settings)
    assert not any("Traceback" in caplog.text or each.exc_info for each in caplog.records)


def test_delivered_delayed_messages_stay_delivered_after_start_on_a_full_disk(tmp_path, caplog):
    disk = FaultyDisk()

    async def first(broker):
        broker.make_topic("T")
        client = await broker.connect()
        assert (await client.call(send_request("late", properties={DELAY: "1"}))).code == 0
        broker.move(2)
        await broker.until(lambda: broker.store.queue_offsets("T", 0).next == 1)
        broker.controller.schedule.save()
        disk.lack(errno.ENOSPC)

    async def second(broker):
        client = await broker.connect()
        for _ in range(3):
            broker.move(1)
            assert (await client.call(asked(RequestCode.GET_BROKER_RUNTIME_INFO, {}))).code == 0
        disk.lack(None)
        broker.move(1)
        await broker.until(lambda: not broker.store.is_opening)
        broker.move(5)
        await client.put("after")
        assert (await client.pull(0)).bodies == ["late", "after"]
        assert broker.store.queue_offsets(SCHEDULE_TOPIC, 0).next == 1

    tell(first, tmp_path, disk, **SYNC)
    tell(second, tmp_path, disk, **SYNC)
    assert "continues at" not in caplog.text


class FullDisk(FaultyDisk):
    """A disk that can be full; existing content can still be overwritten."""

    def fill_up(self):
        self.capacity = 0


@pytest.mark.parametrize("noted", [0, 10], ids=["nothing noted", "some noted"])
def test_broker_started_on_a_full_disk_serves_messages_past_its_last_checkpoint(tmp_path, noted):
    disk = FullDisk(LocalDisk())
    sizes = {"mappedFileSizeConsumeQueue": str(20 * 8)}

    async def first(broker):
        client = await filled(broker, noted)
        await client.put("in another queue", queue_id=1)
        disk.fill_up()

    async def second(broker):
        client = await broker.connect()
        found = []
        while (answer := await client.pull(len(found))).code == 0:
            found += answer.bodies
        assert (answer.code, found) == (19, [str(number) for number in range(COUNT)])
        assert (await client.pull(0, queue_id=1)).bodies == ["in another queue"]
        end = await client.call(asked(RequestCode.GET_MAX_OFFSET, QUEUE))
        assert end.ext_fields["offset"] == str(COUNT)
        assert broker.store.is_opening
        disk.capacity = None
        broker.move(1)
        await broker.until(lambda: not broker.store.is_opening)
        await client.put("after")
        assert (await client.pull(COUNT)).bodies == ["after"]

    tell(first, tmp_path, disk, **SYNC, **sizes)
    tell(second, tmp_path, disk, **SYNC, **sizes)
    names = sorted(path.name for path in (tmp_path / "consumequeue" / "T" / "0").iterdir())
    assert len(names) == COUNT // 8 + 1


def test_offsets_past_queue_ends_are_clamped_when_a_delayed_start_finishes(tmp_path):
    """Otherwise a group would skip the messages until the queue reaches its offset."""
    disk = FaultyDisk()

    async def first(broker):
        broker.make_topic("T")
        client = await broker.connect()
        for number in range(COUNT):
            await client.put(str(number))
        commit = {**GROUP, "commitOffset": str(COUNT)}
        assert (await client.call(asked(RequestCode.UPDATE_CONSUMER_OFFSET, commit))).code == 0
        broker.controller.tables.offsets.commit("G", "T", 0, COUNT + 20)
        broker.controller.tables.save()
        disk.lack(errno.ENOSPC)

    async def second(broker):
        assert broker.store.is_opening
        client = await broker.connect()
        disk.lack(None)
        broker.move(1)
        offsets = broker.controller.tables.offsets
        await broker.until(lambda: offsets.queues("G", "T") == {0: COUNT})
        assert await offset_of_group(client) == (0, COUNT)

    tell(first, tmp_path, disk, **SYNC)
    tell(second, tmp_path, disk, **SYNC)


def test_missing_topics_are_restored_when_a_delayed_start_finishes(tmp_path):
    disk = FaultyDisk()

    async def first(broker):
        broker.make_topic("Old")
        broker.controller.tables.save()
        older = (tmp_path / "config" / "topics.json").read_bytes()
        broker.make_topic("New", queues=16)
        client = await broker.connect()
        for queue_id in range(16):
            await client.put("x", topic="New", queue_id=queue_id)
        disk.lack(errno.ENOSPC)
        kept.append(older)

    async def second(broker):
        assert broker.store.is_opening
        client = await broker.connect()
        disk.lack(None)
        broker.move(1)
        await broker.until(lambda: broker.controller.tables.topics.get("New") is not None)
        for queue_id in range(16):
            assert (await client.pull(0, topic="New", queue_id=queue_id)).bodies == ["x"]

    kept = []
    tell(first, tmp_path, disk, **SYNC)
    for table in (tmp_path / "config").glob("topics.json*"):
        table.write_bytes(kept[0])
    for queues in (tmp_path / "consumequeue").glob("New"):
        shutil.rmtree(queues)
    tell(second, tmp_path, disk, **SYNC)
