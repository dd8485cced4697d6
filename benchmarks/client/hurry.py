"""Sends with a short timeout to a slow broker: the reported outcomes, compared with the log.

    .venv/bin/python -m benchmarks.client.hurry

The broker answers at once, then after as long as a send waits, then after twice as long. A send
reports that its message is stored, not stored, or in an unknown state because the timeout passed or
the connection ended before the response. The first two must be true.
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
    """The outcomes of the sends of a case."""

    told: Counter[str]
    in_log: Counter[str]
    """Number of distinct messages in the log, by the outcome that their senders got."""

    repeats: int


def outcome_of(error: BaseException | None) -> str:
    """Return the outcome that the end of a send reports."""
    if error is None:
        return STORED
    tries = error.tries if isinstance(error, SendFailed) else (error,)
    is_unknown = any(isinstance(each, (RequestTimeout, ConnectionClosed)) for each in tries)
    return UNKNOWN if is_unknown else FAILED


def by_send(producer: Producer, messages: list[Message]) -> list[str]:
    """Send some messages at a time, each from a thread that waits for it."""

    def send(message: Message) -> str:
        try:
            producer.send(message, timeout_ms=TIMEOUT_MS)
        except ClientError as error:
            return outcome_of(error)
        return outcome_of(None)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return list(pool.map(send, messages))


def by_send_async(producer: Producer, messages: list[Message]) -> list[str]:
    """Send all asynchronously, in order, and collect the outcomes."""
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
    """Send messages while the broker is slow, and compare with the log afterwards."""
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
    """Print a line for each way to send and each delay of the broker."""
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
