"""TopicAdminProcessor: creates, changes, lists and deletes topics for operators.

It reports success only when the change is on the disk; a change that cannot be saved is undone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from rmq_spark.wire.bodies.configs import CreateTopicListRequestBody, TopicConfig, TopicFilterType
from rmq_spark.wire.bodies.operators import GroupList, TopicOffset, TopicStatsTable
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.operators import CreateTopicRequestHeader
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand

from ...common.channel import Channel, ResponseSteps
from ...state.tables.table import Change
from ...state.tables.topic_config import SYSTEM_TOPICS, is_system_topic, topic_fault
from ..admin.broker_admin import reserved_topics
from ..processor import Processor, handles
from ..queues import require_topic, store_timestamp
from ..reply_after_save import Saving
from ..request import (
    RequestRejected,
    body_in_steps,
    header_of,
    success_response,
    success_response_in_steps,
    system_error,
)

# ---- Attributes of topics, as RocketMQ 5 has them.

SUPPORTED: Final[Mapping[str, frozenset[str]]] = {
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}),
    "queue.type": frozenset({"SimpleCQ"}),
    "cleanup.policy": frozenset({"DELETE"}),
}
"""The supported attributes, with their values. The broker does not check a message's type."""


def changed_attributes(known: Mapping[str, str] | None, changes: str) -> Mapping[str, str] | None:
    """Return attributes with comma-separated changes applied; None if no attribute is left."""
    signed = {}
    for change in filter(None, (piece.strip() for piece in changes.split(","))):
        name, equals, value = change.partition("=")
        if (change[0] == "+") != bool(equals):
            raise _malformed(change)
        signed[name] = value
    return with_changes(known, signed)


def with_changes(
    known: Mapping[str, str] | None, changes: Mapping[str, str] | None
) -> Mapping[str, str] | None:
    """Return attributes with a request body's changes applied; None if no attribute is left.

    ``+name`` sets an attribute, ``-name`` removes it.
    """
    attributes = dict(known or {})
    for signed, value in (changes or {}).items():
        sign, name = signed[:1], signed[1:]
        if sign == "+" and value:
            _check(name, value)
            attributes[name] = value
        elif sign == "-" and not value:
            attributes.pop(name, None)
        else:
            raise _malformed(f"{signed}={value}")
    return attributes or None


def _check(name: str, value: str) -> None:
    values = SUPPORTED.get(name)
    if values is None:
        raise system_error(
            f"the attribute {name[:80]!r} is not supported; there are "
            f"{', '.join(sorted(SUPPORTED))}"
        )
    if value not in values:
        raise system_error(
            f"the attribute {name} can be {', '.join(sorted(values))}, not {value[:80]!r}"
        )


def _malformed(change: str) -> RequestRejected:
    return system_error(f"an attribute is changed by +name=value or -name, not by {change[:80]!r}")


class TopicAdminProcessor(Processor):
    """The responses to requests about one topic, or all topics."""

    # ---- creating and changing

    @handles(RequestCode.UPDATE_AND_CREATE_TOPIC)
    def update(self, connection: Channel, request: RemotingCommand) -> None:
        """Answer UPDATE_AND_CREATE_TOPIC; an existing topic is overwritten."""
        header: CreateTopicRequestHeader = header_of(request)
        self._refuse_reserved(header.topic)
        if header.topic_filter_type not in TopicFilterType.__members__:
            raise system_error(
                f"topicFilterType must be SINGLE_TAG or MULTI_TAG, not {header.topic_filter_type!r}"
            )
        known = self._broker.topics.get(header.topic)
        attributes = changed_attributes(
            known.attributes if known else None, header.attributes or ""
        )
        config = TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=TopicFilterType[header.topic_filter_type],
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order,
            attributes=attributes,
        )
        topics = self._broker.topics
        with self._broker.reply_after_save.saving(connection, request, topics) as change:
            self._put(config, change)

    @handles(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
    def update_all(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer UPDATE_AND_CREATE_TOPIC_LIST; one invalid topic refuses all.

        The request contains changes of attributes, as UPDATE_AND_CREATE_TOPIC does. If other
        clients use up the limit of topics while a long list is processed, the topics created before
        that stay, and the response says so.
        """
        body = yield from body_in_steps(request, CreateTopicListRequestBody)
        configs = body.topic_config_list
        for config in configs:
            yield None
            self._refuse_reserved(config.topic_name)
            self._refuse_if_deleting(config.topic_name)
            self._with_changed_attributes(config)
        try:
            yield from self._broker.topics.check_list(configs)
        except ValueError as error:
            raise system_error(str(error)) from error
        return (
            yield from self._broker.reply_after_save.put_all(
                connection, request, self._broker.topics, configs, self._put_changed
            )
        )

    def _put_changed(self, config: TopicConfig, change: Change[str, TopicConfig]) -> None:
        self._put(self._with_changed_attributes(config), change)

    def _with_changed_attributes(self, config: TopicConfig) -> TopicConfig:
        known = self._broker.topics.get(config.topic_name)
        attributes = with_changes(known.attributes if known else None, config.attributes)
        return replace(config, attributes=attributes)

    def _put(self, config: TopicConfig, change: Change[str, TopicConfig]) -> None:
        self._refuse_if_deleting(config.topic_name)
        try:
            self._broker.topics.put(config, change)
        except ValueError as error:
            raise system_error(str(error)) from error

    def _refuse_if_deleting(self, topic: str) -> None:
        if topic in self._broker.topics.deleting:
            raise system_error(f"the topic {topic} is being deleted; ask again when that is done")

    def _refuse_reserved(self, topic: str, *, may_have_prefix: bool = False) -> None:
        """Refuse to change a system topic; a topic that only has the prefix may be deleted."""
        fault = topic_fault(topic)
        if fault:
            raise system_error(fault)
        is_system = topic in SYSTEM_TOPICS if may_have_prefix else is_system_topic(topic)
        if is_system or topic in reserved_topics(self._broker.config):
            raise system_error(f"The topic[{topic}] is conflict with system topic.")

    # ---- reading

    @handles(RequestCode.GET_ALL_TOPIC_CONFIG)
    def get_all(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer GET_ALL_TOPIC_CONFIG with all topics that the client may see.

        It ignores which page is requested.
        """
        wrapper = self._broker.topics.wrapper()
        visible = self._broker.access.visible_to(connection)
        if not visible.is_all:
            topics = {}
            for name, config in wrapper.topic_config_table.items():
                yield None
                if visible.has_topic(name):
                    topics[name] = config
            wrapper = replace(wrapper, topic_config_table=topics)
        return (yield from success_response_in_steps(request, wrapper))

    @handles(RequestCode.GET_TOPIC_CONFIG)
    def get(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_TOPIC_CONFIG with one topic's configuration."""
        return success_response(
            request, body=require_topic(self._broker.topics, header_of(request).topic)
        )

    @handles(RequestCode.GET_TOPIC_STATS_INFO)
    def stats_info(self, _: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer GET_TOPIC_STATS_INFO with the offsets and the last store time of each queue."""
        topic = header_of(request).topic
        config = require_topic(self._broker.topics, topic)
        table = {}
        for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
            yield None
            queue = MessageQueue(topic, self._broker.config.broker_name, queue_id)
            table[queue] = self._offset(topic, queue_id)
        body = TopicStatsTable(
            offset_table=table, topic_put_tps=self._broker.stats.topic_put_tps(topic)
        )
        return (yield from success_response_in_steps(request, body))

    def _offset(self, topic: str, queue_id: int) -> TopicOffset:
        low, high = self._broker.store.queue_offsets(topic, queue_id)
        last = store_timestamp(self._broker.store, topic, queue_id, high - 1)
        return TopicOffset(min_offset=low, max_offset=high, last_update_timestamp=last)

    @handles(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    def consume_by_who(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer QUERY_TOPIC_CONSUME_BY_WHO with groups that are online or have offsets."""
        topic = header_of(request).topic
        groups = self._broker.consumers.groups_of(topic) | self._broker.offsets.groups_of(topic)
        visible = self._broker.access.visible_to(connection)
        found = frozenset(filter(visible.has_group, groups))
        return success_response_in_steps(request, GroupList(group_list=found))

    # ---- deleting

    @handles(RequestCode.DELETE_TOPIC_IN_BROKER)
    def delete(self, connection: Channel, request: RemotingCommand) -> None:
        """Answer DELETE_TOPIC_IN_BROKER: delete queues, then offsets and the route.

        Until the store has recorded the deletion, sends to the topic wait and nothing else changes.
        From then on the deletion is final: what cannot be saved now is saved later, or by the next
        start.
        """
        topic = header_of(request).topic
        self._refuse_reserved(topic, may_have_prefix=True)
        if self._broker.topics.get(topic) is None:
            self._broker.reply_after_save.reply(
                connection, request, self._broker.topics.save, success_response(request)
            )
            return
        self._refuse_if_deleting(topic)
        self._broker.topics.begin_deletion(topic)

        def discard() -> None:
            self._broker.offsets.discard_topic(topic)
            self._broker.topics.delete(topic)
            self._broker.run_steps(finish())

        def finish() -> Iterator[None]:
            # Held pulls would receive messages of the next topic of this name.
            yield from self._broker.hold_service.release(topic)
            yield from self._broker.stats.discard_topic(topic)
            self._broker.reply_after_save.reply(
                connection,
                request,
                self._broker.topics.save,
                success_response(request),
                failure=(f"the topic {topic} is deleted, but that is not saved yet, retrying"),
            )

        saving = Saving(
            lambda: self._broker.store.delete_topic(topic),
            discard,
            lambda: self._broker.topics.cancel_deletion(topic),
        )
        self._broker.reply_after_save.run(connection, request, saving)

    @handles(RequestCode.CLEAN_UNUSED_TOPIC)
    def clean_unused(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer CLEAN_UNUSED_TOPIC with success, without a change.

        Deleting a topic deletes its queues. Queues without a topic mean that the table of topics
        was lost; when it is restored, their messages are available again.
        """
        return success_response(request)
