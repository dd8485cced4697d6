"""Dead letters: sends messages that a task cannot read to the topic of option ``deadLetterTopic``.

    unreadable messages of a record batch ──> letters ──> all stored ──> rows of the batch

So Spark gets no row past an unreadable message before the dead letter is acknowledged, and no batch
commits without it. A task that runs again sends its dead letters again, with the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from rmq_spark.client.damaged_records import BadRecord
from rmq_spark.client.errors import MessageIllegal
from rmq_spark.spark.bodies.bad_records import BadRecordHandler
from rmq_spark.spark.errors import SparkError
from rmq_spark.spark.options.options import ReadOptions, WriteOptions, dead_letter_options

_TOO_LARGE: Final = (
    MessageIllegal,
    (
        "raise maxMessageSize of the brokers: a dead letter has the bytes of its message, and more "
        "properties"
    ),
)


def bad_record_handler(options: ReadOptions) -> BadRecordHandler:
    """Return the handler of the messages that a task cannot read."""
    send: Callable[[Sequence[BadRecord]], None] | None = None
    by = dead_letter_options(options)
    if by is not None:
        send = partial(_send_dead_letters, by, options.max_body_bytes)
    return BadRecordHandler(options.on_bad_record, send)


def _send_dead_letters(
    options: WriteOptions, max_body_bytes: int, records: Sequence[BadRecord]
) -> None:
    """Send the dead letters of records, and return when all are stored."""
    from rmq_spark.client.forwarding import DeadLetterLoop, dead_letter_of  # noqa: PLC0415  # in tasks only
    from rmq_spark.spark.write.sender import REMEDIES, send_messages  # noqa: PLC0415  # brings pyarrow

    topic, letters = options.topic or "", []
    for each in records:
        try:
            letters.append(dead_letter_of(each, topic, max_body_bytes))
        except DeadLetterLoop as loop:  # noqa: PERF203  # the error names the record
            raise SparkError(
                f"the unreadable message at offset {each.queue_offset} of {each.queue} cannot be "
                f"sent to {topic}: {loop}. Set option deadLetterTopic to another topic, or "
                "onBadRecord to skip"
            ) from None
    where = f"dead letters of {records[0].queue.topic} for topic {topic}"
    send_messages(options, letters, where, remedies=(_TOO_LARGE, *REMEDIES))
