"""MessageRequestModes: whether the members of a group pull or pop the messages of a topic.

It concerns only members that leave the assignment of queues to the broker. The table is saved as
messageRequestMode.json, in RocketMQ's form.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from rmq_spark.wire.bodies.pop import MessageRequestModeWrapper, SetMessageRequestModeRequestBody

from .table import Change, NamedTable, Table, check_limit

MODES_MAX: Final = 10_000

TopicAndGroup: TypeAlias = tuple[str, str]


class MessageRequestModes(
    NamedTable[MessageRequestModeWrapper, TopicAndGroup, SetMessageRequestModeRequestBody]
):
    """The modes by topic and group. A change is durable after the next `save`."""

    def __init__(self, table: Table[MessageRequestModeWrapper]) -> None:
        loaded = table.load(MessageRequestModeWrapper()).message_request_mode_map
        values = {
            (topic, group): mode
            for topic, groups in loaded.items()
            for group, mode in groups.items()
        }
        super().__init__(table, values, self.wrapper)

    def put(
        self,
        mode: SetMessageRequestModeRequestBody,
        change: Change[TopicAndGroup, SetMessageRequestModeRequestBody] | None = None,
    ) -> None:
        """Set the mode of a group in a topic, as part of a change that may still be refused."""
        name = mode.topic, mode.consumer_group
        if self.get(name) is None:
            check_limit("request modes", len(self._values), MODES_MAX)
        self._change(name, mode, change)

    def wrapper(self) -> MessageRequestModeWrapper:
        """Return all modes as they are saved."""
        modes: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}
        for (topic, group), mode in tuple(self._values.items()):
            modes.setdefault(topic, {})[group] = mode
        return MessageRequestModeWrapper(message_request_mode_map=modes)
