"""VisibleNames: the topics and groups whose names one client may see in answers.

A client sees the names that any right of its own has in it. The right to list the cluster shows all
names, as in RocketMQ, where lists need it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .needs import Action, ResourceType

_TOPIC_ACTIONS: Final = Action.PUB, Action.SUB, Action.GET, Action.LIST
_GROUP_ACTIONS: Final = Action.SUB, Action.GET, Action.LIST


class VisibleNames:
    """The names that one client may see, by the users and lists of now."""

    def __init__(self, allows: Callable[..., bool], cluster: str) -> None:
        """Take the client's rights: ``allows(resource, name, *actions)``."""
        self._allows = allows
        self.is_all: Final = allows(ResourceType.CLUSTER, cluster, Action.LIST)
        """True if no name is hidden."""

    def has_topic(self, topic: str) -> bool:
        """Return whether the client may see a topic's name; a retry topic is as its group."""
        return self.is_all or self._allows(ResourceType.TOPIC, topic, *_TOPIC_ACTIONS)

    def has_group(self, group: str) -> bool:
        """Return whether the client may see a group's name."""
        return self.is_all or self._allows(ResourceType.GROUP, group, *_GROUP_ACTIONS)
