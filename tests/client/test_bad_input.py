"""Failing servers cause client errors with place and reason, never a hang or silence.

Each failure is combined with each kind of request, to name servers and to brokers; shutdown never
waits for pending requests.
"""

import socket
import threading
import time
from contextlib import ExitStack, closing

import pytest
from support.servers.fake_servers import FakeServer, answering, silent
from support.suite.selection import spread

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.push_consumer import PushConsumer
from rmq_spark.client.errors import (
    BrokerRefused,
    ClientError,
    ClientShutDown,
    ConnectionClosed,
    ConnectionFailed,
    NoNameServer,
    NoPermission,
    ProtocolError,
    RequestTimeout,
    SendFailed,
    TopicNotUsable,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import Message
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.reading.bulk_pull import BulkPull, PullRules
from rmq_spark.client.transport import remoting_client
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import BrokerData, QueueData, TopicRouteData
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.message_queue import MessageQueue

X = Message("T", b"x")
QUEUE = MessageQueue("T", "broker-a", 0)
SOON_MS = 100
LATE_MS = 60_000
PATIENCE_S = 30
NO_PERMISSION = 16


# ---- failing servers


def closes(peer, _):
    peer.close()


def closes_half_way(peer, request):
    peer.send(request.respond(0, "half", body=b"x" * 1_000).encode()[:500])
    peer.close()


def stalls(_, __):
    pass


def stalls_half_way(peer, request):
    peer.send(request.respond(0, "half", body=b"x" * 1_000).encode()[:500])
    silent(peer)


def says_garbage(peer, _):
    peer.send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def answers_another(peer, request):
    peer.send(request._replace(opaque=request.opaque + 1_000).respond(0))


def answers_nonsense(peer, request):
    peer.send(request.respond(0, None, {"queueId": "many", "offset": "?"}, b"\xff{no body"))


def answers_with_a_deep_header(peer, request):
    deep = b"[" * 100_000 + b"]" * 100_000
    header = b'{"code":0,"opaque":%d,"flag":1,"extFields":%s}' % (request.opaque, deep)
    length = (4 + len(header)).to_bytes(4, "big")
    peer.send(length + len(header).to_bytes(4, "big") + header)


def answers_with_a_deep_body(peer, request):
    peer.send(request.respond(0, None, {"queueId": "many", "offset": "?"}, b'{"a":' * 100_000))


FAILURES = {
    closes: ConnectionClosed,
    closes_half_way: ConnectionClosed,
    stalls: RequestTimeout,
    stalls_half_way: RequestTimeout,
    says_garbage: ProtocolError,
    answers_another: RequestTimeout,
    answers_nonsense: ProtocolError,
    answers_with_a_deep_header: ProtocolError,
    answers_with_a_deep_body: ProtocolError,
}


def failing(how, asked=None):
    """Run a server that refuses extensions, accepts heartbeats, and then fails in this way."""

    def story(peer):
        while (request := peer.receive()) is not None:
            if request.code == RequestCode.EXTENSIONS:
                peer.send(request.respond(3, "not supported"))
            elif request.code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT):
                peer.send(request.respond(0))
            elif not request.is_one_way:
                if asked is not None:
                    asked.set()
                how(peer, request)

    return FakeServer(story)


def name_server_of(address):
    """Run a name server whose route of topic T leads to this broker."""
    route = TopicRouteData(
        queue_datas=(
            QueueData(broker_name="broker-a", read_queue_nums=1, write_queue_nums=1, perm=6),
        ),
        broker_datas=(BrokerData(broker_name="broker-a", broker_addrs={0: address}),),
    )
    return FakeServer(answering(lambda request: request.respond(0, body=encode_body(route))))


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=FAILURES, ids=lambda how: how.__name__)
def failure(request):
    return request.param


def nobodys_port():
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        return taken.getsockname()[1]


def instance_of(stack, name_server, timeout_ms=SOON_MS):
    instance = ClientInstance(
        name_server, request_timeout_ms=timeout_ms, connect_timeout_ms=SOON_MS
    )
    instance.start()
    stack.callback(instance.shutdown)
    return instance


def in_time(action):
    """Return the error of an action, which must end in time."""
    raised = []

    def run():
        try:
            action()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it hangs"
    return raised[0] if raised else None


# ---- kinds of requests


def table():
    return pytest.importorskip("pyarrow").table({"body": ["a", "b"]})


SENDS = {
    "send": lambda producer, ms: producer.send(X, timeout_ms=ms),
    "to a queue": lambda producer, ms: producer.send(X, QUEUE, timeout_ms=ms),
    "future": lambda producer, ms: producer.send_async(X, timeout_ms=ms).result(PATIENCE_S),
    "batch": lambda producer, ms: producer.send_batch([X, X], timeout_ms=ms),
    "table": lambda producer, ms: producer.send_table(table(), "T", timeout_ms=ms),
}


def producer_of(stack, instance):
    producer = Producer("P", instance=instance, retries=0)
    producer.start()
    stack.callback(producer.shutdown)
    return producer


def lite_of(instance):
    consumer = LitePullConsumer("G", instance=instance)
    consumer.subscribe("T")
    return consumer


def push_of(instance):
    consumer = PushConsumer("G", instance=instance, listener=lambda *_: None)
    consumer.subscribe("T")
    return consumer


ROUTED = {
    "a producer": lambda instance: producer_of(ExitStack(), instance).send(X),
    "a polling consumer": lambda instance: lite_of(instance).start(),
    "a push consumer": lambda instance: push_of(instance).start(),
    "an operator": lambda instance: Admin(instance=instance).route("T"),
}


# ---- name servers


@pytest.mark.parametrize("asking", spread(2, ROUTED.values()), ids=list(ROUTED))
def test_failing_name_server_raises_an_error_with_its_address(stack, failure, asking):
    server = stack.enter_context(failing(failure))
    instance = instance_of(stack, server.address)
    error = in_time(lambda: asking(instance))
    assert isinstance(error, NoNameServer)
    assert [type(each) for each in error.tries] == [FAILURES[failure]]
    assert server.address in str(error)


@pytest.mark.parametrize("asking", ROUTED.values(), ids=list(ROUTED))
def test_wrong_port_and_missing_name_server_give_advice(stack, monkeypatch, asking):
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    address = f"127.0.0.1:{nobodys_port()}"
    error = in_time(lambda: asking(instance_of(stack, address)))
    assert isinstance(error, NoNameServer)
    assert f"cannot connect to {address}" in str(error)
    assert "check that a broker listens there" in str(error)
    error = in_time(lambda: asking(instance_of(stack, None)))
    assert isinstance(error, NoNameServer)
    assert "NAMESRV_ADDR" in str(error)


# ---- brokers


@pytest.mark.parametrize("sending", spread(3, SENDS.values()), ids=list(SENDS))
def test_failing_broker_makes_send_raise_an_error_with_its_address(stack, failure, sending):
    server = stack.enter_context(failing(failure))
    names = stack.enter_context(name_server_of(server.address))
    producer = producer_of(stack, instance_of(stack, names.address, timeout_ms=3_000))
    producer.instance.routes.publish_queues("T")  # time for the name server and the connection
    producer.instance.connections.connect(server.address, LATE_MS)
    waits_in_vain = FAILURES[failure] is RequestTimeout
    error = in_time(lambda: sending(producer, SOON_MS if waits_in_vain else LATE_MS))
    assert isinstance(error, ClientError)
    assert server.address in str(error)
    tries = error.tries if isinstance(error, SendFailed) else (error,)
    assert isinstance(tries[0], FAILURES[failure])


def bulk(instance, address):
    rules = PullRules(timeout_ms=SOON_MS, wait_ms=SOON_MS, tries=1)
    return list(BulkPull(instance.api, address, "G", QUEUE, 0, 10, rules))


QUESTIONS = {
    "bulk pull": bulk,
    "largest offset": lambda instance, address: instance.api.max_offset(address, QUEUE),
    "committed": lambda instance, address: instance.api.query_consumer_offset(address, "G", QUEUE),
    "members": lambda instance, address: instance.api.consumer_ids(address, "G"),
    "stats": lambda instance, address: instance.api.admin.topic_stats(address, "T"),
    "topics": lambda instance, address: instance.api.admin.topic_configs(address),
}


@pytest.mark.parametrize("question", spread(2, QUESTIONS.values()), ids=list(QUESTIONS))
def test_failing_broker_makes_a_query_raise_an_error_with_its_address(stack, failure, question):
    server = stack.enter_context(failing(failure))
    instance = instance_of(stack, server.address)
    error = in_time(lambda: question(instance, server.address))
    # When one of several pulls times out, the connection ends for the others.
    assert isinstance(error, (FAILURES[failure], ConnectionClosed))
    assert server.address in str(error)


@pytest.mark.parametrize("make", [lite_of, push_of], ids=["polling", "push"])
def test_consumer_of_a_failing_broker_keeps_running_logs_it_and_shuts_down(
    stack, failure, make, caplog
):
    asked = threading.Event()
    server = stack.enter_context(failing(failure, asked))
    names = stack.enter_context(name_server_of(server.address))
    consumer = make(instance_of(stack, names.address))
    assert in_time(consumer.start) is None
    assert asked.wait(PATIENCE_S)
    if make is lite_of:
        assert consumer.poll(10) == []
    deadline = time.monotonic() + PATIENCE_S
    while server.address not in caplog.text:
        assert time.monotonic() < deadline, "nobody is told"
        asked.wait(0.01)
    assert in_time(consumer.shutdown) is None


def test_unreachable_broker_is_named_by_each_call(stack, caplog):
    address = f"127.0.0.1:{nobodys_port()}"
    names = stack.enter_context(name_server_of(address))
    instance = instance_of(stack, names.address)
    producer = producer_of(stack, instance)
    for sending in SENDS.values():
        error = in_time(lambda sending=sending: sending(producer, SOON_MS))
        assert f"cannot connect to {address}" in str(error)
    error = in_time(lambda: bulk(instance, address))
    assert isinstance(error, ConnectionFailed)
    consumer = lite_of(instance)
    assert in_time(consumer.start) is None
    assert consumer.poll(10) == []
    assert in_time(consumer.shutdown) is None
    assert f"cannot connect to {address}" in caplog.text


# ---- refusals


def test_forbidden_topic_raises_no_permission(running_broker, api, stack):
    for topic, perm in (("Reading", 4), ("Writing", 2)):
        config = TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1, perm=perm)
        api.admin.create_topic(running_broker.address, config)
    instance = instance_of(stack, running_broker.address)
    producer = producer_of(stack, instance)
    with pytest.raises(
        TopicNotUsable, match="Reading: no broker with a master allows writing to it"
    ):
        producer.send(Message("Reading", b"x"))
    queue = MessageQueue("Writing", "broker-a", 0)
    assert producer.send(Message("Writing", b"x")).queue.topic == "Writing"
    with pytest.raises(NoPermission, match="NO_PERMISSION"):
        list(BulkPull(api, running_broker.address, "G", queue, 0, 1))


def test_broker_refusal_keeps_its_code_and_remark(stack):
    def refuses(peer, request):
        peer.send(request.respond(NO_PERMISSION, "the key of alice may not"))

    server = stack.enter_context(failing(refuses))
    names = stack.enter_context(name_server_of(server.address))
    instance = instance_of(stack, names.address)
    producer = producer_of(stack, instance)
    for name, sending in SENDS.items():
        error = in_time(lambda sending=sending: sending(producer, SOON_MS))
        assert isinstance(error, (NoPermission, SendFailed)), name
        assert "the key of alice may not" in str(error)
    for question in QUESTIONS.values():
        error = in_time(lambda question=question: question(instance, server.address))
        assert isinstance(error, BrokerRefused)
        assert (error.code, error.remark) == (NO_PERMISSION, "the key of alice may not")


# ---- shutdown with pending requests


def test_shutdown_does_not_wait_for_a_connection_in_progress(stack, monkeypatch):
    dialling, free, raised = threading.Event(), threading.Event(), []

    def dial(address, *_, **__):
        dialling.set()
        free.wait(PATIENCE_S)
        raise ConnectionFailed(address, "no answer")

    monkeypatch.setattr(remoting_client.RemotingConnection, "connect", dial)
    instance = instance_of(stack, "127.0.0.1:9876", LATE_MS)
    producer = producer_of(stack, instance)
    sender = threading.Thread(target=lambda: raised.append(in_time(lambda: producer.send(X))))
    sender.start()
    assert dialling.wait(PATIENCE_S)
    assert in_time(instance.shutdown) is None
    sender.join(PATIENCE_S)
    assert not sender.is_alive()
    assert not free.is_set()
    assert [type(error) for error in raised] == [ClientShutDown]
    free.set()
