"""Each limit setting works on a whole broker, and does not affect other clients."""

import asyncio
import logging

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

from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.clients import LockBatchRequestBody, LockBatchResponseBody
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.message.record import decode_record
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.settings.settings import KEYS
from rocketpoll.broker.state.members.queue_locks import LOCK_BYTES_MAX, NON_MEMBER_SHARE


@on_broker(mappedFileSizeCommitLog=64 << 20)
async def test_batch_being_split_counts_as_bytes_in_flight(broker):
    client = await broker.connect()
    await client.put("the topic is there now")
    request = batch_request(*range(15_000))
    client.send(request)
    server, batches = broker.controller.server, broker.controller.processors.sends._batches
    await broker.until(
        lambda: batches._splitting_bytes and server.in_flight_bytes >= len(request.body)
    )
    assert (await client.receive()).code == 0
    await broker.until(lambda: not server.in_flight_bytes)
    assert batches._splitting_bytes == 0


@pytest.mark.parametrize(
    "name", ["maxConnections", "maxConnectionsPerAddress", "maxAcceptsPerSecond"]
)
def test_connection_limits_refuse_further_clients(tmp_path, name, caplog):
    async def story(broker):
        clients = [await broker.connect() for _ in range(3)]
        for client in clients:
            await client.put("a")
        assert await (await broker.connect()).closed() == b""
        await clients[0].put("b")
        if name == "maxAcceptsPerSecond":
            broker.move(1)
        else:
            clients[2].abort()
            await broker.until(lambda: broker.controller.server.connections == 2)
        await (await broker.connect()).put("c")

    tell(story, tmp_path, **{name: 3})
    assert f"refused new clients: {name} 1;" in caplog.text


def test_max_frame_bytes(tmp_path, caplog):
    async def story(broker):
        client = await broker.connect()
        await client.put("x" * 3_000)
        client.send(send_request("x" * 5_000))
        assert await client.closed() == b""

    tell(story, tmp_path, maxFrameBytes=4_096, maxMessageSize=4_096)
    assert "needed 4 to 4092" in caplog.text


def test_max_header_bytes(tmp_path, caplog):
    async def story(broker):
        client = await broker.connect()
        await client.put("a", properties={"p": "x" * 3_000})
        client.send(send_request("a", properties={"p": "x" * 4_096}))
        assert await client.closed() == b""

    tell(story, tmp_path, maxHeaderBytes=4_096)
    assert "at most 4096" in caplog.text


@on_broker(maxJsonBodyBytes=1_024)
async def test_max_json_body_bytes(broker):
    client = await broker.connect()
    await client.put("x" * 5_000)
    await client.heartbeat("G", "T")
    with pytest.raises(AssertionError, match="maxJsonBodyBytes"):
        await client.heartbeat("G", *(f"T{number}" for number in range(100)))
    await client.heartbeat("G", "T")


@on_broker(maxIndexHops=5)
async def test_max_index_hops(broker):
    client = await broker.connect()
    await client.put(*range(30), properties={"KEYS": "k"})
    found = broker.store.query_message("T", "k", 64, 0, 1 << 62)
    assert [decode_record(record).body for record in found] == [
        b"29",
        b"28",
        b"27",
        b"26",
        b"25",
    ]
    await client.put("hidden", properties={"KEYS": "Aa"})
    await client.put(*range(6), properties={"KEYS": "BB"})  # a key with the same hash
    span = {"maxNum": 64, "beginTimestamp": 0, "endTimestamp": 1 << 62}
    fields = {name: str(value) for name, value in {"topic": "T", "key": "Aa", **span}.items()}
    query = RemotingCommand(RequestCode.QUERY_MESSAGE, opaque=1, ext_fields=fields)
    answer = await client.call(query)
    assert answer.code == 1  # and not 22, which means that there is none
    assert "older ones were not looked at" in answer.remark
    assert "maxIndexHops" in answer.remark


@on_broker(maxMessageSize=1_000)
async def test_max_message_size(broker):
    client = await broker.connect()
    assert (await client.call(send_request("x" * 1_000))).code == 0
    assert (await client.call(send_request("x" * 1_001))).code == 13


@pytest.mark.parametrize(("size", "is_said"), [(65_000, False), (65_536, True)])
def test_broker_warns_if_max_message_size_exceeds_the_log_file(tmp_path, size, is_said, caplog):
    async def story(broker):
        client = await broker.connect()
        refused = await client.call(send_request("x" * 65_400))
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        await client.put("x" * 64_900)

    tell(story, tmp_path, mappedFileSizeCommitLog=65_536, maxMessageSize=size)
    said = "maxMessageSize=65536 is too large for mappedFileSizeCommitLog="
    assert (said in caplog.text) is is_said


def test_largest_allowed_message_is_pulled_with_all_its_properties(
    tmp_path,
):
    """The stored record is longer than the sent message, and no client reads a longer frame."""
    _, most = KEYS["maxMessageSize"].setting.value_type.bounds

    async def story(broker):
        client = await broker.connect()
        properties = {"large": "p" * 32_000}
        assert (await client.call(send_request(bytes(most), properties=properties))).code == 0
        client.send(pull_request(0, suspend_ms=5_000))
        (message,) = pulled(await client.receive()).messages
        assert (len(message.body), message.properties["large"]) == (most, properties["large"])

    tell(story, tmp_path, maxMessageSize=most, mappedFileSizeCommitLog=32 << 20)


TIMES = {
    # behaviour of a client, the setting that closes its connection, and the logged reason
    "says nothing": (lambda _: None, "firstFrameTimeoutMills", "it sent no request"),
    "does not finish": (
        lambda client: client.send(send_request("a").encode() + b"\0\0"),
        "partialFrameTimeoutMills",
        "its request is incomplete",
    ),
    "has nothing to do": (
        lambda client: client.send(send_request("a")),
        "serverChannelMaxIdleTimeMills",
        "it has been idle",
    ),
}


@pytest.mark.parametrize(("act", "name", "why"), TIMES.values(), ids=TIMES)
def test_idle_and_partial_frame_timeouts_close_clients(
    tmp_path, act, name, why, caplog, monkeypatch
):
    monkeypatch.setattr("rocketpoll.broker.server.server._SWEEPS_PER_IDLE_CHECK", 1)

    async def story(broker):
        client = await broker.connect()
        act(client)
        await asyncio.sleep(0.02)
        broker.move(70)
        await asyncio.sleep(0.02)
        assert broker.controller.server.connections == 1
        broker.move(31)
        await broker.until(lambda: broker.controller.server.connections == 0)

    caplog.set_level(logging.INFO)
    tell(story, tmp_path, **{name: 100_000})
    assert why in caplog.text


@pytest.mark.parametrize(
    ("name", "high"), [("maxWriteBufferBytes", 50_000), ("maxWriteBufferBytes", 500_000)]
)
def test_max_write_buffer_bytes(tmp_path, name, high):
    async def story(broker):
        good, slow = await broker.connect(), await broker.connect(receive_buffer=4_096)
        await good.put("x" * 40_000)
        slow.send(b"".join(pull_request(0, opaque=number).encode() for number in range(400)))
        server = broker.controller.server
        await broker.until(lambda: server.unread_bytes > high)  # in one turn or several
        await good.put("another")
        assert high < server.unread_bytes < high + 100_000

    tell(story, tmp_path, **{name: high})


def test_slow_reader_timeout_mills(tmp_path, caplog):
    async def story(broker):
        good, slow = await broker.connect(), await broker.connect(receive_buffer=4_096)
        await good.put("x" * 40_000)
        slow.send(b"".join(pull_request(0).encode() for _ in range(400)))
        server = broker.controller.server
        await broker.until(lambda: server.unread_bytes)
        broker.move(4)
        await good.put("b")
        assert server.connections == 2
        broker.move(3)
        await broker.until(lambda: server.connections == 1)

    tell(story, tmp_path, slowReaderTimeoutMills=5_000, maxWriteBufferBytes=50_000)
    assert "does not read" in caplog.text


@on_broker(maxInFlightBytes=100_000)
async def test_max_in_flight_bytes(broker):
    halves = [await broker.connect() for _ in range(3)]
    client = await broker.connect()
    for half in halves:
        half.send(send_request(bytes(40_000)).encode()[:-1])
    server = broker.controller.server
    await broker.until(lambda: server.in_flight_bytes > 110_000)
    await client.put("a whole one")  # partial requests do not block it
    more = [await broker.connect() for _ in range(4)]
    for half in more:
        half.send(send_request(bytes(40_000)).encode()[:-1])
    assert await halves[0].closed() == b""
    await client.put("another")
    for half in halves[1:]:
        half.abort()
    await broker.until(lambda: server.connections == 5)
    for half in more:
        half.send(send_request(bytes(40_000)).encode()[-1:])
        assert (await half.receive()).code == 0


def test_partial_requests_of_one_client_do_not_block_small_sends(tmp_path):
    """Runs as a process with its usual loop; returns the log lines about the clients."""

    async def story(broker):
        async with BrokerClients(broker.port) as clients:
            honest = await clients.connect()
            frame = send_request("x" * 40_000).encode()
            halves = [await clients.connect() for _ in range(100)]
            for half in halves:  # 2 MB where 400 kB are allowed
                half.send(frame[: len(frame) // 2])
            for half in halves[:-50]:
                if half is not halves[9]:  # the first beyond the limit may continue
                    assert await half.closed() == b""
            for number in range(20):
                await honest.put(number)

    with BrokerProcess(tmp_path, maxInFlightBytes="200000") as broker:
        asyncio.run(story(broker))
        assert broker.stop() == 0
        told = [line for line in broker.log() if "partial requests" in line]
    assert len(told) <= 2
    assert "closing the oldest connections of the address that holds most" in told[0]


FILTERS = {
    "maxFilterExpressionBytes": (30, "a = 1", "a = '" + "x" * 30 + "'"),
    "maxFilterDepth": (3, "a = 1", "((((a = 1))))"),
    "maxFilterNodes": (4, "a = 1", "a = 1 AND b = 2 AND c = 3"),
}


@pytest.mark.parametrize("name", FILTERS)
def test_sql_filter_limits_refuse_expensive_expressions(tmp_path, name):
    limit, cheap, dear = FILTERS[name]

    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        assert (await client.pull(0, subscription=cheap, expression_type="SQL92")).code == 19
        assert (
            await client.call(pull_request(0, subscription=dear, expression_type="SQL92"))
        ).code == 23

    tell(story, tmp_path, **{name: limit})


def test_send_thread_pool_queue_capacity(tmp_path):
    disk = FaultyDisk(slow="commitlog")

    async def story(broker):
        broker.make_topic("T")
        waiting, client = await broker.connect(), await broker.connect()
        disk.keep_waiting()
        waiting.send(b"".join(send_request(number).encode() for number in range(3)))
        await broker.until(lambda: broker.controller.processors.acknowledger.queue().size == 3)
        answer = await client.call(send_request("one too many"))
        assert (answer.code, "3 sends wait for the disk" in answer.remark) == (2, True)
        disk.let_go()
        assert [(await waiting.receive()).code for _ in range(3)] == [0, 0, 0]
        await client.put("now")
        assert (await client.pull(0)).bodies == ["0", "1", "2", "now"]

    tell(story, tmp_path, disk, flushDiskType="SYNC_FLUSH", sendThreadPoolQueueCapacity=3)


def test_os_page_cache_busy_time_out_mills(tmp_path):
    disk = FaultyDisk(slow="commitlog")

    async def story(broker):
        broker.make_topic("T")
        waiting, client = await broker.connect(), await broker.connect()
        disk.keep_waiting()
        waiting.send(send_request("a"))
        await broker.until(lambda: broker.controller.processors.acknowledger.queue().size == 1)
        broker.move(0.5)
        answer = await client.call(send_request("b"))
        assert (answer.code, "[PCBUSY_CLEAN_QUEUE]" in answer.remark) == (2, True)
        disk.let_go()
        assert (await waiting.receive()).code == 0
        await client.put("c")

    tell(story, tmp_path, disk, flushDiskType="SYNC_FLUSH", osPageCacheBusyTimeOutMills=400)


def test_sync_flush_timeout(tmp_path):
    disk = FaultyDisk(slow="commitlog")

    async def story(broker):
        broker.make_topic("T")
        client = await broker.connect()
        disk.keep_waiting()
        client.send(send_request("a"))
        await broker.until(lambda: broker.controller.processors.acknowledger.queue().size == 1)
        broker.move(2.1)
        assert (await client.receive()).code == 10
        disk.let_go()

    tell(story, tmp_path, disk, flushDiskType="SYNC_FLUSH", syncFlushTimeout=2_000)


@on_broker(maxHoldsPerConnectionAndQueue=2)
async def test_max_holds_per_connection_and_queue(broker):
    broker.make_topic("T")
    client = await broker.connect()
    client.send(pull_request(0, suspend_ms=60_000, opaque=1))
    client.send(pull_request(0, suspend_ms=60_000, opaque=2))
    client.send(pull_request(0, suspend_ms=60_000, opaque=3))
    await broker.until(lambda: broker.holds.deferred_total)
    broker.move(1)
    assert pulled(await client.receive()).opaque == 1  # the pull with the shortest remaining time
    assert broker.holds.hold_count == 2


@on_broker(maxTopics=1)
async def test_max_topics(broker):
    client = await broker.connect()
    await client.put("a", topic="T10")
    refused = await client.call(send_request("a", topic="T11"))
    assert (refused.code, "(maxTopics=1)" in refused.remark) == (1, True)
    await client.put("b", topic="T10")
    await client.heartbeat("G", "T10")  # its retry topic does not count


def test_max_queues(tmp_path):
    """Operators and senders create queues."""
    its_own = 1_080

    async def story(broker):
        client = await broker.connect()
        header = {"topic": "T", "readQueueNums": 4_000, "writeQueueNums": 4_000, "perm": 6}
        header |= {"topicFilterType": "SINGLE_TAG", "defaultTopic": "TBW102", "order": False}
        create = RemotingCommand(
            17, ext_fields={name: str(value) for name, value in header.items()}
        )
        refused = await client.call(create)
        assert (refused.code, f"(maxQueues={its_own + 4})" in refused.remark) == (1, True)
        await client.put("a", topic="T0")
        refused = await client.call(send_request("a", topic="T1"))
        assert (refused.code, f"(maxQueues={its_own + 4})" in refused.remark) == (1, True)
        await client.put("b", topic="T0")

    tell(story, tmp_path, maxQueues=its_own + 4)


@on_broker(maxGroups=8)
async def test_max_groups(broker):
    broker.make_topic("T")
    client = await broker.connect()
    await client.pull(0, group="G8")
    for request in (pull_request(0, group="G9"), send_request("a", topic="%RETRY%G9")):
        refused = await client.call(request)
        assert (refused.code, "(maxGroups=8)" in refused.remark) == (1, True)
    assert (await client.pull(0, group="G8")).code == 19


@on_broker(maxGroupsPerConnection=2)
async def test_max_groups_per_connection(broker):
    client = await broker.connect()
    await client.heartbeat("G1", "T")
    await client.heartbeat("G2", "T")
    with pytest.raises(AssertionError, match="in 3 groups"):
        await client.heartbeat("G3", "T")


@on_broker(maxGroupMembers=3)
async def test_max_group_members(broker):
    first, second = await broker.connect(), await broker.connect()
    await first.heartbeat("G1", "T")
    await first.heartbeat("G2", "T")
    await second.heartbeat("G1", "T")
    with pytest.raises(AssertionError, match=r"3 members of groups already.*\(maxGroupMembers=3\)"):
        await second.heartbeat("G3", "T")
    await second.heartbeat("G1", "T", "U")
    first.abort()
    await broker.until(lambda: broker.controller.server.connections == 1)
    await second.heartbeat("G3", "T")


@on_broker(maxSubscriptionBytes=16 * 16_384)
async def test_max_subscription_bytes(broker):
    client, other = await broker.connect(), await broker.connect()
    many = tuple(f"T{number}" for number in range(8))
    await client.heartbeat("G1", *many)
    with pytest.raises(
        AssertionError, match=r"those of one client may take 16384 \(maxSubscriptionBytes="
    ):
        await client.heartbeat("G2", *many)
    await client.heartbeat("G1", *many)  # existing subscriptions continue
    await other.heartbeat("G2", *many)
    consumers = broker.controller.processors.consumers
    assert [len(consumers.group(name).subscriptions) for name in ("G1", "G2")] == [8, 8]


@on_broker(maxConsumerOffsets=5)
async def test_max_consumer_offsets(broker):
    broker.make_topic("T", queues=8)
    client = await broker.connect()

    async def commit(queue_id, commit_offset, group="G"):
        fields = {"consumerGroup": group, "topic": "T", "queueId": str(queue_id)}
        fields["commitOffset"] = str(commit_offset)
        return await client.call(
            RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields)
        )

    for queue_id in range(5):
        assert (await commit(queue_id, 1)).code == 0
    pull = pull_request(0, queue_id=5, commit_offset=1)
    for refused in (await commit(5, 1), await commit(0, 1, "H"), await client.call(pull)):
        assert (refused.code, "(maxConsumerOffsets=5)" in refused.remark) == (1, True)
    assert (await commit(4, 2)).code == 0  # existing offsets can still be committed
    assert await client.committed(queue_id=4) == 2
    broker.controller.tables.offsets.discard_group("G")
    assert (await commit(0, 1, "H")).code == 0


@pytest.mark.parametrize(
    ("name", "code"), [("autoCreateSubscriptionGroup", 26), ("autoCreateTopicEnable", 17)]
)
def test_topic_and_group_auto_creation_can_be_disabled(tmp_path, name, code):
    async def story(broker):
        client = await broker.connect()
        answer = await client.call(send_request("a") if code == 17 else pull_request(0))
        assert answer.code == code

    tell(story, tmp_path, **{name: False})


def test_queue_locks_of_one_client_are_limited(tmp_path):
    queues = frozenset(MessageQueue("T", "broker-a", number) for number in range(2_048))

    async def locked(client, group, client_id):
        body = LockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=queues)
        answer = await client.call(
            RemotingCommand(RequestCode.LOCK_BATCH_MQ, body=encode_body(body))
        )
        return len(decode_body(LockBatchResponseBody, answer.body).lock_ok_mq_set)

    async def story(broker):
        greedy = await broker.connect()
        await greedy.put("the topic is there now", topic="T")
        broker.controller.tables.topics.add_queues("T", 2_048)
        locks = broker.controller.processors.locks
        for number in range(20):
            await locked(greedy, f"{number}{'x' * 200}", "c" * 1_000)
        assert locks.bytes <= LOCK_BYTES_MAX // NON_MEMBER_SHARE
        member = await broker.connect()  # a client that sends nothing for ten seconds is closed
        await member.heartbeat("G", "T")
        assert await locked(member, "G", "client") == 2_048
        greedy.abort()
        await broker.until(lambda: len(locks) == 2_048)
        member.abort()
        await broker.until(lambda: not broker.controller.processors.consumers.group("G"))
        again = await broker.connect()
        assert await locked(again, "G", "another") == 0
        assert await locked(again, "G", "client") == 2_048

    tell(story, tmp_path, maxJsonBodyBytes=1 << 20)


@on_broker(maxUnreadBytes=800_000)
async def test_large_lists_are_sent_up_to_half_of_max_unread_bytes(broker):
    client = await broker.connect()
    groups = broker.controller.tables.groups

    async def listed(number):
        while len(groups.groups) < number:
            name = f"g{len(groups.groups)}"
            groups.put(SubscriptionGroupConfig(group_name=name, attributes={"k": "v" * 2_000}))
        return await client.call(RemotingCommand(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))

    answer = await listed(100)
    assert (answer.code, len(answer.body) > 200_000) == (0, True)
    answer = await listed(200)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "over 400000, half of maxUnreadBytes" in answer.remark
    client.send(
        RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"G"}')
    )
    assert (await client.receive()).code == 0
