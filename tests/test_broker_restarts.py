"""A broker restored after a kill, as clients of real processes see it."""

import asyncio
import shutil

import pytest
from support.brokers.in_process import BrokerClients, tell
from support.brokers.processes import BrokerProcess
from support.clients.remoting_clients import pull_request, pulled
from support.disks.faulty_disk import FaultyDisk

from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.members import ConsumerSendMsgBackRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand

DURABLE = {"flushDiskType": "SYNC_FLUSH", "messageDelayLevel": "1s"}


def told(broker, story):
    """Run a scenario as one client of a running broker; return its result."""

    async def whole():
        async with BrokerClients(broker.port) as clients:
            return await story(await clients.connect())

    return asyncio.run(whole())


async def send_later(client):
    """Send a delayed message; return its topic, queue and offset."""
    await client.put("later", properties={"DELAY": "1"})
    return "T", 1


async def give_back(client):
    """Send a message back; return its topic, queue and offset."""
    (message,) = (await client.pull(0, count=1)).messages
    header = ConsumerSendMsgBackRequestHeader(message.physical_offset, "G", 1)
    codec = HEADERS[RequestCode.CONSUMER_SEND_MSG_BACK].request
    request = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=codec.encode(header))
    assert (await client.call(request)).code == 0
    return "%RETRY%G", 0


def nothing(_):
    """Change nothing after the kill."""


def its_queues(root):
    """Delete the consume queues."""
    shutil.rmtree(root / "store" / "consumequeue")


def its_checkpoint(root):
    """Delete the checkpoint, so that all queues are rebuilt from the log."""
    (root / "store" / "checkpoint").unlink()


@pytest.mark.parametrize("lose", [nothing, its_queues, its_checkpoint])
@pytest.mark.parametrize(("delay", "body"), [(send_later, "later"), (give_back, "first")])
def test_delayed_message_survives_a_killed_broker_and_is_delivered(tmp_path, delay, body, lose):
    async def set_up(client):
        await client.put("first")
        await client.heartbeat("G", "T")  # creates the group's retry topic

    with BrokerProcess(tmp_path, **DURABLE) as broker:
        told(broker, set_up)
        assert broker.stop() == 0
    with BrokerProcess(tmp_path, **DURABLE) as broker:
        topic, queue_offset = told(broker, delay)
        broker.kill()
    lose(tmp_path)
    with BrokerProcess(tmp_path, **DURABLE) as broker:
        wait = pull_request(queue_offset, topic, suspend_ms=10_000)
        assert pulled(told(broker, lambda client: client.call(wait))).bodies == [body]
        assert broker.stop() == 0


async def all_from_where_the_group_is(client):
    """Return the messages of a newly started consumer."""
    found, at = [], await client.committed() or 0
    while (answer := await client.pull(at)).code != ResponseCode.PULL_NOT_FOUND:
        found += answer.bodies
        at = answer.next_offset
    return found


async def commit(client, queue_offset):
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": str(queue_offset)}
    assert (await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields)).code == 0


def test_group_reads_a_recreated_topic_completely_after_a_kill(
    tmp_path,
):
    disk = FaultyDisk()
    new = [f"new {number}" for number in range(4)]

    async def first(broker):
        client = await broker.connect()
        await client.put(*(f"old {number}" for number in range(5)))
        await commit(client, 3)
        broker.controller.tables.offsets.save()
        disk.refuse("consumerOffset.json")
        assert (
            await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"})
        ).code == 1
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
        disk.refuse()

    async def second(broker):
        client = await broker.connect()
        await client.put(*new)
        assert await all_from_where_the_group_is(client) == new
        await commit(client, 4)

    async def third(broker):
        client = await broker.connect()
        assert await client.committed() == 4
        await client.put("newest")
        assert await all_from_where_the_group_is(client) == ["newest"]

    tell(first, tmp_path / "store", disk)
    tell(second, tmp_path / "killed")
    tell(third, tmp_path / "killed")


def test_committed_offset_past_a_lost_log_end_skips_no_new_message(tmp_path, caplog):
    async def first(broker):
        client = await broker.connect()
        await client.put(*range(20))
        await commit(client, 20)

    async def second(broker):
        client = await broker.connect()
        await client.put("new")
        assert await all_from_where_the_group_is(client) == ["new"]

    tell(first, tmp_path)
    for name in ("commitlog", "consumequeue", "index", "checkpoint"):
        path = tmp_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (tmp_path / "config").glob("manifest.json*"):
        path.unlink()
    tell(second, tmp_path)
    assert "1 offsets past the ends of T are reset" in caplog.text


@pytest.mark.parametrize("end", [BrokerProcess.stop, BrokerProcess.kill])
@pytest.mark.parametrize("lost", ["missing", "an older copy"])
def test_recreated_topic_is_served_with_a_lost_or_old_manifest(tmp_path, end, lost):
    """The log shows the recreation, which is logged once: later starts find a consistent store."""
    config = tmp_path / "store" / "config"
    new = [f"new {number}" for number in range(15)]

    async def put_old(client):
        await client.put(*(f"old {number}" for number in range(10)))

    async def make_again(client):
        deleted = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"})
        assert deleted.code == 0
        await client.put(*new)

    with BrokerProcess(tmp_path, **DURABLE) as broker:
        told(broker, put_old)
        assert broker.stop() == 0
    shutil.copytree(config, tmp_path / "older")
    with BrokerProcess(tmp_path, **DURABLE) as broker:
        told(broker, make_again)
        end(broker)
    for path in (*config.glob("manifest.json*"), *config.glob("deletions.json*")):
        path.unlink()
    if lost == "an older copy":
        shutil.copy(tmp_path / "older" / "manifest.json", config)
    for said in (1, 0):
        with BrokerProcess(tmp_path, **DURABLE) as broker:
            assert told(broker, all_from_where_the_group_is) == new
            assert broker.stop() == 0
            lines = broker.log()
        assert sum("T was deleted and recreated" in line for line in lines) == said
    assert lines == []


@pytest.mark.parametrize("checked_bytes", [0, 1 << 28], ids=["a large log", "a small one"])
def test_power_loss_of_a_page_of_a_recreated_queue_hides_nothing(tmp_path, checked_bytes):
    """Later pages were written back: missing messages before them have not expired."""
    new = [f"new {number}" for number in range(500)]

    async def make_again(client):
        await client.put("old")
        deleted = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "T"})
        assert deleted.code == 0
        await client.put(*new)

    settings = {**DURABLE, "checkWholeLogBytes": str(checked_bytes)}
    with BrokerProcess(tmp_path, **settings) as broker:
        told(broker, make_again)
        broker.kill()
    with (tmp_path / "store" / "consumequeue" / "T" / "0" / ("0" * 20)).open("r+b") as file:
        file.write(bytes(4_096))
    for _ in range(2):
        with BrokerProcess(tmp_path, **settings) as broker:
            assert told(broker, all_that_is_there) == new
            assert broker.stop() == 0


async def all_that_is_there(client):
    found, at = [], 0
    while (answer := await client.pull(at)).code != 19:
        found += answer.bodies
        at = answer.next_offset
    return found


def test_send_back_never_returns_a_different_message_of_an_older_copy(tmp_path):
    """The message has the same log position; its consumer learns that its own is gone, and sends
    it."""
    store, copy = tmp_path / "store", tmp_path / "copy"
    known = {}

    async def first(broker):
        await (await broker.connect()).put("kept")

    async def second(broker):
        client = await broker.connect()
        await client.put("lost", properties={"UNIQ_KEY": "1"})
        (known["lost"],) = (await client.pull(1)).messages

    async def third(broker):
        client = await broker.connect()
        await client.put("new!", properties={"UNIQ_KEY": "2"})
        (new,) = (await client.pull(1)).messages
        assert new.physical_offset == known["lost"].physical_offset

        async def give_back(message):
            header = ConsumerSendMsgBackRequestHeader(
                message.physical_offset,
                "G",
                -1,
                origin_msg_id=message.message_id,
                origin_topic="T",
            )
            fields = HEADERS[RequestCode.CONSUMER_SEND_MSG_BACK].request.encode(header)
            return await client.call(
                RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, opaque=1, ext_fields=fields)
            )

        refused = await give_back(known["lost"])
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "another message is there" in refused.remark
        assert broker.store.queue_offsets("%DLQ%G", 0).next == 0
        assert (await give_back(new)).code == ResponseCode.SUCCESS
        assert (await client.pull(0, "%DLQ%G")).bodies == ["new!"]

    tell(first, store)
    shutil.copytree(store, copy)
    tell(second, store)
    shutil.rmtree(store)
    copy.rename(store)
    tell(third, store)
