"""Holds many pulls, each on its own connection, in a process of its own.

python -m benchmarks.broker.holder PORT COUNT

The program prints a line when all pulls are sent. For each line of input it sends one message, and
prints the milliseconds until each pull was answered, sorted. Reading that many responses is a part
of these times, some 5 µs each.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import sys
import time
from contextlib import ExitStack

from benchmarks.broker.requests import (
    SECONDS_MAX,
    Connection,
    end_of_queue,
    expect_success,
    max_offset_request,
    pull_request,
    send_request,
)
from rmq_spark.wire.remoting.command import decode_command
from rmq_spark.wire.remoting.framing import FrameReader

TOPIC = "held"
_BODY = bytes(100)
_SPARE_FILES = 64
_CONNECTS_PER_BREATH = 100
_RECEIVE_BYTES = 1 << 16


def main() -> None:
    """Hold the pulls, wake them on request, and report."""
    port, count = (int(argument) for argument in sys.argv[1:])
    _raise_limit_of_files(count + _SPARE_FILES)
    with ExitStack() as stack:
        sender = stack.enter_context(Connection(port))
        pull = pull_request(TOPIC, end_of_queue(sender, TOPIC))
        held = _hold(stack, port, count, pull, sender)
        _say({"held": len(held)})
        for _ in sys.stdin:
            _say({"milliseconds": _wake(held, sender)})


def _raise_limit_of_files(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SystemExit(f"{needed} open files are needed, and {hard} allowed: see `ulimit -Hn`")
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _hold(
    stack: ExitStack, port: int, count: int, pull: bytes, sender: Connection
) -> dict[int, socket.socket]:
    """Open ``count`` connections, each with a waiting pull, and return them by descriptor."""
    held: dict[int, socket.socket] = {}
    for number in range(count):
        each = stack.enter_context(socket.create_connection(("127.0.0.1", port), SECONDS_MAX))
        each.sendall(pull)
        each.setblocking(False)  # noqa: FBT003  # its only argument
        held[each.fileno()] = each
        if (
            number % _CONNECTS_PER_BREATH == 0
        ):  # more at once than a broker accepts would be tried again late
            expect_success("a question", sender.ask(max_offset_request(TOPIC)))
    return held


def _wake(held: dict[int, socket.socket], sender: Connection) -> list[float]:
    """Send a message; return when each pull was answered. A small answer comes in one piece."""
    poll = select.epoll()
    for descriptor in held:
        poll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
    request = send_request(TOPIC, _BODY)
    answers: list[tuple[float, bytes]] = []
    clock = time.perf_counter
    started = clock()
    sender.send(request)
    while len(answers) < len(held):
        ready = poll.poll(SECONDS_MAX)
        if not ready:
            raise TimeoutError(
                f"only {len(answers)} of {len(held)} pulls are answered after {SECONDS_MAX} s"
            )
        for descriptor, _ in ready:
            data = held[descriptor].recv(_RECEIVE_BYTES)
            answers.append((clock() - started, data))
    poll.close()
    expect_success("a send", sender.receive())
    for _, data in answers:
        _check(data)
    return sorted(seconds * 1e3 for seconds, _ in answers)


def _check(data: bytes) -> None:
    reader = FrameReader()
    reader.feed(data)
    frame = reader.next_frame()
    if frame is None:
        raise ConnectionError("half an answer, or none")
    expect_success("a held pull", decode_command(frame))


def _say(said: object) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
