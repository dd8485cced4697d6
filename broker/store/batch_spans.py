"""Spans of a batch: which offsets of a queue its rows have, with a sum of their CRCs.

A reader takes a span as a whole and compares the sum before it passes on a row, so one is never
larger than what a reader can hold. This module must not know how rows are staged or committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rmq_spark.wire.bodies.staged_batches import BatchSpan
from rmq_spark.wire.message_queue import QueueKey
from rocketpoll.broker.store import lazy_numpy as np
from rocketpoll.broker.store.chunk_appender import Checked
from rocketpoll.broker.store.results import PutMessageResult

_CRC_MASK: Final = 0xFFFF_FFFF
_ROWS_MAX: Final = 50_000
_BYTES_MAX: Final = 4 << 20


def span_of(checked: Checked, result: PutMessageResult) -> BatchSpan:
    """Return the span of rows that were appended in one step."""
    heads = [part.chunk.head["body_crc"] for part in checked.parts]
    return BatchSpan(
        topic=checked.queue[0],
        queue_id=checked.queue[1],
        queue_offset=result.queue_offset,
        count=result.message_count,
        crc=sum(int(crcs.astype(np.uint32).sum(dtype=np.uint64)) for crcs in heads) & _CRC_MASK,
        body_bytes=sum(int(part.chunk.body_length.sum()) for part in checked.parts),
    )


def joined(put: Sequence[BatchSpan]) -> tuple[BatchSpan, ...]:
    """Join spans that follow each other, while a reader can hold them in memory."""
    spans: list[BatchSpan] = []
    last_of_queue: dict[QueueKey, int] = {}
    for span in put:
        queue = span.topic, span.queue_id
        at = last_of_queue.get(queue)
        if at is not None:
            last = spans[at]
            both = replace(
                last,
                count=last.count + span.count,
                crc=(last.crc + span.crc) & _CRC_MASK,
                body_bytes=last.body_bytes + span.body_bytes,
            )
            if (
                last.queue_offset + last.count == span.queue_offset
                and both.count <= _ROWS_MAX
                and both.body_bytes <= _BYTES_MAX
            ):
                spans[at] = both
                continue
        last_of_queue[queue] = len(spans)
        spans.append(span)
    return tuple(spans)
