"""Requests that wait for replies: limit, timeout, callbacks and cancellation."""

import pickle
import threading

import pytest
from support.brokers.broker_kinds import wait_until
from support.servers.fake_servers import FakeServer, answering

from rmq_spark.client.errors import ClientShutDown, ReplyTimeout, TooManyPending
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import BrokerData, QueueData, TopicRouteData
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message.properties import decode_properties

PATIENCE_MS = 60_000


class Broker:
    """A broker and name server that stores nothing, and records requests."""

    def __init__(self, *, is_silent=False):
        self.seen = []
        self._is_silent = is_silent
        self.server = FakeServer(answering(self._answer))
        self.address = self.server.address

    def _answer(self, request):
        self.seen.append(request)
        if request.code == RequestCode.EXTENSIONS:
            return None
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return request.respond(0, body=encode_body(self._route()))
        if request.code == RequestCode.SEND_MESSAGE_V2:
            if self._is_silent:
                return None
            place = {"msgId": "id", "queueId": "0", "queueOffset": "5"}
            return request.respond(0)._replace(ext_fields=place)
        return request.respond(0)

    def _route(self):
        queue = QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)
        broker = BrokerData(broker_name="a", cluster="C", broker_addrs={0: self.address})
        return TopicRouteData(queue_datas=(queue,), broker_datas=(broker,))

    def codes(self):
        return [each.code for each in self.seen]

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *error):
        self.server.__exit__(*error)


@pytest.fixture
def broker():
    with Broker() as broker:
        yield broker


@pytest.fixture
def producer(broker):
    with Producer("P", broker.address, pending_max=2) as producer:
        yield producer


def test_request_is_sent_after_the_broker_knows_the_client_that_waits(broker, producer):
    producer.request_async(Message("T", b"x"), timeout_ms=PATIENCE_MS)
    wait_until("it is sent", lambda: RequestCode.SEND_MESSAGE_V2 in broker.codes())
    codes = broker.codes()
    assert RequestCode.HEART_BEAT in codes[: codes.index(RequestCode.SEND_MESSAGE_V2)]
    (sent,) = [each for each in broker.seen if each.code == RequestCode.SEND_MESSAGE_V2]
    properties = decode_properties(sent.ext_fields["i"])
    assert properties["REPLY_TO_CLIENT"] == producer.instance.client_id
    assert int(properties["TTL"]) == PATIENCE_MS


def test_reply_timeout_says_whether_the_request_is_stored(producer):
    with pytest.raises(ReplyTimeout) as stored:
        producer.request(Message("T", b"x"), timeout_ms=300)
    assert "the request is stored at offset 5 of " in str(stored.value)
    assert stored.value.sent.queue_offset == 5
    with (
        Broker(is_silent=True) as broker,
        Producer("P", broker.address) as another,
        pytest.raises(TimeoutError) as unknown,
    ):
        another.request(Message("T", b"x"), timeout_ms=300)
    assert "no broker has acknowledged the request, which may be stored" in str(unknown.value)
    for error in (stored.value, unknown.value):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301  # the test's own data
        assert (str(again), again.sent) == (str(error), error.sent)


def test_waiting_requests_are_limited_and_cancelled_ones_make_room(producer):
    first, _ = (producer.request_async(Message("T", b"x"), timeout_ms=PATIENCE_MS) for _ in "ab")
    with pytest.raises(TooManyPending):
        producer.request(Message("T", b"x"), timeout_ms=200)
    assert producer.health().pending_requests == 2
    assert first.cancel()
    assert producer.health().pending_requests == 1
    producer.request_async(Message("T", b"x"), timeout_ms=PATIENCE_MS)


def test_shutdown_fails_waiting_requests_with_their_place_in_a_thread_of_callbacks(producer):
    called, threads = threading.Event(), []
    future = producer.request_async(Message("T", b"x"), timeout_ms=PATIENCE_MS)
    future.add_done_callback(lambda _: (threads.append(threading.current_thread()), called.set()))
    other = Producer("Other", instance=producer.instance)
    with other:
        kept = other.request_async(Message("T", b"x"), timeout_ms=PATIENCE_MS)
        wait_until("it is stored", lambda: producer.health().pending_sends == 0)
        producer.shutdown()
        with pytest.raises(ClientShutDown, match="waited for its reply; the request is stored at"):
            future.result(5)
        assert called.wait(5)
        assert threads[0].name == "rocketpoll callbacks"
        assert not kept.done()


def test_await_of_a_threaded_request_names_the_producer_of_asyncio(producer):
    future = producer.request_async(Message("T", b"x"), timeout_ms=PATIENCE_MS)
    with pytest.raises(TypeError, match=r"a ReplyFuture .*`await producer\.request\(\.\.\.\)`"):
        future.__await__()
