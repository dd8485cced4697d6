"""Checks of the options of exactly once, on both sides: what contradicts them.

    delivery=exactly_once    one topic, whose name leaves room for that of its commits topic
    visibleTo=all            any topics of one broker, and the name that this knows the sink by
    isolation=committed      one topic; where to start and to end are places in its commits topic

Everything is refused with its reason before a broker is asked. It knows no message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from rmq_spark.client.errors import MessageRejected
from rmq_spark.client.manifest import bytes_needed, commits_topic
from rmq_spark.client.names import check_topic
from rmq_spark.spark.errors import OptionError
from rmq_spark.spark.given_options import Given
from rmq_spark.spark.positions import BackByCount, Positions
from rmq_spark.wire.names import TOPIC_CHARACTERS_MAX, in_namespace

_SINK_NAME: Final = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9_.-]*")
_SINK_NAME_CHARS_MAX: Final = 190
"""Brokers take 200; the sink of batch writes has some letters more than that of streams."""

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


def sink_name_of(
    options: Given, topic: str | None, namespace: str | None, *, is_exactly_once: bool
) -> str | None:
    """Return the name that a broker knows a sink by, or None unless batches are visible to all."""
    is_staged = options.choice("visibleTo", "committed_readers", "all") == "all"
    name = options.text("sinkName")
    if is_staged and not is_exactly_once:
        raise OptionError(
            "visibleTo", "all rows of a batch are seen at once with delivery=exactly_once: set it"
        )
    if not is_staged:
        if name is not None:
            raise OptionError("sinkName", "it is for visibleTo=all: set that, or leave this out")
        return None
    if options.text("writeName") is not None:
        raise OptionError(
            "writeName",
            "with visibleTo=all a write is known by option sinkName and the number of the batch: "
            "leave this out",
        )
    if name is None and topic is None:
        raise OptionError(
            "sinkName",
            "it is needed where rows name their topics: a name that no other query has, and that "
            "stays, such as orders-by-country",
        )
    if name is None:
        return topic
    whole = in_namespace(namespace, name.strip())
    if not _SINK_NAME.fullmatch(name.strip()) or len(whole) > _SINK_NAME_CHARS_MAX:
        raise OptionError(
            "sinkName",
            f"needed are letters, digits and any of _ - ., with the namespace at most "
            f"{_SINK_NAME_CHARS_MAX} of them, found {name!r}",
        )
    return whole


def check_exactly_once(
    topic: str | None, write_name: str | None, message_bytes: int, *, is_staged: bool = False
) -> None:
    """Refuse what contradicts ``delivery=exactly_once``."""
    if topic is None and not is_staged:
        raise OptionError(
            "delivery",
            "exactly_once needs one topic for all rows, as a batch counts by one manifest in that "
            "topic's commits topic: name it in option topic, and write each topic by a query, or "
            "in foreachBatch by a write, of its own; or set visibleTo=all, for our broker",
        )
    if topic is not None:
        _commits_topic_of(topic, "topic")
    needed = bytes_needed(topic or "t" * TOPIC_CHARACTERS_MAX, write_name or "")
    if message_bytes < needed:
        raise OptionError(
            "maxMessageBytes",
            f"exactly_once stores a manifest with each batch, for which {needed} bytes are needed, "
            f"found {message_bytes}: raise it to the brokers' maxMessageSize, or leave it out",
        )


def _commits_topic_of(topic: str, option: str) -> str:
    commits = commits_topic(topic)
    try:
        return check_topic(commits)
    except MessageRejected as error:
        raise OptionError(
            option, f"its commits topic would be {commits}, which cannot be one: {error}"
        ) from None
