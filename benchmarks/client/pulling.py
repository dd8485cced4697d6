"""Bulk pulls of a queue, in our chunks and as from a RocketMQ broker; and the way back of a held pull."""

from __future__ import annotations

import random
from functools import partial

import pyarrow as pa

from benchmarks.client.running_broker import RunningBroker
from benchmarks.harness import Case, Target
from rmq_spark.client import BrokerApi, BulkPull, Connections, Message, MessageQueue, Producer
from rmq_spark.wire.flags import PullSysFlag
from rmq_spark.wire.headers.pull import PullMessageRequestHeader

MESSAGES = 200_000
FEW = 20_000
GROUP = "benchmarks"
HOLD_MS = 20_000
_HELD = int(PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND)


def cases(broker: RunningBroker) -> list[Case]:
    """Bulk pulls, and waking."""
    producer = broker.producer
    queue = producer.send(Message("pulls", b"first")).queue
    producer.instance.routes.refresh("pulls")
    body = random.Random(1).randbytes(100)
    rows = pa.table({"body": pa.array([body] * MESSAGES, pa.binary())})
    producer.send_table(rows, "pulls", queue=queue)
    chunks = BrokerApi(Connections(reads_itself=True))
    plain = BrokerApi(Connections(reads_itself=True, extensions=frozenset()))
    subject = "bulk pull, 100 B"
    return [
        Case(subject, "as RocketMQ's", partial(_pull, plain, broker.address, queue, FEW), FEW),
        Case(
            subject,
            "chunks",
            partial(_pull, chunks, broker.address, queue, MESSAGES),
            MESSAGES,
            peer="as RocketMQ's",
        ),
        Case(
            "held pull, sent to received",
            "who waits reads",
            partial(_wake, chunks, broker.address, producer),
            1,
            target=Target("microseconds", 500),
        ),
    ]


def _pull(api: BrokerApi, address: str, queue: MessageQueue, count: int) -> None:
    size = sum(len(chunk.records) for chunk in BulkPull(api, address, GROUP, queue, 0, count))
    if not size:
        raise AssertionError("nothing was pulled")


def _wake(api: BrokerApi, address: str, producer: Producer) -> None:
    """One message through a pull that waits for it: the send, without its answer, and the pull's answer."""
    queue = MessageQueue("wakes", "broker-a", 0)
    if "wakes" not in producer.instance.routes.topics:
        producer.send(Message("wakes", b"x"))
        producer.instance.routes.refresh("wakes")
    end = api.max_offset(address, queue)
    header = PullMessageRequestHeader(GROUP, "wakes", 0, end, 32, _HELD, 0, HOLD_MS, 0, "*", "TAG")
    held = api.pull_async(address, header)
    producer.send_one_way(Message("wakes", b"x"), queue)
    held.result(HOLD_MS / 1000)
