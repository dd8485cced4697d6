"""ConsumerGroupProcessor: reports a group's members and subscriptions, and locks queues for them.

It reports what heartbeats have sent.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Final

from rmq_spark.wire.bodies import clients
from rmq_spark.wire.bodies import operators as bodies
from rmq_spark.wire.bodies.clients import GetConsumerListByGroupResponseBody, MessageRequestMode
from rmq_spark.wire.bodies.operators import TopicList
from rmq_spark.wire.bodies.pop import SetMessageRequestModeRequestBody
from rmq_spark.wire.codes import RequestCode, ResponseCode, TopicPermission
from rmq_spark.wire.headers import members, operators
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import RETRY_PREFIX
from rmq_spark.wire.pop import ANY_QUEUE
from rmq_spark.wire.remoting.command import RemotingCommand

from ...common.channel import Channel, ResponseSteps
from ...state.members.client_channel_info import ClientChannelInfo, client_fault
from ...state.tables.subscription_group import group_fault
from ..processor import Processor, handles
from ..queues import require_group, require_topic
from ..request import (
    RequestRejected,
    body_in_steps,
    body_of,
    header_of,
    no_permission,
    success_response,
    success_response_in_steps,
    system_error,
)


class ConsumerGroupProcessor(Processor):
    """The responses to requests about groups, and the locks of their queues."""

    @handles(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def get_consumer_list_by_group(self, _: Channel, request: RemotingCommand) -> ResponseSteps:
        """List the ids of the members, from which each member computes the same assignment."""
        header: members.ConsumerGroupRequestHeader = header_of(request)
        group = self._broker.consumers.group(header.consumer_group)
        if group is None:
            raise system_error(f"no consumer for this group, {header.consumer_group}")
        body = GetConsumerListByGroupResponseBody(consumer_id_list=group.client_ids)
        return success_response_in_steps(request, body)

    @handles(RequestCode.QUERY_ASSIGNMENT)
    def query_assignment(self, _: Channel, request: RemotingCommand) -> ResponseSteps:
        """List a member's queues, if it leaves the assignment to the broker (5.x).

        After a response without assignments, the member keeps its queues.
        """
        body = yield from body_in_steps(request, clients.QueryAssignmentRequestBody)
        mode = self._request_mode(body.topic, body.consumer_group)
        queues = self._assign_queues(body, mode)
        if queues is None:
            return success_response(request)
        assigned = clients.QueryAssignmentResponseBody(
            message_queue_assignments=tuple(
                clients.MessageQueueAssignment(
                    message_queue=MessageQueue(
                        body.topic, self._broker.config.broker_name, queue_id
                    ),
                    mode=mode.mode,
                )
                for queue_id in queues
            )
        )
        return (yield from success_response_in_steps(request, assigned))

    def _request_mode(self, topic: str, group: str) -> SetMessageRequestModeRequestBody:
        known = self._broker.request_modes.get((topic, group))
        if known is not None:
            return known
        settings = self._broker.config.pop
        is_retry = topic.startswith(RETRY_PREFIX)
        return SetMessageRequestModeRequestBody(
            topic=topic,
            consumer_group=group,
            mode=MessageRequestMode.PULL if is_retry else settings.default_request_mode,
            pop_share_queue_num=settings.default_share_queue_num,
        )

    @handles(RequestCode.SET_MESSAGE_REQUEST_MODE)
    def set_message_request_mode(self, connection: Channel, request: RemotingCommand) -> None:
        """Answer SET_MESSAGE_REQUEST_MODE when the mode is saved."""
        body = body_of(request, SetMessageRequestModeRequestBody)
        if body.topic.startswith(RETRY_PREFIX):
            raise no_permission("retry topic is not allowed to set mode")
        require_topic(self._broker.topics, body.topic)
        require_group(self._broker.groups, body.consumer_group)
        modes = self._broker.request_modes
        with self._broker.reply_after_save.saving(connection, request, modes) as change:
            modes.put(body, change)

    def _assign_queues(
        self, body: clients.QueryAssignmentRequestBody, mode: SetMessageRequestModeRequestBody
    ) -> Sequence[int] | None:
        """Return the ids of a member's queues; None if the member is to keep its own."""
        config = self._broker.topics.get(body.topic)
        if config is None or not config.perm & TopicPermission.READ.value:
            return None
        all_queues = range(config.read_queue_nums)
        if body.message_model is clients.MessageModel.BROADCASTING:
            return all_queues
        group = self._broker.consumers.group(body.consumer_group)
        if body.message_model is clients.MessageModel.LITE_SELECTIVE or group is None:
            return None
        divide = _STRATEGIES.get(body.strategy_name or "")
        if divide is None:
            raise system_error(
                f"the broker allocates queues by {' or '.join(_STRATEGIES)}, not by "
                f"{body.strategy_name}: use one of these, or let the client allocate them"
            )
        members = group.client_ids
        shared = mode.pop_share_queue_num
        if mode.mode is MessageRequestMode.POP and not 0 < shared < len(members) - 1:
            return (ANY_QUEUE,)
        if body.client_id not in members:
            return ()
        index = members.index(body.client_id)
        if mode.mode is MessageRequestMode.PULL:
            return divide(all_queues, index, len(members))
        if len(members) > len(all_queues):
            return (all_queues[index % len(all_queues)],)
        neighbours = (index + number for number in range(shared + 1))
        return sorted(
            queue_id
            for each in neighbours
            for queue_id in divide(all_queues, each % len(members), len(members))
        )

    @handles(RequestCode.LOCK_BATCH_MQ)
    def lock_batch_mq(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Lock queues of this broker for a client; return which of the queues it holds now."""
        body = yield from _lock_body_of(request)
        group, client_id = body.consumer_group, body.client_id
        is_member = self._broker.consumers.find(group, client_id) is not None
        held: set[MessageQueue] = set()
        for wanted in sorted(body.mq_set):
            yield None
            queue = self._intern_queue(wanted)
            if queue is not None and not connection.is_closed:
                held |= self._broker.locks.lock(
                    connection, group, client_id, [queue], is_member=is_member
                )
        locked = clients.LockBatchResponseBody(lock_ok_mq_set=frozenset(held))
        return (yield from success_response_in_steps(request, locked))

    @handles(RequestCode.UNLOCK_BATCH_MQ)
    def unlock_batch_mq(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Unlock queues that a client has locked by this connection; others stay locked."""
        body = yield from _lock_body_of(request)
        for queue in sorted(body.mq_set):
            yield None
            self._broker.locks.unlock(connection, body.consumer_group, body.client_id, [queue])
        return success_response(request)

    def _intern_queue(self, queue: MessageQueue) -> MessageQueue | None:
        """Return a queue with the broker's own copies of its names; None for an unknown queue."""
        config = self._broker.topics.get(queue.topic)
        if config is None or queue.broker_name != self._broker.config.broker_name:
            return None
        if not 0 <= queue.queue_id < max(config.read_queue_nums, config.write_queue_nums):
            return None
        return MessageQueue(config.topic_name, self._broker.config.broker_name, queue.queue_id)

    @handles(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def get_consumer_connection_list(
        self, connection: Channel, request: RemotingCommand
    ) -> ResponseSteps:
        """Describe an online group with all that its members have reported."""
        header: members.ConsumerGroupRequestHeader = header_of(request)
        group = self._broker.consumers.group(header.consumer_group)
        if group is None:
            raise RequestRejected(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"the consumer group[{header.consumer_group}] not online",
            )
        connections = yield from _connections(tuple(group.clients.values()))
        visible = self._broker.access.visible_to(connection)
        body = bodies.ConsumerConnection(
            connection_set=connections,
            subscription_table={
                topic: data
                for topic, data in group.subscriptions.items()
                if visible.has_topic(topic)
            },
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return (yield from success_response_in_steps(request, body))

    @handles(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def get_producer_connection_list(self, _: Channel, request: RemotingCommand) -> ResponseSteps:
        """List the clients of a producer group."""
        header: operators.GetProducerConnectionListRequestHeader = header_of(request)
        channels = self._broker.producers.channels(header.producer_group)
        if not channels:
            raise system_error(f"the producer group[{header.producer_group}] not exist")
        connections = yield from _connections(channels)
        return (
            yield from success_response_in_steps(
                request, bodies.ProducerConnection(connection_set=connections)
            )
        )

    @handles(RequestCode.GET_ALL_PRODUCER_INFO)
    def get_all_producer_info(self, _: Channel, request: RemotingCommand) -> ResponseSteps:
        """List all producers, by group."""
        data = {}
        for group in tuple(self._broker.producers.groups):
            infos = []
            for channel in self._broker.producers.channels(group):
                yield None
                infos.append(self._producer_info(channel))
            data[group] = tuple(infos)
        return (yield from success_response_in_steps(request, bodies.ProducerTableInfo(data=data)))

    def _producer_info(self, channel: ClientChannelInfo) -> bodies.ProducerInfo:
        since_ms = self._broker.monotonic_ms() - channel.last_heartbeat_ms
        return bodies.ProducerInfo(
            client_id=channel.client_id,
            remote_ip=str(channel.connection.remote_host),
            language=channel.language,
            version=channel.version,
            last_update_timestamp=self._broker.now_ms() - since_ms,
        )

    @handles(RequestCode.QUERY_TOPICS_BY_CONSUMER)
    def query_topics_by_consumer(
        self, connection: Channel, request: RemotingCommand
    ) -> ResponseSteps:
        """List the topics in which a group has committed offsets, and that the client may see."""
        header: operators.GetSubscriptionGroupConfigRequestHeader = header_of(request)
        visible = self._broker.access.visible_to(connection)
        topics = filter(visible.has_topic, self._broker.offsets.topics_of(header.group))
        return success_response_in_steps(request, TopicList(topic_list=frozenset(topics)))

    @handles(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def query_subscription_by_consumer(
        self, _: Channel, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer a group's subscription to a topic; empty if it is offline or has none."""
        header: operators.QuerySubscriptionByConsumerRequestHeader = header_of(request)
        body = bodies.QuerySubscriptionResponseBody(
            subscription_data=self._broker.consumers.subscription(header.group, header.topic),
            group=header.group,
            topic=header.topic,
        )
        return success_response(request, body=body)


def _averagely(queues: range, member: int, members: int) -> Sequence[int]:
    share, rest = divmod(len(queues), members)
    start = member * share + min(member, rest)
    return queues[start : start + share + (member < rest)]


def _averagely_by_circle(queues: range, member: int, members: int) -> Sequence[int]:
    return queues[member::members]


_STRATEGIES: Final = {"AVG": _averagely, "AVG_BY_CIRCLE": _averagely_by_circle}
"""The ways in which RocketMQ's brokers divide queues, by the names of Java's strategies."""


def _lock_body_of(request: RemotingCommand) -> Generator[None, None, clients.LockBatchRequestBody]:
    body = yield from body_in_steps(request, clients.LockBatchRequestBody)
    fault = group_fault(body.consumer_group) or client_fault(body.client_id)
    if fault is not None:
        raise system_error(fault)
    return body


def _connections(
    channels: Iterable[ClientChannelInfo],
) -> Generator[None, None, tuple[bodies.Connection, ...]]:
    found = []
    for channel in channels:
        yield
        found.append(_connection(channel))
    return tuple(found)


def _connection(channel: ClientChannelInfo) -> bodies.Connection:
    return bodies.Connection(
        client_id=channel.client_id,
        client_addr=str(channel.connection.remote_host),
        language=channel.language,
        version=channel.version,
    )
