"""Sends of 100-byte bodies: one after the other, by futures, in batches, as Arrow tables."""

from __future__ import annotations

import random
from functools import partial

import pyarrow as pa

from benchmarks.client.running_broker import RunningBroker
from benchmarks.harness import Case, Target
from rmq_spark.client import Message, Producer

BODY_BYTES = 100
SINGLES = 100
MANY = 1_000
ROWS = 200_000
TOPIC = "sends"
_SUBJECT = "send, 100 B"
_TIMEOUT_SECONDS = 60


def cases(broker: RunningBroker) -> list[Case]:
    """All ways to send."""
    body = random.Random(1).randbytes(BODY_BYTES)
    producer = broker.producer
    producer.send(Message(TOPIC, body))
    rows = pa.table({"body": pa.array([body] * ROWS, pa.binary())})
    batch = [Message(TOPIC, body)] * MANY
    return [
        Case(_SUBJECT, "one after the other", partial(_one_by_one, producer, body), SINGLES),
        Case(_SUBJECT, "futures", partial(_futures, producer, body), MANY, peer="one after the other"),
        Case(_SUBJECT, "batches", partial(producer.send_batch, batch), MANY, peer="one after the other"),
        Case(
            _SUBJECT,
            "Arrow table",
            partial(producer.send_table, rows, TOPIC),
            ROWS,
            peer="one after the other",
            target=Target("per_second", 1e6),
        ),
    ]


def _one_by_one(producer: Producer, body: bytes) -> None:
    for _ in range(SINGLES):
        producer.send(Message(TOPIC, body))


def _futures(producer: Producer, body: bytes) -> None:
    futures = [producer.send_async(Message(TOPIC, body)) for _ in range(MANY)]
    for future in futures:
        future.result(_TIMEOUT_SECONDS)
