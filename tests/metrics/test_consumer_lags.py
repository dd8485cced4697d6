"""How far groups are behind, in messages and in time."""

from __future__ import annotations

import pytest
from admin_room import AdminRoom
from members import join

from rocketpoll.broker.metrics.consumer_lags import ConsumerLag, ConsumerLags
from rocketpoll.broker.store.errors import EndUnknown, UnreadableFile

START = 1_700_000_000_000


class Looking:
    """A broker's parts, and one who looks at its groups' lags."""

    def __init__(self, room):
        self.room = room
        self.now_ms = START + 10_000
        self.lags = ConsumerLags(room.store, room, room.consumers, lambda: self.now_ms)

    def look(self):
        return [lag for lag in self.lags.look() if lag is not None]


@pytest.fixture
def looking(tmp_path):
    """The topic T with three messages, a second apart, in the first of its two queues."""
    room = AdminRoom(tmp_path)
    room.create_topic("T", queue_nums=2)
    for number in range(3):
        room.put(number, at_ms=START + 1000 * number, topic="T")
    room.groups.find_or_create("G")
    yield Looking(room)
    room.shutdown()


def test_a_group_that_is_offline_is_where_its_offsets_say(looking):
    assert looking.look() == []
    looking.room.offsets.commit("G", "T", 0, 1)
    assert looking.look() == [ConsumerLag("G", "T", 2, 9_000)]
    looking.room.offsets.commit("G", "T", 0, 3)
    assert looking.look() == [ConsumerLag("G", "T", 0, 0)]


def test_a_queue_without_an_offset_counts_from_its_first_message(looking):
    looking.room.offsets.commit("G", "T", 1, 0)
    assert looking.look() == [ConsumerLag("G", "T", 3, 10_000)]


def test_an_offset_behind_the_end_of_its_queue_is_no_lag(looking):
    looking.room.offsets.commit("G", "T", 0, 77)
    assert looking.look() == [ConsumerLag("G", "T", 0, 0)]


def test_a_topic_that_the_online_members_have_left_is_left_out(looking):
    looking.room.offsets.commit("G", "T", 0, 0)
    member = join(looking.room.consumers, "G", "c1", "U")
    assert looking.look() == []
    looking.room.consumers.unregister("G", member)
    assert [lag.messages for lag in looking.look()] == [3]


def test_a_topic_that_is_gone_is_left_out(looking):
    looking.room.offsets.commit("G", "gone", 0, 0)
    assert looking.look() == []


def test_the_log_is_read_once_for_a_group_that_stands_still(looking, monkeypatch):
    looking.room.offsets.commit("G", "T", 0, 1)
    looking.look()
    monkeypatch.setattr(looking.room.store, "get_message", None)
    looking.now_ms += 5_000
    assert looking.look() == looking.look() == [ConsumerLag("G", "T", 2, 14_000)]


def test_what_the_disk_does_not_give_costs_the_age_alone(looking, monkeypatch):
    def refuse(*_, **__):
        raise UnreadableFile("the disk is gone")

    looking.room.offsets.commit("G", "T", 0, 1)
    monkeypatch.setattr(looking.room.store, "get_message", refuse)
    assert looking.look() == [ConsumerLag("G", "T", 2, 0)]


def test_a_queue_whose_end_is_not_known_yet_is_left_out(looking, monkeypatch):
    def unknown(*_, **__):
        raise EndUnknown("the start is not finished")

    looking.room.offsets.commit("G", "T", 0, 1)
    monkeypatch.setattr(looking.room.store, "queue_offsets", unknown)
    assert looking.look() == [ConsumerLag("G", "T", 0, 0)]


def test_each_queue_is_a_step(looking):
    looking.room.create_topic("W", queue_nums=500)
    looking.room.offsets.commit("G", "W", 0, 0)
    assert sum(1 for lag in looking.lags.look() if lag is None) >= 500
