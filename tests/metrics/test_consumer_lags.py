"""Consumer lag metrics, in messages and in time."""

from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.brokers.admin_processors import AdminRoom
from support.brokers.state_tables import join

from rocketpoll.broker.metrics.consumer_lags import ConsumerLag, ConsumerLags
from rocketpoll.broker.processor.queues import store_timestamp
from rocketpoll.broker.store.errors import EndUnknown, UnreadableFile
from rocketpoll.broker.store.queues.consume_queue import QueueBounds

START = 1_700_000_000_000


class Looking:
    """A broker's parts, and a reader of its groups' lags."""

    def __init__(self, room):
        self.room = room
        self.now_ms = START + 10_000
        self.lags = ConsumerLags(SimpleNamespace(**vars(room), now_ms=lambda: self.now_ms))

    def look(self):
        return [lag for lag in self.lags.collect() if lag is not None]


@pytest.fixture
def looking(tmp_path):
    """Create topic T with three messages, one second apart, in the first of its two queues."""
    room = AdminRoom(tmp_path)
    room.create_topic("T", queue_nums=2)
    for number in range(3):
        room.put(number, at_ms=START + 1000 * number, topic="T")
    room.groups.find_or_create("G")
    yield Looking(room)
    room.shutdown()


def test_consumer_lag_of_an_offline_group_uses_its_offsets(looking):
    assert looking.look() == []
    looking.room.offsets.commit("G", "T", 0, 1)
    assert looking.look() == [ConsumerLag("G", "T", 2, 9_000)]
    looking.room.offsets.commit("G", "T", 0, 3)
    assert looking.look() == [ConsumerLag("G", "T", 0, 0)]


def test_lag_of_a_queue_without_an_offset_counts_from_its_first_message(looking):
    looking.room.offsets.commit("G", "T", 1, 0)
    assert looking.look() == [ConsumerLag("G", "T", 3, 10_000)]


def test_consumer_lag_of_an_offset_past_the_end_is_zero(looking):
    looking.room.offsets.commit("G", "T", 0, 77)
    assert looking.look() == [ConsumerLag("G", "T", 0, 0)]


def test_topic_left_by_the_online_members_has_no_lag(looking):
    looking.room.offsets.commit("G", "T", 0, 0)
    member = join(looking.room.consumers, "G", "c1", "U")
    assert looking.look() == []
    looking.room.consumers.unregister("G", member)
    assert [lag.messages for lag in looking.look()] == [3]


def test_consumer_lag_omits_deleted_topics(looking):
    looking.room.offsets.commit("G", "gone", 0, 0)
    assert looking.look() == []


def test_lag_of_an_idle_group_reads_the_log_once(looking, monkeypatch):
    looking.room.offsets.commit("G", "T", 0, 1)
    looking.look()
    monkeypatch.setattr(looking.room.store, "get_message", None)
    looking.now_ms += 5_000
    assert looking.look() == looking.look() == [ConsumerLag("G", "T", 2, 14_000)]


def test_consumer_lag_without_readable_message_has_no_age(looking, monkeypatch):
    def refuse(*_, **__):
        raise UnreadableFile("the disk is gone")

    looking.room.offsets.commit("G", "T", 0, 1)
    monkeypatch.setattr(looking.room.store, "get_message", refuse)
    assert looking.look() == [ConsumerLag("G", "T", 2, 0)]


def test_consumer_lag_omits_queues_with_unknown_end(looking, monkeypatch):
    def unknown(*_, **__):
        raise EndUnknown("the start is not finished")

    looking.room.offsets.commit("G", "T", 0, 1)
    monkeypatch.setattr(looking.room.store, "queue_offsets", unknown)
    assert looking.look() == [ConsumerLag("G", "T", 0, 0)]


def test_messages_that_have_expired_unread_are_lag(looking, monkeypatch):
    looking.room.offsets.commit("G", "T", 0, 1)
    monkeypatch.setattr(looking.room.store, "queue_offsets", lambda *_: QueueBounds(3, 3))
    assert [lag.messages for lag in looking.look()] == [2]


def test_consumer_lag_age_is_that_of_the_first_existing_message(looking, monkeypatch):
    looking.room.offsets.commit("G", "T", 0, 0)
    looking.room.offsets.commit("G", "T", 1, 0)
    monkeypatch.setattr(
        looking.room.store,
        "queue_offsets",
        lambda _, queue_id: QueueBounds(0, 0) if queue_id else QueueBounds(2, 3),
    )
    assert [lag.latency_ms for lag in looking.look()] == [8_000]


def test_lag_of_many_groups_costs_only_committed_queues(looking):
    room, groups, queues = looking.room, 50, 300
    room.create_topic("W", queue_nums=queues)
    for number in range(queues):
        room.put(0, at_ms=START + 2000 + number, topic="W", queue_id=number)
    for number in range(groups):
        room.groups.find_or_create(f"G{number}")
        room.offsets.commit(f"G{number}", "W", number, 1)
    found = list(looking.lags.collect())
    lags = [lag for lag in found if lag is not None]
    assert {lag.messages for lag in lags} == {queues - 1}
    assert sorted(lag.latency_ms for lag in lags) == [7_999] + [8_000] * (groups - 1)
    assert len(found) < 3 * (groups + queues)


def lag_queue_by_queue(room, group, topic, now_ms):
    """Return a group's lag by its definition, at any cost."""
    known = room.offsets.queues(group, topic)
    messages, times = 0, []
    for queue_id in range(room.topics.get(topic).read_queue_nums):
        first, end = room.store.queue_offsets(topic, queue_id)
        queue_offset = known.get(queue_id, first)
        if queue_offset < end:
            messages += end - queue_offset
            times.append(store_timestamp(room.store, topic, queue_id, queue_offset))
    return ConsumerLag(group, topic, messages, now_ms - min(times) if times else 0)


QUEUES = 4
OFFSETS = st.dictionaries(st.integers(0, QUEUES), st.integers(0, 5), min_size=1)


@given(
    stored=st.lists(st.integers(0, QUEUES - 1), max_size=12),
    groups=st.lists(OFFSETS, min_size=1, max_size=4),
)
def test_consumer_lag_of_a_group_sums_its_queues(stored, groups):
    with TemporaryDirectory() as directory:
        room = AdminRoom(Path(directory))
        room.create_topic("T", queue_nums=QUEUES)
        for number, queue_id in enumerate(stored):
            room.put(number, at_ms=START + 7 * number, topic="T", queue_id=queue_id)
        for number, offsets in enumerate(groups):
            room.groups.find_or_create(f"G{number}")
            for queue_id, queue_offset in offsets.items():
                room.offsets.commit(f"G{number}", "T", queue_id, queue_offset)
        looking = Looking(room)
        assert looking.look() == [
            lag_queue_by_queue(room, f"G{number}", "T", looking.now_ms)
            for number in range(len(groups))
        ]
        room.shutdown()


def test_lag_collection_yields_after_each_queue(looking):
    looking.room.create_topic("W", queue_nums=500)
    looking.room.offsets.commit("G", "W", 0, 0)
    assert sum(1 for lag in looking.lags.collect() if lag is None) >= 500
