"""SQL92 expressions on a chunk of stored messages with six properties, one of them varying.

Both ways start from the bytes, as a pull does: each run finds the sizes of the records and their
properties.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from benchmarks.harness import Case, Target
from rmq_spark.wire.chunk import RecordChunk
from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.message.record import StoredMessage, decode_records, encode_record
from rocketpoll.broker.filter.sql_filter import SqlFilter
from rocketpoll.broker.filter.sql_parser import compile_sql

_BODY = bytes(100)
_PEER = "one at a time"
_MATCHED_PER_SECOND_MIN = 1e6

EXPRESSIONS = {
    "text": "region = 'eu'",
    "number": "price > 500",
    "number and list": "price > 500 AND region IN ('eu', 'us')",
    "five conditions": (
        "price BETWEEN 100 AND 800 AND (region = 'eu' OR grade >= 90) AND user IS NOT NULL"
    ),
    "two properties": "price > grade",
    "no numbers": "user > 5",
    "85 conditions": " OR ".join(f"price = {number}" for number in range(85)),
}
_WITH_TARGET = ("text", "number", "number and list")


def cases(messages: int) -> list[Case]:
    """Return a case for each expression, on the same number of messages."""
    records = _records(messages)
    data, sizes = b"".join(records), [len(record) for record in records]
    found = []
    for name, text in EXPRESSIONS.items():
        wanted = SqlFilter(compile_sql(text))
        subject = f"SQL92 filter, {name}"
        target = Target("per_second", _MATCHED_PER_SECOND_MIN) if name in _WITH_TARGET else None
        found += [
            Case(subject, _PEER, _one_at_a_time(wanted, data), messages),
            Case(
                subject,
                "by the chunk",
                _by_chunk(wanted, data, sizes),
                messages,
                peer=_PEER,
                target=target,
            ),
        ]
    return found


def _by_chunk(wanted: SqlFilter, data: bytes, sizes: list[int]) -> Callable[[], object]:
    return lambda: wanted.by_messages(RecordChunk(data, sizes))


def _one_at_a_time(wanted: SqlFilter, data: bytes) -> Callable[[], object]:
    evaluate = wanted.expression.evaluate

    def run() -> object:
        messages = decode_records(data, check_crc=False)
        return [evaluate(message.properties) for message in messages]

    return run


def _records(messages: int) -> list[bytes]:
    random = Random(1)
    return [
        encode_record(
            StoredMessage(
                "T",
                _BODY,
                encode_properties(
                    {
                        "TAGS": "TagA",
                        "UNIQ_KEY": f"0A000001{number:024d}",
                        "price": str(number),
                        "region": random.choice(("eu", "us", "asia")),
                        "grade": str(random.randint(0, 100)),
                        "user": f"user{number}",
                    }
                ),
            )
        )
        for number in range(messages)
    ]
