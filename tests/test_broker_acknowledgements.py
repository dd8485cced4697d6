"""With SYNC_FLUSH, sends of all kinds are acknowledged by their flush, and become visible together.

A send that does not wait for the disk is answered earlier; its message is flushed as well, because
otherwise it would stay invisible until the next send.
"""

import itertools
import re

import pytest
from support.brokers.in_process import on_broker, tell
from support.clients.remoting_clients import batch_request, pull_request, pulled, send_request
from support.disks.faulty_disk import FaultyDisk
from support.stores.small_store import encoded, message

from rmq_spark.wire.bodies import decode_body
from rmq_spark.wire.bodies.operators import KVTable
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.members import (
    AppendChunkRequestHeader,
    ConsumerSendMsgBackRequestHeader,
)
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand

pytestmark = pytest.mark.usefixtures("on_each_loop")

SYNC = {"flushDiskType": "SYNC_FLUSH", "messageDelayLevel": "1s"}
PATIENT = {"syncFlushTimeout": 60_000, "osPageCacheBusyTimeOutMills": 60_000}


def chunk_request(body, opaque):
    record = encoded(message(body))
    header = AppendChunkRequestHeader("P", "T", 0, "TBW102")
    return RemotingCommand(
        RequestCode.APPEND_CHUNK,
        opaque=opaque,
        ext_fields=HEADERS[RequestCode.APPEND_CHUNK].request.encode(header),
        body=(1).to_bytes(4, "big") + len(record).to_bytes(4, "big") + record,
    )


def back_request(_, opaque):
    """Return the request that sends the first message of the log back."""
    code = RequestCode.CONSUMER_SEND_MSG_BACK
    header = ConsumerSendMsgBackRequestHeader(0, "G", 0)
    return RemotingCommand(code, opaque=opaque, ext_fields=HEADERS[code].request.encode(header))


KINDS = {
    "one": lambda body, opaque: send_request(body, opaque=opaque),
    "delayed": lambda body, opaque: send_request(body, opaque=opaque, properties={"DELAY": "1"}),
    "batch": lambda body, opaque: batch_request(body, opaque=opaque),
    "chunk": chunk_request,
    "given back": back_request,
}


@pytest.mark.parametrize("kinds", list(itertools.product(KINDS, repeat=2)), ids=" and ".join)
@on_broker(**SYNC, **PATIENT)
async def test_sends_of_one_turn_are_answered_whatever_is_flushed_between_them(broker, kinds):
    broker.make_topic("T")
    client = await broker.connect()
    await client.agree()
    await client.put("first")
    await client.call(back_request(None, 1))  # creates the group's topic
    store = broker.store
    flushed = _flushes_between(store)
    client.send(b"".join(KINDS[kind](kind, 10 + at).encode() for at, kind in enumerate(kinds)))
    answers = {(each.opaque, each.code) for each in [await client.receive() for _ in kinds]}
    assert answers == {(10, 0), (11, 0)}
    await client.ask(0)
    assert len(flushed) <= len(kinds) + 1


def _flushes_between(store):
    """Flush the log before each append, as another send may; count the requested flushes."""
    asked = []
    flushed, log = store.flush_future, store._log

    def count(end_offset):
        asked.append(end_offset)
        return flushed(end_offset)

    def behind_a_flush(append):
        def appended(*given):
            flushed(log.written_offset).result(10)
            return append(*given)

        return appended

    store.flush_future = count
    for name in ("append", "append_many"):
        setattr(log, name, behind_a_flush(getattr(log, name)))
    return asked


HASTY = {"WAIT": "false"}
NOT_WAITING = {
    "one": lambda: send_request("a", properties=HASTY),
    "one, the old way": lambda: send_request("a", properties=HASTY, code=RequestCode.SEND_MESSAGE),
    "a batch": lambda: batch_request("a", properties=HASTY),
    "delayed": lambda: send_request("a", properties={**HASTY, "DELAY": "1"}),
}


@pytest.mark.parametrize("request_of", NOT_WAITING.values(), ids=NOT_WAITING)
def test_send_without_wait_store_is_answered_before_and_visible_after_the_flush(
    tmp_path, request_of
):
    disk = FaultyDisk(slow="commitlog")

    async def story(broker):
        broker.make_topic("T")
        producer, consumer = await broker.connect(), await broker.connect()
        consumer.send(pull_request(0, suspend_ms=60_000))
        await broker.held(1)
        before = disk.flushes
        disk.keep_waiting()
        assert (await producer.call(request_of())).code == 0
        await broker.until(lambda: disk.flushes > before)  # without a waiting send
        assert broker.controller.processors.acknowledger.queue().size == 0
        await producer.ask(0)
        assert broker.holds.hold_count == 1
        disk.let_go()
        await _delays_over(broker)
        assert pulled(await consumer.receive()).bodies == ["a"]

    tell(story, tmp_path, disk, **SYNC)


def test_timed_out_send_becomes_visible_without_further_sends(tmp_path):
    """The send arrived during a flush, and was answered with a timeout."""
    disk = FaultyDisk(slow="commitlog")

    async def story(broker):
        broker.make_topic("T")
        producers = [await broker.connect() for _ in range(2)]
        consumer = await broker.connect()
        consumer.send(pull_request(0, suspend_ms=60_000))
        await broker.held(1)
        disk.keep_waiting()
        for number, producer in enumerate(producers):
            producer.send(send_request(str(number), opaque=number))
            await broker.until(
                lambda sent=number + 1: (
                    disk.is_waiting.is_set()
                    and broker.controller.processors.acknowledger.queue().size == sent
                )
            )
        broker.move(5.1)
        assert [(await producer.receive()).code for producer in producers] == [10, 10]
        disk.let_go()
        seen = pulled(await consumer.receive()).bodies
        if seen == ["0"]:  # otherwise the second flush had ended before the answer
            consumer.send(pull_request(1, suspend_ms=60_000))
            seen += pulled(await consumer.receive()).bodies
        assert seen == ["0", "1"]

    tell(story, tmp_path, disk, **SYNC)


async def _delays_over(broker):
    """Wait until all messages are dispatched, and advance the clock by a delay."""
    await broker.until(
        lambda: broker.store.state().reput_from_offset == broker.store.state().written_offset
    )
    broker.move(1.1)


@pytest.mark.parametrize(
    "properties", [{}, HASTY, {"DELAY": "1"}, {**HASTY, "DELAY": "1"}], ids=str
)
@on_broker(**SYNC)
async def test_oneway_send_becomes_visible_without_further_sends(broker, properties):
    broker.make_topic("T")
    producer, consumer = await broker.connect(), await broker.connect()
    consumer.send(pull_request(0, suspend_ms=60_000))
    await broker.held(1)
    producer.send(send_request("a", properties=properties, flag=2))
    await broker.until(lambda: broker.store.state().written_offset)
    await _delays_over(broker)
    assert pulled(await consumer.receive()).bodies == ["a"]


@pytest.mark.parametrize("flush_disk_type", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_flush_wait_time_is_recorded_for_each_kind_of_send(tmp_path, flush_disk_type):
    async def story(broker):
        client = await broker.connect()
        await client.agree()
        await client.put("first")
        kinds = [kind for kind in KINDS if kind != "given back"]
        for kind in kinds:
            assert (await client.call(KINDS[kind](kind, 7))).code == 0
        await client.put("hasty", properties=HASTY)
        info = decode_body(
            KVTable, (await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body
        ).table
        counts = re.findall(r"\]:(\d+)", info["putMessageDistributeTime"])
        assert sum(map(int, counts)) == len(kinds) + 2

    tell(story, tmp_path, **{**SYNC, **PATIENT, "flushDiskType": flush_disk_type})


@on_broker(**SYNC)
async def test_messages_of_a_batch_keep_what_they_say_of_waiting_as_with_rocketmq(broker):
    client = await broker.connect()
    for wait in ("false", "true"):
        named = {"WAIT": wait}
        answer = await client.call(
            batch_request("a", "b", properties=named, each={**named, "A": "b"})
        )
        assert answer.code == 0
    await client.put("c", properties=HASTY)
    await broker.until(lambda: broker.store.queue_offsets("T", 0).next == 5)
    messages = (await client.pull(0)).messages
    assert [each.properties.get("WAIT") for each in messages] == [
        *["false"] * 2,
        *["true"] * 2,
        None,
    ]
    assert {each.properties.get("A") for each in messages[:4]} == {"b"}
