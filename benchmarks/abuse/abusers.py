"""Programs that abuse a broker until they are ended: ``abusers KIND PORT METRICS_PORT``.

Each prints a line once its abuse is under way. They use other addresses than honest clients do,
but for S14, which is about sharing one.
"""

from __future__ import annotations

import json
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Final, NoReturn

from benchmarks.abuse.honest import Connection, Refused, create_topic, drain, pull, request, send
from rmq_spark.wire.codes import RequestCode

_ADDRESS: Final = "127.0.0.2"
_HELD: Final = 4_000
_PACE_SECONDS: Final = 0.006
"""Seconds between connections, so that the broker takes them all."""


def _ready() -> None:
    print("ready", flush=True)


def _idle() -> NoReturn:
    while True:
        time.sleep(60)


def _drain_in_thread(connection: Connection) -> None:
    threading.Thread(target=drain, args=(connection,), daemon=True).start()


def hold_filters(port: int, _: int) -> None:
    """S3: hold pulls with thousands of different filters, and have each look at messages."""
    sender = Connection(port, _ADDRESS)
    sender.ask(create_topic("evil", 8))
    holder = Connection(port, _ADDRESS)
    _drain_in_thread(holder)
    for number in range(_HELD):
        text = f"a{number} CONTAINS 'x'"
        more = {"suspend_ms": 60_000, "expression": text, "expression_type": "SQL92"}
        holder.send(pull("evil", number % 8, 0, group=f"E{number // 128}", **more))  # type: ignore[arg-type]  # of several kinds
    held = -1
    while (now := _held_pulls(sender)) > held:
        held = now
        time.sleep(0.2)
    _ready()
    properties = "p\x01" + "q" * 2_000 + "\x02"
    while True:
        sender.send(*(send("evil", queue_id, properties, b"x") for queue_id in range(8)))
        for _ in range(8):
            sender.read()
        time.sleep(0.1)


def _held_pulls(connection: Connection) -> int:
    _, body = connection.ask(request(RequestCode.GET_BROKER_RUNTIME_INFO, {}))
    return int(json.loads(body)["table"]["pullsHeld"])


def ask_statistics(port: int, _: int) -> None:
    """S4: ask for the offsets of a group with thousands of queues, on many connections."""
    operator = Connection(port, _ADDRESS)
    group = json.dumps({"groupName": "wide"}).encode()
    operator.ask(request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group))
    for topic in (f"wide{number}" for number in range(4)):
        operator.ask(create_topic(topic, 1_000))
        for first in range(0, 1_000, 250):
            operator.send(
                *(
                    request(
                        RequestCode.UPDATE_CONSUMER_OFFSET,
                        {"consumerGroup": "wide", "topic": topic, "queueId": queue_id}
                        | {"commitOffset": 0},
                    )
                    for queue_id in range(first, first + 250)
                )
            )
            for _ in range(250):
                operator.read()
    dear = request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "wide"})
    connections = []
    for _ in range(100):
        connections.append(Connection(port, _ADDRESS))
        _drain_in_thread(connections[-1])
        time.sleep(_PACE_SECONDS)
    for connection in connections:
        connection.send(dear * 20)
    _ready()
    for number in count():
        with suppress(Refused):
            connections[number % len(connections)].send(dear)
        time.sleep(0.01)


def open_and_close(port: int, _: int) -> None:
    """S5: open connections as fast as may be from two addresses, and reset them."""
    for address in ("127.0.0.7", "127.0.0.8"):
        threading.Thread(target=_flood, args=(port, address), daemon=True).start()
    time.sleep(1)
    _ready()
    _idle()


def _flood(port: int, address: str) -> NoReturn:
    while True:
        with suppress(OSError), socket.socket() as opened:
            opened.bind((address, 0))
            opened.settimeout(0)
            with suppress(BlockingIOError):
                opened.connect(("127.0.0.1", port))
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            time.sleep(0.001)


def hold_metrics_port(_: int, metrics_port: int) -> None:
    """S7: keep silent connections to the port of the metrics, and replace those that are closed."""
    held: list[socket.socket] = []
    for turn in count():
        for each in list(held):
            try:
                is_open = bool(each.recv(1))
            except BlockingIOError:
                continue
            except OSError:
                is_open = False
            if not is_open:
                held.remove(each)
                each.close()
        while len(held) < 34:
            try:
                held.append(socket.create_connection(("127.0.0.1", metrics_port), 1))
            except OSError:
                break
            held[-1].settimeout(0)
        if turn == 10:
            _ready()
        time.sleep(0.02)


def read_nothing(port: int, _: int) -> None:
    """S9: pull megabytes on many connections, and read none of them."""
    sender = Connection(port, _ADDRESS)
    sender.ask(create_topic("big", 1))
    for _ in range(40):
        sender.ask(send("big", body=b"x" * 1_000_000))
    held = []
    for _ in range(200):
        with suppress(Refused):
            held.append(Connection(port, _ADDRESS, receive_buffer=4_096))
            held[-1].send(pull("big", 0, 0) * 60)
        time.sleep(_PACE_SECONDS)
    _ready()
    _idle()


def fill_address(port: int, _: int) -> None:
    """S14: keep idle connections of the address that all local clients share, up to its limit."""
    held: list[Connection] = []
    with suppress(Refused):
        while len(held) < 2_100:
            held.append(Connection(port))
            held[-1].socket.settimeout(0.5)
            if not len(held) % 50:  # what is closed at once was over the limit
                held[-1].ask(request(RequestCode.GET_BROKER_RUNTIME_INFO, {}))
    _ready()
    _idle()


ABUSERS: Final[Mapping[str, Callable[[int, int], None]]] = {
    "S3": hold_filters,
    "S4": ask_statistics,
    "S5": open_and_close,
    "S7": hold_metrics_port,
    "S9": read_nothing,
    "S14": fill_address,
}


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ABUSERS[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
