"""Wake latency: the time until a held pull is answered, without client library code in between."""

from __future__ import annotations

import time

from benchmarks.broker.requests import (
    Connection,
    end_of_queue,
    expect_success,
    pull_request,
    send_request,
)

TOPIC = "wake"
_BODY = bytes(100)
_UNTIL_HELD_SECONDS = 0.002


def measure_wakes(port: int, seconds: float) -> list[float]:
    """Hold pulls for some time; return the milliseconds since each send, sorted.

    Pull and send use two connections, so that the pull gets a moment to arrive. A pull that arrives
    too late is answered at once, and its time counts: it is no less than that of a held one.
    """
    took: list[float] = []
    with Connection(port) as sender, Connection(port) as puller:
        queue_offset = end_of_queue(sender, TOPIC)
        end = time.perf_counter() + seconds
        while not took or time.perf_counter() < end:
            puller.send(pull_request(TOPIC, queue_offset))
            time.sleep(_UNTIL_HELD_SECONDS)
            request = send_request(TOPIC, _BODY)
            started = time.perf_counter()
            sender.send(request)
            answer = puller.receive()
            took.append((time.perf_counter() - started) * 1e3)
            expect_success("a held pull", answer)
            expect_success("a send", sender.receive())
            queue_offset += 1
    return sorted(took)
