"""Requests are relayed to online consumers, and their answers collected."""

import tracemalloc

import pytest
from support.brokers.connections import FakeConnection, body_in, finished
from support.brokers.processors import refused
from support.brokers.state_tables import join, room
from support.stores.small_store import STORE_HOST

from rmq_spark.errors import HeaderError, RecordError
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.operators import GetConsumerStatusBody
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.codes import RequestCode as Code
from rmq_spark.wire.codes import ResponseCode as Answer
from rmq_spark.wire.headers import operators as headers
from rmq_spark.wire.headers.members import ConsumerGroupRequestHeader
from rmq_spark.wire.message.message_id import encode_offset_message_id
from rmq_spark.wire.message.record import decode_record
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll.broker.processor.clients.client_relay import (
    RELAY_TIMEOUT_MS,
    STATUS_BYTES_MAX,
    STATUS_TIMEOUT_MS,
    ClientRelayProcessor,
)
from rocketpoll.broker.processor.clients.pending_replies import (
    BYTES_MAX,
    CLIENT_SHARE,
    REQUEST_BYTES,
    PendingReplies,
)
from rocketpoll.broker.processor.request import one_way_command, request_command
from rocketpoll.broker.state.members.consumers import ConsumerManager

QUEUE = MessageQueue("T", "broker-a", 0)


@pytest.fixture
def admin():
    return FakeConnection("admin")


@pytest.fixture
def consumers():
    return ConsumerManager(lambda _: None, room())


@pytest.fixture
def awaited():
    return PendingReplies()


@pytest.fixture
def processor(parts, consumers, awaited):
    return ClientRelayProcessor(parts.broker(consumers=consumers), awaited)


def running_info(admin, client_id="c", *, one_way=False):
    header = headers.GetConsumerRunningInfoRequestHeader("g", client_id, jstack_enable=True)
    return admin.ask(Code.GET_CONSUMER_RUNNING_INFO, header, one_way=one_way)


def test_request_is_relayed_to_the_consumer_and_answered(processor, consumers, admin):
    member = join(consumers, "g", "c", "T")
    member.answers[Code.GET_CONSUMER_RUNNING_INFO] = lambda asked: asked.respond(
        0, "fine", {"a": "b"}, b"{}"
    )
    assert processor.get_consumer_running_info(admin, running_info(admin)) is None
    ((question, timeout_ms, _),) = member.asked
    assert question.ext_fields == {"consumerGroup": "g", "clientId": "c", "jstackEnable": "true"}
    assert timeout_ms == RELAY_TIMEOUT_MS
    assert admin.sent == []
    member.acknowledge_all()
    (answer,) = admin.sent
    assert (answer.code, answer.remark, answer.ext_fields, answer.body) == (
        0,
        "fine",
        {"a": "b"},
        b"{}",
    )
    assert answer.opaque == 7
    assert answer.is_response


def test_refusal_by_the_consumer_is_relayed_unchanged(processor, consumers, admin):
    member = join(consumers, "g", "c", "T")
    member.answers[Code.GET_CONSUMER_RUNNING_INFO] = lambda asked: asked.respond(
        1, "no such group here"
    )
    processor.get_consumer_running_info(admin, running_info(admin))
    member.acknowledge_all()
    assert (admin.sent[0].code, admin.sent[0].remark) == (1, "no such group here")


def test_relayed_request_without_answer_times_out(processor, consumers, admin):
    member = join(consumers, "g", "c", "T")
    processor.get_consumer_running_info(admin, running_info(admin))
    member.acknowledge_all()
    assert admin.codes() == [Answer.CONSUME_MSG_TIMEOUT]
    assert "<c>" in admin.sent[0].remark


def test_pending_relayed_requests_use_little_memory_and_are_counted_until_answered(
    processor, consumers, admin, awaited
):
    member = join(consumers, "g", "c", "T")
    asked = running_info(admin)
    asked = asked._replace(ext_fields={**asked.ext_fields, "x": "y" * 240_000})
    tracemalloc.start()
    for number in range(40):
        fields = {**asked.ext_fields, "x": f"{number}" + "y" * 240_000}
        processor.get_consumer_running_info(admin, asked._replace(ext_fields=fields))
        member.asked[-1] = None, *member.asked[-1][1:]  # as after it was sent
    del fields
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 40 * REQUEST_BYTES
    assert awaited.bytes == 40 * REQUEST_BYTES
    for _, _, then in member.asked:
        then(None)
    assert awaited.bytes == 0


def test_relayed_requests_of_one_client_are_bounded(processor, consumers, admin, awaited):
    member = join(consumers, "g", "c", "T")
    others = FakeConnection("another")
    while awaited.bytes < BYTES_MAX // CLIENT_SHARE:
        processor.get_consumer_running_info(admin, running_info(admin))
    for _ in range(3):
        code, remark = refused(processor.get_consumer_running_info, admin, running_info(admin))
        assert (code, f"of {BYTES_MAX // CLIENT_SHARE}: try again later" in remark) == (
            Answer.SYSTEM_BUSY,
            True,
        )
    assert processor.get_consumer_running_info(others, running_info(others)) is None
    member.acknowledge_all()
    assert awaited.bytes == 0
    assert processor.get_consumer_running_info(admin, running_info(admin)) is None


def test_status_survey_counts_as_waiting_until_all_members_answered(
    processor, consumers, admin, awaited
):
    members = [join(consumers, "g", f"c{number}", "T") for number in range(3)]
    header = headers.GetConsumerStatusRequestHeader("T", "g")
    steps = processor.get_consumer_status(
        admin, admin.ask(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
    )
    next(steps)
    next(steps)
    assert awaited.bytes > STATUS_BYTES_MAX
    steps.close()
    assert awaited.bytes == 0
    finished(
        processor.get_consumer_status(
            admin, admin.ask(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
        )
    )
    for member in members:
        assert awaited.bytes > 0
        member.acknowledge_all()
    assert awaited.bytes == 0


def test_one_way_running_info_request_is_not_answered(processor, consumers, admin):
    member = join(consumers, "g", "c", "T")
    processor.get_consumer_running_info(admin, running_info(admin, one_way=True))
    member.acknowledge_all()
    assert admin.sent == []


def test_relay_refuses_requests_to_or_from_clients_that_do_not_read(processor, consumers, admin):
    member = join(consumers, "g", "c", "T")
    member.answers[Code.GET_CONSUMER_RUNNING_INFO] = lambda asked: asked.respond(
        0, body=bytes(1_000)
    )
    processor.get_consumer_running_info(admin, running_info(admin))
    admin.is_congested = True
    member.acknowledge_all()
    assert [(answer.code, answer.body) for answer in admin.sent] == [(Answer.SYSTEM_BUSY, b"")]
    member.is_congested = True
    code, remark = refused(processor.get_consumer_running_info, admin, running_info(admin))
    assert (code, "does not read" in remark) == (Answer.SYSTEM_BUSY, True)
    assert member.asked == []


def test_relay_refuses_offline_and_outdated_consumers(processor, consumers, admin):
    old = join(consumers, "g", "old", "T", version=61)
    code, remark = refused(processor.get_consumer_running_info, admin, running_info(admin))
    assert (code, remark) == (Answer.SYSTEM_ERROR, "The Consumer <g> <c> not online")
    code, remark = refused(processor.get_consumer_running_info, admin, running_info(admin, "old"))
    assert code == Answer.SYSTEM_ERROR
    assert "too old" in remark
    assert old.asked == []
    eldest = join(consumers, "g", "eldest", "T", version=62)
    processor.get_consumer_running_info(admin, running_info(admin, "eldest"))
    assert len(eldest.asked) == 1


def directly(admin, msg_id, client_id="c"):
    header = headers.ConsumeMessageDirectlyResultRequestHeader("g", client_id, msg_id)
    return admin.ask(Code.CONSUME_MESSAGE_DIRECTLY, header)


def test_direct_consume_sends_the_record_to_the_consumer(processor, consumers, parts, admin):
    member = join(consumers, "g", "c", "T")
    _, second = parts.put("one", "two")
    msg_id = encode_offset_message_id(STORE_HOST, second.physical_offset)
    assert processor.consume_message_directly(admin, directly(admin, msg_id)) is None
    ((question, _, _),) = member.asked
    assert question.ext_fields == {
        "consumerGroup": "g",
        "clientId": "c",
        "msgId": msg_id,
        "brokerName": "broker-a",
    }
    assert decode_record(question.body).body == b"two"
    member.answers[Code.CONSUME_MESSAGE_DIRECTLY] = lambda asked: asked.respond(0, None, {}, b"{}")
    member.acknowledge_all()
    assert admin.codes() == [Answer.SUCCESS]


def test_direct_consume_of_a_missing_message_is_refused(processor, consumers, parts, admin):
    member = join(consumers, "g", "c", "T")
    parts.put("one")
    request = directly(admin, encode_offset_message_id(STORE_HOST, 7))
    code, remark = refused(processor.consume_message_directly, admin, request)
    assert code == Answer.SYSTEM_ERROR
    assert "is not in this broker's log" in remark
    with pytest.raises(RecordError, match="hexadecimal digits"):
        processor.consume_message_directly(admin, directly(admin, "7F00"))
    assert (
        "not online"
        in refused(processor.consume_message_directly, admin, directly(admin, "7F00", None))[1]
    )
    assert member.asked == []


def status(admin, client_id=None):
    header = headers.GetConsumerStatusRequestHeader("T", "g", client_id)
    return admin.ask(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)


def at(number):
    body = encode_body(GetConsumerStatusBody(message_queue_table={QUEUE: number}))
    return lambda asked: asked.respond(0, None, {}, body)


def test_consumer_status_collects_answers_of_all_members(processor, consumers, admin):
    one, two = (join(consumers, "g", name, "T") for name in ("one", "two"))
    one.answers[Code.GET_CONSUMER_STATUS_FROM_CLIENT] = at(1)
    two.answers[Code.GET_CONSUMER_STATUS_FROM_CLIENT] = at(2)
    assert finished(processor.get_consumer_status(admin, status(admin, ""))) is None
    assert one.asked[0][0].ext_fields == {"topic": "T", "group": "g"}
    assert one.asked[0][1] == STATUS_TIMEOUT_MS
    one.acknowledge_all()
    assert admin.sent == []
    two.acknowledge_all()
    (answer,) = admin.sent
    assert body_in(GetConsumerStatusBody, answer).consumer_table == {
        "one": {QUEUE: 1},
        "two": {QUEUE: 2},
    }


def test_consumer_status_can_be_asked_of_one_member(processor, consumers, admin):
    one, two = (join(consumers, "g", name, "T") for name in ("one", "two"))
    two.answers[Code.GET_CONSUMER_STATUS_FROM_CLIENT] = at(2)
    finished(processor.get_consumer_status(admin, status(admin, "two")))
    two.acknowledge_all()
    assert body_in(GetConsumerStatusBody, admin.sent[0]).consumer_table == {"two": {QUEUE: 2}}
    assert one.asked == []


@pytest.mark.parametrize(
    "bad",
    [lambda asked: asked.respond(1, "no"), lambda asked: asked.respond(0, None, {}, b"{"), None],
)
def test_bad_member_answer_does_not_spoil_the_other_members_answers(
    processor, consumers, admin, bad
):
    one, two = (join(consumers, "g", name, "T") for name in ("one", "two"))
    one.answers[Code.GET_CONSUMER_STATUS_FROM_CLIENT] = bad
    two.answers[Code.GET_CONSUMER_STATUS_FROM_CLIENT] = at(2)
    finished(processor.get_consumer_status(admin, status(admin)))
    two.acknowledge_all()
    one.acknowledge_all()
    assert body_in(GetConsumerStatusBody, admin.sent[0]).consumer_table == {"two": {QUEUE: 2}}


def test_member_answer_that_is_slow_to_decode_is_left_out(processor, consumers, admin):
    one, two, three = (join(consumers, "g", name, "T") for name in ("one", "two", "three"))
    one.answers[Code.GET_CONSUMER_STATUS_FROM_CLIENT] = lambda asked: asked.respond(
        0, None, {}, b"{" + b" " * STATUS_BYTES_MAX + b"}"
    )
    for member, number in ((two, 2), (three, 3)):
        member.answers[Code.GET_CONSUMER_STATUS_FROM_CLIENT] = at(number)
    finished(processor.get_consumer_status(admin, status(admin)))
    for member in (one, two, three):
        member.acknowledge_all()
    found = body_in(GetConsumerStatusBody, admin.sent[0]).consumer_table
    assert found == {"two": {QUEUE: 2}, "three": {QUEUE: 3}}


def test_consumer_status_without_answers_times_out(processor, consumers, admin):
    member = join(consumers, "g", "c", "T")
    finished(processor.get_consumer_status(admin, status(admin)))
    member.acknowledge_all()
    assert admin.codes() == [Answer.CONSUME_MSG_TIMEOUT]


def test_consumer_status_of_missing_or_outdated_member_is_refused(processor, consumers, admin):
    handler = processor.handlers()[Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS]
    assert (
        "no consumer online in the consumer group: [g]" in refused(handler, admin, status(admin))[1]
    )
    member = join(consumers, "g", "c", "T")
    assert "no client <d> online" in refused(handler, admin, status(admin, "d"))[1]
    join(consumers, "g", "old", "T", version=27)
    assert "[old] is too old" in refused(handler, admin, status(admin))[1]
    assert member.asked == []


# ---- commands of the broker to clients


def test_one_way_command_needs_no_answer_and_a_request_does():
    header = ConsumerGroupRequestHeader("g")
    told = one_way_command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, b"body")
    assert (told.code, told.ext_fields, told.body) == (40, {"consumerGroup": "g"}, b"body")
    assert told.is_one_way
    assert not told.is_response
    asked = request_command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
    assert not asked.is_one_way
    assert asked.body == b""


def test_request_command_for_a_code_without_a_header_is_refused():
    with pytest.raises(HeaderError, match="a code with a header"):
        request_command(RequestCode.GET_BROKER_CONFIG, None)
