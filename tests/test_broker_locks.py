"""Queue locks of a whole broker: how clients acquire and lose them."""

import pytest
from support.brokers.in_process import on_broker

from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.clients import LockBatchRequestBody, LockBatchResponseBody
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.members import UnregisterClientRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand

pytestmark = pytest.mark.usefixtures("on_each_loop")

QUEUE = frozenset([MessageQueue("T", "broker-a", 0)])


async def lock(client, client_id):
    """Lock queues; return those that the client holds according to the response."""
    body = LockBatchRequestBody(consumer_group="G", client_id=client_id, mq_set=QUEUE)
    answer = await client.call(RemotingCommand(RequestCode.LOCK_BATCH_MQ, body=encode_body(body)))
    assert answer.code == 0, answer.remark
    return decode_body(LockBatchResponseBody, answer.body).lock_ok_mq_set


async def unlock(client, client_id):
    body = LockBatchRequestBody(consumer_group="G", client_id=client_id, mq_set=QUEUE)
    answer = await client.call(RemotingCommand(RequestCode.UNLOCK_BATCH_MQ, body=encode_body(body)))
    assert answer.code == 0, answer.remark


async def leave(client):
    codec = HEADERS[RequestCode.UNREGISTER_CLIENT].request
    fields = codec.encode(UnregisterClientRequestHeader("client", consumer_group="G"))
    answer = await client.call(RemotingCommand(RequestCode.UNREGISTER_CLIENT, ext_fields=fields))
    assert answer.code == 0


async def gone(broker, client):
    """Close a connection, and wait until the broker has noticed."""
    before = broker.controller.server.connections
    client.close()
    await broker.until(lambda: broker.controller.server.connections == before - 1)
    await broker.until(lambda: not broker.controller.housekeeping.is_busy)


@pytest.mark.parametrize("locks_first", [True, False], ids=["lock first", "heartbeat first"])
@on_broker
async def test_member_locks_last_a_minute_after_it_left(broker, locks_first):
    """A listener may still run; after a restart a member locks before its heartbeat."""
    broker.make_topic("T")
    member, other = await broker.connect(), await broker.connect()
    if locks_first:
        assert await lock(member, "client") == QUEUE
    await member.heartbeat("G", "T")
    if not locks_first:
        assert await lock(member, "client") == QUEUE
    await leave(member)
    await gone(broker, member)
    assert not await lock(other, "other")
    broker.move(61)
    assert await lock(other, "other") == QUEUE


@on_broker
async def test_locks_of_a_stranger_end_with_its_connection(broker):
    broker.make_topic("T")
    stranger, other = await broker.connect(), await broker.connect()
    assert await lock(stranger, "client") == QUEUE
    await gone(broker, stranger)
    assert await lock(other, "other") == QUEUE


@on_broker
async def test_member_keeps_its_lock_from_a_thief_that_sends_its_client_id(broker):
    broker.make_topic("T")
    member, thief = await broker.connect(), await broker.connect()
    await member.heartbeat("G", "T")
    assert await lock(member, "client") == QUEUE
    await thief.heartbeat("G", "T")
    await unlock(thief, "client")
    assert not await lock(thief, "client")
    assert not await lock(thief, "thief")
    await unlock(member, "client")
    assert await lock(thief, "thief") == QUEUE


@on_broker
async def test_reconnected_member_takes_its_lock_over_from_its_closed_connection(broker):
    broker.make_topic("T")
    member, other = await broker.connect(), await broker.connect()
    await member.heartbeat("G", "T")
    assert await lock(member, "client") == QUEUE
    await gone(broker, member)
    again = await broker.connect()
    assert not await lock(other, "other")
    assert await lock(again, "client") == QUEUE
    await unlock(again, "client")
    assert await lock(other, "other") == QUEUE
