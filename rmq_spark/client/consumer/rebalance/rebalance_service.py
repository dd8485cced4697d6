"""RebalanceService: rounds in which a member finds out its share of each topic, and takes it over.

    topics that are subscribed to, or still held
        └──▶ routes, at once ──▶ members, once for all ──▶ share ──▶ taken over by the member
                     │                    │                  │
                     └────────────────────┴──────────────────┴── failed: its queues stay as they are

A topic that fails keeps no other from being shared out, nor does a strategy of the user's. A
failure is a warning once, for all topics that it concerns, until it is over. When the rounds take
place is not decided here, only that the next must come soon.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol

from rmq_spark.client.consumer.rebalance.one_round import GroupOnBrokers, OneRound
from rmq_spark.client.consumer.rebalance.rebalance import Rebalance, Share
from rmq_spark.client.consumer.rebalance.same_topics import SameTopics
from rmq_spark.client.errors import ClientError, RouteNotFound
from rmq_spark.client.instance.routes import Routes
from rmq_spark.wire.bodies.clients import MessageModel
from rmq_spark.wire.names import RETRY_PREFIX

_log = logging.getLogger(__name__)

UNBALANCED_MS: Final = 1_000
"""Milliseconds until the next try, where a share could not be found out or taken over."""


class Balanced(Protocol):
    """The part of a member that rounds need."""

    group: str

    @property
    def is_running(self) -> bool:
        """True while the member consumes."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics that are subscribed to."""

    def topics_of_queues(self) -> Iterable[str]:
        """Return the topics of queues to give up, should they not be subscribed to any more."""

    def take_share(self, topic: str, share: Share) -> bool:
        """Have these queues of a topic, and no others; return False to be called again soon."""


class Instance(Protocol):
    """The part of a client that rounds need."""

    @property
    def routes(self) -> Routes:
        """The routes of topics."""

    @property
    def is_shut_down(self) -> bool:
        """True if the instance has ended, for all of its users."""

    def heartbeat(self) -> None:
        """Tell all brokers now that the member is there."""


class RebalanceService:
    """The rounds of one member, for use by one thread at a time."""

    def __init__(
        self, member: Balanced, rule: Rebalance, brokers: GroupOnBrokers, instance: Instance
    ) -> None:
        self._member = member
        self._rule = rule
        self._brokers = brokers
        self._instance = instance
        self._same_topics = SameTopics(member.group, brokers.topics_of_group)
        self._failures: dict[str, object] = {}  # the kind of each topic's, since it was shared out

    def do_rebalance(self) -> int | None:
        """Have the member take over its share of each topic.

        Return the milliseconds until the next round, if it must come sooner than usual.
        """
        subscribed, routes = self._member.topics, self._instance.routes
        for topic in self._failures.keys() - subscribed:
            del self._failures[topic]
        unknown = sorted(subscribed - routes.topics)
        if len(unknown) > 1:
            routes.refresh_each(unknown)  # at once; of one that fails it is said below
        group = OneRound(self._brokers)
        topics = sorted({*subscribed, *self._member.topics_of_queues()})
        balanced = [self._rebalance_by_topic(topic, group) for topic in topics]
        if not all(balanced):
            return UNBALANCED_MS
        self._compare_topics(subscribed, group)
        return None

    def _rebalance_by_topic(self, topic: str, group: OneRound) -> bool:
        member = self._member
        if topic not in member.topics:
            return member.take_share(topic, Share((), ()))
        try:
            share = self._rule.share(topic, group)
        except ClientError as error:
            self._failed(topic, error)
            return False
        except BaseException:  # noqa: BLE001  # a user's strategy: other topics go on
            name = getattr(self._rule.strategy, "name", "without a name")
            _log.exception(
                "%s keeps queues of %s: the strategy %s failed", member.group, topic, name
            )
            return True
        self._went_well(topic)
        if share is None or not share.is_known:  # a broker restarted, or the topic is new
            self._instance.heartbeat()
            group.ask_again()
        if share is None:
            return False
        if topic not in member.topics or not member.is_running:
            return True
        return member.take_share(topic, share) and share.is_known

    def _compare_topics(self, subscribed: frozenset[str], group: OneRound) -> None:
        """Look whether others in the group want the same, by a broker that has just answered."""
        if self._rule.message_model is MessageModel.BROADCASTING:
            return  # each has all queues
        for topic in sorted(subscribed - self._failures.keys()):
            with suppress(ClientError):
                members = len(group.consumer_ids(topic))
                self._same_topics.look(topic, subscribed, members)
                return

    def _failed(self, topic: str, error: ClientError) -> None:
        is_made_soon = topic.startswith(RETRY_PREFIX) and type(error) is RouteNotFound
        is_usual = is_made_soon or self._instance.is_shut_down  # brokers make retry topics
        kind = type(error), getattr(error, "address", topic)  # one address may concern many topics
        level = logging.INFO if is_usual else logging.WARNING
        if kind in self._failures.values():
            level = logging.DEBUG
        self._failures[topic] = kind
        text = "%s keeps its queues of %s as they are: %s"
        _log.log(level, text, self._member.group, topic, error)

    def _went_well(self, topic: str) -> None:
        kind = self._failures.pop(topic, None)
        if kind is not None and kind not in self._failures.values():
            level = logging.INFO if topic.startswith(RETRY_PREFIX) else logging.WARNING
            _log.log(level, "%s shares out the queues of %s now", self._member.group, topic)
