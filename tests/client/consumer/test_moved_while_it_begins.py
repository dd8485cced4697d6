"""An operator's reset or a user's commit while a member queries its first offset.

The reset or commit wins over the pending response.
"""

import threading

import pytest
from support.brokers.broker_kinds import wait_until
from support.clients.fake_members import implementation_of

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.consumer.offsets.offset_manager import InitialOffsetRule
from rmq_spark.client.consumer.rebalance.rebalance_service import RebalanceService
from rmq_spark.wire.headers.operators import ResetOffsetRequestHeader
from rocketpoll import (
    Admin,
    ClientInstance,
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    MessageQueue,
    PushConsumer,
    PushSettings,
)

QUEUE = MessageQueue("T", "broker-a", 0)
PATIENCE_S = 30
OFTEN = {"persist_consumer_offset_interval_ms": 50}


class Held:
    """Blocks calls of a method until `let_go`, while it is on."""

    def __init__(self, monkeypatch, owner, name, concerns=lambda *_: True):
        self.is_on = False
        self.began, self._may_end = threading.Event(), threading.Event()
        real = getattr(owner, name)

        def held(one, *arguments, **more):
            found = real(one, *arguments, **more)
            if self.is_on and concerns(*arguments):
                self.began.set()
                assert self._may_end.wait(PATIENCE_S)
            return found

        monkeypatch.setattr(owner, name, held)

    def let_go(self):
        self.is_on = False
        self._may_end.set()


@pytest.fixture
def broker():
    """Run a broker on which group "G" has consumed all ten messages of the only queue."""
    with EmbeddedBroker() as broker:
        broker.create_topic("T", queues=1)
        broker.send("T", *map(str, range(10)))
        settings = LitePullSettings(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        with LitePullConsumer("G", broker.address, settings) as consumer:
            consumer.subscribe("T")
            assert len(consumer.poll(10_000)) == 10
            consumer.commit()
        yield broker


@pytest.fixture
def asking(monkeypatch):
    """Return a `Held` that blocks queries of the group's offset in the queue."""
    held = Held(monkeypatch, BrokerApi, "query_consumer_offset", lambda _, __, q, **___: q == QUEUE)
    yield held
    held.let_go()


@pytest.fixture
def begun(monkeypatch):
    """Return an event that is set when a member knows its first offset."""
    begun, real = threading.Event(), InitialOffsetRule.resolve

    def of(*arguments):
        try:
            return real(*arguments)
        finally:
            begun.set()

    monkeypatch.setattr(InitialOffsetRule, "resolve", of)
    return begun


def persist(consumer):
    """Store a consumer's offsets at the broker."""
    implementation_of(consumer)._persist()
    # on the same connection, so it comes after the commits
    implementation_of(consumer)._brokers.min_offset(QUEUE)


class Busy:
    """A listener that blocks until released, and acknowledges no message."""

    def __init__(self):
        self.offsets, self.began, self.may_end = [], threading.Event(), threading.Event()

    def __call__(self, messages, _):
        self.offsets += [each.queue_offset for each in messages]
        self.began.set()
        assert self.may_end.wait(PATIENCE_S)


@pytest.mark.parametrize("kind", ["listener", "orderly_listener"])
def test_reset_during_start_commits_nothing_before_it_is_processed(broker, asking, begun, kind):
    busy = Busy()
    consumer = PushConsumer("G", broker.address, **{kind: busy}, settings=PushSettings(**OFTEN))
    consumer.subscribe("T")
    asking.is_on = True
    with Admin(broker.address) as admin, consumer:
        assert asking.began.wait(PATIENCE_S)
        asking.is_on = False  # the operator's own query is not held
        admin.reset_to_time("G", "T", 0)
        begun.clear()
        asking.let_go()
        assert begun.wait(PATIENCE_S)
        assert busy.began.wait(PATIENCE_S)
        persist(consumer)
        assert admin.lag("G", "T")[0].consumer_offset == 0
        busy.may_end.set()
        wait_until("all once more", lambda: sorted(busy.offsets) == [*range(10)])


def test_user_commit_during_start_is_kept(broker, asking, begun):
    settings = LitePullSettings(auto_commit=False, **OFTEN)
    consumer = LitePullConsumer("G", broker.address, settings)
    consumer.subscribe("T")
    asking.is_on = True
    with Admin(broker.address) as admin, consumer:
        assert asking.began.wait(PATIENCE_S)
        consumer.seek(QUEUE, 3)
        consumer.commit({QUEUE: 3})
        begun.clear()
        asking.let_go()
        assert begun.wait(PATIENCE_S)
        assert consumer.poll(10_000)[0].queue_offset == 3
        persist(consumer)
        assert admin.lag("G", "T")[0].consumer_offset == 3


@pytest.mark.parametrize("how", ["time", "offset"])
def test_member_without_queues_yet_starts_at_an_operators_reset_offset(broker, monkeypatch, how):

    rounds = threading.Event()
    real = RebalanceService.do_rebalance

    def do_rebalance(service):
        return real(service) if rounds.is_set() else 10

    monkeypatch.setattr(RebalanceService, "do_rebalance", do_rebalance)
    consumer = LitePullConsumer("G", broker.address)
    consumer.subscribe("T")
    with Admin(broker.address) as admin, consumer:
        wait_until("a member", lambda: admin.members("G"))
        if how == "time":
            assert admin.reset_to_time("G", "T", 0) == {QUEUE: 0}
        else:
            admin.set_offset("G", QUEUE, 0)
        rounds.set()
        assert [each.queue_offset for each in consumer.poll(10_000)] == [*range(10)]


@pytest.mark.parametrize("kind", ["poll", "listener", "orderly_listener"])
def test_reset_notice_is_stored_at_once(broker, kind):
    """`mqadmin` only sends the notification; no other request stores the offset."""
    seldom = {"persist_consumer_offset_interval_ms": 3_600_000}
    busy = Busy()
    if kind == "poll":
        consumer = LitePullConsumer("G", broker.address, LitePullSettings(**seldom))
    else:
        settings = PushSettings(**seldom)
        consumer = PushConsumer("G", broker.address, **{kind: busy}, settings=settings)
    consumer.subscribe("T")
    with Admin(broker.address) as admin, consumer:
        wait_until("its queue", lambda: QUEUE in consumer.assignment())
        header = ResetOffsetRequestHeader("T", "G", 0, is_force=True)
        [address] = admin.masters().values()
        assert admin.instance.api.admin.reset_offset(address, header) == {QUEUE: 0}
        wait_until("the offset", lambda: admin.lag("G", "T")[0].consumer_offset == 0)
        busy.may_end.set()


def test_self_assigned_consumer_applies_resets_from_its_first_pull(broker):
    instance = ClientInstance(broker.address, heartbeat_interval_ms=3_600_000)
    consumer = LitePullConsumer("G", instance=instance, settings=LitePullSettings(**OFTEN))
    with Admin(broker.address) as admin, instance, consumer:
        consumer.assign([QUEUE])
        wait_until("its first pull", lambda: consumer.committed(QUEUE) == 10)
        wait_until("a member", lambda: admin.members("G"))
        assert admin.reset_to_time("G", "T", 0) == {QUEUE: 0}
        assert [each.queue_offset for each in consumer.poll(10_000)] == [*range(10)]
