"""Requests of brokers to a client reach its members and are answered."""

import threading
from concurrent.futures import Future

import pytest
from support.clients.fake_members import Consumer, Producer

from rmq_spark.client.errors import ConnectionClosed
from rmq_spark.client.instance.instance import (
    CONCURRENT_REQUESTS_MAX,
    WAITING_CHECKS_MAX,
    ClientRequestProcessor,
)
from rmq_spark.client.instance.request_futures import RequestFutureHolder
from rmq_spark.errors import BodyError, HeaderError
from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.bodies.operators import (
    ConsumeMessageDirectlyResult,
    ConsumeResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from rmq_spark.wire.message.record import StoredMessage, encode_record
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand
from rocketpoll import wait_until

QUEUE = MessageQueue("T", "broker-a", 0)


class Line:
    """A broker connection that records sent frames."""

    address = "h:1"

    def __init__(self, error=None):
        self._answers = []
        self._came = threading.Semaphore(0)
        self._error = error

    def send(self, command):
        self._answers.append(command)
        self._came.release()
        if self._error is not None:
            raise self._error

    def answer(self):
        assert self._came.acquire(timeout=10)
        return self._answers.pop(0)


@pytest.fixture
def consumer():
    return Consumer()


@pytest.fixture
def producer():
    return Producer()


@pytest.fixture
def requests(consumer, producer):
    return ClientRequestProcessor(lambda: "me", {"G": consumer}, {"P": producer, "Q": None})


@pytest.fixture
def line():
    return Line()


def record(body=b"x", properties="PGROUP\x01P\x02"):
    return encode_record(StoredMessage(topic="T", body=body, properties_text=properties))


def test_notice_of_changed_members_triggers_a_rebalance(requests, consumer, line):
    assert requests(line, RemotingCommand(40, flag=2, ext_fields={"consumerGroup": "G"})).code == 0
    assert consumer.rebalances.acquire(blocking=False)
    assert requests(line, RemotingCommand(40, ext_fields={"consumerGroup": "somebody"})).code == 0
    assert not consumer.rebalances.acquire(blocking=False)


def reset():
    fields = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
    body = encode_body(ResetOffsetBody(offset_table={QUEUE: 5}))
    return RemotingCommand(220, flag=2, ext_fields=fields, body=body)


def test_broker_request_resets_offsets_of_a_consumer(requests, consumer, line):
    assert requests(line, reset()) is None
    assert consumer.resets.acquire(timeout=10)
    assert consumer.told == [("T", {QUEUE: 5})]


def test_broker_request_is_answered_after_its_consumer_has_answered(requests, line, consumer):
    assert (
        requests(line, RemotingCommand(221, opaque=4, ext_fields={"topic": "T", "group": "G"}))
        is None
    )
    answer = line.answer()
    assert (answer.opaque, answer.is_response, answer.code) == (4, True, 0)
    assert decode_body(GetConsumerStatusBody, answer.body).message_queue_table == {QUEUE: 7}

    requests(line, RemotingCommand(307, ext_fields={"consumerGroup": "G", "clientId": "me"}))
    info = decode_body(ConsumerRunningInfo, line.answer().body)
    assert info.properties == {"PROP_CONSUMEORDERLY": "false"}

    fields = {"consumerGroup": "G", "clientId": "me", "brokerName": "broker-a"}
    requests(line, RemotingCommand(309, ext_fields=fields, body=record(b"now")))
    result = decode_body(ConsumeMessageDirectlyResult, line.answer().body)
    assert result.consume_result is ConsumeResult.CR_SUCCESS
    assert consumer.told == [(b"now", "broker-a")]


def test_transaction_check_request_reaches_its_producer(requests, producer, line):
    fields = {"tranStateTableOffset": "3", "commitLogOffset": "4"}
    assert requests(line, RemotingCommand(39, flag=2, ext_fields=fields, body=record())) is None
    assert producer.checked.wait(10)
    assert producer.checks == [("h:1", b"x", 3)]


def test_burst_of_transaction_checks_waits_and_each_message_is_checked_once(
    requests, consumer, producer, line, caplog
):
    go_on, checked, done = threading.Event(), [], threading.Semaphore(0)

    def checks(_, __, header):
        go_on.wait(10)
        checked.append(header.tran_state_table_offset)
        done.release()

    producer.check_transaction_state = checks

    def check(number, offset):
        fields = {"tranStateTableOffset": str(offset), "commitLogOffset": "4"}
        fields["transactionId"] = f"id-{number}"
        requests(line, RemotingCommand(39, flag=2, ext_fields=fields, body=record()))

    held = CONCURRENT_REQUESTS_MAX + WAITING_CHECKS_MAX
    for number in range(held + 2):
        check(number, number)
    check(held - 1, held + 100)  # a second check of a message that is still waiting
    assert caplog.text.count("checks of transactions are dropped") == 1
    status = RemotingCommand(221, ext_fields={"topic": "T", "group": "G"})
    assert requests(line, status) is None
    assert line.answer().code == 0  # other requests have their own threads
    go_on.set()
    for _ in range(held):
        assert done.acquire(timeout=10)
    assert sorted(checked) == [*range(held - 1), held + 100]
    wait_until(lambda: "accepted again; 2 were dropped" in caplog.text)
    for number in range(held, held + 2):
        check(number, number)
    assert done.acquire(timeout=10)


ELSEWHERE = {
    "another group": (307, {"consumerGroup": "H", "clientId": "me"}, "consumer of group 'H'"),
    "another client": (307, {"consumerGroup": "G", "clientId": "you"}, "client 'you'"),
    "a status of another group": (221, {"topic": "T", "group": "H"}, "consumer of group 'H'"),
}


@pytest.mark.parametrize(("code", "fields", "who"), ELSEWHERE.values(), ids=ELSEWHERE)
def test_broker_request_for_another_client_is_answered_with_an_error(
    requests, line, code, fields, who
):
    requests(line, RemotingCommand(code, ext_fields=fields))
    answer = line.answer()
    assert answer.code == 1
    assert who in answer.remark


@pytest.mark.parametrize("properties", ["PGROUP\x01Q\x02", "PGROUP\x01R\x02", ""])
def test_transaction_check_without_a_transactional_producer_is_answered_with_an_error(
    requests, line, properties
):
    fields = {"tranStateTableOffset": "3", "commitLogOffset": "4"}
    requests(line, RemotingCommand(39, ext_fields=fields, body=record(properties=properties)))
    assert "no transactional producer" in line.answer().remark


REPLY = {
    "producerGroup": "P",
    "topic": "C_REPLY_TOPIC",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "bornTimestamp": "1",
    "flag": "7",
    "bornHost": "/10.0.0.1:5",
    "storeHost": "10.0.0.2:6",
    "storeTimestamp": "2",
}


def pushed(correlation_id, body, sys_flag=0):
    properties = f"CORRELATION_ID\x01{correlation_id}\x02UNIQ_KEY\x01id\x02"
    fields = {**REPLY, "sysFlag": str(sys_flag), "properties": properties}
    return RemotingCommand(326, ext_fields=fields, body=body)


def test_reply_resolves_its_request_and_others_are_accepted_and_dropped(consumer, line):
    waiting = RequestFutureHolder()
    requests = ClientRequestProcessor(lambda: "me", {}, {}, requests=waiting)
    future = Future()
    request = waiting.register("me", "T", 60_000, future)
    assert requests(line, pushed("another", b"x")).code == 0
    assert not future.done()
    for body in (b"first", b"second"):
        assert requests(line, pushed(request.correlation_id, body)).code == 0
    reply = future.result(0)
    assert (reply.body, reply.flag, reply.message_id) == (b"first", 7, "id")
    assert (reply.born_host, reply.store_host) == ("10.0.0.1:5", "10.0.0.2:6")
    waiting.shut_down()


def test_reply_that_cannot_be_inflated_fails_its_request_and_is_refused(line):
    waiting = RequestFutureHolder()
    requests = ClientRequestProcessor(lambda: "me", {}, {}, requests=waiting)
    future = Future()
    request = waiting.register("me", "T", 60_000, future)
    answer = requests(line, pushed(request.correlation_id, b"damaged", sys_flag=1))
    assert (answer.code, "ZLIB" in answer.remark) == (1, True)
    assert isinstance(future.exception(0), BodyError)
    waiting.shut_down()


def test_unknown_broker_request_is_answered_not_supported(requests, line):
    assert requests(line, RemotingCommand(327)).code == 3


def test_listener_exception_is_the_response_to_consume_message_directly(requests, consumer, line):
    consumer.consumes = lambda _: 1 / 0
    fields = {"consumerGroup": "G", "clientId": "me", "brokerName": "broker-a"}
    requests(line, RemotingCommand(309, ext_fields=fields, body=record()))
    answer = line.answer()
    assert (answer.code, answer.remark) == (1, "ZeroDivisionError: division by zero")


def test_concurrent_broker_requests_are_limited(requests, consumer, line):
    go_on = threading.Event()

    def consumes(_):
        go_on.wait(10)
        return ConsumeResult.CR_SUCCESS

    consumer.consumes = consumes
    fields = {"consumerGroup": "G", "clientId": "me", "brokerName": "broker-a"}
    request = RemotingCommand(309, ext_fields=fields, body=record())
    assert [requests(line, request) for _ in range(CONCURRENT_REQUESTS_MAX)] == [
        None
    ] * CONCURRENT_REQUESTS_MAX
    assert requests(line, request).code == 2
    go_on.set()
    assert {line.answer().code for _ in range(CONCURRENT_REQUESTS_MAX)} == {0}


def test_reset_request_is_handled_although_slow_listeners_fill_the_threads(
    requests, consumer, line, caplog
):
    go_on = threading.Event()

    def waits(*_):
        go_on.wait(10)
        return ConsumeResult.CR_SUCCESS

    consumer.consumes = waits
    fields = {"consumerGroup": "G", "clientId": "me", "brokerName": "broker-a"}
    for _ in range(CONCURRENT_REQUESTS_MAX):
        requests(line, RemotingCommand(309, ext_fields=fields, body=record()))
    assert requests(line, reset()) is None
    assert consumer.resets.acquire(timeout=10)
    consumer.reset_offsets = waits
    for _ in range(CONCURRENT_REQUESTS_MAX):
        requests(line, reset())
    requests(line, reset())
    assert "request 220 was dropped" in caplog.text
    go_on.set()


def test_unreadable_broker_request_takes_no_place_of_others(requests, line):
    for _ in range(CONCURRENT_REQUESTS_MAX):
        with pytest.raises(HeaderError):
            requests(line, RemotingCommand(221))
    assert requests(line, RemotingCommand(221, ext_fields={"topic": "T", "group": "G"})) is None
    assert line.answer().code == 0


def test_broker_request_on_a_closed_connection_is_answered_without_an_error(requests, caplog):
    caplog.set_level("INFO")
    line = Line(ConnectionClosed("h:1", "gone"))
    requests(line, RemotingCommand(221, ext_fields={"topic": "T", "group": "G"}))
    line.answer()
    requests(line, RemotingCommand(221, ext_fields={"topic": "T", "group": "G"}))
    line.answer()
