"""A consumer's reply passes through a whole broker to the requesting producer."""

import asyncio

import pytest
from support.brokers.in_process import on_broker, tell
from support.clients.remoting_clients import send_request

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import HeartbeatData, ProducerData
from rmq_spark.wire.codes import CommandFlag, RequestCode
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.properties import decode_properties
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.processor.clients.pending_replies import BYTES_MAX, CLIENT_SHARE

ASKER = "10.0.0.1@asker"
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
PUSHED = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
CODES = [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2]


async def asking(broker, client_id=ASKER):
    """Return a client that accepts replies."""
    client = await broker.connect()
    heartbeat = HeartbeatData(
        client_id=client_id, producer_data_set=(ProducerData(group_name="P"),)
    )
    assert (
        await client.call(RemotingCommand(RequestCode.HEART_BEAT, body=encode_body(heartbeat)))
    ).code == 0
    return client


def reply_to(client_id=ASKER, body="the reply", code=CODES[1], **more):
    named = {"CORRELATION_ID": "c-1", "MSG_TYPE": "reply"}
    if client_id is not None:
        named["REPLY_TO_CLIENT"] = client_id
    return send_request(body, REPLY_TOPIC, code=code, properties=named, **more)


async def stored_replies(client):
    return (await client.pull(0, REPLY_TOPIC)).bodies


@pytest.mark.parametrize("flush_disk_type", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("code", CODES)
def test_reply_is_pushed_to_the_requester_and_stored(tmp_path, code, flush_disk_type):
    async def story(broker):
        asker, replier = await asking(broker), await broker.connect()
        replier.send(reply_to(code=code, opaque=7))
        pushed = await asker.receive()
        assert (pushed.code, bytes(pushed.body)) == (PUSHED, b"the reply")
        header = HEADERS[PUSHED].request.decode(pushed.ext_fields)
        assert (header.topic, header.producer_group) == (REPLY_TOPIC, "P")
        assert header.born_host == f"127.0.0.1:{replier.address[1]}"
        assert header.store_host == f"127.0.0.1:{broker.port}"
        properties = decode_properties(header.properties)
        assert properties.pop("PUSH_REPLY_TIME") == str(header.store_timestamp)
        assert properties == {
            "CORRELATION_ID": "c-1",
            "MSG_TYPE": "reply",
            "REPLY_TO_CLIENT": ASKER,
        }
        assert await stored_replies(asker) == []
        asker.send(pushed.respond(0))
        answer = await replier.receive()
        assert (answer.opaque, answer.code) == (7, 0)
        assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("0", "0")
        assert await stored_replies(asker) == ["the reply"]

    tell(story, tmp_path, flushDiskType=flush_disk_type)


@pytest.mark.parametrize(
    ("client_id", "remark"),
    [
        (None, "properties[REPLY_TO_CLIENT] is null"),
        ("10.0.0.9@nobody", "<10.0.0.9@nobody> not found"),
    ],
)
@on_broker
async def test_reply_to_an_unknown_client_is_refused(broker, client_id, remark):
    await asking(broker)
    replier = await broker.connect()
    answer = await replier.call(reply_to(client_id))
    assert answer.code == 1
    assert remark in answer.remark
    assert await stored_replies(replier) == []


@pytest.mark.parametrize("how", ["refuses it", "goes", "does not answer"])
@on_broker
async def test_undelivered_reply_is_not_stored_and_reported(broker, how):
    asker, replier = await asking(broker), await broker.connect()
    replier.send(reply_to(opaque=7))
    pushed = await asker.receive()
    if how == "refuses it":
        asker.send(pushed.respond(1, "no"))
    elif how == "goes":
        asker.abort()
    else:
        broker.move(10.1)
    answer = await replier.receive()
    assert (answer.opaque, answer.code, answer.remark) == (
        7,
        1,
        f"push reply message to {ASKER} fail.",
    )
    assert await stored_replies(replier) == []


@on_broker
async def test_pending_replies_are_bounded_and_further_ones_are_refused_as_busy(broker):
    """Otherwise a client that never answers could collect replies: a thousand of 1 MB took 1 GB."""
    asker, replier = await asking(broker), await broker.connect()
    pushed, answers = [], []

    async def read(client, commands):
        while True:
            commands.append(await client.receive())

    both = (asker, pushed), (replier, answers)
    reading = [asyncio.ensure_future(read(*each)) for each in both]
    for opaque in range(900):
        replier.send(reply_to(body="x" * 2_000, opaque=opaque))
        if opaque % 50 == 49:  # read meanwhile, before the socket buffers are full
            sent = opaque + 1
            await broker.until(lambda sent=sent: len(pushed) + len(answers) == sent)
    for task in reading:
        task.cancel()
    await asyncio.wait(reading)
    count = len(pushed)
    assert BYTES_MAX // CLIENT_SHARE // 9_000 < count < BYTES_MAX // CLIENT_SHARE // 6_000
    assert [answer.opaque for answer in answers] == list(range(count, 900))
    for answer in answers:
        assert (answer.code, "that wait for others' answers" in answer.remark) == (2, True)
    for each in pushed:
        asker.send(each.respond(0))
    assert [(await replier.receive()).code for _ in pushed] == [0] * count
    replier.send(reply_to())
    asker.send((await asker.receive()).respond(0))
    assert (await replier.receive()).code == 0


@on_broker
async def test_reply_message_is_pushed_though_its_topic_is_not_writable(broker):
    broker.make_topic(REPLY_TOPIC, queues=1, perm=4)
    asker, replier = await asking(broker), await broker.connect()
    replier.send(reply_to())
    asker.send((await asker.receive()).respond(0))
    answer = await replier.receive()
    assert answer.code == 16


@on_broker
async def test_oneway_replies_are_pushed_without_an_answer(broker):
    asker, replier = await asking(broker), await broker.connect()
    replier.send(reply_to(body="one way", flag=CommandFlag.ONE_WAY.value))
    asker.send((await asker.receive()).respond(0))
    await broker.until(lambda: broker.store.queue_offsets(REPLY_TOPIC, 0).next == 1)
    replier.send(reply_to(body="last words"))
    pushed = await asker.receive()
    assert bytes(pushed.body) == b"last words"
    replier.abort()
    await broker.until(lambda: broker.controller.server.connections == 1)
    asker.send(pushed.respond(0))
    assert await stored_replies(asker) == ["one way"]
    assert set(broker.controller.processors.sends._cache._clients) <= set(
        broker.controller.server._connections
    )


@on_broker(maxJsonBodyBytes=65_536)
async def test_long_reply_body_is_not_limited_as_json(broker):
    asker, replier = await asking(broker), await broker.connect()
    replier.send(reply_to(body=bytes(300_000)))
    pushed = await asker.receive()
    assert len(pushed.body) == 300_000
    asker.send(pushed.respond(0))
    assert (await replier.receive()).code == 0
