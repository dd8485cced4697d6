"""Memory of a producer whose broker accepts little or nothing, and the outcomes of its sends.

    .venv/bin/python -m benchmarks.client.stalled

One broker is stopped (SIGSTOP) after the first message, so that the system's buffers fill up and
nothing is answered; another reads 256 KB a second and answers, so that it never counts as silent.
`pending_bytes_max` limits what the producer may hold. With the stopped broker, only uncompressed
bodies reach it: each of these takes most of its time to be found incompressible.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.client.beside import TOPIC as SLOW_TOPIC
from benchmarks.client.beside import NameServer
from benchmarks.spark.process_tree import embedded_broker
from rmq_spark.client.errors import TooManyPending
from rmq_spark.client.producer.prepared_message import SendRules
from rmq_spark.client.results import SendResult
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.remoting.command import decode_command
from rmq_spark.wire.remoting.framing import FrameReader
from rocketpoll import EmbeddedBroker, Message, Producer

SENDS = 1_000
BODY_BYTES = 1 << 20
TIMEOUT_MS = 50
TOPIC = "stalled"

ROOM_MIB = 100
PLAIN_SENDS = 200
PLAIN_TIMEOUT_MS = 300

SLOW_BODY_BYTES = 60_000
SLOW_TIMEOUT_MS = 500
SLOW_SECONDS = 10.0
_TURN_BYTES = 1 << 16
_TURN_SECONDS = 0.25
_MIB = 1 << 20

_WAKES_IT = "import os, signal, sys; sys.stdin.read(); os.kill(int(sys.argv[1]), signal.SIGCONT)"
"""A program that waits for the end of this one, however it ends, and resumes the broker."""


def memory_mib() -> float:
    """Return the resident memory of this process in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / _MIB


def main() -> None:
    """Print the memory used and the outcomes of the sends."""
    _send_to_one_that_stops(SENDS, TIMEOUT_MS)
    _send_to_one_that_stops(
        PLAIN_SENDS,
        PLAIN_TIMEOUT_MS,
        rules=SendRules("senders", compress_body_bytes=2 * BODY_BYTES),
        pending_bytes_max=ROOM_MIB * _MIB,
    )
    with _slow_broker() as address:
        names = NameServer(**{"broker-a": address})
        with Producer("senders", names.address, retries=0) as producer:
            producer.send_async(Message(SLOW_TOPIC, b"first")).result(10)
            _Sending(producer, SLOW_TOPIC, SLOW_BODY_BYTES, SLOW_TIMEOUT_MS).run(
                seconds=SLOW_SECONDS
            )


def _send_to_one_that_stops(sends: int, timeout_ms: int, **settings: Any) -> None:
    with EmbeddedBroker(own_process=True) as broker:
        broker.create_topic(TOPIC)
        with Producer("senders", broker.address, retries=0, **settings) as producer:
            producer.send(Message(TOPIC, b"first"))
            with stopped(embedded_broker()):
                _Sending(producer, TOPIC, BODY_BYTES, timeout_ms).run(sends=sends)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process within the block; if this program is killed, it resumes and ends by itself."""
    command = [sys.executable, "-c", _WAKES_IT, str(pid)]
    waking = subprocess.Popen(  # noqa: S603  # our own program
        command,
        stdin=subprocess.PIPE,
        start_new_session=True,  # whoever ends this program may end all of its group
    )
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        waking.communicate()


@contextmanager
def _slow_broker() -> Iterator[str]:
    """Run a broker that reads slowly; yield its address."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _TURN_BYTES)
    listener.bind(("127.0.0.1", 0))
    listener.listen()

    def accept() -> None:
        with suppress(OSError):  # it is closed
            while True:
                client, _ = listener.accept()
                threading.Thread(target=_trickle, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def _trickle(client: socket.socket) -> None:
    frames = FrameReader()
    with suppress(OSError):
        while data := client.recv(_TURN_BYTES):
            frames.feed(data)
            while (frame := frames.next_frame()) is not None:
                request = decode_command(frame)
                fields = {}
                if request.code == RequestCode.SEND_MESSAGE_V2:
                    fields = {"msgId": "m", "queueId": "0", "queueOffset": "1"}
                code = 3 if request.code == RequestCode.EXTENSIONS else 0
                client.sendall(request.respond(code, "", fields).encode())
            time.sleep(_TURN_SECONDS)


class _Sending:
    """Sends, their outcomes, and the memory used meanwhile."""

    def __init__(self, producer: Producer, topic: str, size: int, timeout_ms: int) -> None:
        self._producer = producer
        self._topic = topic
        self._body = os.urandom(size)
        self._timeout_ms = timeout_ms
        self._ends: Counter[str] = Counter()
        self._futures: list[Future[SendResult]] = []

    def run(self, *, sends: int = sys.maxsize, seconds: float = 1e9) -> None:
        """Send a number of messages or for some seconds, and print the outcomes."""
        before = most = memory_mib()
        unwritten = pending = count = 0
        began = time.perf_counter()
        while count < sends and time.perf_counter() - began < seconds:
            self._send()
            count += 1
            health = self._producer.health()
            most = max(most, memory_mib())
            unwritten = max(unwritten, health.unwritten_bytes)
            pending = max(pending, health.pending_bytes)
        for future in self._futures:
            error = future.exception()
            self._ends["sent" if error is None else f"failed: {type(error).__name__}"] += 1
        took = time.perf_counter() - began
        sys.stdout.write(
            f"{count} sends of {len(self._body):,} bytes, each with {self._timeout_ms} ms: "
            f"{took:.1f} s\n"
        )
        for end, number in self._ends.items():
            sys.stdout.write(f"  {number:5} {end}\n")
        health = self._producer.health()
        sys.stdout.write(
            f"memory {before:.0f} MiB before, {most:.0f} MiB at most, {memory_mib():.0f} MiB "
            f"behind it\npending {pending / _MIB:.0f} MiB at most, unwritten "
            f"{unwritten / _MIB:.0f} MiB; behind it {health.pending_sends} sends, "
            f"{health.pending_bytes:,} and {health.unwritten_bytes:,} bytes\n"
        )

    def _send(self) -> None:
        # Each has a body of its own, as a program's messages have.
        message = Message(self._topic, bytes(bytearray(self._body)))
        try:
            self._futures.append(self._producer.send_async(message, timeout_ms=self._timeout_ms))
        except TooManyPending:
            self._ends["refused at the call: TooManyPending"] += 1


if __name__ == "__main__":
    logging.getLogger("rmq_spark").setLevel(logging.ERROR)  # that the broker is silent is warned of
    main()
