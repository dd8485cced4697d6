"""Offsets stored at the brokers: reads, writes, and resets by operators."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.client.consumer.offsets.offset_store import RemoteBrokerOffsetStore
from rmq_spark.errors import RocketPollError
from rmq_spark.wire.message_queue import MessageQueue

QUEUE, OTHER = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-b", 0)


class Brokers:
    """Brokers that store offsets, and may be unreachable."""

    def __init__(self):
        self.offsets, self.down, self.told = {}, set(), []

    def consumer_offset(self, queue):
        self._check(queue)
        return self.offsets.get(queue)

    def update_consumer_offset(self, queue, offset, *, is_one_way):
        self._check(queue)
        self.offsets[queue] = offset
        self.told.append((queue, offset, is_one_way))

    def _check(self, queue):
        if queue.broker_name in self.down:
            raise RocketPollError("down")


@pytest.fixture
def brokers():
    return Brokers()


@pytest.fixture
def store(brokers):
    store = RemoteBrokerOffsetStore(brokers)
    store.load()
    return store


@pytest.mark.parametrize("kind", ["read_offset", "stored_offset"])
def test_failed_offset_request_raises_and_leaves_no_known_offset(store, brokers, kind):
    brokers.down.add("broker-a")
    with pytest.raises(RocketPollError):
        getattr(store, kind)(QUEUE)
    assert store.known_offset(QUEUE) is None


def test_offset_in_memory_wins_unless_the_store_is_requested(store, brokers):
    brokers.offsets[QUEUE] = 3
    store.update_offset(QUEUE, 8, increase_only=True)
    assert store.read_offset(QUEUE) == 8
    assert store.stored_offset(QUEUE) == 3
    assert store.known_offset(QUEUE) == 8


@pytest.mark.parametrize("kind", ["read_offset", "stored_offset"])
def test_offset_read_from_the_store_is_not_stored_again(store, brokers, kind):
    brokers.offsets[QUEUE] = 3
    assert getattr(store, kind)(QUEUE) == 3
    assert store.known_offset(QUEUE) is None
    store.persist_all((QUEUE,))
    assert brokers.told == []


def test_store_offset_persists_without_keeping_it_in_memory(store, brokers):
    """A starting queue may remove its offset during its commit."""
    store.store_offset(QUEUE, 8)
    assert brokers.told == [(QUEUE, 8, False)]
    assert store.known_offset(QUEUE) is None


def test_persist_all_is_one_way_and_retries_queues_of_a_broker_that_is_down(store, brokers, caplog):
    store.update_offset(QUEUE, 1, increase_only=True)
    store.update_offset(OTHER, 2, increase_only=True)
    brokers.down.add("broker-a")
    store.persist_all([QUEUE, OTHER])
    assert brokers.told == [(OTHER, 2, True)]
    assert "storing the offset of " in caplog.text
    brokers.down.clear()
    store.persist_all([QUEUE])
    assert brokers.offsets == {QUEUE: 1, OTHER: 2}


def test_persist_waits_for_the_brokers_answer(store, brokers):
    store.persist(QUEUE, 1)
    assert brokers.told == [(QUEUE, 1, False)]
    brokers.down.add("broker-a")
    with pytest.raises(RocketPollError):
        store.persist(QUEUE, 2)


def test_persist_completes_if_offset_is_removed_meanwhile():
    class ToldLate(Brokers):
        def update_consumer_offset(self, queue, offset, *, is_one_way):
            store.remove_offset(queue)  # as the start of the queue does
            super().update_consumer_offset(queue, offset, is_one_way=is_one_way)

    brokers = ToldLate()
    store = RemoteBrokerOffsetStore(brokers)
    store.persist(QUEUE, 7)
    store.remove_offset(QUEUE)
    store.persist(QUEUE, 8)
    assert brokers.told == [(QUEUE, 7, False), (QUEUE, 8, False)]


def test_removed_offset_stays_on_the_broker(store, brokers):
    store.persist(QUEUE, 1)
    store.remove_offset(QUEUE)
    assert store.known_offset(QUEUE) is None
    assert store.read_offset(QUEUE) == 1


def test_stopped_member_does_not_overwrite_offset_stored_by_another(store, brokers):
    store.update_offset(QUEUE, 5, increase_only=True)
    store.persist_all([QUEUE])
    store.stop_overwriting()
    store.update_offset(QUEUE, 7, increase_only=True)
    store.persist_all([QUEUE])
    assert brokers.offsets == {QUEUE: 7}
    brokers.offsets[QUEUE] = 2
    store.update_offset(QUEUE, 9, increase_only=True)
    store.persist_all([QUEUE])
    assert brokers.offsets == {QUEUE: 2}


def test_stopped_member_detects_reset_by_its_start_offset(store, brokers):
    brokers.offsets[QUEUE] = 5
    assert store.read_offset(QUEUE) == 5
    store.stop_overwriting()
    brokers.offsets[QUEUE] = 2
    store.update_offset(QUEUE, 9, increase_only=True)
    store.persist_all([QUEUE])
    assert brokers.offsets == {QUEUE: 2}


def test_stored_offset_query_does_not_hide_a_group_reset(store, brokers):
    store.persist(QUEUE, 5)
    brokers.offsets[QUEUE] = 2
    assert store.stored_offset(QUEUE) == 2
    store.stop_overwriting()
    store.persist_all({QUEUE})
    assert brokers.offsets[QUEUE] == 2


def test_stored_offset_is_always_asked_of_the_broker(store, brokers):
    assert store.stored_offset(QUEUE) is None
    store.update_offset(QUEUE, 8, increase_only=True)
    assert store.stored_offset(QUEUE) is None
    brokers.offsets[QUEUE] = 3
    assert store.stored_offset(QUEUE) == 3
    brokers.down.add("broker-a")
    with pytest.raises(RocketPollError):
        store.stored_offset(QUEUE)


# ---- a group's offsets in memory keep the last update of each queue


QUEUES = [MessageQueue(topic, "broker-a", number) for topic in ("T", "U") for number in range(2)]


def test_negative_offset_update_is_refused():
    with pytest.raises(ValueError, match="needed 0 or more, found -1"):
        RemoteBrokerOffsetStore(None).update_offset(QUEUES[0], -1, increase_only=False)


@given(st.lists(st.tuples(st.sampled_from(QUEUES), st.integers(0, 99), st.booleans())))
def test_offset_table_holds_the_result_of_any_sequence_of_updates(updates):
    table, model = RemoteBrokerOffsetStore(None), {}
    for queue, offset, increase_only in updates:
        table.update_offset(queue, offset, increase_only=increase_only)
        model[queue] = max(offset, model.get(queue, 0)) if increase_only else offset
    assert table.offsets() == model


def test_offset_updates_of_many_threads_are_all_kept():
    table, start = RemoteBrokerOffsetStore(None), threading.Barrier(8)

    def count(thread):
        start.wait(20)
        for offset in range(500):
            table.update_offset(QUEUES[0], offset * 8 + thread, increase_only=True)
            table.update_offset(MessageQueue("N", "b", thread), offset, increase_only=True)

    threads = [threading.Thread(target=count, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert table.known_offset(QUEUES[0]) == 499 * 8 + 7
    assert len(table.offsets()) == 9
