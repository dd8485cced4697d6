"""Topic deletion on a disk that refuses it changes nothing, or is completed later."""

import shutil
import threading

import pytest
from support.brokers.in_process import on_broker, tell
from support.clients.remoting_clients import pull_request, pulled, send_request
from support.disks.faulty_disk import FaultyDisk

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.store.files.disk import LocalDisk

NOTES = "manifest.json", "deletions.json"
"""The files in which the store records deletions."""
REFUSED_LATER = {
    "offsets": (("consumerOffset.json",), 0),
    "topics": (("topics.json",), 0),
    "the end of the deletion": (NOTES, 1),
}
"""Files that cannot be saved once the store has recorded the deletion, and the number of their
writes that succeed."""
DELETION = RemotingCommand(
    RequestCode.DELETE_TOPIC_IN_BROKER, opaque=500, ext_fields={"topic": "T"}
)


@pytest.fixture
def disk():
    disk = FaultyDisk()
    yield disk
    disk.let_go()


async def drop(client, topic="T"):
    return await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": topic})


def wide(topic="T", queues=2):
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }


async def commit(client, queue_offset):
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": str(queue_offset)}
    assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields)).code == 0


async def begun(broker, disk, operator):
    """Start a deletion of T that the disk is about to refuse."""
    disk.refuse(*NOTES)
    disk.keep_waiting()
    operator.send(DELETION)
    await broker.until(disk.is_waiting.is_set)


def test_send_during_a_refused_topic_deletion_waits_and_finds_the_topic(tmp_path, disk):
    async def story(broker):
        broker.make_topic("T", queues=8)
        operator, producer, other = [await broker.connect() for _ in range(3)]
        for queue_id in (0, 6):
            await producer.put("old", queue_id=queue_id)
        before = broker.controller.tables.topics.get("T")
        await begun(broker, disk, operator)
        producer.send(send_request("new", "T", 0, opaque=501))
        update = await other.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=wide())
        assert (update.code, "is being deleted" in update.remark) == (
            ResponseCode.SYSTEM_ERROR,
            True,
        )
        assert "is being deleted" in (await drop(other)).remark
        assert (await other.pull(0, "T", 6)).bodies == ["old"]
        disk.let_go()
        refused = await operator.receive()
        assert (refused.opaque, refused.code) == (500, ResponseCode.SYSTEM_ERROR)
        assert "No space left" in refused.remark
        assert (await producer.receive()).code == 0
        assert broker.controller.tables.topics.get("T") is before
        assert (await other.pull(0, "T", 0)).bodies == ["old", "new"]
        disk.refuse()
        assert (await drop(operator)).code == 0
        assert (await other.pull(0, "T", 0)).code == ResponseCode.TOPIC_NOT_EXIST

    tell(story, tmp_path, disk)


@on_broker
async def test_held_pull_is_answered_when_its_topic_is_deleted(broker):
    operator, consumer, other = [await broker.connect() for _ in range(3)]
    for topic in ("T", "U"):
        broker.make_topic(topic, queues=1)
        await operator.put("old", topic=topic)
    consumer.send(pull_request(1, "T", 0, suspend_ms=20_000, opaque=501))
    other.send(pull_request(1, "U", 0, suspend_ms=20_000, opaque=502))
    holds = broker.controller.hold_service
    await broker.until(lambda: holds.hold_count == 2)
    assert (await drop(operator)).code == 0
    answer = await consumer.receive()
    assert (answer.opaque, answer.code) == (501, ResponseCode.TOPIC_NOT_EXIST)
    assert holds.hold_count == 1
    await operator.put("new", "newer", topic="T")
    assert (await consumer.pull(0, "T", 0)).bodies == ["new", "newer"]
    await operator.put("new", topic="U")
    assert pulled(await other.receive()).bodies == ["new"]


class SlowlyDeleting(FaultyDisk):
    """Deletes no files of deleted topics until released."""

    def __init__(self):
        super().__init__(LocalDisk())
        self.is_waiting = threading.Event()
        self.goes = threading.Event()

    def delete(self, path):
        if "consumequeue.deleted" in path.parts:
            self.is_waiting.set()
            self.goes.wait(20)
        super().delete(path)


def test_topic_deletion_is_answered_before_its_files_are_deleted(tmp_path):
    disk = SlowlyDeleting()
    left = tmp_path / "killed" / "consumequeue.deleted"

    async def first(broker):
        broker.make_topic("T", queues=16)
        operator = await broker.connect()
        for queue_id in range(16):
            await operator.put("old", queue_id=queue_id)
        assert (await drop(operator)).code == 0
        broker.move(1)
        await broker.until(disk.is_waiting.is_set)
        # Saves of topics, and other deletions, do not wait for the files of this one.
        await operator.put("new", queue_id=0)
        broker.make_topic("U", queues=1)
        await operator.put("old", topic="U", queue_id=0)
        assert (await drop(operator, "U")).code == 0
        assert (await operator.pull(0, "T", 0)).bodies == ["new"]
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
        disk.goes.set()

    async def second(broker):
        assert len(list(left.glob("*/*"))) >= 17
        broker.move(1)
        await broker.until(lambda: not list(left.iterdir()))
        client = await broker.connect()
        assert (await client.pull(0, "T", 0)).bodies == ["new"]
        assert (await client.pull(0, "T", 3)).bodies == []

    try:
        tell(first, tmp_path / "store", disk)
    finally:
        disk.goes.set()
    tell(second, tmp_path / "killed")


def test_send_during_topic_deletion_goes_to_the_recreated_topic(tmp_path, disk):
    async def story(broker):
        broker.make_topic("T", queues=8)
        operator, producer = await broker.connect(), await broker.connect()
        await producer.put("old", queue_id=0)
        await begun(broker, disk, operator)
        producer.send(send_request("new", "T", 0, queue_nums=4, opaque=501))
        disk.refuse()
        disk.let_go()
        assert (await operator.receive()).code == 0
        assert (await producer.receive()).code == 0
        assert broker.controller.tables.topics.get("T").write_queue_nums == 4
        assert (await producer.pull(0, "T", 0)).bodies == ["new"]

    tell(story, tmp_path, disk)


def test_delayed_message_due_during_topic_deletion_is_delivered_afterwards(tmp_path, disk):
    asked = []

    async def story(broker):
        broker.make_topic("T", queues=1)
        operator, consumer = await broker.connect(), await broker.connect()
        await consumer.put("delayed", queue_id=0, properties={"DELAY": "1"})
        delivery = broker.controller.schedule._delivery
        queue_nums = delivery._queue_nums
        delivery._queue_nums = lambda topic: asked.append(topic) or queue_nums(topic)
        await begun(broker, disk, operator)
        broker.move(2)
        await broker.until(lambda: asked == ["T"])
        disk.let_go()
        assert (await operator.receive()).code == ResponseCode.SYSTEM_ERROR
        broker.move(2)
        await broker.until(lambda: broker.store.queue_offsets("T", 0) == (0, 1))
        assert (await consumer.pull(0, "T", 0)).bodies == ["delayed"]

    tell(story, tmp_path, disk)


@pytest.mark.parametrize(("names", "spared"), REFUSED_LATER.values(), ids=REFUSED_LATER)
def test_begun_topic_deletion_is_finished_once_the_disk_has_room(tmp_path, disk, names, spared):
    async def first(broker):
        broker.make_topic("T")
        client = await broker.connect()
        await client.put(*(f"old {number}" for number in range(5)))
        await commit(client, 5)
        broker.controller.tables.offsets.save()
        disk.refuse(*names, spared=spared)
        answer = await drop(client)
        assert (answer.code, "T is deleted" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)
        assert (await client.pull(0)).code == ResponseCode.TOPIC_NOT_EXIST
        assert await client.committed() is None
        client.send(send_request("too early", "T", 0))
        assert (await client.receive()).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await drop(client)).code == ResponseCode.SYSTEM_ERROR
        shutil.copytree(tmp_path / "store", tmp_path / "killed early")
        disk.refuse()
        broker.move(1)
        await broker.until(lambda: not broker.store.half_deleted_topics)
        assert (await drop(client)).code == 0
        await client.put(*(f"new {number}" for number in range(10)))
        await commit(client, 10)
        broker.controller.tables.offsets.save()
        shutil.copytree(tmp_path / "store", tmp_path / "killed late")

    async def early(broker):
        assert broker.controller.tables.topics.get("T") is None
        assert broker.store.half_deleted_topics == ()
        client = await broker.connect()
        assert await client.committed() is None
        await client.put("newest")
        assert (await client.pull(0)).bodies == ["newest"]

    async def late(broker):
        assert await (await broker.connect()).committed() == 10

    tell(first, tmp_path / "store", disk)
    tell(early, tmp_path / "killed early")
    tell(late, tmp_path / "killed late")
    tell(late, tmp_path / "killed late")


def test_start_on_a_full_disk_finishes_topic_deletion_later(tmp_path, disk):
    async def first(broker):
        client = await broker.connect()
        await client.put("old")
        await commit(client, 1)
        broker.controller.tables.offsets.save()
        disk.refuse("consumerOffset.json")
        assert (await drop(client)).code == ResponseCode.SYSTEM_ERROR
        shutil.copytree(tmp_path / "store", tmp_path / "killed")

    async def second(broker):
        client = await broker.connect()
        client.send(send_request("too early", "T", 0))
        assert (await client.receive()).code == ResponseCode.SERVICE_NOT_AVAILABLE
        disk.refuse()
        await client.put("new")
        await commit(client, 1)
        broker.controller.tables.offsets.save()
        shutil.copytree(tmp_path / "killed", tmp_path / "killed again")

    async def third(broker):
        client = await broker.connect()
        assert await client.committed() == 1
        assert (await client.pull(0)).bodies == ["new"]

    tell(first, tmp_path / "store", disk)
    tell(second, tmp_path / "killed", disk)
    tell(third, tmp_path / "killed again")
