"""Requests from the broker to a client get one reply, or fail once."""

import asyncio

from support.brokers.in_process import in_loop

from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll.broker.common.outgoing_requests import OutgoingRequests


@in_loop
async def test_response_resolves_its_request_once():
    questions, answers = OutgoingRequests(asyncio.get_running_loop()), []
    first, second = [
        questions.register(RemotingCommand(307), 5_000, answers.append) for _ in range(2)
    ]
    assert first.opaque != second.opaque
    for _ in range(2):
        questions.complete(second.respond(0, "second"))
    questions.complete(RemotingCommand(0, opaque=99))
    assert [answer.remark for answer in answers] == ["second"]
    questions.cancel_all()


@in_loop
async def test_timed_out_request_to_a_client_ignores_its_late_response():
    questions, answers = OutgoingRequests(asyncio.get_running_loop()), []
    asked = questions.register(RemotingCommand(307), 5_000, answers.append)
    asyncio.get_running_loop().move(6)
    await asyncio.sleep(0.001)
    assert answers == [None]
    questions.complete(asked.respond(0))
    assert answers == [None]


@in_loop
async def test_outgoing_requests_of_a_gone_client_are_cancelled_in_a_later_turn():
    questions, answers = OutgoingRequests(asyncio.get_running_loop()), []
    for _ in range(3):
        questions.register(RemotingCommand(307), 5_000, answers.append)
    questions.cancel_all()
    assert answers == []
    await asyncio.sleep(0)
    assert answers == [None] * 3
    asyncio.get_running_loop().move(6)
    await asyncio.sleep(0.001)
    assert answers == [None] * 3
