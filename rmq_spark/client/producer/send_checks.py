"""Checks of what callers of a producer give it, by the names that they know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_spark.client.arguments import check_queue, wrong_kind
from rmq_spark.client.errors import MessageRejected
from rmq_spark.errors import excerpt
from rmq_spark.wire.message_queue import MessageQueue

_BULK_SETTINGS: Final = ("queue", "in_flight", "chunk_bytes", "timeout_ms")


def check_member(member: object) -> None:
    """Raise an error if brokers could not ask a member what became of a transaction."""
    answers = callable(getattr(member, "check_transaction_state", None)) and not isinstance(
        member, type
    )
    if member is not None and not answers:
        raise wrong_kind(
            "member", "an object with check_transaction_state", excerpt(member), "None"
        )


def check_bulk_settings(settings: Mapping[str, object]) -> None:
    """Raise an error if there is a setting that sends of tables do not have."""
    for name in settings.keys() - _BULK_SETTINGS:
        raise wrong_kind("settings", f"some of {', '.join(_BULK_SETTINGS)}", name, "in_flight=8")


def of_topic(name: str, queue: MessageQueue, topic: str) -> MessageQueue:
    """Return a queue, or raise an error if it is of another topic."""
    check_queue(name, queue)
    if queue.topic != topic:
        raise MessageRejected(name, f"one of topic {topic}", str(queue))
    return queue
