"""Rights: actions and resources, in RocketMQ's words; the table is in `request_rights`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rmq_spark.wire.names import RETRY_PREFIX


class ResourceType(Enum):
    """The kind of a resource; the value is RocketMQ's name of it in access lists."""

    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"


class Action(Enum):
    """An action on a resource; the value is RocketMQ's name of it in access lists."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"
    ALL = "All"  # in access lists only


@dataclass(frozen=True, slots=True)
class Need:
    """A right that a request needs: any one of these actions on this resource."""

    resource: ResourceType
    name: str
    actions: tuple[Action, ...]


def topic_need(topic: str, *actions: Action) -> Need:
    """Return the right that a request needs on a topic, or on the group of a retry topic."""
    if topic.startswith(RETRY_PREFIX):
        return group_need(topic, *actions)
    return Need(ResourceType.TOPIC, topic, actions)


def group_need(group: str, *actions: Action) -> Need:
    """Return the right that a request needs on a group, given by its name or its retry topic."""
    return Need(ResourceType.GROUP, group.removeprefix(RETRY_PREFIX), actions)
