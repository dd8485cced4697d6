"""Store times of messages by queue offset, for reports on topics and groups."""

from __future__ import annotations

from typing import Final

from rmq_spark.errors import RecordError

from ..store.errors import UnreadableFile
from ..store.message_store import MessageStore
from ..store.records.fields import read_fields
from ..store.results import QueueOffset

NO_TIME: Final = 0
"""The store time of a message that does not exist, or not any more, that is damaged, or that the
disk does not give: a report on many queues is not refused for that; whoever pulls the message is
told."""


def store_timestamp(store: MessageStore, topic: str, queue_id: int, queue_offset: int) -> int:
    """Return when the message at an offset was stored, in milliseconds, or `NO_TIME`."""
    if queue_offset < 0:
        return NO_TIME
    try:
        found = store.get_message(
            topic, queue_id, QueueOffset(queue_offset), count_max=1, scan_max=1
        )
    except UnreadableFile:
        return NO_TIME
    if not found.message_count:
        return NO_TIME
    record = found.buffers[0]
    try:  # a queue's lists ask for thousands of these: the bodies are not touched
        return read_fields(record, 0, len(record))[4]
    except RecordError:
        return NO_TIME


def earliest_timestamp(store: MessageStore, topic: str, queue_id: int) -> int:
    """Return when the first message of a queue was stored, in milliseconds, or `NO_TIME`."""
    try:
        return max(store.earliest_timestamp(topic, queue_id), NO_TIME)
    except UnreadableFile:
        return NO_TIME
