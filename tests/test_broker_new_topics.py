"""A message's new topic is saved to disk before the message is stored."""

import asyncio
import errno
import json
import os
import threading

import pytest
from support.brokers.in_process import on_broker, tell
from support.brokers.processes import BrokerProcess
from support.clients.remoting_clients import (
    BrokerClients,
    batch_request,
    pull_request,
    pulled,
    send_request,
)
from support.disks.faulty_disk import FaultyDisk
from support.programs.web_console import with_topics
from support.stores.small_store import encoded, message
from support.suite.log_records import lines_of

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.members import (
    AppendChunkRequestHeader,
    ConsumerSendMsgBackRequestHeader,
)
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll import Admin, EmbeddedBroker
from rocketpoll.broker.state.tables.topic_config import SMALL_TABLE_TOPICS
from rocketpoll.broker.store.files.disk import LocalDisk

each_loop = pytest.mark.usefixtures("on_each_loop")


def chunk_request(topic):
    record = encoded(message("a", topic=topic))
    header = AppendChunkRequestHeader("P", topic, 0, "TBW102")
    return RemotingCommand(
        RequestCode.APPEND_CHUNK,
        opaque=7,
        ext_fields=HEADERS[RequestCode.APPEND_CHUNK].request.encode(header),
        body=(1).to_bytes(4, "big") + len(record).to_bytes(4, "big") + record,
    )


def back_request(delay_level):
    """Return the request by which group G sends back the first message of the log."""
    code = RequestCode.CONSUMER_SEND_MSG_BACK
    header = ConsumerSendMsgBackRequestHeader(0, "G", delay_level)
    return RemotingCommand(code, opaque=7, ext_fields=HEADERS[code].request.encode(header))


def last_try_request():
    """Return a consumer's own send of the last retry."""
    request = send_request("a", topic="%RETRY%G", opaque=7)
    return request._replace(ext_fields={**request.ext_fields, "j": "16", "l": "16"})


KINDS = {
    "one": (lambda: send_request("a", topic="New", opaque=7), "New"),
    "one, the old way": (
        lambda: send_request("a", topic="New", opaque=7, code=RequestCode.SEND_MESSAGE),
        "New",
    ),
    "a batch": (lambda: batch_request("a", topic="New", opaque=7), "New"),
    "a chunk": (lambda: chunk_request("New"), "New"),
    "delayed": (lambda: send_request("a", topic="New", opaque=7, properties={"DELAY": "1"}), "New"),
    "given back": (lambda: back_request(0), "%RETRY%G"),
    "a dead letter": (lambda: back_request(-1), "%DLQ%G"),
    "tried for the last time": (last_try_request, "%DLQ%G"),
}
each_kind = pytest.mark.parametrize(("request_of", "topic"), KINDS.values(), ids=KINDS)


class HeldTables(FaultyDisk):
    """Blocks writes of topics.json on demand, or has no space for it."""

    def __init__(self):
        super().__init__(LocalDisk())
        self.is_full = False
        self.saves = 0
        self._goes = threading.Event()
        self._goes.set()

    def keep_waiting(self):
        self._goes.clear()

    def let_go(self):
        self._goes.set()

    def _run(self, call):
        if call.kind == "write_whole" and call.path.name == "topics.json.tmp":
            self.saves += 1
            self._goes.wait(20)
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(call.path))
        return super()._run(call)


def saved_topics(root):
    return json.loads((root / "config" / "topics.json").read_text())["topicConfigTable"]


@each_loop
@each_kind
def test_message_is_stored_after_its_topic_is_on_disk(tmp_path, request_of, topic):
    disk = HeldTables()

    async def story(broker):
        client, other = await broker.connect(), await broker.connect()
        await client.agree()
        await other.put("first")
        await broker.until(lambda: not broker.controller.tables.topics.is_dirty)
        if topic == "%DLQ%G":  # the retry topic exists, only the dead-letter topic is missing
            await other.put("retried", topic="%RETRY%G")
        before = broker.store.state().written_offset
        disk.keep_waiting()
        saves = disk.saves
        client.send(request_of())
        await broker.until(lambda: disk.saves > saves)
        await other.ask(0)
        assert broker.store.state().written_offset == before
        await other.put("others are not held up")
        disk.let_go()
        answer = await client.receive()
        assert (answer.opaque, answer.code) == (7, 0)
        assert topic in saved_topics(tmp_path)

    tell(story, tmp_path, disk)


@each_loop
@pytest.mark.parametrize("flush_disk_type", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_sends_to_a_new_topic_keep_their_order_of_whatever_kind_they_are(tmp_path, flush_disk_type):
    disk = HeldTables()

    async def story(broker):
        clients = [await broker.connect() for _ in range(3)]
        disk.keep_waiting()
        saves = disk.saves
        for number in range(30):
            request_of = batch_request if number % 5 == 0 else send_request
            clients[number % 3].send(request_of(number, topic="New", flag=2))
            await clients[number % 3].ask(0)  # the earlier request has arrived
            if number == 20:
                disk.let_go()
        await clients[0].put(30, topic="New")
        found = await clients[0].pull(0, "New")
        assert found.bodies == [str(number) for number in range(31)]
        assert disk.saves == saves + 1

    tell(story, tmp_path, disk, flushDiskType=flush_disk_type)


@each_loop
@each_kind
def test_message_whose_topic_cannot_be_saved_is_refused_with_the_reason(
    tmp_path, request_of, topic
):
    disk = HeldTables()

    async def story(broker):
        client = await broker.connect()
        await client.agree()
        await client.put("first")
        if topic == "%DLQ%G":
            await client.put("retried", topic="%RETRY%G")
        before = broker.store.state().written_offset
        disk.is_full = True
        refusal = await client.call(request_of())
        assert refusal.code == 14
        assert f"the topic {topic} could not be saved" in refusal.remark
        assert "No space left on device" in refusal.remark
        assert str(tmp_path) in refusal.remark
        assert broker.store.state().written_offset == before
        disk.is_full = False
        assert (await client.call(request_of())).code == 0
        assert topic in saved_topics(tmp_path)

    tell(story, tmp_path, disk)


@each_loop
def test_sends_waiting_for_topics_are_limited_like_those_waiting_for_the_disk(tmp_path):
    disk = HeldTables()

    async def story(broker):
        client, other = await broker.connect(), await broker.connect()
        await other.put("first")
        disk.keep_waiting()
        client.send(b"".join(send_request(n, topic="New", opaque=n).encode() for n in range(5)))
        refused = [await client.receive() for _ in range(2)]
        assert [(each.opaque, each.code) for each in refused] == [(3, 2), (4, 2)]
        assert "3 sends wait for topics to be saved" in refused[0].remark
        await other.put("others are taken")
        disk.let_go()
        assert [(await client.receive()).opaque for _ in range(3)] == [0, 1, 2]

    tell(story, tmp_path, disk, sendThreadPoolQueueCapacity=3)


@each_loop
def test_parked_sends_of_a_closed_client_are_dropped_unless_oneway(tmp_path):
    disk = HeldTables()

    async def story(broker):
        going, client = await broker.connect(), await broker.connect()
        disk.keep_waiting()
        saves = disk.saves
        going.send(send_request("nobody would hear of it", topic="New"))
        going.send(send_request("one way", topic="New", flag=2))
        await broker.until(lambda: disk.saves > saves)
        going.abort()
        await broker.until(lambda: broker.controller.server.connections == 1)
        disk.let_go()
        await client.put("behind it", "the last", topic="New")
        assert (await client.pull(0, "New")).bodies == ["one way", "behind it", "the last"]
        plan_and_shape = 2  # those of the connected client
        assert len(broker.controller.processors.sends._cache) == plan_and_shape

    tell(story, tmp_path, disk)


@each_loop
def test_stopping_broker_answers_requests_waiting_for_a_topic(tmp_path, caplog):
    disk = HeldTables()

    async def story(broker):
        client, late = await broker.connect(), await broker.connect()
        await late.ask(0)
        disk.keep_waiting()
        saves = disk.saves
        client.send(send_request("a", topic="New", opaque=5))
        await broker.until(lambda: disk.saves > saves)
        stopping = asyncio.ensure_future(broker.controller.stop())
        for asker, opaque in ((client, 5), (late, 6)):
            if asker is late:
                late.send(send_request("b", topic="Newer", opaque=6))
            answer = await asker.receive()
            assert (answer.opaque, answer.code, answer.remark) == (
                opaque,
                14,
                "the broker is stopping",
            )
        disk.let_go()
        await stopping

    tell(story, tmp_path, disk)
    assert lines_of(caplog) == []


@each_loop
def test_topic_with_added_queues_accepts_messages_after_the_save(tmp_path):
    disk = HeldTables()

    async def story(broker):
        client = await broker.connect()
        await client.put("a", topic="T", queue_nums=2)
        disk.keep_waiting()
        saves = disk.saves
        broker.make_topic("T", queues=8)
        client.send(send_request("b", topic="T", queue_id=7, opaque=7))
        await broker.until(lambda: disk.saves > saves)
        assert saved_topics(tmp_path)["T"]["writeQueueNums"] == 2
        disk.let_go()
        assert (await client.receive()).code == 0
        assert saved_topics(tmp_path)["T"]["writeQueueNums"] == 8

    tell(story, tmp_path, disk)


@each_loop
@on_broker
async def test_pull_of_a_new_topic_is_woken_by_its_first_message(broker):
    consumer, producer = await broker.connect(), await broker.connect()
    producer.send(
        send_request("a", topic="New").encode() + pull_request(0, "New", opaque=2).encode()
    )
    consumer.send(pull_request(0, "New", suspend_ms=60_000))
    assert pulled(await consumer.receive()).bodies == ["a"]


# ---- kills


@pytest.mark.parametrize("kind", ["one", "delayed", "given back", "tried for the last time"])
def test_killed_broker_keeps_topics_of_acknowledged_messages(tmp_path, kind):
    settings = {"flushDiskType": "SYNC_FLUSH", "messageDelayLevel": "1s"}
    request_of, topic = KINDS[kind]

    async def first(broker):
        async with BrokerClients(broker.port) as clients:
            client = await clients.connect()
            await client.put("a")
            if topic == "%DLQ%G":
                await client.put("retried", topic="%RETRY%G")
            assert (await client.call(request_of())).code == 0
            broker.kill()

    async def second(broker):
        async with BrokerClients(broker.port) as clients:
            client = await clients.connect()
            found = await client.pull(0, topic, suspend_ms=15_000)
            assert found.bodies == ["a"]

    with BrokerProcess(tmp_path, **settings) as broker:
        asyncio.run(first(broker))
    with BrokerProcess(tmp_path, **settings) as broker:
        asyncio.run(second(broker))
        assert broker.stop() == 0
        assert not [
            line for line in broker.log() if "does not exist" in line or "is missing" in line
        ]


def test_killed_broker_of_many_topics_keeps_those_that_were_just_created(tmp_path):
    store = with_topics(tmp_path / "store", SMALL_TABLE_TOPICS + 1)
    table = store / "config" / "topics.json"
    with EmbeddedBroker(store, own_process=True) as broker, Admin(broker.address) as admin:
        for number in range(5):
            admin.create_topic(f"new-{number}", 3)
        broker.kill()
        broker.restart()
        assert {f"new-{number}" for number in range(5)} <= admin.topics()
        admin.create_topic("last", 3)
        broker.send("last", "one")
        assert "last" in json.loads(table.read_bytes())["topicConfigTable"]
        broker.kill()
        broker.restart()
        assert [config.read_queue_nums for config in admin.topic_configs("last").values()] == [3]
    assert not (store / "config" / "recentTopics.json").exists()
