"""GroupOffsetsProcessor: moves whole groups to a time, to an offset, or to another group's offsets.

    INVOKE_BROKER_TO_RESET_OFFSET ─> an offset for each queue
          ─> all members are of Java 5.x? the next pull of each queue is answered with its offset
          ─> else: RESET_CONSUMER_CLIENT_OFFSET to each member

Members keep their offsets in memory and store them every few seconds, so they would overwrite a
reset that only changed the table. They are notified, and store the new offsets themselves.
Java's client sleeps for ten seconds in the thread that handles this request, and has one such
thread for each core. So clients of 5.x are reset as in RocketMQ 5: the broker stores the offsets,
ignores commits of members until their next pull, and answers that pull with PULL_OFFSET_MOVED. For
an offline group the response is CONSUMER_NOT_ONLINE, and mqadmin then stores the offsets.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Final

from rmq_spark.wire.bodies import encode_body_in_steps
from rmq_spark.wire.bodies.clients import ConsumeType, MessageModel
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.bodies.operators import (
    MessageQueueForC,
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from rmq_spark.wire.codes import LanguageCode, RequestCode, ResponseCode
from rmq_spark.wire.headers import operators as headers
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.command import RemotingCommand

from ...auth.rights import Action, ResourceType
from ...common.channel import Channel, ResponseSteps
from ...state.members.consumers import ConsumerGroup
from ...state.tables.subscription_group import group_fault
from ..processor import Processor, handles
from ..queues import check_queue, require_topic
from ..request import (
    RequestRejected,
    header_of,
    one_way_command,
    success_response,
    success_response_in_steps,
    system_error,
)

RESET_VERSION_MIN: Final = 28
"""V3_0_7_SNAPSHOT: older clients do not know the request."""
RESET_BY_PULL_VERSION_MIN: Final = 413
"""V5_0_0: a client continues immediately at the offset in the response to its pull."""
NO_CORRECTION_OFFSET: Final = (1 << 63) - 1
"""Java's Long.MAX_VALUE: the compared group is not ahead of any other."""

_NOT_GIVEN: Final = -1


class GroupOffsetsProcessor(Processor):
    """The responses to requests that move a group's offsets, or compare them."""

    # ---- to a time, or to an offset

    @handles(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    def reset_offset(self, _: Channel, request: RemotingCommand) -> ResponseSteps:
        """Make the members of a group continue at other offsets."""
        header: headers.ResetOffsetRequestHeader = header_of(request)
        config = require_topic(self._broker.topics, header.topic)
        targets = yield from self._targets(config, header)
        group = self._broker.consumers.group(header.group)
        if group is None:
            raise RequestRejected(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"the consumer group[{header.group}] has no member online; its offsets were not "
                "changed",
            )
        table = {
            self._queue(header.topic, queue_id): target for queue_id, target in targets.items()
        }
        if group.consume_type is ConsumeType.CONSUME_POP:  # the broker has the offsets
            for queue_id, target in targets.items():
                self._broker.offsets.commit(header.group, header.topic, queue_id, target)
                self._broker.order_info.clear((header.topic, header.group, queue_id))
                self._broker.pop_waiters.wake_next(header.topic, header.group, queue_id)
        elif _can_reset_by_pulls(group):  # the next pull of each queue is answered with its offset
            for queue_id, target in targets.items():
                self._broker.offsets.commit(header.group, header.topic, queue_id, target)
                group.resets[header.topic, queue_id] = target
            yield from self._broker.hold_service.release(header.topic)
        else:
            yield from self._notify(group, header, table)
        return (yield from success_response_in_steps(request, ResetOffsetBody(offset_table=table)))

    def _targets(
        self, config: TopicConfig, header: headers.ResetOffsetRequestHeader
    ) -> Generator[None, None, Mapping[int, int]]:
        """Return the offset for each queue at which the group is to continue."""
        topic, queue_id, queue_offset = (
            header.topic,
            _optional(header.queue_id),
            _optional(header.offset),
        )
        if queue_id is not None:
            check_queue(self._broker.store, config, queue_id)
            if queue_offset is not None:
                return {queue_id: self._check_offset(topic, queue_id, queue_offset)}
        elif queue_offset is not None:
            raise system_error(f"offset {queue_offset} needs a queueId: name its queue")
        stored = self._broker.offsets.queues(header.group, topic)
        if not stored:
            raise system_error(f"THe consumer group <{header.group}> not exist in topic <{topic}>")
        all_queues = range(max(config.read_queue_nums, config.write_queue_nums))
        targets = {}
        for each in all_queues if queue_id is None else (queue_id,):
            yield
            targets[each] = self._target(header, each, stored.get(each))
        return targets

    def _target(
        self, header: headers.ResetOffsetRequestHeader, queue_id: int, stored: int | None
    ) -> int:
        """Return the offset for a time, or the end; without force, not past the group's offset."""
        if header.timestamp < 0:
            target = self._broker.store.queue_offsets(header.topic, queue_id).next
        else:
            target = self._broker.store.offset_by_time(header.topic, queue_id, header.timestamp)
        return target if header.is_force or stored is None else min(target, stored)

    def _check_offset(self, topic: str, queue_id: int, queue_offset: int) -> int:
        low, high = self._broker.store.queue_offsets(topic, queue_id)
        if not low <= queue_offset <= high:
            raise system_error(
                f"offset {queue_offset} is not in queue {queue_id} of topic {topic}: {low} to "
                f"{high}"
            )
        return queue_offset

    def _notify(
        self,
        group: ConsumerGroup,
        header: headers.ResetOffsetRequestHeader,
        table: Mapping[MessageQueue, int],
    ) -> Generator[None, None, None]:
        old = [
            each.client_id for each in group.clients.values() if each.version < RESET_VERSION_MIN
        ]
        if old:
            raise system_error(
                f"the client [{old[0]}] is too old to reset its offsets; no offset was changed"
            )
        command = one_way_command(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header._replace(queue_id=None, offset=None)
        )
        usual = yield from encode_body_in_steps(ResetOffsetBody(offset_table=table))
        flat = yield from encode_body_in_steps(
            ResetOffsetBodyForC(
                offset_table=tuple(
                    MessageQueueForC(
                        topic=queue.topic,
                        broker_name=queue.broker_name,
                        queue_id=queue.queue_id,
                        offset=target,
                    )
                    for queue, target in table.items()
                )
            )
        )
        for connection, channel in tuple(group.clients.items()):
            body = flat if channel.language == LanguageCode.CPP.name else usual
            connection.send_frame(command.encode_head(len(body)), [body])
            yield

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker.config.broker_name, queue_id)

    # ---- to where another group is

    @handles(RequestCode.CLONE_GROUP_OFFSET)
    def clone_group_offset(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Copy the offsets of one group to another, in one topic or in all that may be changed.

        Unless ``offline`` is set, topics that an online source group no longer subscribes to are
        left out.
        """
        header: headers.CloneGroupOffsetRequestHeader = header_of(request)
        fault = group_fault(header.dest_group)
        if fault is not None:
            raise system_error(fault)
        known = self._broker.offsets.topics_of(header.src_group)
        topics = known & {header.topic} if header.topic else known
        if not topics:
            scope = f"in topic {header.topic}" if header.topic else "anywhere"
            raise system_error(f"the consumer group <{header.src_group}> has no offsets {scope}")
        if self._broker.groups.find_or_create(header.dest_group) is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{header.dest_group}] does not exist",
            )
        source = None if header.offline else self._broker.consumers.group(header.src_group)
        for topic in sorted(topics):
            yield None
            is_dropped = source is not None and topic not in source.subscriptions
            is_allowed = self._broker.access.allows(
                connection, ResourceType.TOPIC, topic, Action.UPDATE
            )
            if self._broker.topics.get(topic) is not None and is_allowed and not is_dropped:
                self._broker.offsets.clone(header.src_group, header.dest_group, topic)
        return success_response(request)

    # ---- relative to other groups

    @handles(RequestCode.QUERY_CORRECTION_OFFSET)
    def query_correction_offset(
        self, connection: Channel, request: RemotingCommand
    ) -> ResponseSteps:
        """Answer the smallest offset of other groups in each queue where the compared group leads.

        Groups that the client may not see do not count.
        """
        visible = self._broker.access.visible_to(connection)
        header: headers.QueryCorrectionOffsetRequestHeader = header_of(request)
        left_out = {name.strip() for name in (header.filter_groups or "").split(",")}
        smallest: dict[int, int] = {}
        others = self._broker.offsets.groups_of(header.topic) - left_out
        for group in filter(visible.has_group, sorted(others)):
            for queue_id, queue_offset in tuple(
                self._broker.offsets.queues(group, header.topic).items()
            ):
                yield None
                if queue_offset >= self._broker.store.queue_offsets(header.topic, queue_id).first:
                    smallest[queue_id] = min(queue_offset, smallest.get(queue_id, queue_offset))
        compared = self._broker.offsets.queues(header.compare_group, header.topic)
        corrections = {
            queue_id: NO_CORRECTION_OFFSET
            if queue_offset > compared.get(queue_id, queue_offset)
            else queue_offset
            for queue_id, queue_offset in smallest.items()
        }
        body = QueryCorrectionOffsetBody(correction_offsets=corrections)
        return (yield from success_response_in_steps(request, body))


def _can_reset_by_pulls(group: ConsumerGroup) -> bool:
    """Return whether all members continue at the offset in the response to a pull.

    In BROADCASTING mode they do not: all members pull every queue, and only the next pull of a
    queue is answered with the offset.
    """
    return group.message_model is not MessageModel.BROADCASTING and all(
        each.language == LanguageCode.JAVA.name and each.version >= RESET_BY_PULL_VERSION_MIN
        for each in group.clients.values()
    )


def _optional(number: int | None) -> int | None:
    """Return a number, or None for -1, which 5.x sends for all queues or no offset."""
    return None if number == _NOT_GIVEN else number
