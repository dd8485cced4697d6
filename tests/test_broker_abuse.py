"""The cost of one abusive address, measured by the loop's clock, which only work moves.

In each turn of the loop, an honest client waits for a time slice of the steps of others. Client and
broker share the loop here, so an exchange takes several turns.
"""

import asyncio

import pytest
from support.brokers.in_process import on_broker
from support.clients.remoting_clients import send_request

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.server.fair_scheduler import SLICE_SECONDS, TURN_SECONDS

STEP_SECONDS = 0.002
QUEUES = 400
ABUSERS = 40
REQUESTS_OF_EACH = 3
OTHER_ADDRESS = "127.0.0.2"
WAIT_SECONDS_MAX = 8 * (SLICE_SECONDS + STEP_SECONDS)
"""Eight slices, each with its last step; a whole turn for each would take three times as long."""


def member_list(client):
    return client.call(
        RemotingCommand(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, opaque=1, ext_fields={"consumerGroup": "H"}
        )
    )


def statistics(client):
    return client.call(
        RemotingCommand(RequestCode.GET_TOPIC_STATS_INFO, opaque=1, ext_fields={"topic": "Narrow"})
    )


HONEST = {
    "a heartbeat": lambda client: client.heartbeat("H", "Narrow"),
    "a member list": member_list,
    "a send": lambda client: client.call(send_request("x", topic="Narrow")),
    "an operator's look": statistics,
}


def slowed(call):
    def slow(*arguments, **more):
        asyncio.get_running_loop().move(STEP_SECONDS)
        return call(*arguments, **more)

    return slow


@pytest.mark.parametrize("honest", HONEST.values(), ids=HONEST)
@on_broker
async def test_requests_of_one_address_that_ask_for_much_delay_no_other(
    broker, honest, monkeypatch
):
    loop, offsets = asyncio.get_running_loop(), broker.controller.tables.offsets
    broker.make_topic("Wide", queues=QUEUES)
    broker.make_topic("Narrow", queues=1)
    client = await broker.connect()
    await client.heartbeat("H", "Narrow")
    for number in range(QUEUES):
        offsets.commit("G", "Wide", number, 0)
    abusers = [await broker.connect(address=OTHER_ADDRESS) for _ in range(ABUSERS)]
    loop.stand_still()
    monkeypatch.setattr(broker.store, "queue_offsets", slowed(broker.store.queue_offsets))
    began = loop.time()
    await honest(client)
    calm = loop.time() - began
    for number, abuser in enumerate(abusers):
        dear = RemotingCommand(
            RequestCode.GET_CONSUME_STATS, opaque=number, ext_fields={"consumerGroup": "G"}
        )
        abuser.send(dear.encode() * REQUESTS_OF_EACH)
    began = loop.time()
    await broker.until(lambda: loop.time() - began > 5 * TURN_SECONDS)
    began = loop.time()
    await honest(client)
    assert loop.time() - began <= calm + WAIT_SECONDS_MAX
    dear = ABUSERS * REQUESTS_OF_EACH * QUEUES * STEP_SECONDS
    assert dear > 100 * (calm + WAIT_SECONDS_MAX)
