"""HonestClient: what an honest client asks for, one request after the other."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import RemotingCommand

TIMEOUT_SECONDS: Final = 5.0
NEWCOMER_SECONDS: Final = 0.04
"""Seconds between the connections of an honest client: 25 a second."""
_TOPIC: Final = "honest"
_WORDS: Final = struct.Struct(">iI")
_ANSWER: Final = 1  # of the flag

Answer = tuple[Mapping[str, Any], bytes]


class Refused(Exception):
    """The broker did not answer, or closed the connection."""


class Connection:
    """A socket to a broker; requests and answers are whole frames with JSON headers."""

    def __init__(
        self, port: int, source: str = "127.0.0.1", receive_buffer: int | None = None
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(TIMEOUT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket.bind((source, 0))
            self.socket.connect(("127.0.0.1", port))
        except OSError as error:
            self.socket.close()
            raise Refused(str(error)) from error

    def send(self, *frames: bytes) -> None:
        """Send frames at once."""
        try:
            self.socket.sendall(b"".join(frames))
        except OSError as error:
            raise Refused(str(error)) from error

    def read(self) -> Answer:
        """Return the header and the body of the next answer; notifications are dropped."""
        while True:
            frame_bytes, header_word = _WORDS.unpack(self._read(_WORDS.size))
            header_bytes = header_word & 0xFFFFFF
            rest = self._read(frame_bytes - 4)
            header = json.loads(rest[:header_bytes])
            if header["flag"] & _ANSWER:
                return header, rest[header_bytes:]

    def ask(self, frame: bytes) -> Answer:
        """Send a request, and return its answer."""
        self.send(frame)
        return self.read()

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                received = self.socket.recv(size - len(data))
            except OSError as error:
                raise Refused(str(error)) from error
            if not received:
                raise Refused("the broker has closed the connection")
            data += received
        return bytes(data)

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


# ---- Requests.


def request(code: RequestCode, fields: Mapping[str, object], body: bytes = b"") -> bytes:
    """Return the frame of a request."""
    texts = {name: str(value) for name, value in fields.items()}
    return RemotingCommand(code, opaque=1, ext_fields=texts, body=body).encode()


def create_topic(topic: str, queues: int) -> bytes:
    """Return a request that creates a topic."""
    fields = {"topic": topic, "defaultTopic": "TBW102", "perm": 6, "order": "false"}
    fields |= {"readQueueNums": queues, "writeQueueNums": queues, "topicSysFlag": 0}
    return request(RequestCode.UPDATE_AND_CREATE_TOPIC, {**fields, "topicFilterType": "SINGLE_TAG"})


def send(topic: str, queue_id: int = 0, properties: str = "", body: bytes = b"x" * 100) -> bytes:
    """Return a request that sends one message."""
    fields = {"a": "P", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0}
    fields |= {"g": time.time_ns() // 1_000_000, "h": 0, "i": properties, "j": 0}
    return request(RequestCode.SEND_MESSAGE_V2, {**fields, "k": "false", "m": "false"}, body)


def pull(
    topic: str,
    queue_id: int,
    queue_offset: int,
    *,
    suspend_ms: int = 0,
    expression: str = "*",
    expression_type: str = "TAG",
    group: str = "G",
) -> bytes:
    """Return a pull of at most 32 messages, which may be held."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "maxMsgNums": 32}
    fields |= {"queueOffset": queue_offset, "sysFlag": 6 if suspend_ms else 4, "commitOffset": 0}
    fields |= {"suspendTimeoutMillis": suspend_ms, "subscription": expression, "subVersion": 0}
    return request(RequestCode.PULL_MESSAGE, {**fields, "expressionType": expression_type})


def _heartbeat() -> bytes:
    subscription: dict[str, object] = {
        "topic": _TOPIC,
        "subString": "*",
        "tagsSet": [],
        "codeSet": [],
    }
    subscription |= {"classFilterMode": False, "subVersion": 1, "expressionType": "TAG"}
    consumer = {"groupName": "G", "consumeType": "CONSUME_PASSIVELY", "unitMode": False}
    consumer |= {"messageModel": "CLUSTERING", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
    member = {**consumer, "subscriptionDataSet": [subscription]}
    body = {"clientID": "honest@1", "producerDataSet": [], "consumerDataSet": [member]}
    return request(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())


# ---- The client.


class HonestClient:
    """A client of 127.0.0.1, connected before any abuse begins; use it in a with statement."""

    def __init__(self, port: int, metrics_port: int) -> None:
        self._port, self._metrics_port = port, metrics_port
        self._connection, self._pulling = Connection(port), Connection(port)
        self._connection.ask(create_topic(_TOPIC, 2))
        self._next_offset = 0

    def __enter__(self) -> HonestClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._pulling.close()

    def action(self, name: str, clock: Callable[[], float]) -> Callable[[], float]:
        """Return a function that asks for something once, and returns the clock's seconds."""
        run: Callable[[], None] = getattr(self, f"_{name}")
        pause_seconds = NEWCOMER_SECONDS if name == "newcomer" else 0.0

        def timed() -> float:
            time.sleep(pause_seconds)
            started = clock()
            run()
            return clock() - started

        return timed

    def _send(self) -> None:
        self._check(self._connection.ask(send(_TOPIC)))

    def _heartbeat(self) -> None:
        self._check(self._connection.ask(_heartbeat()))

    def _wake(self) -> None:
        """Send a message to a queue of which a pull is held, and read what the pull gets."""
        self._pulling.send(pull(_TOPIC, 1, self._next_offset, suspend_ms=20_000))
        self._check(self._connection.ask(send(_TOPIC, 1)))
        header, _ = self._pulling.read()
        self._next_offset = int(header["extFields"]["nextBeginOffset"])

    def _newcomer(self) -> None:
        """Connect, send a message, and disconnect."""
        connection = Connection(self._port)
        try:
            self._check(connection.ask(send(_TOPIC)))
        finally:
            connection.close()

    def _health(self) -> None:
        """Ask whether the broker is healthy, as a monitor does."""
        try:
            with socket.create_connection(
                ("127.0.0.1", self._metrics_port), TIMEOUT_SECONDS
            ) as probe:
                probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = probe.recv(1 << 16)
        except OSError as error:
            raise Refused(str(error)) from error
        if b" 200 " not in answer[:20]:
            raise Refused(answer[:80].decode(errors="replace"))

    @staticmethod
    def _check(answer: Answer) -> None:
        header, _ = answer
        if header["code"]:
            raise Refused(f"{header['code']} {header.get('remark')}")


def drain(connection: Connection) -> None:
    """Read and drop what comes until the connection ends."""
    connection.socket.settimeout(None)
    with suppress(OSError):
        while connection.socket.recv(1 << 18):
            pass
