"""Delivery latency of a living broker, with and without another broker whose host has vanished.

    .venv/bin/python -m benchmarks.client.beside

Two groups consume one topic. The route of one names the living broker alone; that of the other also
names two brokers at an address where nobody ever answers. Each message goes to both groups, so that
both are measured at the same moment. A message that takes more than ten seconds ends the benchmark
with an error.
"""

from __future__ import annotations

import logging
import queue
import socket
import statistics
import sys
import threading
import time
from contextlib import ExitStack, suppress

from rmq_spark.client.consumer.dispatch.listeners import MessageListenerConcurrently
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.clients import BrokerData, QueueData, TopicRouteData
from rmq_spark.wire.codes import ResponseCode
from rmq_spark.wire.remoting.command import decode_command
from rmq_spark.wire.remoting.framing import FrameReader
from rocketpoll import ClientInstance, EmbeddedBroker, Message, Producer, PushConsumer

MESSAGES = 500
WARMING_UP = 50
PATIENCE_SECONDS = 10
RATIO_MAX = 1.2
TOPIC = "beside"
QUEUES = 4
_MS = 1e3


class BlackHole:
    """An address that answers nothing: its backlog is full, and no connection is accepted."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._waiting: list[socket.socket] = []
        with suppress(TimeoutError):
            while True:
                self._waiting.append(socket.create_connection(self._listener.getsockname(), 0.2))

    def close(self) -> None:
        """Free the address."""
        for each in (*self._waiting, self._listener):
            each.close()


class NameServer:
    """A name server that gives these brokers as the route of any topic."""

    def __init__(self, **addresses: str) -> None:
        route = TopicRouteData(
            queue_datas=tuple(
                QueueData(broker_name=name, read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=6)
                for name in addresses
            ),
            broker_datas=tuple(
                BrokerData(broker_name=name, broker_addrs={0: address})
                for name, address in addresses.items()
            ),
        )
        self._body = encode_body(route)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(
                    target=self._answer, args=self._listener.accept()[:1], daemon=True
                ).start()

    def _answer(self, peer: socket.socket) -> None:
        frames = FrameReader()
        with suppress(OSError), peer:
            while data := peer.recv(1 << 16):
                frames.feed(data)
                while (frame := frames.next_frame()) is not None:
                    request = decode_command(frame)
                    is_known = request.ext_fields.get("topic") == TOPIC
                    code = ResponseCode.SUCCESS if is_known else ResponseCode.TOPIC_NOT_EXIST
                    peer.sendall(
                        request.respond(code, body=self._body if is_known else b"").encode()
                    )

    def close(self) -> None:
        """Stop answering, and close the socket."""
        self._listener.close()


def latencies(names: list[NameServer], sender: Producer) -> list[list[float]]:
    """Return the milliseconds from send to listener for each of the groups."""
    came: list[queue.SimpleQueue[float]] = [queue.SimpleQueue() for _ in names]
    found: list[list[float]] = [[] for _ in names]
    with ExitStack() as stack:
        for number, name_server in enumerate(names):
            instance = ClientInstance(name_server.address)
            consumer = PushConsumer(
                f"group-{number}", instance=instance, listener=_notes(came[number])
            )
            consumer.subscribe(TOPIC)
            stack.enter_context(consumer)
        time.sleep(1)  # until pulls are held
        for number in range(WARMING_UP + MESSAGES):
            sent = time.perf_counter()
            sender.send(Message(TOPIC, b"x"))
            for each, seconds in zip(found, came, strict=True):
                took = seconds.get(timeout=PATIENCE_SECONDS) - sent
                if number >= WARMING_UP:
                    each.append(took * _MS)
    return found


def _notes(came: queue.SimpleQueue[float]) -> MessageListenerConcurrently:
    return lambda _, __: came.put(time.perf_counter())


def main() -> None:
    """Print the latencies of both groups, and their ratio."""
    with EmbeddedBroker(own_process=True) as broker, ExitStack() as stack:
        broker.create_topic(TOPIC, queues=QUEUES)
        hole = BlackHole()
        stack.callback(hole.close)
        alone = NameServer(**{"broker-a": broker.address})
        beside = NameServer(
            **{"a-gone": hole.address, "broker-a": broker.address, "z-gone": hole.address}
        )
        for name_server in (alone, beside):
            stack.callback(name_server.close)
        with Producer("senders", broker.address) as sender:
            found = latencies([alone, beside], sender)
    medians = [statistics.median(each) for each in found]
    for what, each, median in zip(("alone", "beside a black hole"), found, medians, strict=True):
        tail = statistics.quantiles(each, n=100)[-1]
        sys.stdout.write(
            f"{what:20} p50 {median:7.3f} ms   p99 {tail:7.3f} ms   max {max(each):7.3f} ms\n"
        )
    sys.stdout.write(f"beside / alone       {medians[1] / medians[0]:.2f} (at most {RATIO_MAX})\n")


if __name__ == "__main__":
    logging.getLogger("rmq_spark").setLevel(logging.ERROR)  # that nobody answers is warned of
    main()
