"""Writes into a store until it is killed: the child process of `kill_campaign`. It prints
``ready``, reads one line, ``<cycle> <directory>``, opens the store there and starts four writers.
Each has up to eight puts in flight: single messages, batches and chunks in turn. When a put is
acknowledged, the writer checks that its messages are visible, and prints a line of `Acknowledged`
for each. Another thread writes checkpoints continuously. With ``--fault=ack-early`` it reports
before it puts; the reader of the report must detect that."""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from support.stores.kill_campaign import (
    ACKNOWLEDGE_EARLY,
    SEQUENCES_PER_CYCLE,
    Acknowledged,
    key_of,
    message_of,
    open_store,
)
from support.stores.small_store import put_batch

from rmq_spark.wire.chunk import encode_chunk
from rmq_spark.wire.message.record import StoredMessage, body_crc_of, decode_records
from rocketpoll.broker.store.message_store import MessageStore
from rocketpoll.broker.store.results import GetMessageStatus, PutMessageResult, PutMessageStatus

WRITERS = 4
QUEUES = 2
IN_FLIGHT_MAX = 8
BODY_BYTES = (100, 8 << 10)
BATCH_MAX, CHUNK_MAX = 5, 12
PAUSE_SECONDS_MAX = 0.05
"""Maximum pause between two checkpoints."""

_FILLING = os.urandom(2 * BODY_BYTES[1])


class Put(NamedTuple):
    """One put: messages of one queue with successive sequence numbers."""

    kind: str
    first_sequence: int
    messages: list[StoredMessage]


class Writer:
    """The work of one thread."""

    def __init__(
        self, store: MessageStore, number: int, cycle: int, *, reports_early: bool
    ) -> None:
        self._store = store
        self._number = number
        self._dice = random.Random(cycle * WRITERS + number)
        # A topic that always exists, and one that is new in each cycle.
        self._queues = [
            (topic, at) for topic in ("orders", f"made-in-{cycle}") for at in range(QUEUES)
        ]
        self._next_sequence = cycle * SEQUENCES_PER_CYCLE
        self._reports_early = reports_early

    def run(self) -> None:
        while True:
            puts = [self._draw() for _ in range(self._dice.randint(1, IN_FLIGHT_MAX))]
            if self._reports_early:
                for put in puts:
                    self._report(put, -1, [-1] * len(put.messages))
            results = [self._put(put) for put in puts]
            for put, result in zip(puts, results, strict=True):
                self._check(self._store.wait_until_stored(result, timeout_seconds=60))
                places = self._look(put, result)
                if not self._reports_early:
                    self._report(put, result.queue_offset, places)

    def _draw(self) -> Put:
        dice = self._dice
        kind = dice.choices(["message", "batch", "chunk"], [6, 2, 2])[0]
        count = {
            "message": 1,
            "batch": dice.randint(1, BATCH_MAX),
            "chunk": dice.randint(1, CHUNK_MAX),
        }[kind]
        topic, queue_id = dice.choice(self._queues)
        first = self._next_sequence
        self._next_sequence += count
        messages = []
        for sequence in range(first, first + count):
            low, high = BODY_BYTES
            size = round(low * (high / low) ** dice.random())
            at = dice.randrange(len(_FILLING) - size)
            messages.append(
                message_of(self._number, sequence, topic, queue_id, _FILLING[at : at + size])
            )
        return Put(kind, first, messages)

    def _put(self, put: Put) -> PutMessageResult:
        if put.kind == "message":
            return self._check(self._store.put_message(put.messages[0]))
        if put.kind == "batch":
            return self._check(put_batch(self._store, *put.messages))
        numbers = range(put.first_sequence, put.first_sequence + len(put.messages))
        columns = {
            "topic": put.messages[0].topic,
            "queueId": put.messages[0].queue_id,
            "body": [message.body for message in put.messages],
            "keys": [key_of(self._number, sequence) for sequence in numbers],
            "tags": [f"w{self._number}"] * len(put.messages),
        }
        chunk = encode_chunk(columns)
        return self._check(self._store.put_chunk(chunk.data, chunk.sizes.tolist()))

    def _check(self, result: PutMessageResult) -> PutMessageResult:
        if result.status is not PutMessageStatus.PUT_OK:
            raise AssertionError(result)
        return result

    def _look(self, put: Put, result: PutMessageResult) -> list[int]:
        """Check that acknowledged messages are visible; return their positions."""
        topic, queue_id, count = put.messages[0].topic, put.messages[0].queue_id, len(put.messages)
        found: list[StoredMessage] = []
        while len(found) < count:
            offset = result.queue_offset + len(found)
            got = self._store.get_message(topic, queue_id, offset, count_max=count - len(found))
            if got.status is not GetMessageStatus.FOUND:
                raise AssertionError(
                    "acknowledged, and not visible", result, got, self._store.state()
                )
            found += decode_records(b"".join(got.buffers))
        places = [message.physical_offset for message in found]
        if [message.body for message in found] != [message.body for message in put.messages]:
            raise AssertionError("acknowledged, and something else is there", result, found)
        if places[0] != result.physical_offset or any(map(self._is_missing, places)):
            raise AssertionError(
                "acknowledged, and not at its place", result, places, self._store.state()
            )
        return places

    def _is_missing(self, physical_offset: int) -> bool:
        return self._store.record_at(physical_offset) is None

    def _report(self, put: Put, queue_offset: int, places: Sequence[int]) -> None:
        for at, message in enumerate(put.messages):
            line = Acknowledged(
                self._number,
                put.first_sequence + at,
                message.topic,
                message.queue_id,
                queue_offset + at,
                places[at],
                body_crc_of(message.body),
            ).line()
            os.write(sys.stdout.fileno(), line)


def make_checkpoints(store: MessageStore, dice: random.Random) -> None:
    """Write checkpoints as a broker's timer does, but more often."""
    while True:
        time.sleep(dice.uniform(0, PAUSE_SECONDS_MAX))
        store.save_checkpoint()


def main() -> None:
    """Run until killed, or return if no directory is given."""
    parser = argparse.ArgumentParser(description="Writes into a store until it is killed.")
    parser.add_argument("--fault", choices=[ACKNOWLEDGE_EARLY])
    fault = parser.parse_args().fault
    os.write(sys.stdout.fileno(), b"ready\n")
    order = sys.stdin.readline().rstrip("\n")
    if not order:
        return
    cycle, _, root = order.partition(" ")
    store = open_store(Path(root))
    early = fault == ACKNOWLEDGE_EARLY
    writers = [
        Writer(store, number, int(cycle), reports_early=early).run for number in range(WRITERS)
    ]
    threads = [threading.Thread(target=run, daemon=True) for run in writers]
    for thread in threads:
        thread.start()
    make_checkpoints(store, random.Random(cycle))


if __name__ == "__main__":
    main()
