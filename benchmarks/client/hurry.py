"""Sends with a short timeout to a slow broker: what each was told, and what is in the log.

    .venv/bin/python -m benchmarks.client.hurry

The broker answers at once, then after as long as a send waits, then after twice as long. A send is
told that its message is stored, that it is not, or that nobody knows: its time was over, or its
connection ended, before the answer. Whoever is told the first two must be told the truth.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple

from rmq_spark.client.errors import ClientError, ConnectionClosed, RequestTimeout, SendFailed
from rocketpoll import EmbeddedBroker, Message, Producer, SendResult

SENDS = 400
AT_A_TIME: Final = 8
TIMEOUT_MS: Final = 100
SLOW_TIMES: Final = (0, 1, 2)
STORED, FAILED, UNKNOWN = "stored", "failed", "unknown"
_PATIENCE_SECONDS: Final = 60

Sends = Callable[[Producer, list[Message]], Iterable[str]]


class Row(NamedTuple):
    """What became of the sends of a case."""

    told: Counter[str]
    in_log: Counter[str]
    """By what their senders were told, how many different messages are in the log."""

    repeats: int


def outcome_of(error: BaseException | None) -> str:
    """Return what the end of a send says of its message."""
    if error is None:
        return STORED
    tries = error.tries if isinstance(error, SendFailed) else (error,)
    is_unknown = any(isinstance(each, (RequestTimeout, ConnectionClosed)) for each in tries)
    return UNKNOWN if is_unknown else FAILED


def by_send(producer: Producer, messages: list[Message]) -> list[str]:
    """Send some at a time, each by a thread that waits for it."""

    def send(message: Message) -> str:
        try:
            producer.send(message, timeout_ms=TIMEOUT_MS)
        except ClientError as error:
            return outcome_of(error)
        return outcome_of(None)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return list(pool.map(send, messages))


def by_send_async(producer: Producer, messages: list[Message]) -> list[str]:
    """Send all, one behind the other, and look at the ends."""
    ends: list[Future[SendResult] | str] = []
    for message in messages:
        try:
            ends.append(producer.send_async(message, timeout_ms=TIMEOUT_MS))
        except ClientError as error:  # noqa: PERF203  # each has an end of its own
            ends.append(outcome_of(error))
    return [
        end if isinstance(end, str) else outcome_of(end.exception(_PATIENCE_SECONDS))
        for end in ends
    ]


def measured(broker: EmbeddedBroker, topic: str, sends: Sends, slow_times: int) -> Row:
    """Have messages sent while the broker is slow, and compare with the log when all is quiet."""
    broker.create_topic(topic)
    messages = [Message(topic, b"%d" % number) for number in range(SENDS)]
    with Producer("hurry", broker.address) as producer:
        producer.send(Message("others", b"first"))
        producer.publish_queues(topic)
        with broker.slow(slow_times * TIMEOUT_MS / 1_000):
            ends = list(sends(producer, messages))
        time.sleep(1)  # what is still to be written is, by then
    in_log = Counter(message.body for message in broker.messages(topic))
    found: Counter[str] = Counter(
        end for message, end in zip(messages, ends, strict=True) if message.body in in_log
    )
    return Row(Counter(ends), found, in_log.total() - len(in_log))


def main() -> None:
    """Print a line for each way to send and each slowness."""
    columns = ("", "told stored", "in log", "told failed", "in log", "unknown", "in log", "repeats")
    sys.stdout.write(f"{columns[0]:34}" + "".join(f"{each:>13}" for each in columns[1:]) + "\n")
    with EmbeddedBroker() as broker:
        for sends in (by_send, by_send_async):
            for slow_times in SLOW_TIMES:
                row = measured(broker, f"{sends.__name__}-{slow_times}", sends, slow_times)
                name = f"{sends.__name__}, {slow_times} times the timeout"
                counts = [
                    count
                    for end in (STORED, FAILED, UNKNOWN)
                    for count in (row.told[end], row.in_log[end])
                ]
                line = "".join(f"{count:13}" for count in (*counts, row.repeats))
                sys.stdout.write(f"{name:34}{line}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    logging.getLogger("rmq_spark").setLevel(logging.ERROR)  # that nobody answers is warned of
    main()
