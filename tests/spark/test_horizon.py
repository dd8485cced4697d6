"""How far a query may read: latest offsets, targets, and withdrawn queues."""

from contextlib import contextmanager

import pytest
from support.spark.source_queries import options_for, queue_of, queues_of, send

from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.errors import DataLoss
from rmq_spark.spark.plan.latest_offsets import LatestOffsets
from rmq_spark.spark.plan.queue_identity import StoreTimeLookup
from rmq_spark.spark.plan.source_offset import QueuePosition, SourceOffset


@contextmanager
def horizon_of(broker, topic, **more):
    with queues_of(broker, topic, **more) as queues:
        yield LatestOffsets(options_for(broker, topic, **more), queues, StoreTimeLookup(queues))


def at(topic, *offsets):
    """Return a start at these offsets of a topic's queues."""
    return SourceOffset(
        {queue_of(topic, number): QueuePosition(each) for number, each in enumerate(offsets)}
    )


def test_latest_offsets_include_store_times_of_all_queues(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    last = rocketpoll_broker.messages(rocketpoll_topic)[-1]
    start = at(rocketpoll_topic, 0, 0)
    with horizon_of(rocketpoll_broker, rocketpoll_topic) as horizon:
        assert horizon.newest is None
        base, ends = horizon.fetch(start)
        assert base == start
        assert ends == {
            queue_of(rocketpoll_topic, number): 2 if not number else 0 for number in range(4)
        }
        assert horizon.newest.positions[queue_of(rocketpoll_topic)][:2] == (2, last.store_timestamp)


@pytest.mark.parametrize("is_told", [True, False], ids=["it is told", "nobody can tell"])
def test_latest_offsets_forget_store_times_of_a_recreated_topic(
    rocketpoll_broker, rocketpoll_topic, is_told
):
    """The new topic has the same end offset, with another message before it."""
    queue, start = queue_of(rocketpoll_topic), at(rocketpoll_topic, 0)
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    with horizon_of(rocketpoll_broker, rocketpoll_topic) as horizon:
        horizon.fetch(start)
        old = horizon.newest.positions[queue]
        rocketpoll_broker.delete_topic(rocketpoll_topic)
        rocketpoll_broker.create_topic(rocketpoll_topic, 4)
        send(rocketpoll_broker, rocketpoll_topic, 0, "A", "B")
        if is_told:
            horizon.refresh_store_times([queue])
        else:
            horizon.fetch(start)
        assert horizon.newest.positions[queue].next_offset == old.next_offset
        assert horizon.newest.positions[queue].mark != old.mark


def test_broker_that_reports_an_early_end_is_asked_again(
    rocketpoll_broker, rocketpoll_topic, monkeypatch
):
    """A broker that has just started may report ends before the offsets that were read."""
    queue = queue_of(rocketpoll_topic)
    send(rocketpoll_broker, rocketpoll_topic, 0, *"abc")
    counted = [3, 2, 1]
    ends_of = QueueClient.ends
    monkeypatch.setattr(
        QueueClient, "ends", lambda *asked, **more: {**ends_of(*asked, **more), queue: counted[-1]}
    )
    monkeypatch.setattr(QueueClient, "pause", lambda _: counted.pop())
    start = at(rocketpoll_topic, 3)
    with horizon_of(rocketpoll_broker, rocketpoll_topic) as horizon:
        base, ends = horizon.fetch(start)
        assert base == start
        assert ends[queue] == 3
    assert counted == [3]


def test_closed_horizon_ignores_later_messages(rocketpoll_broker, rocketpoll_topic):
    send(rocketpoll_broker, rocketpoll_topic, 0, "a")
    with horizon_of(rocketpoll_broker, rocketpoll_topic) as horizon:
        horizon.close()
        assert horizon.is_closed
        send(rocketpoll_broker, rocketpoll_topic, 0, "b")
        assert horizon.fetch(at(rocketpoll_topic, 0))[1][queue_of(rocketpoll_topic)] == 1


@pytest.mark.parametrize("knows", ["no broker", "the broker"])
def test_queue_unknown_at_available_now_counts_when_first_seen(
    rocketpoll_broker, rocketpoll_topic, monkeypatch, knows
):
    """The queue belongs to a broker that its name server had removed; it is not new."""
    first, late = queue_of(rocketpoll_topic, 0), queue_of(rocketpoll_topic, 1)
    found = frozenset({first}) if knows == "the broker" else frozenset()
    send(rocketpoll_broker, rocketpoll_topic, 1, "a", "b")
    with horizon_of(rocketpoll_broker, rocketpoll_topic) as horizon:
        with monkeypatch.context() as at_first:
            at_first.setattr(QueueClient, "discover", lambda _, **__: found)
            horizon.close()
        for _ in range(2):
            ends = horizon.fetch(at(rocketpoll_topic, 0, 1))[1]
            assert ends == {first: 0, late: 1 if found else 2}
            send(rocketpoll_broker, rocketpoll_topic, 1, "c")


def test_start_past_the_target_offset_is_kept(rocketpoll_broker, rocketpoll_topic):
    """After a broker has reported a lower end than was read, the query does not read it again."""
    send(rocketpoll_broker, rocketpoll_topic, 0, "a", "b")
    with horizon_of(rocketpoll_broker, rocketpoll_topic) as horizon:
        horizon.close()
        send(rocketpoll_broker, rocketpoll_topic, 0, "c")
        assert horizon.fetch(at(rocketpoll_topic, 3))[1][queue_of(rocketpoll_topic)] == 3


@pytest.mark.parametrize("fails", [True, False])
def test_queues_that_were_withdrawn_unread_are_a_loss(rocketpoll_broker, rocketpoll_topic, fails):
    send(rocketpoll_broker, rocketpoll_topic, 3, "a", "b")
    more = {"failOnDataLoss": str(fails).lower()}
    with horizon_of(rocketpoll_broker, rocketpoll_topic, **more) as horizon:
        rocketpoll_broker.create_topic(rocketpoll_topic, 2)
        start = at(rocketpoll_topic, 0, 0, 0, 1)
        if fails:
            with pytest.raises(
                DataLoss, match=r"is no longer readable \(perm\): its offsets from 1 to 1 were not"
            ):
                horizon.fetch(start)
        else:
            assert horizon.fetch(start)[1][queue_of(rocketpoll_topic, 3)] == 1


def test_unread_messages_of_a_withdrawn_queue_are_logged_once_per_growth(
    rocketpoll_broker, rocketpoll_topic, caplog
):
    send(rocketpoll_broker, rocketpoll_topic, 3, "a", "b")
    start = at(rocketpoll_topic, 0, 0, 0, 1)
    with horizon_of(rocketpoll_broker, rocketpoll_topic, failOnDataLoss="false") as horizon:
        rocketpoll_broker.create_topic(rocketpoll_topic, 2)
        for _ in range(3):
            assert horizon.fetch(start)[1][queue_of(rocketpoll_topic, 3)] == 1
        assert caplog.text.count("is no longer readable (perm): its offsets from 1 to 1") == 1
        rocketpoll_broker.create_topic(rocketpoll_topic, 4)
        send(rocketpoll_broker, rocketpoll_topic, 3, "c")
        rocketpoll_broker.create_topic(rocketpoll_topic, 2)
        for _ in range(3):
            assert horizon.fetch(start)[1][queue_of(rocketpoll_topic, 3)] == 1
    assert caplog.text.count("is no longer readable (perm): its offsets from 1 to 2") == 1


def test_topics_of_a_pattern_that_are_gone_leave_the_start(rocketpoll_broker):
    for name in ("seen-1", "seen-2"):
        rocketpoll_broker.create_topic(name, 1)
    start = SourceOffset({queue_of(name): QueuePosition(0) for name in ("seen-1", "seen-2")})
    with horizon_of(rocketpoll_broker, None, subscribePattern="seen-.*") as horizon:
        assert horizon.fetch(start)[0] == start
        rocketpoll_broker.delete_topic("seen-1")
        base, ends = horizon.fetch(start)
        assert list(base.positions) == list(ends) == [queue_of("seen-2")]
    rocketpoll_broker.delete_topic("seen-2")


@pytest.mark.parametrize("saw_the_end", [True, False])
def test_deleted_pattern_topic_with_unread_messages_is_data_loss(rocketpoll_broker, saw_the_end):
    name = f"left-{saw_the_end}"
    rocketpoll_broker.create_topic(name, 1)
    send(rocketpoll_broker, name, 0, "read", "unread")
    with horizon_of(rocketpoll_broker, None, subscribePattern=name) as horizon:
        if saw_the_end:
            horizon.fetch(at(name, 1))
        rocketpoll_broker.delete_topic(name)
        unread = "and ended at 2" if saw_the_end else "it is unknown what followed"
        with pytest.raises(
            DataLoss,
            match=f"queue 0 of {name} on broker-a is gone: it was read to offset 1, {unread}",
        ):
            horizon.fetch(at(name, 1))


def test_deleted_pattern_topic_that_was_read_is_no_data_loss(rocketpoll_broker):
    rocketpoll_broker.create_topic("read", 1)
    send(rocketpoll_broker, "read", 0, "a", "b")
    with horizon_of(rocketpoll_broker, None, subscribePattern="read") as horizon:
        horizon.fetch(at("read", 2))
        rocketpoll_broker.delete_topic("read")
        assert horizon.fetch(at("read", 2))[0].positions == {}
