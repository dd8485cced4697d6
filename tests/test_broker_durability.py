"""With SYNC_FLUSH, an acknowledged message is on the disk."""

import asyncio
import errno
import itertools
import os

import pytest
from support.brokers.in_process import BrokerClients, tell
from support.brokers.processes import BrokerProcess
from support.clients.remoting_clients import batch_request, pull_request, pulled, send_request
from support.disks.faulty_disk import Fault, FaultyDisk
from support.stores.small_store import encoded, message

from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.operators import KVTable
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.members import AppendChunkRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.store.files.disk import LocalDisk

# Longer campaigns: ROCKETPOLL_BROKER_FAILURE_STEP=1, a failure at every operation.
STEP = int(os.environ.get("ROCKETPOLL_BROKER_FAILURE_STEP", "6"))
SYNC = {"flushDiskType": "SYNC_FLUSH"}
FLUSH_FAILS = Fault(persistent=True, kinds=frozenset(["flush"]))


async def silence(client, broker):
    """Wait until no data is on its way to a client, so that the next response belongs to the next
    request."""
    assert (await client.ask(0, opaque=4_711)).opaque == 4_711
    await asyncio.sleep(0)


async def everything(client):
    """Return all messages that a consumer gets from the start."""
    found = []
    while (answer := await client.pull(len(found))).code == 0:
        found += answer.bodies
    assert answer.code == 19
    return found


def append_request(body):
    record = encoded(message(body))
    header = AppendChunkRequestHeader("P", "T", 0, "TBW102")
    return RemotingCommand(
        RequestCode.APPEND_CHUNK,
        opaque=1,
        ext_fields=HEADERS[RequestCode.APPEND_CHUNK].request.encode(header),
        body=(1).to_bytes(4, "big") + len(record).to_bytes(4, "big") + record,
    )


REQUESTS = {
    "one": lambda: send_request("a"),
    "one, the old way": lambda: send_request("a", code=RequestCode.SEND_MESSAGE),
    "a batch": lambda: batch_request("a"),
    "a chunk": lambda: append_request("a"),
}


@pytest.mark.parametrize("request_of", REQUESTS.values(), ids=REQUESTS)
def test_sync_flush_message_is_acknowledged_and_visible_after_its_flush(tmp_path, request_of):
    disk = FaultyDisk(slow="commitlog")

    async def story(broker):
        broker.make_topic("T")
        producer, consumer = await broker.connect(), await broker.connect()
        await producer.agree()
        consumer.send(pull_request(0, suspend_ms=60_000))
        await broker.held(1)
        before = disk.flushes
        disk.keep_waiting()
        producer.send(request_of())
        await broker.until(lambda: disk.flushes > before)
        await silence(producer, broker)
        assert (await (await broker.connect()).pull(0)).code == 19
        assert broker.holds.hold_count == 1
        disk.let_go()
        assert (await producer.receive()).code == 0
        assert pulled(await consumer.receive()).bodies == ["a"]

    tell(story, tmp_path, disk, **SYNC)


class FullForQueues(FaultyDisk):
    """A disk with room for the log, and sometimes none for consume queues."""

    is_full = False

    def _run(self, call):
        if self.is_full and call.kind == "write" and "consumequeue" in call.path.parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(call.path))
        return super()._run(call)


def test_messages_are_dispatched_without_a_send_once_a_full_disk_has_space(tmp_path, caplog):
    disk = FullForQueues(LocalDisk())

    async def story(broker):
        broker.make_topic("T")
        producer, consumer = await broker.connect(), await broker.connect()
        consumer.send(pull_request(0, suspend_ms=60_000))
        await broker.held(1)
        disk.is_full = True
        await producer.put("a")
        for _ in range(3):
            await broker.until(lambda: broker.store.state().degradation)
            broker.move(1)
            await producer.ask(0)
        info = decode_body(KVTable, (await producer.ask(28)).body).table
        assert "No space left on device" in info["storeFailure"]
        assert broker.holds.hold_count == 1
        disk.is_full = False
        broker.move(1)
        assert pulled(await consumer.receive()).bodies == ["a"]
        assert decode_body(KVTable, (await producer.ask(28)).body).table["storeFailure"] == ""

    tell(story, tmp_path, disk)
    said = [
        each.message
        for each in caplog.records
        if "dispatched to their consume queues" in each.message
    ]
    assert [each.partition(":")[0] for each in said] == [
        "messages are not dispatched to their consume queues, retrying",
        "resolved",
    ]


def test_broker_started_on_a_full_disk_serves_and_later_takes_messages(
    tmp_path,
):
    disk = FaultyDisk()

    async def first(broker):
        client = await broker.connect()
        await client.put("before")

    async def second(broker):
        client = await broker.connect()
        assert (await client.pull(0)).bodies == ["before"]
        answer = await client.call(send_request("refused"))
        assert answer.code == 14
        assert "No space left on device" in answer.remark
        broker.move(1)
        assert (await client.pull(0)).bodies == ["before"]
        disk.lack(None)
        broker.move(1)
        await broker.until(lambda: not broker.store.is_opening)
        await client.put("after")
        assert (await client.pull(0)).bodies == ["before", "after"]

    tell(first, tmp_path, disk, **SYNC)
    disk.lack(errno.ENOSPC)
    tell(second, tmp_path, disk, **SYNC)


def test_flush_acknowledges_all_waiting_sends_at_once(tmp_path):
    disk = FaultyDisk(slow="commitlog")

    async def story(broker):
        broker.make_topic("T")
        clients = [await broker.connect() for _ in range(20)]
        before = disk.flushes
        disk.keep_waiting()
        clients[0].send(send_request("first"))
        await broker.until(lambda: disk.flushes == before + 1)
        for client in clients:
            client.send(b"".join(send_request(n, opaque=10 + n).encode() for n in range(10)))
        await broker.until(lambda: broker.controller.processors.acknowledger.queue().size == 201)
        disk.let_go()
        assert (await clients[0].receive()).opaque == 1
        for client in clients:
            assert [(await client.receive()).opaque for _ in range(10)] == list(range(10, 20))
        assert disk.flushes - before <= 3

    tell(story, tmp_path, disk, **SYNC)


def test_failed_flush_stops_acknowledgements_and_further_flushes(
    tmp_path,
):
    disk = FaultyDisk(slow="commitlog")

    async def first(broker):
        clients = [await broker.connect() for _ in range(5)]
        await clients[0].put("safe")
        disk.keep_waiting()
        before = disk.flushes
        for number, client in enumerate(clients):
            client.send(send_request(f"waits {number}"))
        await broker.until(lambda: disk.flushes > before)
        disk.plan = [FLUSH_FAILS]
        disk.let_go()
        for client in clients:
            answer = await client.receive()
            assert answer.code == 14
            assert "flush" in answer.remark or "disk" in answer.remark
        disk.plan = []  # the disk works again, but does not report what it has lost
        flushes = disk.flushes
        for properties in ({}, {"WAIT": "false"}):
            assert (await clients[0].call(send_request("after", properties=properties))).code == 14
        assert (await clients[0].call(batch_request("after"))).code == 14
        assert disk.flushes == flushes
        assert (await clients[0].pull(0)).bodies == ["safe"]

    async def second(broker):
        client = await broker.connect()
        found = await client.pull(0)
        assert found.bodies[0] == "safe"
        assert set(found.bodies[1:]) <= {f"waits {number}" for number in range(5)}
        await client.put("again")

    tell(first, tmp_path, disk, **SYNC)
    tell(second, tmp_path, **SYNC)


def test_slow_flush_is_answered_with_a_timeout_once(tmp_path):
    disk = FaultyDisk(slow="commitlog")

    async def story(broker):
        client = await broker.connect()
        await client.put("before")
        disk.keep_waiting()
        client.send(send_request("late", opaque=6))
        await broker.until(lambda: broker.controller.processors.acknowledger.queue().size == 1)
        broker.move(6)
        answer = await client.receive()
        assert (answer.code, answer.opaque) == (10, 6)
        assert (answer.ext_fields["queueOffset"], answer.ext_fields["queueId"]) == ("1", "0")
        disk.let_go()
        await broker.until(lambda: broker.store.queue_offsets("T", 0).next == 2)
        await silence(client, broker)
        assert (await client.pull(1)).bodies == ["late"]

    tell(story, tmp_path, disk, **SYNC)


def test_wait_false_send_is_answered_with_a_slow_disk(tmp_path):
    disk = FaultyDisk(slow="commitlog")

    async def story(broker):
        client = await broker.connect()
        broker.make_topic("T")
        disk.keep_waiting()
        await client.put("a", properties={"WAIT": "false"})
        assert (await client.pull(0)).code == 19  # invisible until it is durable
        disk.let_go()
        await client.put("b")
        assert (await client.pull(0)).bodies == ["a", "b"]

    tell(story, tmp_path, disk, **SYNC)


def test_async_flush_sends_do_not_wait_for_the_disk(tmp_path):
    disk = FaultyDisk(slow="commitlog")

    async def story(broker):
        client = await broker.connect()
        await client.put("before")
        disk.keep_waiting()
        await client.put("a")
        assert (await client.pull(1)).bodies == ["a"]
        disk.let_go()

    tell(story, tmp_path, disk)


def test_stopping_broker_acknowledges_messages_waiting_for_the_disk(tmp_path, caplog):
    disk = FaultyDisk(slow="commitlog")

    async def first(broker):
        client = await broker.connect()
        await client.put("before")
        disk.keep_waiting()
        before = disk.flushes
        client.send(send_request("last", opaque=5))
        await broker.until(lambda: disk.flushes > before)
        asyncio.get_running_loop().call_later(0.05, disk.let_go)
        await broker.controller.stop()
        answer = await client.receive()
        assert (answer.code, answer.opaque) == (0, 5)

    async def second(broker):
        assert (await (await broker.connect()).pull(0)).bodies == ["before", "last"]

    tell(first, tmp_path, disk, **SYNC)
    tell(second, tmp_path, **SYNC)
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_disk_failing_at_any_operation_loses_no_acknowledged_send(tmp_path):
    """Ten sends; the disk fails for good at its n-th operation after the start."""
    for number in itertools.count(0, STEP):
        root = tmp_path / str(number)
        root.mkdir()
        disk = FaultyDisk(LocalDisk())
        acknowledged = []

        async def first(broker, disk=disk, number=number, acknowledged=acknowledged):
            broker.make_topic("T")
            client = await broker.connect()
            start = len(disk.operations)
            disk.plan = [Fault(start + number, persistent=True)]
            for body in range(10):
                answer = await client.call(send_request("x" * 300 + str(body)))
                assert answer.code in {0, 14}
                if answer.code == 0:
                    acknowledged.append(body)
            disk.fired = len(disk.operations) > start + number
            disk.plan = []

        async def second(broker, acknowledged=acknowledged):
            broker.make_topic("T")
            client = await broker.connect()
            found = [int(body[300:]) for body in await everything(client)]
            assert found[: len(acknowledged)] == acknowledged
            await client.put("goes on")

        small = {
            "mappedFileSizeCommitLog": 4_096,
            "maxMessageSize": 1_024,
            "mappedFileSizeConsumeQueue": 100,
        }
        tell(first, root, disk, **SYNC, **small)
        tell(second, root, **SYNC, **small)
        if not disk.fired:
            break
    assert number > 10


def test_recovered_messages_have_exactly_their_sent_properties(tmp_path):
    sent = [
        {},
        {"a": "1"},
        {"__CRC32#": "0123456789"},
        {"TAGS": "t", "__CRC32#": "mine", "KEYS": "k"},
    ]

    async def send(broker):
        async with BrokerClients(broker.port) as clients:
            client = await clients.connect()
            for properties in sent:
                await client.put("x", properties=properties)
            broker.kill()

    async def properties_of_all(broker):
        async with BrokerClients(broker.port) as clients:
            return [each.properties for each in (await (await clients.connect()).pull()).messages]

    with BrokerProcess(tmp_path) as broker:
        asyncio.run(send(broker))
    with BrokerProcess(tmp_path) as broker:
        found = asyncio.run(properties_of_all(broker))
        assert broker.stop() == 0
    added = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert found == [{**properties, **added} for properties in sent]


@pytest.mark.parametrize("flush_disk_type", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_killed_broker_keeps_all_acknowledged_messages(tmp_path, flush_disk_type):
    """A kill leaves the page cache: all messages are there with either flushDiskType."""
    acknowledged = []

    async def send_until_it_is_gone(broker, life):
        async with BrokerClients(broker.port) as clients:
            client = await clients.connect()
            for number in range(1_000):
                client.send(send_request(f"{life} {number}", opaque=number))
            for number in range(100 + 50 * life):
                assert (await client.receive()).code == 0
                acknowledged.append(f"{life} {number}")
            broker.kill()

    async def all_of_it(broker):
        async with BrokerClients(broker.port) as clients:
            return await everything(await clients.connect())

    for life in range(2):
        with BrokerProcess(tmp_path, flushDiskType=flush_disk_type) as broker:
            asyncio.run(send_until_it_is_gone(broker, life))
    with BrokerProcess(tmp_path, flushDiskType=flush_disk_type) as broker:
        found = asyncio.run(all_of_it(broker))
        assert broker.stop() == 0
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))
    assert found == sorted(found, key=lambda body: tuple(map(int, body.split())))
