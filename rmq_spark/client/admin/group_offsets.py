"""GroupOffsets: reads the lag of consumer groups, and sets, resets and clones their offsets.

Online members hold offsets in memory. A change is therefore sent to them as well as stored at the
broker, and `confirm_members` checks that each one still answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from rmq_spark.client.admin.lag import (
    GroupState,
    Lag,
    QueueReport,
    QueueState,
    consumed_topics,
    count_messages,
    is_retry_queue,
    query_lag,
    total_in_flight,
    total_lag,
)
from rmq_spark.client.admin.lookups import Lookups, members_of
from rmq_spark.client.admin.table_display import LagTable
from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.arguments import (
    check_flag,
    check_group,
    check_number,
    check_queue,
    check_text,
    check_timestamp_ms,
    explain_all_keywords,
)
from rmq_spark.client.concurrency.threads import parallel_map, raise_first
from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    BrokerRefused,
    ConsumerNotOnline,
    MessageRejected,
    NotFound,
    NotSupported,
    ProtocolError,
    SystemBusy,
)
from rmq_spark.client.instance.instance import suggest_similar_topics
from rmq_spark.errors import sanitize
from rmq_spark.wire.bodies.clients import ConsumeType
from rmq_spark.wire.bodies.operators import OffsetWrapper
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.operators import CloneGroupOffsetRequestHeader, ResetOffsetRequestHeader
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import RETRY_PREFIX, dlq_topic, retry_topic
from rmq_spark.wire.remoting.command import VERSION_5

# ---- Confirmation of a reset: whether the members of a group have received it from the broker.

ROUNDS_MAX: Final = 3
"""Most rounds of notifying members and asking them for confirmation."""

_MEMBER_THREADS_MAX: Final = 8
"""Most members asked at a time. Each silent member blocks one of the sixteen admin threads of a
RocketMQ broker, which also look up offsets for all consumers."""


def confirm_members(api: BrokerApi, address: str, group: str) -> Iterator[frozenset[str]]:
    """Yield the members of a group to notify; yield them again if one has left or reconnected.

    A member that leaves may overwrite the new offsets with its old ones. A round ends at the first
    silent member, after the ten seconds for which the broker waits, so that many silent members
    cost no more than one.
    """
    asked: set[str] = set()
    left = silent = moved = frozenset[str]()
    addresses: Mapping[str, str] = {}

    def ask(client_id: str) -> None:
        """Return once a member has answered its broker; raise an error if it is silent."""
        asked.add(client_id)
        try:
            api.admin.consumer_running_info(address, group, client_id)
        except (ConsumerNotOnline, SystemBusy):
            raise
        except (BrokerRefused, ProtocolError):  # the member answered, or is too old to answer
            return

    for _ in range(ROUNDS_MAX):
        if not left:
            before = _member_addresses(api, address, group)
            yield frozenset(before)
            joined = _member_addresses(api, address, group)
            addresses, left = {**joined, **before}, frozenset(joined)
        outcomes = parallel_map(
            sorted(left, key=lambda each: (each in asked, each)),  # members not asked yet first
            ask,
            threads_max=_MEMBER_THREADS_MAX,
            name="confirms members",
            stop_on=(ConsumerNotOnline, *CONNECTION_FAULTS),
        )
        after = _member_addresses(api, address, group) if addresses else {}
        silent = frozenset(each for each, outcome in outcomes.items() if outcome is not None)
        moved = frozenset(each for each, old in addresses.items() if after.get(each) != old)
        if not silent and not moved:
            return
        is_any_busy = any(isinstance(outcome, SystemBusy) for outcome in outcomes.values())
        left = frozenset() if moved or is_any_busy else silent
    unconfirmed, unasked_count = (silent & asked) | moved, len(silent - asked - moved)
    more = f", and {unasked_count} more were not asked" if unasked_count else ""
    remark = (
        f"the offsets of <{sanitize(group)}> are stored on this broker, and its members were "
        f"notified, but {', '.join(map(sanitize, sorted(unconfirmed)))} did not answer afterwards, "
        f"or left or reconnected{more}. A member that was not notified may overwrite the offsets "
        "with its own: stop it, or repeat this when it answers"
    )
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    raise ConsumerNotOnline(ResponseCode.CONSUME_MSG_TIMEOUT, remark, address, code)


def _member_addresses(api: BrokerApi, address: str, group: str) -> Mapping[str, str]:
    return {each.client_id: each.client_addr for each in api.admin.online_members(address, group)}


LATEST_MS: Final = -1
"""Passed as a time: the end of each queue, past its last message."""


_RESET_THREADS_MAX: Final = 16
"""Most brokers reset at a time, and most queues per broker."""


@explain_all_keywords
class GroupOffsets(Lookups):
    """Looks up and changes the offsets of consumer groups."""

    # ---- offsets

    def lag(self, group: str, topic: str) -> LagTable:
        """Return the progress of a group in each queue of a topic, whether it is online or not.

        Raises:
            GroupNotFound: No broker of the topic knows the group.
        """
        group = self._names.wrap(check_text("group", group, "billing"))
        topic = self._names.wrap(check_text("topic", topic, "orders"))
        found: list[Lag] = []
        brokers = tuple(self._brokers_of(topic))
        for name, address in brokers:
            wrappers = {
                queue.queue_id: wrapper
                for queue, wrapper in self._api.admin.consume_stats(
                    address, group, topic
                ).offset_table.items()
            }
            for queue in self._queues_of(name, topic):
                stored = self._api.query_consumer_offset(
                    address, group, queue, set_zero_if_not_found=False
                )
                end = self._api.max_offset(address, queue)
                each = wrappers.get(queue.queue_id, OffsetWrapper())
                last_ms, in_flight = each.last_timestamp, each.in_flight
                found.append(Lag(self._names.strip_queue(queue), end, stored, last_ms, in_flight))
        if all(lag.consumer_offset is None for lag in found):
            self._check_group_exists(group, [address for _, address in brokers])
        return LagTable(found)

    def progress(self, group: str) -> LagTable:
        """Return the progress of a group in all topics where it has offsets.

        This takes one request per broker. Where the group has committed nothing,
        ``consumer_offset`` is 0, because brokers do not distinguish that from an offset of 0 here;
        `lag` does.
        """
        group = self._names.wrap(check_text("group", group, "billing"))
        return LagTable(
            Lag(
                self._names.strip_queue(queue),
                found.broker_offset,
                found.consumer_offset,
                found.last_timestamp,
                found.in_flight,
            )
            for address in self.masters().values()
            for queue, found in sorted(
                self._api.admin.consume_stats(address, group).offset_table.items()
            )
            if self._names.has(queue.topic)
        )

    def describe_group(self, group: str) -> GroupState:
        """Return the lag, the members and the failures of a group, online or not.

        For each queue, the state has the committed offset, when the next message was stored, which
        member has the queue, and when the member last tried a message.

        Raises:
            GroupNotFound: No broker knows the group, or has offsets of it.
        """
        group = self._names.strip(check_text("group", group, "billing"))
        connections = self._consumer_connections(group)
        members = members_of(connections)
        reports = self.queue_reports(group) if members else {}
        progress = self.progress(group)
        topics = {*consumed_topics(progress), *(queue.topic for queue in reports)}
        own_retries = retry_topic(group)
        popped_retries = (
            lag for lag in progress if is_retry_queue(lag.queue) and lag.queue.topic != own_retries
        )
        lags = [
            lag
            for topic in sorted(topics)
            if not topic.startswith(RETRY_PREFIX)
            for lag in query_lag(self, group, topic)
        ]
        in_flight = total_in_flight(progress)
        is_popping = bool(members) and connections[0].consume_type is ConsumeType.CONSUME_POP
        if (is_popping or not members) and not self._counts_pops():
            in_flight = None
            lags = [lag._replace(in_flight=None) for lag in lags]
        return GroupState(
            group,
            tuple(self._queue_states(lags, reports)),
            members,
            reports,
            total_lag((*query_lag(self, group, own_retries), *popped_retries)),
            count_messages(self, dlq_topic(group)),
            in_flight,
            is_popping=is_popping,
        )

    def _counts_pops(self) -> bool:
        """Return whether all brokers count popped messages in flight; RocketMQ's do not."""
        with suppress(BrokerRefused):
            reports = map(self._api.admin.runtime_info, self.masters().values())
            return all("popsInFlight" in report for report in reports)
        return False

    def _queue_states(
        self, lags: Iterable[Lag], reports: Mapping[MessageQueue, QueueReport]
    ) -> Iterator[QueueState]:
        first_offsets: dict[MessageQueue, int] = {}
        for lag in lags:
            if lag.queue not in first_offsets:
                held = self.topic_offsets(lag.queue.topic)
                first_offsets.update({queue: offsets.min_offset for queue, offsets in held.items()})
            next_offset = waiting = None
            if lag.messages:  # retention may have deleted the next messages
                next_offset = max(lag.consumer_offset or 0, first_offsets.get(lag.queue, 0))
                waiting = self.message_at(lag.queue, next_offset)
            report = reports.get(lag.queue)
            yield QueueState(
                lag,
                next_offset,
                None if waiting is None else waiting.store_timestamp,
                None if report is None else report.client_id,
                None if report is None else report.tried_ms,
            )

    def set_offset(
        self, group: str, queue: MessageQueue, queue_offset: int, *, missing_ok: bool = False
    ) -> None:
        """Make a consumer group resume at an offset of one queue, whether it is online or not.

        Online members are notified; the broker stores the offset for all others.

        Args:
            group: Name of the group.
            queue: The queue.
            queue_offset: Offset of the next message to consume.
            missing_ok: Whether the group may be new: its first member resumes there as well.

        Raises:
            GroupNotFound: The queue's broker does not know the group, unless ``missing_ok``.
            MessageRejected: The queue does not have that offset.
            NotSupported: The group is online at a broker of RocketMQ 4.9, which can notify members
                only of times, or a member is a Java pull consumer, which ignores the notification.
                Nothing has changed.
            ConsumerNotOnline: A member does not answer: it may have missed the notification, and
                may overwrite this offset with its old one.
        """
        group = self._names.wrap(check_text("group", group, "billing"))
        check_queue("queue", queue)
        queue = self._names.wrap_queue(queue)
        check_number("queue_offset", queue_offset, 42)
        check_flag("missing_ok", missing_ok)
        with suggest_similar_topics(self.instance.name_servers):
            self.instance.routes.refresh(queue.topic)
        address = self.instance.routes.master_address(queue.broker_name)
        if not missing_ok:
            stored = self._api.query_consumer_offset(
                address, group, queue, set_zero_if_not_found=False
            )
            if stored is None:
                self._check_group_exists(group, [address])
        low, high = self._api.min_offset(address, queue), self._api.max_offset(address, queue)
        if not low <= queue_offset <= high:
            raise MessageRejected("queue_offset", f"one from {low} to {high}", queue_offset)
        self._check_members_notifiable(address, group)
        for members in confirm_members(self._api, address, group):
            if members:
                self._check_broker_notifies_offsets(address)
            self._api.update_consumer_offset(address, group, queue, queue_offset)
            if self._api.consumer_ids(address, group):  # members that start later resume there
                self._notify_offset(group, address, queue, queue_offset)

    def reset_to_time(
        self, group: str, topic: str, timestamp_ms: int, *, is_force: bool = True
    ) -> Mapping[MessageQueue, int]:
        """Make a consumer group resume at a time, in all queues of a topic.

        Args:
            group: Name of the group.
            topic: Name of the topic.
            timestamp_ms: Milliseconds since the epoch, or `LATEST_MS` for the end of each queue.
            is_force: Whether offsets may move forward; otherwise they only move back.

        Returns:
            The offset at which the group resumes, by queue.

        Raises:
            GroupNotFound: No broker of the topic knows the group. Before a new group starts, make
                it with `create_group`.
            MessageRejected: The time is before 1970, or in seconds.
            NotSupported: A member is a Java pull consumer, which ignores the notification.
            ConsumerNotOnline: A member does not answer: it may have missed the notification, and
                may overwrite these offsets with its old ones. All other steps are done.
            ClientError: A broker does not answer, or refuses. The other brokers have the change.
        """
        group = self._names.wrap(check_text("group", group, "billing"))
        topic = self._names.wrap(check_text("topic", topic, "orders"))
        check_number("timestamp_ms", timestamp_ms, 1_750_000_000_000)
        if timestamp_ms != LATEST_MS:
            check_timestamp_ms("timestamp_ms", timestamp_ms)
        check_flag("is_force", is_force)
        header = ResetOffsetRequestHeader(topic, group, timestamp_ms, is_force)
        brokers = self._brokers_of(topic)
        self._check_group_exists(group, [address for _, address in brokers])
        outcomes = parallel_map(
            brokers,
            lambda broker: self._reset_broker(*broker, header),
            threads_max=_RESET_THREADS_MAX,
            name="resets brokers",
        ).values()
        raise_first(each for each in outcomes if not isinstance(each, ConsumerNotOnline))
        raise_first(outcomes)  # silent members of a broker that answered
        reset = (each for each in outcomes if not isinstance(each, Exception))
        strip = self._names.strip_queue
        return {strip(queue): offset for offsets in reset for queue, offset in offsets.items()}

    def _reset_broker(
        self, name: str, address: str, header: ResetOffsetRequestHeader
    ) -> Mapping[MessageQueue, int]:
        self._check_members_notifiable(address, header.group)
        found: dict[MessageQueue, int] = {}
        for _ in confirm_members(self._api, address, header.group):
            found.update(self._reset_once(name, address, header))
        return found

    def _reset_once(
        self, name: str, address: str, header: ResetOffsetRequestHeader
    ) -> Mapping[MessageQueue, int]:
        stored = self._store_offsets(name, address, header)
        if not self._api.consumer_ids(address, header.group):
            return stored  # members that start later resume there
        reset: Mapping[MessageQueue, int] = {}
        with suppress(ConsumerNotOnline):  # the last member has just left
            reset = self._api.admin.reset_offset(address, header)  # members store their offsets
        for queue in sorted(reset.keys() - stored.keys()):  # a queue that was just added
            self._api.update_consumer_offset(address, header.group, queue, reset[queue])
        return {**stored, **reset}

    def clone_offsets(self, source: str, target: str, *, topic: str | None = None) -> None:
        """Copy the offsets of a consumer group to another, which then resumes at the same place.

        Args:
            source: Name of the group whose offsets are copied.
            target: Name of the group that gets them; its members should be offline.
            topic: Name of the only topic to copy; None copies all topics where the source has
                offsets.

        Raises:
            MessageRejected: A name is not valid.
            BrokerRefused: The source has no offsets there.
        """
        source = self._names.wrap(check_group(source, "source"))
        target = self._names.wrap(check_group(target, "target"))
        if topic is not None:
            topic = self._names.wrap(check_text("topic", topic, "orders"))
            targets = [(address, topic) for _, address in self._brokers_of(topic)]
        else:  # without a topic, RocketMQ copies nothing and reports success
            targets = [
                (address, each)
                for address in self.masters().values()
                for each in sorted(
                    {
                        queue.topic
                        for queue in self._api.admin.consume_stats(address, source).offset_table
                    }
                )
            ]
        refusal: BrokerRefused = NotFound(
            22,
            f"the consumer group <{sanitize(source)}> has no offsets",
            "every broker",
            RequestCode.CLONE_GROUP_OFFSET,
        )
        are_copied = False
        for address, each in targets:
            header = CloneGroupOffsetRequestHeader(source, target, each, offline=True)
            try:
                self._api.admin.clone_group_offset(address, header)
            except BrokerRefused as error:
                if "has no offsets" not in (error.remark or ""):
                    raise
                refusal = error  # the source has no offsets at this broker
            else:
                are_copied = True
        if not are_copied:
            raise refusal

    def _store_offsets(
        self, broker_name: str, address: str, header: ResetOffsetRequestHeader
    ) -> Mapping[MessageQueue, int]:
        """Store the offsets to which a time leads, so that members that join later resume there."""

        def store(queue: MessageQueue) -> int:
            if header.timestamp == LATEST_MS:
                target = self._api.max_offset(address, queue)
            else:
                target = self._api.search_offset(address, queue, header.timestamp)
            group = header.group
            stored = self._api.query_consumer_offset(
                address, group, queue, set_zero_if_not_found=False
            )
            if stored is not None and stored < target and not header.is_force:
                target = stored
            self._api.update_consumer_offset(address, group, queue, target)
            return target

        queues = self._queues_of(broker_name, header.topic)
        outcomes = parallel_map(
            queues,
            store,
            threads_max=_RESET_THREADS_MAX,
            name="resets offsets",
            stop_on=CONNECTION_FAULTS,
        )
        raise_first(outcomes.values())
        return {queue: each for queue, each in outcomes.items() if isinstance(each, int)}

    def _check_members_notifiable(self, address: str, group: str) -> None:
        """Raise an error if a member ignores offset notifications, as Java's pull consumers do.

        They would overwrite the new offsets with their own. With useServerSideResetOffset, RocketMQ
        5 sends no notification: it answers the next pull with the offset at which to resume.
        """
        try:
            online = self._api.admin.consumer_connection(address, group)
        except ConsumerNotOnline:
            return
        pulling = online.consume_type is ConsumeType.CONSUME_ACTIVELY
        java_members = sorted(
            each.client_id for each in online.connection_set if each.language == "JAVA"
        )
        if not pulling or not java_members:
            return
        if self._api.admin.broker_config(address).get("useServerSideResetOffset") == "true":
            return
        remark = (
            "Java's pull consumers ignore resets, so nothing was changed on this broker: stop "
            f"{', '.join(map(sanitize, java_members))} first"
        )
        raise NotSupported(3, remark, address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)

    def _check_broker_notifies_offsets(self, address: str) -> None:
        """Raise an error if the broker can notify members of times only, as RocketMQ 4.9.

        It would ignore queue and offset, and reset the group to the time 0.
        """
        version = self.instance.connections.peer_version(address)
        if not self._api.agreement(address).extensions and version < VERSION_5:
            remark = (
                "RocketMQ 4.9 can reset members only to times: stop the group's consumers first"
            )
            raise NotSupported(3, remark, address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)

    def _notify_offset(
        self, group: str, address: str, queue: MessageQueue, queue_offset: int
    ) -> None:
        """Notify members to resume at an offset of a queue; needs RocketMQ 5 or rocketpoll."""
        self._check_broker_notifies_offsets(address)
        header = ResetOffsetRequestHeader(
            topic=queue.topic,
            group=group,
            timestamp=0,
            is_force=True,
            queue_id=queue.queue_id,
            offset=queue_offset,
        )
        with suppress(ConsumerNotOnline):  # the last member has just left
            self._api.admin.reset_offset(address, header)

    # ---- internal

    def _queues_of(self, broker_name: str, topic: str) -> list[MessageQueue]:
        route = self.instance.routes.route(topic)
        every = {*route.subscribe_queues, *route.publish_queues}
        return sorted(queue for queue in every if queue.broker_name == broker_name)
