"""Slow clients and those that never read have a bounded cost, and do not affect other clients."""

import asyncio

from support.brokers.in_process import on_broker, run, tell
from support.brokers.processes import BrokerProcess
from support.clients.remoting_clients import BrokerClients, pull_request, pulled, send_request

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from rmq_spark.wire.chunk.sized_chunk import decode_sized_chunk
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message.record import decode_records
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.server.client_connection import UNSENT_BYTES_MAX
from rocketpoll.broker.server.limits import ConcurrencyLimit

MIB = 1 << 20
LARGE = {
    "mappedFileSizeCommitLog": str(64 * MIB),
    "mappedFileSizeConsumeQueue": str(6_000_000),
    "maxMessageSize": str(4 * MIB),
}


def chunk_request(queue_offset=0, **more):
    """Return a pull of as much as possible."""
    return pull_request(
        queue_offset, code=RequestCode.PULL_CHUNK, count=1 << 20, bytes_max=8 * MIB, **more
    )


async def fill(client, count, size):
    """Fill two queues whose messages alternate in the log, so that a pull gathers pieces."""
    for start in range(0, count, 200):
        for number in range(start, start + 200):
            for queue_id in (0, 1):
                client.send(send_request("x" * size, queue_id=queue_id, opaque=number))
        for _ in range(400):
            assert (await client.receive()).code == 0


async def never_read(clients, count):
    """Start clients that request megabytes, and read nothing."""
    for _ in range(count):
        client = await clients.connect(receive_buffer=4_096)
        await client.agree()
        client.send(chunk_request())


def test_hundred_non_reading_clients_do_not_fill_the_memory(tmp_path):
    async def story(broker):
        async with BrokerClients(broker.port) as clients:
            producer = await clients.connect()
            await fill(producer, 4_200, 2_000)
            await never_read(clients, 100)
            await producer.put("nobody is refused")
            assert broker.rss_bytes() < 256 * MIB

    with BrokerProcess(
        tmp_path, flushDiskType="ASYNC_FLUSH", maxAcceptsPerSecond="10000", **LARGE
    ) as broker:
        run(story(broker))


@on_broker(maxUnreadBytes=24 * MIB, **LARGE)
async def test_reader_beside_clients_that_never_read_gets_everything(broker):
    producer, reader = await broker.connect(), await broker.connect()
    await fill(producer, 4_200, 2_000)
    await never_read(broker.clients, 20)
    await broker.until(lambda: broker.controller.server.unread_bytes)
    await reader.agree()
    queue_offset, answers = 0, 0
    while queue_offset < 4_200:
        answer = await reader.call(chunk_request(queue_offset))
        sizes, records = decode_sized_chunk(answer.body)
        assert [each.queue_offset for each in decode_records(records)] == list(
            range(queue_offset, queue_offset + len(sizes))
        )
        queue_offset += len(sizes)
        answers += 1
        await producer.put(answers, topic="Other")
    assert answers > 2
    # the kernel buffers some for each, which the broker measures once a second
    assert broker.controller.server.unread_bytes < 24 * MIB + 20 * UNSENT_BYTES_MAX


def test_slow_reader_stays_connected_and_a_non_reading_client_is_closed(tmp_path, caplog):
    async def story(broker):
        slow, dead = [await broker.connect(receive_buffer=4_096) for _ in range(2)]
        producer = await broker.connect()
        server = broker.controller.server
        await producer.put(*["x" * MIB] * 8)
        for client in (slow, dead):
            client.send(b"".join(pull_request(n, count=1, opaque=n).encode() for n in range(8)))
        await broker.until(lambda: server.unread_bytes)
        for number in range(8):
            assert pulled(await slow.receive()).opaque == number
            broker.move(4)
            await asyncio.sleep(0.01)
        broker.move(31)  # the kernel may have accepted a little for the client that reads nothing
        await broker.until(lambda: server.connections == 2)
        await slow.put("still there")

    tell(story, tmp_path, slowReaderTimeoutMills=30_000, **LARGE)
    assert caplog.text.count("it does not read its responses") == 1


@on_broker(**LARGE)
async def test_client_that_stops_reading_during_a_heartbeat_blocks_no_other(broker):
    producer, other = await broker.connect(), await broker.connect()
    await producer.put("the topic is there")
    server = broker.controller.server
    server.concurrency_limit = ConcurrencyLimit(1)  # one request at a time
    place = server.concurrency_limit.acquire(RequestCode.HEART_BEAT, 0, b"")
    still = await broker.connect(receive_buffer=4_096)
    still.send(
        b"".join(pull_request(1, suspend_ms=60_000, group=f"G{n}").encode() for n in range(8))
    )
    await broker.held(8)
    still.send(heartbeat("still"))
    await broker.until(lambda: any(each._permit is not None for each in server._connections))
    await producer.put("x" * MIB)
    await broker.until(lambda: any(each.is_congested for each in server._connections))
    place.release()
    await other.heartbeat("G", "T")
    consumers = broker.controller.processors.consumers
    assert len(consumers.group("H").clients) == 1


def heartbeat(client_id):
    data = (ConsumerData(group_name="H", subscription_data_set=(SubscriptionData(topic="T"),)),)
    body = encode_body(HeartbeatData(client_id=client_id, consumer_data_set=data))
    return RemotingCommand(RequestCode.HEART_BEAT, opaque=9, body=body)


def test_clients_that_read_nothing_are_closed_at_once_over_max_unread_bytes(tmp_path, caplog):
    async def story(broker):
        producer = await broker.connect()
        await producer.put(*["x" * MIB] * 8)
        dead = [await broker.connect(receive_buffer=4_096) for _ in range(3)]
        for client in dead:
            client.send(b"".join(pull_request(n, count=1).encode() for n in range(8)))
        server = broker.controller.server
        await broker.until(lambda: server.unread_bytes > 2 * MIB)
        broker.move(2)
        await broker.until(lambda: server.unread_bytes <= 2 * MIB)
        assert 2 <= server.connections < 4

    tell(story, tmp_path, maxUnreadBytes=2 * MIB, **LARGE)
    assert "(maxUnreadBytes)" in caplog.text
