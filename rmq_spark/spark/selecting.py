"""Selecting: which topics a query reads, by their names."""

from __future__ import annotations

import re
from typing import Final

from rmq_spark.spark.options import Selection
from rmq_spark.wire.names import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, without_namespace

_NOT_THE_USERS: Final = (
    *SYSTEM_TOPICS,
    SYSTEM_TOPIC_PREFIX,
    *("%", "RMQ_SYS_", "DefaultCluster", "DefaultHeartBeatSyncerTopic"),
)
"""Beginnings of topic names that no pattern matches."""


def selects(selection: Selection, topic: str) -> bool:
    """Return whether a topic is named by a selection, or matches its pattern."""
    if selection.pattern is None:
        return topic in selection.topics
    name = without_namespace(selection.namespace, topic)
    if selection.namespace is not None and name == topic:
        return False  # it is in none, or in another
    return re.fullmatch(selection.pattern, name) is not None and not is_brokers_own(name)


def is_brokers_own(topic: str) -> bool:
    """Tell whether brokers have made a topic for themselves or for groups."""
    return topic.startswith(_NOT_THE_USERS)
