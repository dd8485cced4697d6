"""Clients of a whole broker that encode remoting frames themselves.

`RawClient` sends any bytes, also invalid ones. `BrokerClient` has a method for each usual request:
send, pull, heartbeat.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress
from typing import NamedTuple

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from rmq_spark.wire.codes import PullSysFlag, RequestCode
from rmq_spark.wire.extensions import Extension, ExtensionsHeader
from rmq_spark.wire.headers.members import PullMessageRequestHeader, SendMessageRequestHeader
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.message.message_batch import BatchedMessage, encode_batch
from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.message.record import decode_records
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader


class RawClient:
    """A socket with a frame reader. Every wait has a timeout."""

    def __init__(self, reader, writer):
        self._reader = reader
        self._writer = writer
        self._frame_reader = FrameReader()

    @classmethod
    async def connect(cls, port, receive_buffer=None, address=None, tls=None):
        """Connect, with TLS if a context is given."""
        sock = socket.socket()
        sock.setblocking(False)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if address is not None:
            sock.bind((address, 0))
        name = None if tls is None else "localhost"
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
            streams = await asyncio.open_connection(
                sock=sock, limit=1 << 16, ssl=tls, server_hostname=name
            )
        except BaseException:  # the broker may already have closed it
            sock.close()
            raise
        return cls(*streams)

    @property
    def address(self):
        return self._writer.get_extra_info("sockname")

    def send(self, data):
        self._writer.write(data if isinstance(data, bytes) else data.encode())

    def send_at_once(self, data):
        """Write bytes to the socket before returning, so that they arrive in the next turn of the
        loop."""
        __tracebackhide__ = True
        data = data if isinstance(data, bytes) else data.encode()
        assert os.write(self._writer.get_extra_info("socket").fileno(), data) == len(data)

    async def receive(self, seconds=10):
        """Return the next command."""
        __tracebackhide__ = True
        while (frame := self._frame_reader.next_frame()) is None:
            data = await asyncio.wait_for(self._reader.read(1 << 16), seconds)
            assert data, "the broker has closed the connection"
            self._frame_reader.feed(data)
        return decode_command(frame)

    async def ask(self, code, opaque=1, ext_fields=None, body=b""):
        self.send(RemotingCommand(code, opaque=opaque, ext_fields=ext_fields or {}, body=body))
        return await self.receive()

    async def closed(self, seconds=10):
        """Wait until the broker has closed the connection; return the frames that it
        sent before."""
        said = bytearray()
        while True:
            try:
                data = await asyncio.wait_for(self._reader.read(1 << 16), seconds)
            except ConnectionError:
                return bytes(said)
            if not data:
                return bytes(said)
            said += data

    def close(self):
        self._writer.close()

    def abort(self):
        self._writer.transport.abort()

    async def end(self):
        self.abort()
        with suppress(OSError):  # also TLS errors
            await self._writer.wait_closed()


class RawClients:
    """All raw clients of a story, connected to one port."""

    client_type = RawClient

    def __init__(self, port):
        self.port = port
        self._all = []

    async def connect(self, receive_buffer=None, address=None, tls=None):
        self._all.append(await self.client_type.connect(self.port, receive_buffer, address, tls))
        return self._all[-1]

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for client in self._all:
            await client.end()


async def until(condition, seconds=10):
    __tracebackhide__ = True
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not come to that"
        await asyncio.sleep(0.001)


COMMIT = PullSysFlag.COMMIT_OFFSET.value
SUSPEND = PullSysFlag.SUSPEND.value
SUBSCRIPTION = PullSysFlag.SUBSCRIPTION.value


class Pulled(NamedTuple):
    """A decoded response to a pull."""

    code: int
    remark: str | None
    next_offset: int
    min_offset: int
    max_offset: int
    bodies: list[str]
    messages: list
    opaque: int


def send_request(
    body="body",
    topic="T",
    queue_id=0,
    *,
    code=RequestCode.SEND_MESSAGE_V2,
    default_topic="TBW102",
    queue_nums=4,
    properties=None,
    sys_flag=0,
    opaque=1,
    flag=0,
    batch=False,
    **more,
):
    """Return a send request as Java's producer builds it."""
    text = properties if isinstance(properties, str) else encode_properties(properties or {})
    header = SendMessageRequestHeader(
        "P",
        topic,
        default_topic,
        queue_nums,
        queue_id,
        sys_flag,
        1_600_000_000_000,
        0,
        text,
        batch=batch,
    )
    data = body if isinstance(body, (bytes, bytearray, memoryview)) else str(body).encode()
    return RemotingCommand(
        code,
        opaque=opaque,
        flag=flag,
        ext_fields=HEADERS[code].request.encode(header),
        body=data,
        **more,
    )


def batch_request(*bodies, topic="T", queue_id=0, properties=None, each=None, **more):
    """Return a send request with several messages."""
    text = encode_properties(each or {})
    body = encode_batch(BatchedMessage(str(each_body).encode(), text) for each_body in bodies)
    return send_request(
        body,
        topic,
        queue_id,
        code=RequestCode.SEND_BATCH_MESSAGE,
        properties=properties,
        batch=True,
        **more,
    )


def pull_request(
    queue_offset=0,
    topic="T",
    queue_id=0,
    *,
    group="G",
    code=RequestCode.PULL_MESSAGE,
    suspend_ms=None,
    commit_offset=None,
    subscription="*",
    expression_type=None,
    sub_version=0,
    count=32,
    bytes_max=None,
    opaque=1,
    **more,
):
    """Return a pull request, by default with its own subscription."""
    sys_flag = (
        (COMMIT if commit_offset is not None else 0)
        | (SUSPEND if suspend_ms is not None else 0)
        | (SUBSCRIPTION if subscription is not None else 0)
    )
    header = PullMessageRequestHeader(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=queue_offset,
        max_msg_nums=count,
        sys_flag=sys_flag,
        commit_offset=commit_offset or 0,
        suspend_timeout_millis=suspend_ms or 0,
        sub_version=sub_version,
        subscription=subscription,
        expression_type=expression_type,
        max_msg_bytes=bytes_max,
    )
    return RemotingCommand(
        code, opaque=opaque, ext_fields=HEADERS[code].request.encode(header), **more
    )


def pulled(answer):
    """Decode the response to a pull."""
    fields = answer.ext_fields
    messages = list(decode_records(answer.body))
    return Pulled(
        answer.code,
        answer.remark,
        int(fields.get("nextBeginOffset", -1)),
        int(fields.get("minOffset", -1)),
        int(fields.get("maxOffset", -1)),
        [message.body.decode() for message in messages],
        messages,
        answer.opaque,
    )


class BrokerClient(RawClient):
    """A client that waits for each response."""

    def __init__(self, reader, writer):
        super().__init__(reader, writer)
        self.notices = []

    async def call(self, request):
        """Send a request; return its response, and accept only notifications of the broker before
        it."""
        __tracebackhide__ = True
        self.send(request)
        while not (answer := await self.receive()).is_response:
            self.notices.append(answer)
        assert answer.opaque == request.opaque
        return answer

    async def put(self, *bodies, **more):
        """Send messages one by one; return the last response."""
        __tracebackhide__ = True
        answer = None
        for body in bodies:
            answer = await self.call(send_request(body, **more))
            assert answer.code == 0, answer.remark
        return answer

    async def pull(self, queue_offset=0, topic="T", queue_id=0, **more):
        return pulled(await self.call(pull_request(queue_offset, topic, queue_id, **more)))

    def heartbeat_frame(self, group, *subscriptions, **more):
        """Return a heartbeat that subscribes a group."""
        consumer = ConsumerData(
            group_name=group,
            subscription_data_set=tuple(
                each if isinstance(each, SubscriptionData) else SubscriptionData(topic=each)
                for each in subscriptions
            ),
            **more,
        )
        body = encode_body(HeartbeatData(client_id="client", consumer_data_set=(consumer,)))
        return RemotingCommand(RequestCode.HEART_BEAT, body=body)

    async def heartbeat(self, group, *subscriptions, **more):
        """Send a heartbeat that subscribes a group."""
        __tracebackhide__ = True
        answer = await self.call(self.heartbeat_frame(group, *subscriptions, **more))
        assert answer.code == 0, answer.remark

    async def agree(self, *extensions):
        """Negotiate extensions; return those that both sides have."""
        header = ExtensionsHeader.of(frozenset(extensions or Extension))
        codec = HEADERS[RequestCode.EXTENSIONS]
        answer = await self.call(
            RemotingCommand(RequestCode.EXTENSIONS, ext_fields=codec.request.encode(header))
        )
        return codec.response.decode(answer.ext_fields).extensions

    async def offset(self, code, **ext_fields):
        """Return the response to one of the offset requests."""
        answer = await self.call(
            RemotingCommand(
                code, ext_fields={name: str(value) for name, value in ext_fields.items()}
            )
        )
        return int(answer.ext_fields["offset"]) if answer.code == 0 else None

    async def committed(self, group="G", topic="T", queue_id=0):
        """Return the group's committed offset, from the broker."""
        return await self.offset(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=queue_id
        )


class BrokerClients(RawClients):
    """The clients of a story."""

    client_type = BrokerClient
