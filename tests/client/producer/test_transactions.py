"""Transactions of a producer: requests, and how each exit from a block ends the transaction."""

import os

import pytest
from support.servers.fake_servers import FakeServer, answering

from rmq_spark.client.errors import SendFailed
from rmq_spark.client.message import Message
from rmq_spark.client.producer.transaction_producer import TransactionProducer, TransactionState
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import BrokerData, QueueData, TopicRouteData
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.properties import decode_properties

COMMIT, ROLLBACK, UNKNOWN = TransactionState
PLACE = {"msgId": "7F00000100002A9F00000000000003E8", "queueId": "0", "queueOffset": "5"}


class Broker:
    """A broker and name server that stores nothing, and records requests."""

    def __init__(self):
        self.seen = []
        self.codes = {}
        """Response codes by request code; others succeed."""
        self.server = FakeServer(answering(self._answer))
        self.address = self.server.address

    def _answer(self, request):
        self.seen.append(request)
        if request.code == RequestCode.EXTENSIONS:
            return None
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return request.respond(0, body=encode_body(self._route()))
        fields = PLACE if request.code == RequestCode.SEND_MESSAGE_V2 else {}
        return request.respond(self.codes.get(request.code, 0))._replace(ext_fields=fields)

    def _route(self):
        queue = QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)
        broker = BrokerData(broker_name="a", cluster="C", broker_addrs={0: self.address})
        return TopicRouteData(queue_datas=(queue,), broker_datas=(broker,))

    def ends(self):
        """Return the headers of requests that end transactions."""
        code = RequestCode.END_TRANSACTION
        return [
            HEADERS[code].request.decode(each.ext_fields) for each in self.seen if each.code == code
        ]


@pytest.fixture
def broker():
    broker = Broker()
    with broker.server:
        yield broker


@pytest.fixture
def producer(broker):
    with TransactionProducer(
        "P", broker.address, check_listener=lambda _: COMMIT, retries=0
    ) as producer:
        yield producer


def test_half_message_and_its_commit_have_the_fields_of_rocketmq(broker, producer):
    with producer.transaction(Message("T", b"x"), check_immunity_seconds=60) as begun:
        assert broker.ends() == []
    (half,) = [each for each in broker.seen if each.code == RequestCode.SEND_MESSAGE_V2]
    header = HEADERS[RequestCode.SEND_MESSAGE_V2].request.decode(half.ext_fields)
    assert header.sys_flag & 0xC == 4
    properties = decode_properties(header.properties)
    assert properties["TRAN_MSG"] == "true"
    assert properties["PGROUP"] == "P"
    assert properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "60"
    heartbeat = [each.code for each in broker.seen].index(RequestCode.HEART_BEAT)
    assert heartbeat < broker.seen.index(half)
    (end,) = broker.ends()
    assert (end.tran_state_table_offset, end.commit_log_offset) == (5, 1_000)
    assert (end.commit_or_rollback, end.from_transaction_check) == (8, False)
    assert (end.producer_group, end.msg_id) == ("P", begun.message_id)


@pytest.mark.parametrize(
    ("error", "ends"), [(ValueError, [12]), (KeyboardInterrupt, []), (SystemExit, [])]
)
def test_transaction_block_exit_decides_its_end(broker, producer, error, ends):
    with pytest.raises(error), producer.transaction(Message("T", b"x")):
        raise error
    assert [end.commit_or_rollback for end in broker.ends()] == ends


def test_transaction_ends_once_whatever_follows(broker, producer):
    begun = producer.transaction(Message("T", b"x"))
    begun.begin()
    begun.commit()
    assert begun.rollback().state is COMMIT
    with producer.transaction(Message("T", b"x")) as begun:
        begun.leave_open()
        assert begun.commit().state is UNKNOWN
    assert [end.commit_or_rollback for end in broker.ends()] == [8]


def test_end_that_no_broker_acknowledges_is_logged_and_is_no_error(broker, producer, caplog):
    broker.codes[RequestCode.END_TRANSACTION] = ResponseCode.SYSTEM_ERROR
    with producer.transaction(Message("T", b"x")) as begun:
        pass
    assert begun.result.state is COMMIT
    assert not begun.result.is_acknowledged
    assert "the broker asks check_listener of P" in caplog.text


def test_half_message_that_is_not_safe_is_rolled_back_before_the_block(broker, producer):
    broker.codes[RequestCode.SEND_MESSAGE_V2] = ResponseCode.FLUSH_DISK_TIMEOUT
    with (
        pytest.raises(SendFailed, match="less safely than the broker promises, and rolled back"),
        producer.transaction(Message("T", b"x")),
    ):
        raise AssertionError("the block was entered")
    assert [end.commit_or_rollback for end in broker.ends()] == [12]


def test_forked_child_does_not_end_the_transaction_of_its_parent(broker, producer, monkeypatch):
    with producer.transaction(Message("T", b"x")):
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: 1)
            begun = producer.transaction(Message("T", b"x"))
            begun.begin()
        begun.__exit__(None)
        assert broker.ends() == []
    assert len(broker.ends()) == 1


def test_transaction_used_before_its_begin_is_refused(producer):
    begun = producer.transaction(Message("T", b"x"))
    with pytest.raises(RuntimeError, match="Use it in a with statement"):
        begun.commit()
    begun.begin()
    with pytest.raises(RuntimeError, match=r"Call transaction\(\) for another"):
        begun.begin()


def test_transaction_producer_refuses_a_single_name_as_topics():
    with pytest.raises(TypeError, match="topics: needed several names of topics"):
        TransactionProducer("P", "localhost:1", check_listener=lambda _: COMMIT, topics="orders")


@pytest.mark.parametrize("listener", [None, "check", 7])
def test_check_listener_must_be_a_function(listener):
    with pytest.raises(TypeError, match="check_listener"):
        TransactionProducer("P", "localhost:1", check_listener=listener)
