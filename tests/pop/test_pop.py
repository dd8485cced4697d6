"""Popped messages of a whole broker: invisible until acknowledged or until their invisible time is
over."""

from dataclasses import replace

import pytest
from support.brokers.pop_stories import REDELIVERED_MS, on_popping_broker, run
from support.clients.pops import Popped, ack, ack_all, change, pop, pop_fields, popped_of

from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.clients import (
    ConsumeType,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
)
from rmq_spark.wire.bodies.pop import SetMessageRequestModeRequestBody
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.message.record import decode_records
from rmq_spark.wire.remoting.command import RemotingCommand


@on_popping_broker
async def test_popped_message_is_invisible_and_comes_again_when_its_time_is_over(s):
    await s.client.put("a", "b")
    first = await pop(s.client)
    assert sorted(each.text for each in first) == ["a", "b"]
    assert await s.texts() == []
    assert await ack(s.client, first[0]) == 0
    await s.pass_time(9_900)
    assert await s.texts() == []
    await s.pass_time(100 + REDELIVERED_MS)
    again = await pop(s.client)
    assert [(each.text, each.times) for each in again] == [(first[1].text, 1)]
    assert again[0].message.topic == "T"
    assert await ack(s.client, again[0]) == 0
    await s.pass_time(60_000)
    assert await s.texts() == []


@on_popping_broker
async def test_batch_of_acknowledgements_covers_queues_and_retries(s):
    for queue_id in range(4):
        await s.client.put(f"{queue_id}", f"{queue_id}'", queue_id=queue_id)
    await s.pass_time(10_000 + REDELIVERED_MS)
    await pop(s.client)
    await s.pass_time(10_000 + REDELIVERED_MS)
    again = await pop(s.client)
    assert len(again) == 8
    assert await ack_all(s.client, again[:7]) == 0
    await s.pass_time(10_000 + REDELIVERED_MS)
    assert [each.times for each in await pop(s.client)] == [2]


@pytest.mark.parametrize("others", [0, 300])
@on_popping_broker
async def test_acknowledged_message_does_not_come_again_after_the_broker_stood_still(s, others):
    """Timers of acknowledgements are late, and so are the messages that they deliver to the revive
    topic."""
    s.broker.make_topic("U")
    for number in range(40):
        await s.client.put(f"{number}", queue_id=number % 4)
    popped = [(await pop(s.client, max_msg_nums=1))[0] for _ in range(40)]
    for each in popped[1:]:
        assert await ack(s.client, each) == 0
    for number in range(others):
        due = {"TIMER_DELIVER_MS": str(s.clock.now_ms + 9_900)}
        await s.client.put(f"{number}", topic="U", properties=due)
    await s.pass_time(9_500)
    s.clock.now_ms += 5_000
    s.broker.move(5)
    await s.settle()
    await s.pass_time(REDELIVERED_MS)
    assert await s.texts() == [popped[0].text]


@on_popping_broker
async def test_refused_acknowledgement_of_a_batch_does_not_hold_up_the_others(s):
    await s.client.put("a", "b", queue_id=0)
    await s.client.put("c", queue_id=1)
    first, second, third = sorted(await pop(s.client), key=lambda each: each.text)
    wrong = Popped(second.message, second.receipt._replace(revive_queue_id=8), second.group)
    assert await ack_all(s.client, [first, wrong, third]) == ResponseCode.MESSAGE_ILLEGAL
    await s.pass_time(10_000 + REDELIVERED_MS)
    assert [each.text for each in await pop(s.client)] == ["b"]


@on_popping_broker
async def test_refused_acknowledgement_of_a_batch_in_order_does_not_hold_up_the_others(s):
    await s.client.put("a", "b", queue_id=0)
    await s.client.put("c", "d", queue_id=1)
    popped = await pop(s.client, order=True) + await pop(s.client, order=True)
    _, b, c, d = sorted(popped, key=lambda each: each.text)
    s.broker.controller.tables.order_info.clear(("T", "G", 0))  # as a crash does
    assert await ack_all(s.client, [b, c, d]) == ResponseCode.MESSAGE_ILLEGAL
    assert s.broker.controller.tables.offsets.query("G", "T", 1) == 2
    assert await s.texts(order=True) == ["a", "b"]


@on_popping_broker
async def test_change_of_the_invisible_time_moves_the_redelivery(s):
    await s.client.put("a", "b")
    sooner, later = await pop(s.client)
    assert await change(s.client, sooner, 2_000) == 0
    assert await change(s.client, later, 30_000) == 0
    await s.pass_time(2_000 + REDELIVERED_MS)
    assert await s.texts(invisible_time=60_000) == [sooner.text]
    await s.pass_time(10_000)
    assert await s.texts() == []
    assert await ack(s.client, later) == 0
    await s.pass_time(30_000)
    assert await s.texts() == []


@on_popping_broker
async def test_message_that_nobody_acknowledges_becomes_a_dead_letter(s):
    await s.client.put("a", properties={"KEYS": "k"})
    groups = s.broker.controller.tables.groups
    await pop(s.client)
    groups.put(replace(groups.get("G"), retry_max_times=1))
    await s.pass_time(10_000 + REDELIVERED_MS)
    assert [each.times for each in await pop(s.client)] == [1]
    await s.pass_time(10_000 + REDELIVERED_MS)
    assert await pop(s.client) == []
    dead = (await s.client.pull(0, "%DLQ%G")).messages
    assert [each.body for each in dead] == [b"a"]
    assert dead[0].properties["RETRY_TOPIC"] == "T"


@on_popping_broker(flushDiskType="ASYNC_FLUSH")
async def test_busy_queues_do_not_starve_the_others_of_a_large_topic(s):
    s.broker.make_topic("T", 200)
    for queue_id in range(200):
        await s.client.put("a", queue_id=queue_id)
    popped = []
    for _ in range(60):
        popped += await pop(s.client, max_msg_nums=1, invisible_time=600_000)
    assert sum(each.receipt.queue_id >= 100 for each in popped) > 12


@pytest.mark.parametrize("order", [None, True])
@on_popping_broker
async def test_popped_and_resent_message_has_the_receipt_of_its_own_pop(s, order):
    """Clients keep the receipt of a message that has one, and would acknowledge the first pop."""
    s.broker.make_topic("U")
    await s.client.put("a", "b")
    first = {each.text: each.receipt.encode() for each in await pop(s.client)}
    await s.client.put("a", properties={"POP_CK": first["a"], "k": "v"}, topic="U")
    await s.client.put("POP_CK", topic="U")
    again = await pop(s.client, "U", order=order)
    assert sorted(each.text for each in again) == ["POP_CK", "a"]
    for each in again:
        assert each.receipt.pop_time == s.clock.now_ms
        assert each.message.properties.get("k") == ("v" if each.text == "a" else None)
        assert await ack(s.client, each) == 0
    await s.pass_time(10_000 + REDELIVERED_MS)
    assert await s.texts(topic="U") == []
    assert await s.texts() == ["a", "b"]


@on_popping_broker
async def test_held_pop_is_woken_by_a_message_and_only_one_member_gets_it(s):
    members = [await s.broker.connect() for _ in range(3)]
    for number, member in enumerate(members):
        fields = pop_fields(poll_time=20_000, invisible_time=60_000)
        member.send(RemotingCommand(RequestCode.POP_MESSAGE, opaque=number, ext_fields=fields))
        await s.broker.held(number + 1)
    await s.client.put("a")
    await s.broker.held(2)
    await s.client.put("b", queue_id=2)
    await s.broker.held(1)
    await s.pass_time(20_000)
    answers = [popped_of(await member.receive()) for member in members]
    assert sorted(each.text for found in answers for each in found) == ["a", "b"]
    assert sorted(map(len, answers)) == [0, 1, 1]


@on_popping_broker
async def test_pop_of_a_member_that_leaves_is_answered_and_gets_no_message(s):
    member = await s.broker.connect()
    for number, group in enumerate(("G", "other", "G")):
        fields = pop_fields(group=group, poll_time=20_000)
        member.send(RemotingCommand(RequestCode.POP_MESSAGE, opaque=number, ext_fields=fields))
        await s.broker.held(number + 1)
    leave = {"clientID": "c", "consumerGroup": "G"}
    member.send(RemotingCommand(RequestCode.UNREGISTER_CLIENT, opaque=9, ext_fields=leave))
    answers = {(each := await member.receive()).opaque: each.code for _ in range(3)}
    ended = dict.fromkeys((0, 2), ResponseCode.POLLING_TIMEOUT)
    assert answers == {**ended, 9: ResponseCode.SUCCESS}
    await s.broker.held(1)
    await s.client.put("a")
    assert await s.texts() == ["a"]
    assert [each.text for each in popped_of(await member.receive(), "other")] == ["a"]


@on_popping_broker
async def test_pop_of_a_member_that_leaves_gets_no_message_that_has_not_woken_it_yet(s):
    member = await s.broker.connect()
    fields = pop_fields(poll_time=20_000)
    member.send(RemotingCommand(RequestCode.POP_MESSAGE, opaque=1, ext_fields=fields))
    await s.broker.held(1)
    s.broker.controller.pop_waiters.arriving = lambda *_: None  # suppress the notification
    await s.client.put("a")
    await s.settle()
    leave = {"clientID": "c", "consumerGroup": "G"}
    member.send(RemotingCommand(RequestCode.UNREGISTER_CLIENT, opaque=9, ext_fields=leave))
    codes = {(each := await member.receive()).opaque: each.code for _ in range(2)}
    assert codes == {1: ResponseCode.POLLING_TIMEOUT, 9: ResponseCode.SUCCESS}
    assert await s.texts() == ["a"]


@on_popping_broker
async def test_held_pop_is_woken_by_a_redelivery(s):
    await s.client.put("a")
    await pop(s.client)
    member = await s.broker.connect()
    fields = pop_fields(poll_time=30_000)
    member.send(RemotingCommand(RequestCode.POP_MESSAGE, ext_fields=fields))
    await s.broker.held(1)
    await s.pass_time(10_000 + REDELIVERED_MS)
    assert [each.text for each in popped_of(await member.receive())] == ["a"]


@pytest.mark.parametrize(
    ("expression", "kind", "wanted"),
    [("red || blue", "TAG", ["blue", "red"]), ("a > 1", "SQL92", ["blue", "green"])],
)
@on_popping_broker(enablePropertyFilter=True)
async def test_pop_filters_and_wakes_for_what_matches(s, expression, kind, wanted):
    subscription = {"exp": expression, "exp_type": kind}
    member = await s.broker.connect()
    fields = pop_fields(poll_time=30_000, **subscription)
    for number, tag in enumerate(("red", "blue", "green")):
        await s.client.put(tag, queue_id=number, properties={"TAGS": tag, "a": str(number + 1)})
    assert await s.texts(**subscription) == wanted
    member.send(RemotingCommand(RequestCode.POP_MESSAGE, ext_fields=fields))
    await s.broker.held(1)
    await s.client.put("no", properties={"TAGS": "no", "a": "0"})
    await s.settle()
    assert s.broker.holds.hold_count == 1
    await s.client.put("yes", properties={"TAGS": "red", "a": "9"})
    assert [each.text for each in popped_of(await member.receive())] == ["yes"]


@on_popping_broker
async def test_pops_in_order_block_a_queue_until_all_is_acknowledged(s):
    await s.client.put("1", "2", "3")
    order = {"order": True, "invisible_time": 10_000}
    first = await pop(s.client, max_msg_nums=2, **order)
    assert [each.text for each in first] == ["1", "2"]
    assert await s.texts(**order) == []
    assert await ack(s.client, first[1]) == 0
    assert await s.texts(**order) == []
    member = await s.broker.connect()
    fields = pop_fields(poll_time=30_000, **order)
    member.send(RemotingCommand(RequestCode.POP_MESSAGE, ext_fields=fields))
    await s.broker.held(1)
    assert await ack(s.client, first[0]) == 0
    third = popped_of(await member.receive())
    assert [each.text for each in third] == ["3"]
    member.send(RemotingCommand(RequestCode.POP_MESSAGE, ext_fields=fields))
    await s.broker.held(1)
    assert await change(s.client, third[0], 2_000) == 0
    await s.pass_time(2_100)
    assert [each.text for each in popped_of(await member.receive())] == ["3"]


@on_popping_broker
async def test_ack_in_order_skips_no_message_when_the_record_of_the_pop_is_lost(s):
    await s.client.put("a", "b", "c", queue_id=0)
    popped = await pop(s.client, order=True)
    s.broker.controller.tables.order_info.clear(("T", "G", 0))  # as a crash does
    assert await ack(s.client, popped[2]) == ResponseCode.MESSAGE_ILLEGAL
    assert await ack(s.client, popped[0]) == 0
    assert await s.texts(order=True) == ["b", "c"]


@on_popping_broker
async def test_wrong_receipts_and_numbers_are_refused(s):
    await s.client.put("a")
    (popped,) = await pop(s.client)
    good = popped.receipt
    for wrong, code in (
        (good._replace(queue_offset=7), ResponseCode.NO_MESSAGE),
        (good._replace(queue_id=9), ResponseCode.MESSAGE_ILLEGAL),
        (good._replace(revive_queue_id=8), ResponseCode.MESSAGE_ILLEGAL),
        (good._replace(pop_time="x"), ResponseCode.MESSAGE_ILLEGAL),
    ):
        popped.receipt = wrong
        assert await ack(s.client, popped) == code
    for fields in ({"max_msg_nums": 33}, {"queue_id": 4}, {"invisible_time": 0}):
        answer = await s.client.ask(RequestCode.POP_MESSAGE, ext_fields=pop_fields(**fields))
        assert answer.code == ResponseCode.INVALID_PARAMETER


async def assigned(client, **more):
    """Return the queues and modes that the broker assigns to the client."""
    body = QueryAssignmentRequestBody(
        topic="T", consumer_group="G", client_id="client", strategy_name="AVG", **more
    )
    answer = await client.ask(RequestCode.QUERY_ASSIGNMENT, body=encode_body(body))
    found = decode_body(QueryAssignmentResponseBody, answer.body).message_queue_assignments
    return [(each.message_queue.queue_id, each.mode.name) for each in found]


async def set_mode(client, topic="T", group="G", **more):
    body = SetMessageRequestModeRequestBody(topic=topic, consumer_group=group, **more)
    answer = await client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode_body(body))
    return answer.code


def test_request_mode_of_a_group_is_kept_and_decides_what_members_are_assigned(tmp_path):
    async def first(s):
        pops = {"mode": MessageRequestMode.POP}
        invalid = "not a group"
        unknown = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert await set_mode(s.client, group=invalid, **pops) == unknown
        assert await set_mode(s.client, group="new", **pops) == 0
        assert s.broker.controller.tables.groups.get("new") is not None
        await s.client.heartbeat("G", "T")
        assert await assigned(s.client) == [(each, "PULL") for each in range(4)]
        assert await set_mode(s.client, topic="none", **pops) == ResponseCode.TOPIC_NOT_EXIST
        assert await set_mode(s.client, topic="%RETRY%G", **pops) == ResponseCode.NO_PERMISSION
        assert await set_mode(s.client, **pops) == 0
        assert await assigned(s.client) == [(-1, "POP")]

    async def second(s):
        await s.client.heartbeat("G", "T")
        assert await assigned(s.client) == [(-1, "POP")]
        assert await set_mode(s.client, mode=MessageRequestMode.PULL) == 0
        assert await assigned(s.client) == [(each, "PULL") for each in range(4)]

    run(first, tmp_path)
    run(second, tmp_path)


@on_popping_broker
async def test_reset_of_a_popping_group_takes_effect_with_the_next_pop(s):
    await s.client.heartbeat("G", "T", consume_type=ConsumeType.CONSUME_POP)
    await s.client.put("a", "b")
    for fields in ({}, {"order": True}):
        assert await s.texts(invisible_time=60_000, **fields) == ["a", "b"]
        assert await s.texts(**fields) == []
        answer = await s.client.ask(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            ext_fields={
                "topic": "T",
                "group": "G",
                "timestamp": "0",
                "isForce": "true",
            },
        )
        assert answer.code == 0


@on_popping_broker
async def test_offset_that_an_operator_sets_takes_effect_with_the_next_pop_in_order(s):
    """mqadmin and `rocketpoll group reset` reset a group without online members in this way."""
    for text in "abcd":
        await s.client.put(text)
    old = await pop(s.client, order=True)
    assert [each.text for each in old] == ["a", "b", "c", "d"]
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "2"}
    answer = await s.client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields)
    assert answer.code == 0
    await s.pass_time(1_000)
    new = await pop(s.client, order=True)
    assert [each.text for each in new] == ["c", "d"]
    for each in old:
        await ack(s.client, each)
    assert await s.texts(order=True) == []
    assert [await ack(s.client, each) for each in new] == [0, 0]
    await s.client.put("e")
    assert await s.texts(order=True) == ["e"]


@on_popping_broker
async def test_notification_is_answered_when_there_is_something_to_pop(s):
    fields = pop_fields(poll_time=20_000)
    waiter = await s.broker.connect()
    waiter.send(RemotingCommand(RequestCode.NOTIFICATION, ext_fields=fields))
    await s.broker.held(1)
    await s.client.put("a")
    assert (await waiter.receive()).ext_fields["hasMsg"] == "true"
    assert await s.texts(invisible_time=60_000) == ["a"]
    waiter.send(RemotingCommand(RequestCode.NOTIFICATION, ext_fields=fields))
    await s.broker.held(1)
    await s.pass_time(20_000)
    assert (await waiter.receive()).ext_fields["hasMsg"] == "false"
    peeked = await s.client.ask(RequestCode.PEEK_MESSAGE, ext_fields=pop_fields(group="H"))
    assert [each.body for each in decode_records(peeked.body)] == [b"a"]
