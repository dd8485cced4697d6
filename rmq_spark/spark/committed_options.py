"""Options of exactly once, on both sides: what contradicts them, and what they make of others.

    delivery=exactly_once    one topic, whose name leaves room for that of its commits topic
    isolation=committed      one topic; where to start and to end are places in its commits topic

Everything is refused with its reason before a broker is asked. It knows no message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.manifest import bytes_needed, commits_topic
from rmq_spark.client.names import check_topic
from rmq_spark.spark.bad_records import OnBadRecord
from rmq_spark.spark.body_options import BINARY_BODIES
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.given_options import Given
from rmq_spark.spark.positions import BackByCount, Positions

if TYPE_CHECKING:
    from rmq_spark.spark.options import ReadOptions

_ONE_TOPIC: Final = (
    "the batches of one topic are read by their manifests: name the topic in option topic, and "
    "join several by union()"
)
_CONFLICTS: Final[Mapping[str, str]] = {
    "subscribePattern": _ONE_TOPIC,
    "assign": "a batch has rows in all queues of its topic: name the topic in option topic",
    "sql": "a broker's filter would hide lost rows: filter the data frame with .where()",
    "key": "the index knows of no batches: read the topic, and filter the data frame with .where()",
    "startingOffsetsByTimestamp": "batches are in one queue: use startingTimestamp",
    "endingOffsetsByTimestamp": "batches are in one queue: use endingTimestamp",
}


def check_committed(options: Given, topics: tuple[str, ...], *positions: Positions | None) -> None:
    """Refuse what contradicts ``isolation=committed``."""
    for name, why in _CONFLICTS.items():
        if name in options.names:
            raise OptionError(name, f"it cannot be given together with isolation=committed: {why}")
    if len(topics) != 1:
        raise OptionError("isolation", _ONE_TOPIC)
    if options.choice("onBrokerAway", "wait", "skip") == "skip":
        raise OptionError(
            "onBrokerAway",
            "with isolation=committed whole batches are read, and brokers are waited for: leave "
            "this out",
        )
    commits = _commits_topic_of(topics[0], "topic")
    for each in positions:
        if each is None:
            continue
        if isinstance(each.everywhere, BackByCount) or (each.topics or {commits}) != {commits}:
            raise OptionError(
                each.option,
                "with isolation=committed it is a place among batches: needed earliest, latest, a "
                f"time as -10m, or offsets of topic {commits} as in a checkpoint",
            )


def check_exactly_once(topic: str | None, write_name: str | None, message_bytes: int) -> None:
    """Refuse what contradicts ``delivery=exactly_once``."""
    if topic is None:
        raise OptionError(
            "delivery",
            "exactly_once needs one topic for all rows, as a batch counts by one manifest in that "
            "topic's commits topic: name it in option topic, and write each topic by a query, or "
            "in foreachBatch by a write, of its own",
        )
    _commits_topic_of(topic, "topic")
    needed = bytes_needed(topic, write_name or "")
    if message_bytes < needed:
        raise OptionError(
            "maxMessageBytes",
            f"exactly_once stores a manifest with each batch, for which {needed} bytes are needed, "
            f"found {message_bytes}: raise it to the brokers' maxMessageSize, or leave it out",
        )


def commits_options(options: ReadOptions) -> ReadOptions:
    """Return the options by which the commits topic of a source's topic is read."""
    (topic,) = options.selection.topics
    selection = replace(options.selection, option="isolation", topics=(commits_topic(topic),))
    return replace(
        options,
        selection=selection,
        expression="*",
        on_bad_record=OnBadRecord.FAIL,
        checks_crc=True,
        columns=(),
        body=BINARY_BODIES,
        pieces_min=None,
        piece_rows_max=None,
    )


def _commits_topic_of(topic: str, option: str) -> str:
    commits = commits_topic(topic)
    try:
        return check_topic(commits)
    except MessageRejected as error:
        raise OptionError(
            option, f"its commits topic would be {commits}, which cannot be one: {error}"
        ) from None
