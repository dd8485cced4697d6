"""The few requests that benchmarks send themselves, over plain blocking sockets: the same to every broker."""

from __future__ import annotations

import socket
import time
from types import TracebackType
from typing import NamedTuple

from rmq_spark.wire.codes import LanguageCode, RequestCode, ResponseCode
from rmq_spark.wire.command import RemotingCommand, decode_command
from rmq_spark.wire.flags import PullSysFlag
from rmq_spark.wire.framing import FrameReader
from rmq_spark.wire.headers.offsets import GetMaxOffsetRequestHeader
from rmq_spark.wire.headers.pull import PullMessageRequestHeader
from rmq_spark.wire.headers.routes import GetRouteInfoRequestHeader
from rmq_spark.wire.headers.send import SendMessageRequestHeader
from rmq_spark.wire.headers.table import HEADERS

TOPIC_OF_ALL = "TBW102"
"""A topic that a broker has from the start, if it makes topics when somebody sends to them."""

HOLD_MS = 60_000
SECONDS_MAX = 60.0
_RECEIVE_BYTES = 1 << 16
_QUEUES = 4


class UnexpectedAnswer(Exception):
    """A broker has answered something that a benchmark has no use for."""


class Connection:
    """One client of a broker: a request at a time, or one that is answered later."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = FrameReader()

    def send(self, request: bytes) -> None:
        """Without waiting for the answer."""
        self._socket.sendall(request)

    def receive(self) -> RemotingCommand:
        """Wait for the next response."""
        while (frame := self._frames.next_frame()) is None:
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                raise ConnectionError("the broker has closed the connection")
            self._frames.feed(data)
        return decode_command(frame)

    def ask(self, request: bytes) -> RemotingCommand:
        """One request and its answer."""
        self.send(request)
        return self.receive()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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
    return encode_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequestHeader(TOPIC_OF_ALL))


def max_offset_request(topic: str) -> bytes:
    """Return a request for the end of a topic's first queue."""
    return encode_request(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic, 0))


def send_request(topic: str, body: bytes) -> bytes:
    """A message for the first queue of a topic, which is made if it is not there."""
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
    """Everything from there on; to be held if that is nothing."""
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
    """Changes nothing, and so makes a RocketMQ broker register with its name server."""
    return RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, opaque=1, body=b"brokerPermission=6").encode()


def end_of_queue(connection: Connection, topic: str) -> int:
    """The offset of the next message, behind one that was sent for this, so that there is a queue.

    That message is pulled as well: RocketMQ answers a send before pulls know of it, and who asks for what
    comes behind the message that it does not know is told to go back.
    """
    answer = connection.ask(send_request(topic, b"first"))
    queue_offset = int(expect_success("a send", answer).ext_fields["queueOffset"])
    expect_success("a pull", connection.ask(pull_request(topic, queue_offset)))
    return queue_offset + 1


def expect_success(what: str, answer: RemotingCommand) -> RemotingCommand:
    """The answer, if it is a good one."""
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
    """The frame of a request."""
    codec = HEADERS[code].request
    if codec is None:
        raise ValueError(f"requests {code} have no header")
    fields = codec.encode(header)
    return RemotingCommand(code, language, opaque=opaque, ext_fields=fields, body=body).encode()
