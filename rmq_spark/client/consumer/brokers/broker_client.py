"""GroupBrokerClient: a group member's requests to brokers, by queue instead of address.

If no known route names a broker, its route is looked up once more at the name servers. Errors are
raised, or passed to the callback of a pull; nothing is retried here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import NamedTuple, TypeVar

from rmq_spark.client.consumer.brokers.pull_decoder import SuspectRecord, decode_pull
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    BrokerNotFound,
    ClientError,
    OffsetMoved,
)
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import MessageExt, to_message
from rmq_spark.client.producer.prepared_message import now_ms
from rmq_spark.client.results import PullResult, PullStatus
from rmq_spark.client.subscriptions import filter_by_tags
from rmq_spark.wire.bodies.clients import TAG_EXPRESSION, CheckClientRequestBody, SubscriptionData
from rmq_spark.wire.codes import MASTER_ID, PullSysFlag
from rmq_spark.wire.headers.members import (
    ConsumerSendMsgBackRequestHeader,
    PullMessageRequestHeader,
    SendMessageRequestHeader,
)
from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import DEFAULT_TOPIC, RETRY_PREFIX, dlq_topic

PLAIN_PULL_MESSAGES_MAX = 32
"""Most messages that a broker returns per pull, whatever the request says; a chunk holds more."""

_SUSPEND_FLAGS = (PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION).value
_COMMIT = PullSysFlag.COMMIT_OFFSET.value
_LITE = PullSysFlag.LITE_PULL.value

_Found = TypeVar("_Found")


class PullSpec(NamedTuple):
    """A pull to make: a queue and an offset, and how long the broker may hold it."""

    queue: MessageQueue
    queue_offset: int
    subscription: SubscriptionData
    max_messages: int
    suspend_ms: int
    timeout_ms: int
    commit_offset: int | None = None
    is_lite: bool = False


class DecodedPull(NamedTuple):
    """Result of a pull: the selected messages, and the offset to resume at.

    Those in ``unreadable`` have their bodies as stored. ``may_be_recreated`` is set if the broker
    keeps holding a pull while its topic is deleted and recreated, as RocketMQ's brokers do.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: tuple[MessageExt, ...]
    unreadable: tuple[MessageExt, ...] = ()
    may_be_recreated: bool = False

    def legal_offset(self, requested: int) -> int:
        """Return the offset to resume at after OFFSET_ILLEGAL: the broker's, or the nearest legal.

        A slave may return the same offset that it has just refused.
        """
        if (
            self.next_begin_offset != requested
            and self.min_offset <= self.next_begin_offset <= self.max_offset
        ):
            return self.next_begin_offset
        return max(0, self.min_offset, min(requested, self.max_offset))


class GroupBrokerClient:
    """A group member's requests to brokers. Methods may be called from any thread."""

    def __init__(
        self,
        client: ClientInstance,
        group: str,
        subscription_of: Callable[[str], SubscriptionData | None],
        *,
        starts_at_time: bool = False,
    ) -> None:
        """Make a client; ``subscription_of`` returns a topic's present subscription, if any.

        A response for a replaced subscription is ignored, because the broker may have skipped
        messages that the new one selects. With ``starts_at_time``, brokers are asked to report that
        a queue has no stored offset, instead of 0, which they return so that a group that starts at
        the end misses nothing.
        """
        self._client = client  # a fork changes its client id
        self._subscription_of = subscription_of
        self._api = client.api
        self._routes = client.routes
        self._group = group
        self._set_zero_if_not_found = not starts_at_time
        self._suggested_broker_ids: dict[MessageQueue, int] = {}
        self._suspect_records: dict[MessageQueue, bytes] = {}

    @property
    def client_id(self) -> str:
        """Name of this client among the members of the group."""
        return self._client.client_id

    # ---- pulling

    def is_ready(self, queue: MessageQueue) -> bool:
        """Return whether `pull` can send at once, without looking up the broker or connecting."""
        broker_id = self._suggested_broker_ids.get(queue, MASTER_ID)
        try:
            address = self._routes.address_for_read(queue.broker_name, broker_id)
        except BrokerNotFound:
            return False
        return self._api.connections.is_ready(address)

    def pull(
        self,
        spec: PullSpec,
        callback: Callable[[DecodedPull | BaseException], object],
        room_bytes: Callable[[], int],
    ) -> Callable[[], None]:
        """Ask for messages and return a function that abandons the pull.

        ``callback`` is called with the outcome, in the reading thread or in this one. Before that,
        ``room_bytes`` is called for the number of bytes that inflated bodies may take.
        """
        queue = spec.queue
        broker_id, address = self._read_address(queue)
        try:
            is_chunk = spec.max_messages > PLAIN_PULL_MESSAGES_MAX and self._api.supports_chunks(
                address
            )
            header = self._pull_header(spec, broker_id)
            future = self._api.pull_async(address, header, spec.timeout_ms, is_chunk=is_chunk)
        except CONNECTION_FAULTS:
            self._suggested_broker_ids.pop(queue, None)
            raise
        may_be_recreated = not self._api.notifies_topic_deletion(address)
        future.add_done_callback(
            lambda response: callback(
                self._decode_outcome(spec, response, room_bytes, may_be_recreated)
            )
        )
        return future.abandon

    def _pull_header(self, spec: PullSpec, broker_id: int) -> PullMessageRequestHeader:
        # A slave keeps no offsets of groups.
        commits = spec.commit_offset is not None and broker_id == MASTER_ID
        is_tags = spec.subscription.expression_type == TAG_EXPRESSION
        return PullMessageRequestHeader(
            consumer_group=self._group,
            topic=spec.queue.topic,
            queue_id=spec.queue.queue_id,
            queue_offset=spec.queue_offset,
            max_msg_nums=spec.max_messages,
            sys_flag=_SUSPEND_FLAGS | (_COMMIT if commits else 0) | (_LITE if spec.is_lite else 0),
            commit_offset=spec.commit_offset or 0,
            suspend_timeout_millis=spec.suspend_ms,
            sub_version=0 if is_tags else spec.subscription.sub_version,
            subscription=spec.subscription.sub_string,
            expression_type=spec.subscription.expression_type,
            broker_name=spec.queue.broker_name,
        )

    def _decode_outcome(
        self,
        spec: PullSpec,
        future: Future[PullResult],
        room_bytes: Callable[[], int],
        may_be_recreated: bool,  # noqa: FBT001  # the fields of the outcome
    ) -> DecodedPull | BaseException:
        try:
            result = future.result()
        except BaseException as error:  # noqa: BLE001  # the error is the outcome
            # The suggested broker may be down: return to the master.
            self._suggested_broker_ids.pop(spec.queue, None)
            return error
        is_illegal = result.pull_status is PullStatus.OFFSET_ILLEGAL
        present = self._subscription_of(spec.queue.topic)
        if present not in (None, spec.subscription) and not is_illegal:
            bounds = result.min_offset, result.max_offset
            status, queue_offset = PullStatus.NO_MATCHED_MSG, spec.queue_offset
            return DecodedPull(status, queue_offset, *bounds, (), may_be_recreated=may_be_recreated)
        try:
            decoded = decode_pull(
                *(result.records, spec.queue, spec.queue_offset, result.next_begin_offset),
                suspect=self._suspect_records.pop(spec.queue, None),
                max_body_bytes=self._api.max_body_bytes,
                room_bytes=room_bytes(),
            )
            found = restore_original_topics(
                filter_by_tags(decoded.messages, spec.subscription), spec.queue.topic
            )
            # The tags of an unreadable record are unknown; the broker considered it a match.
            unreadable = restore_original_topics(decoded.unreadable, spec.queue.topic)
        except SuspectRecord as error:
            self._suspect_records[spec.queue] = error.record
            return error
        except BaseException as error:  # noqa: BLE001  # the error is the outcome
            return error
        self._suggested_broker_ids[spec.queue] = result.suggest_which_broker_id
        next_offset = decoded.next_offset
        if next_offset is None:
            next_offset = result.next_begin_offset
        return DecodedPull(
            *(result.pull_status, next_offset, result.min_offset, result.max_offset),
            tuple(found),
            tuple(unreadable),
            may_be_recreated=may_be_recreated,
        )

    # ---- offsets

    def consumer_offset(self, queue: MessageQueue) -> int | None:
        """Return the offset that the group has stored for a queue, or None."""
        return self._api.query_consumer_offset(
            *(self._master_address(queue), self._group, queue),
            set_zero_if_not_found=self._set_zero_if_not_found,
        )

    def update_consumer_offset(self, queue: MessageQueue, offset: int, *, is_one_way: bool) -> None:
        """Store the group's offset of a queue."""
        self._api.update_consumer_offset(
            self._master_address(queue), self._group, queue, offset, is_one_way=is_one_way
        )

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        return self._api.max_offset(self._master_address(queue), queue)

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the first offset that a queue still holds."""
        return self._api.min_offset(self._master_address(queue), queue)

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at a time (ms since the epoch) or later."""
        return self._api.search_offset(self._master_address(queue), queue, timestamp_ms)

    def message_at(self, queue: MessageQueue, queue_offset: int) -> MessageExt | None:
        """Return the message at an offset, whatever its tags, if it is there.

        Raises:
            OffsetMoved: The queue has that offset, but an operator moved the group to another.
                RocketMQ 5 reports this once, in response to the first pull of the group.
        """
        _, address = self._read_address(queue)
        found = self._api.peek(address, self._group, queue, queue_offset)
        is_there = found.min_offset <= queue_offset < found.max_offset
        if is_there and found.pull_status is PullStatus.OFFSET_ILLEGAL:
            bounds = found.min_offset, found.max_offset
            raise OffsetMoved(str(queue), queue_offset, *bounds, found.next_begin_offset)
        stored = found.first_message(queue)
        if stored is None or stored.queue_offset != queue_offset:
            return None
        return to_message(
            stored, queue.broker_name, max_body_bytes=self._api.max_body_bytes, with_fault=True
        )

    # ---- the group

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all queues of a topic that can be read."""
        return self._routes.subscribe_queues(topic)

    def broker_names(self, topic: str) -> frozenset[str]:
        """Return the names of a topic's brokers."""
        return frozenset(self._routes.route(topic).brokers)

    def consumer_ids(self, topic: str) -> tuple[str, ...]:
        """Return the members of the group, as any broker of a topic knows them.

        Connected brokers are asked first.
        """
        return self._ask_any_broker(
            topic, lambda address: self._api.consumer_ids(address, self._group)
        )

    def topics_of_group(self, topic: str) -> frozenset[str]:
        """Return the topics of the group's last heartbeat, as any broker of a topic knows them."""
        members_at = self._api.admin.consumer_connection
        return self._ask_any_broker(
            topic, lambda address: frozenset(members_at(address, self._group).subscription_table)
        )

    def _ask_any_broker(self, topic: str, ask: Callable[[str], _Found]) -> _Found:
        failure: ClientError | None = None
        names = self._routes.route(topic).brokers
        for name in sorted(names, key=self._is_disconnected):
            try:
                return ask(self._routes.address_for_read(name))
            except ClientError as error:  # noqa: PERF203  # the next broker may answer
                failure = error
        raise failure or BrokerNotFound(topic, "its route names no broker")

    def _is_disconnected(self, broker_name: str) -> bool:
        try:
            return not self._api.connections.is_ready(self._routes.address_for_read(broker_name))
        except BrokerNotFound:
            return True

    def may_be_at(self, broker_name: str, address: str) -> bool:
        """Return whether a broker's master has this address, or its address is unknown."""
        try:
            return self._routes.master_address(broker_name) == address
        except BrokerNotFound:
            return True

    def lock(self, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Lock queues, to consume them in order; return the queues that are locked now.

        Queues of a broker that does not answer are omitted.
        """
        held: frozenset[MessageQueue] = frozenset()
        for own in group_by_broker(queues).values():
            try:
                address = self._master_address(own[0])
                held |= self._api.lock(address, self._group, self.client_id, own)
            except ClientError:  # noqa: PERF203  # the others are asked all the same
                continue
        return held

    def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Unlock queues at their brokers, and wait until they are unlocked.

        A late unlock would take the lock from the next consumer of this process.
        """
        for broker_name, own in group_by_broker(queues).items():
            address = self._routes.master_address(broker_name)
            self._api.unlock(address, self._group, self.client_id, own)

    def send_back(self, message: MessageExt, delay_level: int, max_reconsume_times: int) -> None:
        """Send a message back, to be redelivered later or made a dead letter."""
        header = ConsumerSendMsgBackRequestHeader(
            offset=message.commit_log_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            unit_mode=False,
            max_reconsume_times=max_reconsume_times,
            broker_name=message.queue.broker_name,
        )
        self._api.send_back(self._master_address(message.queue), header)

    def send_dead_letter(self, message: MessageExt) -> None:
        """Send what is left of a damaged message to the dead-letter topic, at the same broker."""
        origin = {
            "RETRY_TOPIC": message.real_topic,
            "ORIGIN_MESSAGE_ID": message.message_id,
            "ORIGIN_QUEUE": f"{message.queue.broker_name} {message.queue.queue_id}",
            "ORIGIN_QUEUE_OFFSET": str(message.queue_offset),
        }
        header = SendMessageRequestHeader(
            producer_group=self._group,
            topic=dlq_topic(self._group),
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=0,
            born_timestamp=now_ms(),
            flag=message.flag,
            properties=encode_properties(origin),
            reconsume_times=0,
            unit_mode=False,
            batch=False,
            broker_name=message.queue.broker_name,
        )
        self._api.send(
            self._master_address(message.queue), header, message.body, message.message_id
        )

    def check_subscription(self, subscription: SubscriptionData) -> None:
        """Raise an error if a topic's brokers do not support the filter; tags always work."""
        if subscription.expression_type == TAG_EXPRESSION:
            return
        body = CheckClientRequestBody(
            client_id=self.client_id, group=self._group, subscription_data=subscription
        )
        faults: list[ClientError] = []
        brokers = self._routes.route(subscription.topic).brokers
        for broker_name in sorted(brokers, key=self._is_disconnected):
            try:
                self._api.check_client_config(self._routes.address_for_read(broker_name), body)
            except (*CONNECTION_FAULTS, BrokerNotFound) as error:  # noqa: PERF203  # another broker may answer
                faults.append(error)
        if faults and len(faults) == len(brokers):
            raise faults[0]

    # ---- addresses

    def _read_address(self, queue: MessageQueue) -> tuple[int, str]:
        """Return the id and the address of the broker to pull a queue from."""
        broker_id = self._suggested_broker_ids.get(queue, MASTER_ID)
        return broker_id, self._routes.refresh_if_missing(
            queue.topic, lambda: self._routes.address_for_read(queue.broker_name, broker_id)
        )

    def _master_address(self, queue: MessageQueue) -> str:
        return self._routes.refresh_if_missing(
            queue.topic, lambda: self._routes.master_address(queue.broker_name)
        )


def restore_original_topics(messages: list[MessageExt], topic: str) -> list[MessageExt]:
    """Restore the original topic of messages that came through the group's retry topic."""
    if not topic.startswith(RETRY_PREFIX):
        return messages
    return [replace(message, topic=message.real_topic) for message in messages]


def group_by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    """Return queues in order, grouped by the name of their broker."""
    found: dict[str, list[MessageQueue]] = {}
    for queue in sorted(queues):
        found.setdefault(queue.broker_name, []).append(queue)
    return found
