"""Sends to a whole broker work as with RocketMQ: checks, created topics, stored
records, responses."""

import re
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.brokers.in_process import on_broker, tell
from support.clients.remoting_clients import batch_request, pull_request, pulled, send_request
from support.disks.faulty_disk import Fault, FaultyDisk
from support.messages.wire_strategies import odd_properties

from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.operators import KVTable
from rmq_spark.wire.codes import MessageSysFlag, RequestCode
from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.message.message_batch import BatchedMessage, encode_batch
from rmq_spark.wire.message.message_id import decode_offset_message_id
from rmq_spark.wire.message.properties import decode_properties
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.processor.sends.send_message import IDS_MAX
from rocketpoll.broker.store.files.disk import LocalDisk

ADDED = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""Properties that the broker adds to each message."""

REFUSED = {
    "a blank name": ({"topic": " "}, 1, "blank"),
    "strange characters": ({"topic": "../../etc"}, 1, "characters"),
    "128 characters": ({"topic": "x" * 128}, 1, "128 characters, over 127"),
    "the topic of what is delayed": ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16, "forbidden"),
    "the topic of half messages": ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, 16, "forbidden"),
    "the topic of their ends": ({"topic": "RMQ_SYS_TRANS_OP_HALF_TOPIC"}, 16, "forbidden"),
    "the topic of those checked too often": (
        {"topic": "TRANS_CHECK_MAX_TIME_TOPIC"},
        16,
        "forbidden",
    ),
    "the self test's topic": ({"topic": "SELF_TEST_TOPIC"}, 16, "forbidden"),
    "the topic of moved offsets": ({"topic": "OFFSET_MOVED_EVENT"}, 16, "forbidden"),
    "a topic like none": ({"topic": "N", "default_topic": "None"}, 17, "apply first please"),
    "a topic that may not be written": ({"topic": "R"}, 16, r"topic\[R\]"),
    "a queue that is not there": ({"queue_id": 4}, 1, r"queueId\[4\] is illegal.*4 queues"),
    "no body": ({"body": b""}, 13, "empty"),
    "a body that is too long": ({"body": bytes((1 << 19) + 1)}, 13, "524288"),
    "properties that are too long": ({"properties": {"p": "x" * 32_767}}, 13, "properties"),
    "a timer of over three days": (
        {"properties": {"TIMER_DELAY_SEC": "259201"}},
        13,
        r"timer message illegal.*max delay 259200000ms \(timerMaxDelaySec\): 259201000 ms",
    ),
    "a timer that is no number": (
        {"topic": "%RETRY%G", "properties": {"TIMER_DELIVER_MS": "soon"}},
        13,
        "'soon' is not a number",
    ),
    "the topic of timers": ({"topic": "rmq_sys_wheel_timer"}, 16, "forbidden"),
}


@pytest.mark.parametrize(("what", "code", "remark"), REFUSED.values(), ids=REFUSED)
@on_broker
async def test_send_that_cannot_be_stored_is_refused_with_rocketmqs_code(
    broker, what, code, remark
):
    broker.make_topic("T", queues=4)
    broker.make_topic("R", perm=4)
    client = await broker.connect()
    before = broker.store.state().written_offset
    answer = await client.call(send_request(**what))
    assert answer.code == code
    assert re.search(remark, answer.remark)
    assert broker.store.state().written_offset == before


@on_broker(brokerPermission=4)
async def test_send_to_a_broker_without_write_permission_is_refused(broker):
    client = await broker.connect()
    assert (await client.call(send_request("a"))).code == 16


@on_broker(brokerRole="SLAVE")
async def test_send_to_a_slave_is_refused(broker):
    broker.make_topic("T")
    client = await broker.connect()
    answer = await client.call(send_request("a"))
    assert (answer.code, answer.remark) == (14, "the broker is read-only: brokerRole=SLAVE")


@pytest.mark.parametrize(
    ("settings", "asked", "made"),
    [({}, 4, 4), ({}, 100, 8), ({}, 0, 1), ({"defaultTopicQueueNums": 2}, 4, 2)],
)
def test_auto_created_topic_has_requested_queues_up_to_the_default(tmp_path, settings, asked, made):
    async def story(broker):
        client = await broker.connect()
        assert (await client.call(send_request("a", topic="New", queue_nums=asked))).code == 0
        config = broker.controller.tables.topics.get("New")
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (made, made, 6)

    tell(story, tmp_path, **settings)


@on_broker(autoCreateTopicEnable=False)
async def test_send_to_a_missing_topic_without_auto_creation_is_refused(broker):
    client = await broker.connect()
    answer = await client.call(send_request("a", topic="New"))
    assert answer.code == 17
    assert "apply first please" in answer.remark
    broker.make_topic("New")
    assert (await client.call(send_request("a", topic="New"))).code == 0


def test_auto_created_topic_survives_a_restart(tmp_path):
    async def first(broker):
        await (await broker.connect()).put("a", topic="New", queue_nums=3)

    async def second(broker):
        assert broker.controller.tables.topics.get("New").write_queue_nums == 3
        assert (await (await broker.connect()).pull(0, "New")).bodies == ["a"]

    tell(first, tmp_path)
    tell(second, tmp_path, autoCreateTopicEnable=False)


@on_broker
async def test_negative_queue_id_chooses_any_queue(broker):
    client = await broker.connect()
    chosen = {(await client.put("a", queue_id=-1)).ext_fields["queueId"] for _ in range(100)}
    assert chosen == {"0", "1", "2", "3"}


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
@on_broker
async def test_send_answer_has_offset_and_the_message_is_stored_completely(broker, code):
    client = await broker.connect()
    named = {"TAGS": "A", "KEYS": "k", "WAIT": "true", "UNIQ_KEY": "u"}
    await client.put("before")
    answer = await client.call(
        send_request("body", properties=named, code=code, sys_flag=MessageSysFlag.MULTI_TAGS.value)
    )
    fields = answer.ext_fields
    assert answer.code == 0
    assert (fields["queueId"], fields["queueOffset"]) == ("0", "1")
    assert (fields["MSG_REGION"], fields["TRACE_ON"]) == ("DefaultRegion", "true")
    (stored,) = (await client.pull(1)).messages
    here = parse_host(f"127.0.0.1:{broker.port}")
    assert decode_offset_message_id(fields["msgId"]) == (here, stored.physical_offset)
    assert stored.body == b"body"
    assert stored.born_timestamp == 1_600_000_000_000
    assert stored.sys_flag == MessageSysFlag.MULTI_TAGS.value
    assert str(stored.born_host) == f"127.0.0.1:{client.address[1]}"
    assert stored.properties == {
        "TAGS": "A",
        "KEYS": "k",
        "UNIQ_KEY": "u",
        **ADDED,
    }


WAYS_TO_SEND = {
    "single": {},
    "single, by the first request": {"code": RequestCode.SEND_MESSAGE},
    "of a client that has it from a broker": {
        "properties": {"MSG_REGION": "there", "TRACE_ON": "false", "CLUSTER": "theirs"}
    },
    "delayed": {"properties": {"DELAY": "1"}},
    "waiting for the disk": {"properties": {"WAIT": "true"}},
}


@pytest.mark.parametrize("way", WAYS_TO_SEND)
@pytest.mark.parametrize("count", [1, 3], ids=["alone", "many"])
@on_broker
async def test_stored_message_has_region_and_trace_switch(broker, way, count):
    """A consumer of 5.x drops the trace of a message without a region."""
    broker.make_topic("SCHEDULE_TOPIC_XXXX", 18)
    client = await broker.connect()
    requests = [send_request("x", **WAYS_TO_SEND[way]) for _ in range(count)]
    for request in requests:
        client.send(request)
    for _ in requests:
        assert (await client.receive()).code == 0
    topic = "SCHEDULE_TOPIC_XXXX" if way == "delayed" else "T"
    found = (await client.pull(0, topic=topic)).messages
    assert len(found) == count
    for message in found:
        assert ADDED.items() <= message.properties.items()
        assert message.properties_text.count("MSG_REGION") == 1


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(odd_properties, min_size=1, max_size=16))
def test_any_message_properties_are_returned_with_the_brokers_additions(tmp_path, texts):
    async def story(broker):
        client = await broker.connect()
        for text in texts:
            await client.put("alone", properties=text)
        entries = [BatchedMessage(b"together", text) for text in texts]
        batch = send_request(encode_batch(entries), code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
        assert (await client.call(batch)).code == 0
        found = [each.properties for each in (await client.pull()).messages]
        expected = [{**decode_properties(text), **ADDED} for text in texts]
        assert found == expected * 2

    with TemporaryDirectory(dir=tmp_path) as root:
        tell(story, Path(root))


@pytest.mark.parametrize("flush_disk_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_flush_wait_times_are_counted_in_rocketmqs_buckets(tmp_path, flush_disk_type):
    async def story(broker):
        client = await broker.connect()
        await client.put(*range(5))
        assert (await client.call(batch_request("a", "b"))).code == 0
        answer = await client.call(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
        told = decode_body(KVTable, answer.body).table["putMessageDistributeTime"]
        counts = dict(cell.strip("[").split("]:") for cell in told.split(" "))
        assert sum(map(int, counts.values())) == 6
        if flush_disk_type == "ASYNC_FLUSH":
            assert counts["<=0ms"] == "6"

    tell(story, tmp_path, flushDiskType=flush_disk_type)


@on_broker(regionId="North", traceOn=False, brokerClusterName="C1", brokerIP1="10.1.2.3")
async def test_stored_region_trace_cluster_and_address_follow_the_settings(broker):
    client = await broker.connect()
    fields = (await client.put("a")).ext_fields
    assert (fields["MSG_REGION"], fields["TRACE_ON"]) == ("North", "false")
    assert decode_offset_message_id(fields["msgId"])[0] == parse_host(f"10.1.2.3:{broker.port}")
    stored = (await client.pull(0)).messages[0].properties
    assert stored == {"CLUSTER": "C1", "MSG_REGION": "North", "TRACE_ON": "false"}


@on_broker
async def test_oneway_sends_are_never_answered(broker):
    client = await broker.connect()
    client.send(send_request("quiet", flag=2, opaque=1))
    client.send(send_request(b"", flag=2, opaque=2))
    client.send(send_request("x", topic="SELF_TEST_TOPIC", flag=2, opaque=3))
    assert (await client.call(send_request("loud", opaque=4))).ext_fields["queueOffset"] == "1"
    assert (await client.pull(0)).bodies == ["quiet", "loud"]


@on_broker
async def test_compressed_body_is_stored_and_served_unchanged(broker):
    client = await broker.connect()
    bomb = zlib.compress(bytes(100 << 20), 9)  # 100 MB in 100 kB
    flags = MessageSysFlag.COMPRESSED.value | MessageSysFlag.COMPRESSION_ZLIB.value
    await client.put(bomb, sys_flag=flags)
    answer = await client.call(send_request("after"))
    assert answer.code == 0
    client.send(pull_request(0, count=1))
    found = await client.receive()
    assert bytes(found.body).count(bomb) == 1


# ---- batches


@on_broker
async def test_batch_is_stored_as_messages_with_the_shared_properties(broker):
    client = await broker.connect()
    await client.put("before")
    request = batch_request("a", "b", "c", each={"TAGS": "A"}, properties={"shared": "yes"})
    fields = (await client.call(request)).ext_fields
    assert fields["queueOffset"] == "1"
    found = await client.pull(1)
    assert found.bodies == ["a", "b", "c"]
    assert [message.queue_offset for message in found.messages] == [1, 2, 3]
    places = [decode_offset_message_id(each)[1] for each in fields["msgId"].split(",")]
    assert places == [message.physical_offset for message in found.messages]
    for message in found.messages:
        assert message.tags == "A"
        assert message.properties["shared"] == "yes"
        assert message.properties["CLUSTER"] == "DefaultCluster"


@on_broker(mappedFileSizeCommitLog=16 << 20)
async def test_batch_send_answer_has_a_limited_number_of_message_ids(broker):
    client = await broker.connect()
    answer = await client.call(batch_request(*("x" for _ in range(12_000))))
    assert answer.code == 0
    assert len(answer.ext_fields["msgId"].split(",")) == IDS_MAX
    assert broker.store.queue_offsets("T", 0) == (0, 12_000)


@pytest.mark.parametrize(
    ("request_of", "code"),
    [
        (lambda: batch_request("a", "b", properties={"DELAY": "1"}), 13),
        (lambda: batch_request("a", "b", topic="%RETRY%G"), 13),
        (lambda: batch_request("a", properties={"TIMER_DELAY_MS": "6000"}), 13),
        (lambda: batch_request("a", each={"TIMER_DELIVER_MS": "1893456000000"}), 13),
        (lambda: batch_request("a", each={"DELAY": "1"}), 13),
        (batch_request, 13),
        (lambda: batch_request("a", ""), 13),
        (lambda: batch_request("a", "x" * ((1 << 19) + 1)), 13),
        (lambda: send_request(b"no batch", code=RequestCode.SEND_BATCH_MESSAGE, batch=True), 1),
    ],
    ids=[
        *("delayed", "to a retry topic", "with a timer", "one with a timer", "one delayed"),
        *("of nothing", "with an empty body", "too long", "no batch"),
    ],
)
@on_broker
async def test_invalid_batch_is_refused_as_a_whole(broker, request_of, code):
    broker.make_topic("T")
    client = await broker.connect()
    assert (await client.call(request_of())).code == code
    assert (await client.pull(0)).bodies == []


@on_broker(mappedFileSizeCommitLog=65_536, maxMessageSize=65_000)
async def test_batch_that_does_not_fit_goes_to_the_next_log_file(broker):
    client = await broker.connect()
    await client.put("x" * 30_000)
    assert (await client.call(batch_request(*["y" * 9_000] * 5))).code == 0
    # too large for a log file
    assert (await client.call(batch_request(*["z" * 9_000] * 8))).code == 13
    found = [each for at in range(6) for each in (await client.pull(at, count=1)).bodies]
    assert [each[0] for each in found] == list("xyyyyy")


# ---- busy brokers, and disks


@on_broker(maxInFlightBytes=100_000)
async def test_broker_with_too_many_bytes_in_flight_answers_busy(broker):
    many, client = await broker.connect(), await broker.connect()
    await client.put("before")
    server = broker.controller.server
    # a batch has to wait for its permit
    others = server.concurrency_limit.acquire(320, 1 << 22, b"")
    many.send(batch_request(*range(5_000), queue_id=1))
    await broker.until(lambda: server.is_overloaded)
    answer = await client.call(send_request("busy"))
    assert answer.code == 2
    assert "system busy" in answer.remark
    assert (await client.pull(0)).bodies == ["before"]  # pulls are still served
    others.release()
    assert (await many.receive()).code == 0  # its own bytes do not count against it
    await broker.until(lambda: not server.is_overloaded)
    await client.put("after")


def test_failed_disk_refuses_sends_and_serves_stored_messages(tmp_path):
    disk = FaultyDisk(LocalDisk())

    async def story(broker):
        client = await broker.connect()
        await client.put("before")
        writes = frozenset(["write"])
        torn = Fault(len(disk.operations), kinds=writes, prefix=50)
        disk.plan = [torn, Fault(persistent=True, kinds=writes)]
        for _ in range(2):
            answer = await client.call(send_request("lost"))
            assert answer.code == 14
        disk.plan = []
        # the result of the earlier write is unknown
        assert (await client.call(send_request("still"))).code == 14
        assert (await client.pull(0)).bodies == ["before"]

    tell(story, tmp_path, disk)


def test_full_disk_refuses_messages_until_there_is_room(tmp_path):
    disk = FaultyDisk(LocalDisk())

    async def story(broker):
        client = await broker.connect()
        await client.put("before")
        disk.capacity = disk.used
        answer = await client.call(send_request(bytes(10_000)))
        assert answer.code == 14
        assert (await client.pull(0)).bodies == ["before"]
        disk.capacity = None
        await client.put("after")
        assert pulled(await client.call(pull_request(1))).bodies == ["after"]

    tell(story, tmp_path, disk)
