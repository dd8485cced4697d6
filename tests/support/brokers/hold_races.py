"""Pulls at the end of their queues and messages for them, at the same moment, thousands of times.

A broker runs in a thread; its clients are plain sockets in the main thread. In each wave every pair
of clients sends one pull and one message, in random order, so that the broker gets the message
before, after and together with the pull. Each pull must be answered once, with its message.
"""

import selectors
import socket
import time

from support.clients.remoting_clients import pull_request, pulled, send_request

from rmq_spark.wire.remoting.command import decode_command
from rmq_spark.wire.remoting.framing import FrameReader

SUSPEND_MS = 60_000
PATIENCE_SECONDS = 30  # half of the pulls' timeout: none may be answered only at its deadline


class Socket:
    """A non-blocking client socket."""

    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frame_reader = FrameReader()
        self.fileno = self._socket.fileno
        self.close = self._socket.close
        self.send = self._socket.sendall

    def take(self):
        """Return the received bytes."""
        __tracebackhide__ = True
        data = self._socket.recv(1 << 16)
        assert data, "the broker has closed the connection"
        self._frame_reader.feed(data)
        while (frame := self._frame_reader.next_frame()) is not None:
            yield decode_command(frame)


class Pair:
    """A client that pulls from a queue, and one that sends to it."""

    def __init__(self, port, queue_id):
        self.queue_id = queue_id
        self.consumer, self.producer = Socket(port), Socket(port)
        self.queue_offset = 0
        self.faults = []

    def pull(self):
        self.is_answered = False
        request = pull_request(
            self.queue_offset,
            queue_id=self.queue_id,
            suspend_ms=SUSPEND_MS,
            opaque=self.queue_offset,
        )
        return self.consumer, request.encode()

    def message(self):
        self.is_stored = False
        body = f"{self.queue_id} {self.queue_offset}"
        return self.producer, send_request(
            body, queue_id=self.queue_id, opaque=self.queue_offset
        ).encode()

    def answered(self, client, answer):
        """Check the received responses; keep the first wrong one."""
        is_late = answer.opaque != self.queue_offset
        if client is self.producer:
            if is_late or self.is_stored or answer.code != 0:
                self.faults.append(f"a send was answered {answer}")
            self.is_stored = True
            return
        found = pulled(answer)
        expected = [f"{self.queue_id} {self.queue_offset}"]
        if is_late or self.is_answered or found.code != 0 or found.bodies != expected:
            self.faults.append(f"a pull for {expected} was answered {answer.opaque} {found}")
        self.is_answered = True

    @property
    def is_done(self):
        return self.is_answered and self.is_stored


def race(port, rounds, pairs, dice, patience_seconds=PATIENCE_SECONDS):
    """Run rounds in waves of all pairs; return a description of the first failure."""
    all_pairs = [Pair(port, queue_id) for queue_id in range(pairs)]
    owners = {client: pair for pair in all_pairs for client in (pair.consumer, pair.producer)}
    answers = selectors.DefaultSelector()
    for client in owners:
        answers.register(client, selectors.EVENT_READ)
    try:
        for _ in range(rounds // pairs):
            frames = [pair.pull() for pair in all_pairs] + [pair.message() for pair in all_pairs]
            dice.shuffle(frames)
            for client, frame in frames:
                client.send(frame)
            _finish_wave(answers, owners, all_pairs, patience_seconds)
            for pair in all_pairs:
                pair.queue_offset += 1
        return [fault for pair in all_pairs for fault in pair.faults]
    finally:
        answers.close()
        for client in owners:
            client.close()


def _finish_wave(answers, owners, pairs, patience_seconds):
    __tracebackhide__ = True
    deadline = time.monotonic() + patience_seconds
    while not all(pair.is_done for pair in pairs):
        ready = [key.fileobj for key, _ in answers.select(max(deadline - time.monotonic(), 0))]
        assert ready, f"{sum(not pair.is_answered for pair in pairs)} pulls were not answered"
        for client in ready:
            for answer in client.take():
                owners[client].answered(client, answer)
