"""RebalanceService: rounds in which a member computes and applies its share of each topic.

    topics that are subscribed to, or still assigned
        └──▶ routes, in parallel ──▶ members, once for all ──▶ share ──▶ applied by the member
                     │                    │                  │
                     └────────────────────┴──────────────────┴── failed: its queues stay as they are

Neither a topic that fails nor a user's strategy that raises keeps other topics from being
rebalanced. A failure is logged once as a warning for all topics concerned, and its recovery once.
The caller schedules the rounds; a round only returns when the next one must run early.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from rmq_spark.client.arguments import wrong_kind
from rmq_spark.client.consumer.brokers.broker_client import GroupBrokerClient
from rmq_spark.client.consumer.queues.process_queue import Clock, monotonic_ms
from rmq_spark.client.consumer.rebalance.strategies import (
    AllocateMessageQueueStrategy,
    in_java_order,
    in_queue_order,
)
from rmq_spark.client.errors import ClientError, RouteNotFound
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.errors import excerpt
from rmq_spark.wire.bodies.clients import MessageModel
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import RETRY_PREFIX


class RebalanceRound:
    """The group's queues and members in one round; caches the brokers' lists. For one thread."""

    def __init__(self, group: GroupBrokerClient) -> None:
        self._group = group
        self._member_ids: dict[frozenset[str], tuple[str, ...] | ClientError] = {}

    @property
    def client_id(self) -> str:
        """Client id of this member."""
        return self._group.client_id

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all queues of a topic that can be read; raise an error if there are none."""
        return self._group.queues(topic)

    def consumer_ids(self, topic: str) -> tuple[str, ...]:
        """Return the members of the group, as a broker of the topic knows them."""
        names = self._group.broker_names(topic)
        members = self._member_ids.get(names)
        if members is None:
            try:
                members = self._group.consumer_ids(topic)
            except ClientError as error:
                members = error
            self._member_ids[names] = members
        if isinstance(members, ClientError):
            raise members
        return members

    def reset(self) -> None:
        """Drop the cached lists, because a heartbeat has made this member known to brokers."""
        self._member_ids.clear()


class TopicAssignment(NamedTuple):
    """All queues of a topic, and this member's; ``is_registered`` if brokers know the member."""

    all_queues: tuple[MessageQueue, ...]
    own: tuple[MessageQueue, ...]
    is_registered: bool = True


class Rebalance(NamedTuple):
    """Computes a member's share of a topic, from its queues and the group's members."""

    message_model: MessageModel
    strategy: AllocateMessageQueueStrategy

    def allocate(self, topic: str, view: RebalanceRound) -> TopicAssignment | None:
        """Return this member's share; None if brokers know no member, as after a restart.

        A member that is missing from the list has no queues, because the others have them.
        """
        queues = tuple(in_queue_order(view.queues(topic)))
        if self.message_model is MessageModel.BROADCASTING:
            return TopicAssignment(queues, queues)
        members = in_java_order(view.consumer_ids(topic))
        if not members:
            return None
        is_known = view.client_id in members
        # Pass copies: a user's strategy may modify the lists.
        own_queues = tuple(self.strategy.allocate(view.client_id, list(queues), members))
        known = frozenset(queues)
        for queue in own_queues:
            if queue not in known:
                raise wrong_kind(
                    "the result of allocate",
                    "some of the queues that it was given",
                    excerpt(queue),
                    "queues[:2]",
                )
        return TopicAssignment(queues, own_queues, is_known)


_log = logging.getLogger(__name__)

CHECK_INTERVAL_MS: Final = 10_000
"""Least milliseconds between two checks."""

SUSPICION_MS: Final = 600_000
"""Milliseconds within which a conflict must be seen twice, before it is logged.

Among a hundred members with different subscriptions, that takes a dozen checks.
"""

MEMBERS_MAX: Final = 100
"""Largest group that is checked, because a broker's response contains all members."""


class SubscriptionCheck:
    """Logs a warning if members of a group subscribe to different topics."""

    def __init__(
        self,
        group: str,
        topics_at_brokers: Callable[[str], frozenset[str]],
        clock: Clock = monotonic_ms,
    ) -> None:
        """Make a check; ``topics_at_brokers`` asks a topic's broker for the group's topics."""
        self._group = group
        self._topics_at_brokers = topics_at_brokers
        self._clock = clock
        self._checked_at_ms: int | None = None
        self._own_topics: frozenset[str] = frozenset()
        self._suspected: dict[frozenset[str], float] = {}  # when each was seen last
        self._warned: set[frozenset[str]] = set()

    def check(self, topic: str, topics: frozenset[str], members: int) -> None:
        """Compare this member's topics, of which ``topic`` is one, with the broker's."""
        now = self._clock()
        is_soon = self._checked_at_ms is not None and now - self._checked_at_ms < CHECK_INTERVAL_MS
        if is_soon or not 1 < members <= MEMBERS_MAX:
            return
        try:
            others = _without_retry_topics(self._topics_at_brokers(topic))
        except ClientError as error:
            _log.debug("%s: the topics of other members are not known: %s", self._group, error)
            return
        self._checked_at_ms = now
        own_topics = _without_retry_topics(topics)
        seen = {} if own_topics != self._own_topics else self._suspected
        self._suspected = {each: at for each, at in seen.items() if now - at <= SUSPICION_MS}
        self._warned &= self._suspected.keys()
        self._own_topics = own_topics
        if own_topics == others or not others:
            return
        is_repeated = others in self._suspected
        self._suspected[others] = now
        if is_repeated and others not in self._warned:
            self._warned.add(others)
            _log.warning(
                "%s: one member subscribes to %s, another to %s: some queues are not read. Use "
                "the same topics, or separate groups",
                *(self._group, ", ".join(sorted(own_topics)), ", ".join(sorted(others))),
            )


def _without_retry_topics(topics: frozenset[str]) -> frozenset[str]:
    return frozenset(topic for topic in topics if not topic.startswith(RETRY_PREFIX))


RETRY_MS: Final = 1_000
"""Milliseconds until the next try if a share could not be computed or applied."""


class RebalancedConsumer(Protocol):
    """The part of a member that rounds need."""

    group: str

    @property
    def is_running(self) -> bool:
        """True while the member consumes."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics that are subscribed to."""

    def assigned_topics(self) -> Iterable[str]:
        """Return topics whose queues the member may have without a subscription to them."""

    def apply_assignment(self, topic: str, assignment: TopicAssignment) -> bool:
        """Apply these queues of a topic, and no others; return False to be called again soon."""


class RebalanceService:
    """The rounds of one member, for use by one thread at a time."""

    def __init__(
        self,
        member: RebalancedConsumer,
        rule: Rebalance,
        brokers: GroupBrokerClient,
        instance: ClientInstance,
    ) -> None:
        self._member = member
        self._rule = rule
        self._brokers = brokers
        self._instance = instance
        self._subscription_check = SubscriptionCheck(member.group, brokers.topics_of_group)
        self._failures: dict[str, object] = {}  # type of the last failure of each topic

    def do_rebalance(self) -> int | None:
        """Apply the member's share of each topic.

        Return the milliseconds until the next round, if it must come earlier than usual.
        """
        subscribed, routes = self._member.topics, self._instance.routes
        for topic in self._failures.keys() - subscribed:
            del self._failures[topic]
        unknown = sorted(subscribed - routes.topics)
        if len(unknown) > 1:
            routes.refresh_each(unknown)  # in parallel; failures are reported below
        group = RebalanceRound(self._brokers)
        topics = sorted({*subscribed, *self._member.assigned_topics()})
        balanced = [self._rebalance_by_topic(topic, group) for topic in topics]
        if not all(balanced):
            return RETRY_MS
        self._compare_topics(subscribed, group)
        return None

    def _rebalance_by_topic(self, topic: str, group: RebalanceRound) -> bool:
        member = self._member
        if topic not in member.topics:
            return member.apply_assignment(topic, TopicAssignment((), ()))
        try:
            share = self._rule.allocate(topic, group)
        except ClientError as error:
            self._record_failure(topic, error)
            return False
        except BaseException:  # noqa: BLE001  # a user's strategy: other topics continue
            name = getattr(self._rule.strategy, "name", "without a name")
            text = "%s: the allocation strategy %s failed for %s, so its queues stay as they are"
            _log.exception(text, member.group, name, topic)
            return True
        self._record_success(topic)
        if share is None or not share.is_registered:  # a broker restarted, or the topic is new
            self._instance.heartbeat()
            group.reset()
        if share is None:
            return False
        if topic not in member.topics or not member.is_running:
            return True
        return member.apply_assignment(topic, share) and share.is_registered

    def _compare_topics(self, subscribed: frozenset[str], group: RebalanceRound) -> None:
        """Check the group's subscriptions at a broker that has just answered."""
        if self._rule.message_model is MessageModel.BROADCASTING:
            return  # each member has all queues
        for topic in sorted(subscribed - self._failures.keys()):
            with suppress(ClientError):
                members = len(group.consumer_ids(topic))
                self._subscription_check.check(topic, subscribed, members)
                return

    def _record_failure(self, topic: str, error: ClientError) -> None:
        is_made_soon = topic.startswith(RETRY_PREFIX) and type(error) is RouteNotFound
        is_usual = is_made_soon or self._instance.is_shut_down  # brokers make retry topics
        kind = type(error), getattr(error, "address", topic)  # one address may concern many topics
        level = logging.INFO if is_usual else logging.WARNING
        if kind in self._failures.values():
            level = logging.DEBUG
        self._failures[topic] = kind
        text = "%s: rebalancing %s failed, retrying: %s"
        _log.log(level, text, self._member.group, topic, error)

    def _record_success(self, topic: str) -> None:
        kind = self._failures.pop(topic, None)
        if kind is not None and kind not in self._failures.values():
            level = logging.INFO if topic.startswith(RETRY_PREFIX) else logging.WARNING
            _log.log(level, "%s: rebalancing %s recovered", self._member.group, topic)
