"""Messages that a closing SimpleConsumer does not receive any more are made visible
again at once."""

import asyncio
import threading
from dataclasses import replace

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.asyncio_tests import told_in_a_loop, until
from support.servers.fake_servers import FakeServer
from support.stores.small_store import message

from rmq_spark.client.transport.pending_requests import ResponseFuture
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import BrokerData, QueueData, TopicRouteData
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.members import (
    ChangeInvisibleTimeResponseHeader,
    PopMessageResponseHeader,
)
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.record import encode_record
from rmq_spark.wire.pop import PopReceipt, encode_start_offsets
from rocketpoll import ClientInstance, SimpleConsumer, aio
from rocketpoll.errors import ClientShutDown

QUEUE_ID, QUEUE_OFFSET, POP_TIME, INVISIBLE_MS = 1, 7, 1_700_000_000_000, 600_000
WAIT_MS = 600_000
BEFORE, AFTER = "before", "after"


class PoppedFrom:
    """A name server and broker that holds a pop until its client leaves the group, and answers with
    a message before the leave, after it, or never."""

    def __init__(self, when=None):
        self._when = when
        self._held = None
        self.is_popped = threading.Event()
        self.changed = []
        self.codes = []

    def __enter__(self):
        self._server = FakeServer(self._story).__enter__()
        self.address = self._server.address
        return self

    def __exit__(self, *error):
        self._server.__exit__(*error)

    def _story(self, peer):
        while (request := peer.receive()) is not None:
            self.codes.append(request.code)
            if request.code == RequestCode.POP_MESSAGE:
                self._held = peer, request
                self.is_popped.set()
            elif request.code == RequestCode.UNREGISTER_CLIENT:
                answers = [request.respond(0).encode()]
                if self._when is not None:
                    answers.insert(0 if self._when == BEFORE else 1, self._popped())
                peer.send(b"".join(answers))
            elif not request.is_one_way:
                peer.send(self._answer(request).encode())

    def _answer(self, request):
        if request.code == RequestCode.EXTENSIONS:
            return request.respond(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            queues = (QueueData(broker_name="b", read_queue_nums=2, write_queue_nums=2, perm=6),)
            brokers = (BrokerData(broker_name="b", broker_addrs={0: self.address}),)
            route = TopicRouteData(queue_datas=queues, broker_datas=brokers)
            return request.respond(0, body=encode_body(route))
        if request.code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            codecs = HEADERS[request.code]
            self.changed.append(codecs.request.decode(request.ext_fields))
            fields = codecs.response.encode(ChangeInvisibleTimeResponseHeader(POP_TIME, 0, 0))
            return request.respond(0, ext_fields=fields)
        return request.respond(0)

    def _popped(self):
        """Return the response to the held pop."""
        _, request = self._held
        stored = replace(message("late"), queue_id=QUEUE_ID, queue_offset=QUEUE_OFFSET)
        header = PopMessageResponseHeader(
            POP_TIME, INVISIBLE_MS, 0, 0, encode_start_offsets([("T", QUEUE_ID, QUEUE_OFFSET)])
        )
        fields = HEADERS[RequestCode.POP_MESSAGE].response.encode(header)
        return request.respond(0, ext_fields=fields, body=encode_record(stored)).encode()

    def answer_pop(self):
        peer, _ = self._held
        peer.send(self._popped())

    def assert_given_back(self):
        """Check that the message was made visible once, by its receipt handle."""
        (header,) = self.changed
        assert (header.consumer_group, header.topic, header.invisible_time) == ("G", "T", 0)
        assert header.extra_info == (
            PopReceipt(
                QUEUE_OFFSET, POP_TIME, INVISIBLE_MS, 0, "0", "b", QUEUE_ID, QUEUE_OFFSET
            ).encode()
        )


class Receiving(threading.Thread):
    """A thread that receives, and the error that ended it."""

    def __init__(self, consumer):
        super().__init__()
        self._consumer = consumer
        self.error = None
        self.start()

    def run(self):
        try:
            self._consumer.receive(invisible_ms=INVISIBLE_MS, timeout_ms=WAIT_MS)
        except ClientShutDown as error:
            self.error = error

    def assert_ended(self):
        self.join(60)
        assert "was shut down" in str(self.error)


@pytest.mark.parametrize("reads_itself", [False, True])
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_message_that_arrives_while_the_consumer_closes_is_given_back(when, reads_itself):
    with PoppedFrom(when) as broker:
        instance = ClientInstance(broker.address, reads_itself=reads_itself)
        consumer = SimpleConsumer("G", instance=instance)
        consumer.subscribe("T")
        consumer.start()
        receiving = Receiving(consumer)
        assert broker.is_popped.wait(60)
        consumer.close()
        broker.assert_given_back()
        receiving.assert_ended()
        assert instance.is_shut_down


def test_message_that_arrives_after_a_consumer_of_a_shared_instance_has_closed_is_given_back():
    with PoppedFrom() as broker, ClientInstance(broker.address) as instance:
        consumer = SimpleConsumer("G", instance=instance)
        consumer.subscribe("T")
        consumer.start()
        receiving = Receiving(consumer)
        assert broker.is_popped.wait(60)
        consumer.close()
        receiving.assert_ended()
        assert broker.changed == []
        broker.answer_pop()
        wait_until("the message is given back", lambda: broker.changed)
        broker.assert_given_back()


def test_message_of_an_interrupted_receive_is_given_back(monkeypatch):
    with PoppedFrom() as broker, ClientInstance(broker.address) as instance:
        consumer = SimpleConsumer("G", instance=instance)
        consumer.subscribe("T")
        with consumer:
            before_wait = ResponseFuture._before_wait

            def interrupt(response, timeout):
                if response.request_code == RequestCode.POP_MESSAGE:
                    raise KeyboardInterrupt
                return before_wait(response, timeout)

            with monkeypatch.context() as patched:
                patched.setattr(ResponseFuture, "_before_wait", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    consumer.receive(invisible_ms=INVISIBLE_MS, timeout_ms=WAIT_MS)
            assert broker.is_popped.wait(60)
            broker.answer_pop()
            wait_until("the message is given back", lambda: broker.changed)
        broker.assert_given_back()


def test_message_that_was_received_is_not_given_back_by_close():
    with PoppedFrom() as broker:
        consumer = SimpleConsumer("G", broker.address)
        consumer.subscribe("T")
        with consumer:
            answering = threading.Thread(
                target=lambda: broker.is_popped.wait(60) and broker.answer_pop()
            )
            answering.start()
            (found,) = consumer.receive(invisible_ms=INVISIBLE_MS, timeout_ms=WAIT_MS)
            answering.join()
        assert found.body == b"late"
        assert broker.changed == []


@pytest.mark.parametrize("when", [BEFORE, AFTER])
@pytest.mark.parametrize("is_cancelled", [False, True])
@told_in_a_loop
async def test_message_that_arrives_while_the_aio_consumer_closes_is_given_back(when, is_cancelled):
    with PoppedFrom(when) as broker:
        consumer = aio.SimpleConsumer("G", broker.address)
        await consumer.subscribe("T")
        await consumer.start()
        receiving = asyncio.create_task(
            consumer.receive(invisible_ms=INVISIBLE_MS, timeout_ms=WAIT_MS)
        )
        await until("the pop", broker.is_popped.is_set)
        if is_cancelled:
            receiving.cancel()
            await asyncio.wait([receiving])
        await consumer.close()
        broker.assert_given_back()
        with pytest.raises((ClientShutDown, asyncio.CancelledError)):
            await receiving


@told_in_a_loop
async def test_message_that_arrives_after_an_aio_consumer_has_closed_is_given_back():
    with PoppedFrom() as broker:
        async with aio.Client(broker.address) as client:
            consumer = aio.SimpleConsumer("G", client=client)
            await consumer.subscribe("T")
            await consumer.start()
            receiving = asyncio.create_task(
                consumer.receive(invisible_ms=INVISIBLE_MS, timeout_ms=WAIT_MS)
            )
            await until("the pop", broker.is_popped.is_set)
            await consumer.close()
            with pytest.raises(ClientShutDown):
                await receiving
            assert broker.changed == []
            broker.answer_pop()
            await until("the message is given back", lambda: broker.changed)
            broker.assert_given_back()
