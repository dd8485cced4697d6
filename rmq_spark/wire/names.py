"""Names: the valid names of topics and groups, and those that RocketMQ reserves.

A topic's name becomes the name of a directory, and a group's name a part of its retry topic's. So
neither may contain path separators or be longer than a directory's name can be. Clients check names
before they send, and brokers check them again.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
"""The beginning of the name of a light message queue (LMQ) of RocketMQ 5.

The entries of such a queue lead to records of a parent topic, so that the log alone cannot restore
it.
"""
NAMESPACE_SEPARATOR: Final = "%"
"""The separator between a namespace and a name in it."""

DEFAULT_TOPIC: Final = "TBW102"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
CHECK_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group whose offsets are the progress of the checks of half messages."""
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"

NOT_ALLOWED_SEND_TOPICS: Final = frozenset(
    [
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    ]
)
"""Topics that only the broker itself writes to."""

SYSTEM_TOPICS: Final = NOT_ALLOWED_SEND_TOPICS | {
    DEFAULT_TOPIC,
    BENCHMARK_TOPIC,
    TRACE_TOPIC,
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",  # this one and the next since RocketMQ 5.5
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
}
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"

SYSTEM_GROUPS: Final = frozenset(
    [
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
    ]
)
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

TOPIC_CHARACTERS_MAX: Final = 127
LONG_TOPIC_CHARACTERS_MAX: Final = 255
"""The limit for retry topics and dead-letter queues, whose names contain a group's."""
GROUP_CHARACTERS_MAX: Final = LONG_TOPIC_CHARACTERS_MAX - len(RETRY_PREFIX)
"""The limit for groups; RocketMQ's is 255, too long for a retry topic's name."""

_CHARACTERS = re.compile(r"[%|a-zA-Z0-9_-]+")
_SHOWN_MAX = 60


def topic_characters_max(topic: str) -> int:
    """Return the maximum length of this topic's name."""
    is_long = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return LONG_TOPIC_CHARACTERS_MAX if is_long else TOPIC_CHARACTERS_MAX


def topic_fault(topic: str) -> str | None:
    """Return what is wrong with a topic's name, or None if it is valid.

    RocketMQ 5 separates group and topic by a plus in the name of a retry topic of pops.
    """
    plain = topic.replace("+", "_", 1) if topic.startswith(RETRY_PREFIX) else topic
    return _fault("topic", plain, topic_characters_max(topic))


def is_light_queue(topic: str) -> bool:
    """Return whether a topic is a light message queue of RocketMQ 5."""
    return topic.startswith(LIGHT_QUEUE_PREFIX)


def light_queue_fault(topic: str) -> str | None:
    """Return why our broker does not support a topic of this name, or None if it does."""
    if not is_light_queue(topic):
        return None
    return (
        f"the topic {topic[:_SHOWN_MAX]} is a light queue of RocketMQ 5, which this broker does "
        "not serve. Use its parent topic, or RocketMQ"
    )


def group_fault(group: str) -> str | None:
    """Return what is wrong with a group's name, or None if it is valid."""
    return _fault("group", group, GROUP_CHARACTERS_MAX)


def _fault(kind: str, name: str, characters_max: int) -> str | None:
    if not name.strip():
        return f"the name of the {kind} is blank"
    if not _CHARACTERS.fullmatch(name):
        return f"the {kind} {name[:_SHOWN_MAX]!r} has other characters than % | a-z A-Z 0-9 _ -"
    if len(name) > characters_max:
        return (
            f"the {kind} {name[:_SHOWN_MAX]}... has {len(name)} characters, over {characters_max}"
        )
    return None


def is_system_topic(topic: str) -> bool:
    """Return whether RocketMQ reserves this topic: nobody can create or change it."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_internal_topic(topic: str, system_names: Collection[str]) -> bool:
    """Return whether a topic was not made by users, but belongs to a broker, cluster or group.

    ``system_names`` are the names of the brokers and clusters, which have topics of their own.
    """
    is_of_group = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    is_of_broker = topic.removesuffix("_REPLY_TOPIC") in system_names
    return is_of_group or is_of_broker or is_system_topic(topic)


def is_system_group(group: str) -> bool:
    """Return whether RocketMQ reserves this group for its tools and for itself."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def is_namespace(name: str) -> bool:
    """Return whether a name can be that of a namespace."""
    return topic_fault(name) is None and NAMESPACE_SEPARATOR not in name


def wrap_namespace(namespace: str | None, name: str) -> str:
    """Return the full name of a topic or group, given its name within a namespace."""
    if not namespace or not name or _is_outside_namespaces(name):
        return name
    prefix, inner = _split_prefix(name)
    within = namespace + NAMESPACE_SEPARATOR
    return name if inner.startswith(within) else prefix + within + inner


def without_namespace(namespace: str | None, name: str) -> str:
    """Return the name of a topic or group within a namespace; other names stay unchanged."""
    if not namespace or _is_outside_namespaces(name):
        return name
    prefix, inner = _split_prefix(name)
    return prefix + inner.removeprefix(namespace + NAMESPACE_SEPARATOR)


def _is_outside_namespaces(name: str) -> bool:
    """Return whether a name is the same in all namespaces; groups of RocketMQ's tools are not."""
    return is_system_topic(name) or name.startswith(SYSTEM_GROUP_PREFIX)


def _split_prefix(name: str) -> tuple[str, str]:
    """Return the prefix of a retry topic or dead-letter topic, or none, and the rest."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def reply_topic(cluster: str) -> str:
    """Return the topic in which a cluster's brokers store replies to requests."""
    return f"{cluster}_REPLY_TOPIC"


def retry_topic(group: str) -> str:
    """Return the topic from which a group's failed messages are redelivered."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the dead-letter topic, for a group's messages that were retried too often."""
    return DLQ_PREFIX + group


def revive_topic(cluster_name: str) -> str:
    """Return the topic of check points and acknowledgements of popped messages."""
    return f"{SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster_name}"
