"""What a broker finds again after it was killed, as clients of real processes see it."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from broker_clients import pull_request, pulled
from broker_processes import BrokerProcess
from broker_stories import BrokerClients

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.headers.send import ConsumerSendMsgBackRequestHeader
from rmq_spark.wire.headers.table import HEADERS

DURABLE = {"flushDiskType": "SYNC_FLUSH", "messageDelayLevel": "1s"}


def told(broker, story):
    """What a story comes to that one client tells a running broker."""

    async def whole():
        async with BrokerClients(broker.port) as clients:
            return await story(await clients.connect())

    return asyncio.run(whole())


async def send_later(client):
    """A message that is to be delivered after a while; where it will be found."""
    await client.put("later", properties={"DELAY": "1"})
    return "T", 1


async def give_back(client):
    """A consumer wants a message once more, after a while; where it will be found."""
    (message,) = (await client.pull(0, count=1)).messages
    header = ConsumerSendMsgBackRequestHeader(message.physical_offset, "G", 1)
    codec = HEADERS[RequestCode.CONSUMER_SEND_MSG_BACK].request
    request = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=codec.encode(header))
    assert (await client.call(request)).code == 0
    return "%RETRY%G", 0


def nothing(_):
    """The kill is all that happened."""


def its_queues(root):
    """All consume queues have to be made again."""
    shutil.rmtree(root / "store" / "consumequeue")


def its_checkpoint(root):
    """All has to be made again from the log."""
    (root / "store" / "checkpoint").unlink()


@pytest.mark.parametrize("lose", [nothing, its_queues, its_checkpoint])
@pytest.mark.parametrize(("delay", "body"), [(send_later, "later"), (give_back, "first")])
def test_a_delayed_message_is_delivered_by_the_broker_that_follows_one_that_was_killed(
    tmp_path, delay, body, lose
):
    async def set_up(client):
        await client.put("first")
        await client.heartbeat("G", "T")  # which makes the group's topic for what is given back

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
