"""The few requests that benchmarks send themselves, over blocking sockets, to any broker."""

from __future__ import annotations

import socket
import time
from types import TracebackType
from typing import NamedTuple

from rmq_spark.wire.codes import LanguageCode, PullSysFlag, RequestCode, ResponseCode
from rmq_spark.wire.headers.members import (
    GetMaxOffsetRequestHeader,
    GetRouteInfoRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeader,
)
from rmq_spark.wire.headers.operators import HEADERS
from rmq_spark.wire.remoting.command import RemotingCommand, decode_command
from rmq_spark.wire.remoting.framing import FrameReader

TOPIC_OF_ALL = "TBW102"
"""A topic that a broker has from the start, if it creates topics on the first send."""

HOLD_MS = 60_000
SECONDS_MAX = 60.0
_RECEIVE_BYTES = 1 << 16
_QUEUES = 4


class UnexpectedAnswer(Exception):
    """A broker has given an answer that a benchmark cannot use."""


class Connection:
    """A client of a broker: one request at a time, whose answer may be received later."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frame_reader = FrameReader()

    def send(self, request: bytes) -> None:
        """Send a request without waiting for the answer."""
        self._socket.sendall(request)

    def receive(self) -> RemotingCommand:
        """Wait for the next response."""
        while (frame := self._frame_reader.next_frame()) is None:
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                raise ConnectionError("the broker has closed the connection")
            self._frame_reader.feed(data)
        return decode_command(frame)

    def ask(self, request: bytes) -> RemotingCommand:
        """Send a request and return its answer."""
        self.send(request)
        return self.receive()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()


def is_route_known(port: int) -> bool:
    """Return whether a name server that knows a broker answers on this port; no error is raised."""
    try:
        with Connection(port) as connection:
            return connection.ask(route_request()).code == ResponseCode.SUCCESS
    except OSError:
        return False


def route_request() -> bytes:
    """Return a request to a name server for the route of a topic that always exists."""
    return encode_request(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(TOPIC_OF_ALL)
    )


def max_offset_request(topic: str) -> bytes:
    """Return a request for the end of a topic's first queue."""
    return encode_request(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic, 0))


def send_request(topic: str, body: bytes) -> bytes:
    """Return a request that sends a message to a topic's first queue; it creates the topic."""
    header = SendMessageRequestHeader(
        producer_group="bench",
        topic=topic,
        default_topic=TOPIC_OF_ALL,
        default_topic_queue_nums=_QUEUES,
        queue_id=0,
        sys_flag=0,
        born_timestamp=time.time_ns() // 1_000_000,
        flag=0,
        properties="",
        reconsume_times=0,
    )
    return encode_request(RequestCode.SEND_MESSAGE_V2, header, body)


def pull_request(topic: str, queue_offset: int) -> bytes:
    """Return a request for all messages from an offset on, to be held if there are none."""
    header = PullMessageRequestHeader(
        consumer_group="bench",
        topic=topic,
        queue_id=0,
        queue_offset=queue_offset,
        max_msg_nums=32,
        sys_flag=PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION,
        commit_offset=0,
        suspend_timeout_millis=HOLD_MS,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
    )
    return encode_request(RequestCode.PULL_MESSAGE, header)


def registration_request() -> bytes:
    """Return a request that makes a RocketMQ broker register, and changes nothing."""
    return RemotingCommand(
        RequestCode.UPDATE_BROKER_CONFIG, opaque=1, body=b"brokerPermission=6"
    ).encode()


def end_of_queue(connection: Connection, topic: str) -> int:
    """Send a message, and return the offset after it in the topic's first queue.

    The send makes sure that the queue exists. The message is pulled as well: RocketMQ answers a
    send before pulls know of it, and a pull beyond a message that it does not know yet is told to
    go back.
    """
    answer = connection.ask(send_request(topic, b"first"))
    queue_offset = int(expect_success("a send", answer).ext_fields["queueOffset"])
    expect_success("a pull", connection.ask(pull_request(topic, queue_offset)))
    return queue_offset + 1


def expect_success(what: str, answer: RemotingCommand) -> RemotingCommand:
    """Return the answer if it is a success, or raise."""
    if answer.code != ResponseCode.SUCCESS:
        raise UnexpectedAnswer(f"{what} was answered {answer.code}: {answer.remark}")
    return answer


def encode_request(
    code: int,
    header: NamedTuple,
    body: bytes = b"",
    *,
    opaque: int = 1,
    language: LanguageCode = LanguageCode.PYTHON,
) -> bytes:
    """Return the frame of a request."""
    codec = HEADERS[code].request
    if codec is None:
        raise ValueError(f"requests {code} have no header")
    fields = codec.encode(header)
    return RemotingCommand(code, language, opaque=opaque, ext_fields=fields, body=body).encode()
