"""Dependencies of the broker's processors: a small store, state tables and a clock, in one
directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.brokers.connections import finished
from support.brokers.state_tables import (
    groups_in,
    modes_in,
    offsets_in,
    order_info_in,
    topics_in,
)
from support.disks.faulty_disk import ManualClock
from support.stores.small_store import message, open_store, small_config

from rmq_spark.wire.bodies.configs import TopicConfig
from rocketpoll.broker.auth.access_control import AccessControl
from rocketpoll.broker.common.recent_losses import RecentLosses
from rocketpoll.broker.processor.request import RequestRejected
from rocketpoll.broker.settings.config import BrokerConfig
from rocketpoll.broker.state.broker_stats import BrokerStats
from rocketpoll.broker.state.tables.consumer_offset import ConsumerOffsetManager
from rocketpoll.broker.state.tables.subscription_group import SubscriptionGroupManager
from rocketpoll.broker.state.tables.topic_config import TopicConfigManager
from rocketpoll.broker.store.message_store import MessageStore
from rocketpoll.broker.store.results import PutMessageStatus


@dataclass
class Parts:
    """The parts that the broker's controller assembles."""

    root: Path
    clock: ManualClock
    store: MessageStore
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    offsets: ConsumerOffsetManager

    def __post_init__(self):
        self.losses = RecentLosses(self.clock)

    def make_topic(self, name="T", queues=4, write=None, perm=6):
        self.topics.put(
            TopicConfig(
                topic_name=name,
                read_queue_nums=queues,
                write_queue_nums=queues if write is None else write,
                perm=perm,
            )
        )

    def put(self, *texts, step_ms=0, **more):
        """Store messages at this interval of the clock."""
        results = []
        for text in texts:
            results.append(self.store.put_message(message(text, **more)))
            self.clock.now_ms += step_ms
        return results

    def broker(self, **more):
        """Return the parts as a processor takes them."""
        usual = {
            "config": BrokerConfig(store=small_config(self.root)),
            "access": AccessControl(),
            "store": self.store,
            "topics": self.topics,
            "groups": self.groups,
            "offsets": self.offsets,
            "request_modes": modes_in(self.root / "config"),
            "order_info": order_info_in(self.root / "config", self.clock, self.topics, self.groups),
            "stats": BrokerStats("C", 0),
            "losses": self.losses,
            "now_ms": self.clock,
            "monotonic_ms": self.clock,
            "run_steps": finished,
            "hold_service": SimpleNamespace(release=lambda _: iter(())),
        }
        return SimpleNamespace(**{**usual, **more})


def open_parts(root: Path, *, auto_create=True, **settings) -> Parts:
    """Open the parts in a directory; `settings` configure the store."""
    clock = ManualClock()
    return Parts(
        root,
        clock,
        open_store(root / "store", clock=clock, **settings),
        topics_in(root / "config", clock, auto_create=auto_create),
        groups_in(root / "config", clock, auto_create=auto_create),
        offsets_in(root / "config"),
    )


def saved_at_once(_):
    """Complete the save of a topic immediately, so that no message waits."""
    return False


def nobody_waits(_):
    """Return an empty table of parked sends."""
    return False


def never_parked(*_):
    """Fail: no send may be parked."""
    raise AssertionError("a request was parked")


class SlowAcknowledger:
    """An acknowledger that replies when the test calls it."""

    def __init__(self, *, is_sync=False):
        self.is_sync = is_sync
        self.waiting = []

    def when_stored(self, result, then, *, waits=True):
        if self.is_sync and waits and result.status is PutMessageStatus.PUT_OK:
            self.waiting.append((result, then))
        else:
            then(result)

    def stored(self, status=PutMessageStatus.PUT_OK, remark=None):
        """Reply to all waiting sends."""
        waiting, self.waiting = self.waiting, []
        for result, then in waiting:
            then(result._replace(status=status, remark=remark))


def refused(handler, connection, request):
    """Return code and remark of a refused request."""
    with pytest.raises(RequestRejected) as raised:
        finished(handler(connection, request))
    return raised.value.code, raised.value.remark
