"""Tests of `LitePullConsumer` against whole brokers."""

import sqlite3
import threading
from contextlib import closing, contextmanager

import pytest
from support.brokers.broker_kinds import wait_until
from support.brokers.clusters import FIRST
from support.clients.fake_members import implementation_of

from rmq_spark.client.consumer.group_lifecycle import ServiceState
from rmq_spark.client.consumer.lite_pull_consumer import LitePullConsumer
from rmq_spark.client.consumer.pull.pull_task import PullLimits
from rmq_spark.client.consumer.queues.assigned_queues import AssignedQueue
from rmq_spark.client.consumer.rebalance.rebalance_service import TopicAssignment
from rmq_spark.client.consumer.settings import LitePullSettings
from rmq_spark.client.errors import (
    ClientShutDown,
    NotAssigned,
    SubscriptionConflict,
)
from rmq_spark.wire.bodies.clients import ConsumeFromWhere, MessageModel

PATIENCE_MS = 20_000


@pytest.fixture
def lite(cluster):
    """Return a function that creates consumers that start at the first message."""

    def make(group=None, topic=None, *, selector="*", start=True, listener=None, **settings):
        consumer = LitePullConsumer(
            group or cluster.group(),
            instance=cluster.instance(),
            settings=LitePullSettings(**{"consume_from_where": FIRST, **settings}),
            message_queue_listener=listener,
        )
        if topic is not None:
            consumer.subscribe(topic, selector)
        if start:
            consumer.start()
        return cluster.until_end(consumer)

    return make


def polled(consumer, count):
    """Poll until this number of bodies was received."""
    bodies = []
    while len(bodies) < count:
        messages = consumer.poll(PATIENCE_MS)
        assert messages, f"only {bodies} of {count}"
        bodies += [message.body.decode() for message in messages]
    return bodies


def numbers(count):
    return [f"{number:03}" for number in range(count)]


def test_assign_and_subscribe_exclude_each_other(cluster, lite):
    topic = cluster.topic()
    with pytest.raises(SubscriptionConflict, match="Make another consumer"):
        lite(topic=topic, start=False).assign([cluster.queue(topic)])
    consumer = lite(start=False)
    consumer.assign([cluster.queue(topic)])
    with pytest.raises(SubscriptionConflict):
        consumer.subscribe(topic)


def without_queues(cluster, lite):
    """Return a consumer without queues, a queue of ten messages, and a function that commits as
    another member."""
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, *numbers(10), queues=1)
    consumer = lite(group, start=False)
    consumer.assign([])
    consumer.start()
    return consumer, cluster.queue(topic), lambda offset: cluster.store_offset(group, topic, offset)


def test_reassigned_queue_starts_at_the_offset_stored_by_another_member(cluster, lite):
    consumer, queue, store_offset = without_queues(cluster, lite)
    implementation_of(consumer).first_offset(
        queue
    )  # as a pull task does when its queue was revoked
    store_offset(7)
    consumer.assign([queue])
    assert polled(consumer, 3) == numbers(10)[7:]


def test_committed_shows_offset_of_another_member(cluster, lite):
    consumer, queue, store_offset = without_queues(cluster, lite)
    for offset in (3, 7):
        store_offset(offset)
        assert consumer.committed(queue) == offset
    assert implementation_of(consumer).consume_status(queue.topic) == {}


def test_lite_consumer_commits_offsets_by_queue(cluster, lite):
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, *numbers(10), queues=1)
    consumer = lite(group, topic, auto_commit=False)
    polled(consumer, 10)
    consumer.commit({cluster.queue(topic): 7})
    assert cluster.stored_offset(group, topic) == 7
    with pytest.raises(NotAssigned):
        consumer.commit({cluster.queue("Another"): 7})


def test_auto_commit_stores_offset_of_earlier_polls(cluster, lite):
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, *numbers(30), queues=1)
    consumer = lite(group, topic, persist_consumer_offset_interval_ms=50)
    assert polled(consumer, 20) == numbers(20)
    assert polled(consumer, 10) == numbers(30)[20:]
    wait_until("a commit", lambda: cluster.stored_offset(group, topic) == 20)


def test_lite_consumer_shutdown_commits_only_handled_messages(cluster, lite):
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, *numbers(30), queues=1)
    consumer = lite(group, topic)
    polled(consumer, 20)
    consumer.shutdown()
    wait_until(
        "the offset of the last poll but one", lambda: cluster.stored_offset(group, topic) == 10
    )


def test_pull_faster_than_its_seek_loses_no_message(cluster, lite, monkeypatch):
    topic = cluster.topic(queues=1)
    queue = cluster.queue(topic)
    cluster.send(topic, *numbers(20), queues=1)
    consumer = lite(topic=topic)
    assert polled(consumer, 20) == numbers(20)
    seek = AssignedQueue.seek

    def seek_and_pull(assigned, offset):
        seek(assigned, offset)
        implementation_of(consumer)._tasks[queue].wake()
        wait_until("messages from there", lambda: consumer.cached_messages == 20)

    monkeypatch.setattr(AssignedQueue, "seek", seek_and_pull)
    consumer.seek_to_begin(queue)
    assert polled(consumer, 20) == numbers(20)


def test_paused_queue_with_full_cache_does_not_block_pulls_of_others(cluster, lite):
    topic = cluster.topic(queues=2)
    consumer = lite(topic=topic, limits=PullLimits(pull_threshold_for_all=10))
    cluster.send(topic, *numbers(10), queue_id=0)
    wait_until("a full cache", lambda: consumer.cached_messages == 10)
    consumer.pause([cluster.queue(topic, 0)])
    for body in ("a", "b", "c"):  # "a" answers the pending pull
        cluster.send(topic, body, queue_id=1)
        assert polled(consumer, 1) == [body]
    assert consumer.cached_messages == 0
    consumer.resume([cluster.queue(topic, 0)])
    assert consumer.cached_messages == 10
    assert sorted(polled(consumer, 10)) == numbers(10)


def test_group_at_the_end_gets_new_messages_only(cluster, lite):
    # In RocketMQ, a new group starts a young queue at its first message, whatever its setting.
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, "old", queue_id=0)
    cluster.store_offset(group, topic, 1)
    consumer = lite(group, topic, consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET)
    wait_until("a queue", consumer.assignment)
    cluster.send(topic, "new", queue_id=0)
    assert polled(consumer, 1) == ["new"]


@pytest.mark.parametrize("stored", [500, 11])
def test_lite_consumer_restarts_at_zero_if_offset_is_past_a_recreated_queue(cluster, lite, stored):
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, *numbers(10), queues=1)
    cluster.store_offset(group, topic, stored)
    assert polled(lite(group, topic), 10) == numbers(10)


def test_lite_consumer_reads_more_messages_than_its_cache_holds(cluster, lite):
    topic = cluster.topic(queues=2)
    cluster.send(topic, *numbers(300), queues=2)
    consumer = lite(
        topic=topic, limits=PullLimits(pull_threshold_for_queue=20, pull_threshold_for_all=30)
    )
    assert sorted(polled(consumer, 300)) == numbers(300)


@pytest.mark.parametrize("is_given", [True, False])
def test_broadcasting_consumer_with_a_given_instance_resumes(cluster, is_given, tmp_path):
    topic, group = cluster.topic(queues=1), cluster.group()
    settings = LitePullSettings(
        message_model=MessageModel.BROADCASTING,
        consume_from_where=FIRST,
        local_offset_directory=tmp_path,
    )
    for body in ("one", "two"):
        cluster.send(topic, body, queue_id=0)
        place = {"instance": cluster.instance()} if is_given else {"namesrv": cluster.name_server}
        with LitePullConsumer(group, **place, settings=settings) as consumer:
            consumer.subscribe(topic)
            assert polled(consumer, 1) == [body]
            consumer.commit()
    assert len([*tmp_path.iterdir()]) == 1


def test_queue_listener_is_notified_of_assigned_queues(cluster, lite):
    topic, told, changed = cluster.topic(queues=2), [], threading.Event()
    consumer = lite(
        topic=topic, listener=lambda *news: told.append(news), topic_metadata_check_interval_ms=20
    )
    wait_until("queues", lambda: told)
    both = frozenset(cluster.queue(topic, number) for number in range(2))
    assert told == [(topic, both, both)]
    consumer.register_topic_message_queue_change_listener(topic, lambda *_: changed.set())
    from rmq_spark.wire.bodies.configs import TopicConfig  # noqa: PLC0415  # only this test needs it

    cluster.api.admin.create_topic(
        cluster.address, TopicConfig(topic_name=topic, read_queue_nums=3, write_queue_nums=3)
    )
    assert changed.wait(40)
    assert len(consumer.fetch_message_queues(topic)) == 3


def test_new_queue_delivers_nothing_before_its_listener_returned(cluster, lite):
    topic = cluster.topic(queues=2)
    cluster.send(topic, *numbers(200), queues=2)
    is_called, may_return = threading.Event(), threading.Event()

    def listen(_, __, own):
        is_called.set()
        assert may_return.wait(60)  # the consumer queries its offsets
        for queue in own:
            consumer.seek(queue, 90)

    consumer = lite(start=False, listener=listen, auto_commit=False)
    consumer.subscribe(topic)
    consumer.start()
    assert is_called.wait(60)
    assert len(consumer.assignment()) == 2
    consumer.pause(consumer.assignment())
    consumer.resume(consumer.assignment())
    assert consumer.poll(300) == []
    may_return.set()
    found = []
    while len(found) < 20:
        found += consumer.poll(PATIENCE_MS)
    assert sorted(message.queue_offset for message in found) == sorted([*range(90, 100)] * 2)


def test_queues_wait_until_their_failing_queue_listener_succeeds(
    cluster, lite, monkeypatch, caplog
):
    monkeypatch.setattr("rmq_spark.client.consumer.lite_pull_consumer_impl.LISTENER_RETRY_MS", 10)
    topic, calls = cluster.topic(queues=1), []
    cluster.send(topic, *numbers(5), queues=1)

    def listen(*news):
        calls.append((news, consumer.poll(0)))
        if len(calls) < 4:
            raise OSError("the database is away")

    consumer = lite(start=False, listener=listen)
    consumer.subscribe(topic)
    consumer.start()
    assert polled(consumer, 5) == numbers(5)
    assert [found for _, found in calls] == [[]] * 4
    assert len({news for news, _ in calls}) == 1
    said = [each.getMessage() for each in caplog.records if "queue listener" in each.getMessage()]
    assert len(said) == 2
    assert "retrying every second, 1 new queue waiting" in said[0]
    assert "recovered" in said[1]


class Results:
    """A database with results of messages, and each queue's next offset."""

    def __init__(self, file):
        self._file = file
        with self.opened() as database:
            database.execute("CREATE TABLE places (queue TEXT PRIMARY KEY, next INTEGER)")
            database.execute("CREATE TABLE results (queue TEXT, position INTEGER)")

    @contextmanager
    def opened(self):
        with closing(sqlite3.connect(self._file, timeout=60)) as database, database:
            yield database

    def place(self, queue):
        with self.opened() as database:
            database.execute("INSERT OR IGNORE INTO places VALUES (?, 0)", (str(queue),))
            query = "SELECT next FROM places WHERE queue = ?"
            return database.execute(query, (str(queue),)).fetchone()[0]

    def process(self, messages):
        """Store results and offset in one transaction, unless another member owns the queue now."""
        queue, first = str(messages[0].queue), messages[0].queue_offset
        following = messages[-1].queue_offset + 1
        with self.opened() as database:
            moved = database.execute(
                "UPDATE places SET next = ? WHERE queue = ? AND next = ?", (following, queue, first)
            )
            if moved.rowcount:
                rows = [(queue, each.queue_offset) for each in messages]
                database.executemany("INSERT INTO results VALUES (?, ?)", rows)

    def all(self):
        with self.opened() as database:
            return database.execute("SELECT queue, position FROM results").fetchall()


class MemberWithResults:
    """A group member in a thread; the database stores its offsets."""

    def __init__(self, lite, group, topic, results):
        self._results, self._sought, self._ends = results, {}, threading.Event()
        self.early = []
        settings = {"auto_commit": False, "pull_batch_size": 3}
        self._consumer = lite(group, start=False, listener=self._listen, **settings)
        self._consumer.subscribe(topic)
        self._consumer.start()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _listen(self, _, __, own):
        self._sought = {queue: self._sought[queue] for queue in own & self._sought.keys()}
        for queue in own - self._sought.keys():
            place = self._results.place(queue)
            self._consumer.seek(queue, place)
            self._sought[queue] = place

    def _run(self):
        while not self._ends.is_set():
            messages = self._consumer.poll(20)
            if messages:
                first = messages[0]
                if first.queue_offset < self._sought.get(first.queue, 0):
                    self.early.append(first)
                self._results.process(messages)
        self._consumer.shutdown()

    def end(self):
        self._ends.set()
        self._thread.join(60)


def test_offsets_in_a_database_of_ones_own_process_each_message_once(cluster, lite, tmp_path):
    """As documented: offsets and results in one transaction, while members join and leave."""
    topic, group, count = cluster.topic(queues=4), cluster.group(), 400
    cluster.send(topic, *numbers(count), queues=4)
    results, members = Results(tmp_path / "results.sqlite"), []
    for wanted in (20, 120, 240):
        members.append(MemberWithResults(lite, group, topic, results))
        enough = lambda wanted=wanted: len(results.all()) >= wanted  # noqa: E731  # for each round
        wait_until(f"{wanted} results", enough)
        if len(members) == 2:
            members[0].end()  # the second takes its queues
    wait_until("all", lambda: len(set(results.all())) == count)
    for member in members:
        member.end()
        assert member.early == []
    assert len(results.all()) == count
    assert cluster.stored_offset(group, topic) in (None, 0)


def test_unsubscribe_releases_the_queues(cluster, lite):
    topic = cluster.topic(queues=2)
    consumer = lite(topic=topic)
    wait_until("queues", consumer.assignment)
    consumer.unsubscribe(topic)
    assert consumer.assignment() == frozenset()
    assert consumer.topics == frozenset()
    queues = (cluster.queue(topic),)
    implementation_of(consumer).apply_assignment(
        topic, TopicAssignment(queues, queues)
    )  # of an earlier rebalance
    assert consumer.assignment() == frozenset()


def test_subscriptions_made_together_share_a_heartbeat(cluster, lite, monkeypatch):
    """A heartbeat has all subscriptions: one heartbeat for each would send a megabyte for a
    thousand topics."""
    topics = [cluster.topic(queues=1) for _ in range(20)]
    consumer = lite(topic=topics[0])
    wait_until("queues", consumer.assignment)
    instance, all_subscribed, told = implementation_of(consumer)._instance, threading.Event(), []
    tell = instance.heartbeat

    def told_later():
        assert all_subscribed.wait(PATIENCE_MS / 1000)
        told.append(consumer.topics)
        tell()

    monkeypatch.setattr(instance, "heartbeat", told_later)
    for topic in topics:
        consumer.subscribe(topic)
    all_subscribed.set()
    wait_until("all", lambda: {each.topic for each in consumer.assignment()} == set(topics))
    assert told[0] >= set(topics)
    assert len(told) <= 2


def test_unsubscribed_queue_commits_its_offset_at_once(cluster, lite):
    """The commit does not wait for the next periodic commit."""
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, *numbers(3), queue_id=0)
    consumer = lite(group, topic=topic, persist_consumer_offset_interval_ms=600_000)
    assert polled(consumer, 3) == numbers(3)
    assert consumer.poll(1) == []  # confirms the previous messages
    consumer.unsubscribe(topic)
    wait_until("the offset", lambda: cluster.stored_offset(group, topic) == 3)


def test_lite_consumer_cannot_be_used_before_start_or_after_shutdown(cluster, lite):
    topic = cluster.topic()
    consumer = lite(topic=topic, start=False)
    assert consumer.service_state is ServiceState.CREATE_JUST
    with pytest.raises(ClientShutDown, match="was not started yet"):
        consumer.poll(0)
    with consumer:
        assert consumer.is_running
        with pytest.raises(ClientShutDown, match="is running"):
            consumer.start()
    assert consumer.service_state is ServiceState.SHUTDOWN_ALREADY
    consumer.shutdown()
    for use in (
        lambda: consumer.poll(0),
        lambda: consumer.subscribe(topic),
        lambda: consumer.unsubscribe(topic),
        lambda: consumer.assign([cluster.queue(topic)]),
    ):
        with pytest.raises(ClientShutDown, match="make a new one"):
            use()


def test_shutting_down_does_not_wait_for_a_poll_or_a_pull_that_is_held(cluster, lite):
    topic = cluster.topic()
    consumer, ended = lite(topic=topic), []
    wait_until("queues", consumer.assignment)
    poller = threading.Thread(target=lambda: ended.append(consumer.poll(3_600_000)))
    poller.start()
    consumer.shutdown()
    poller.join(PATIENCE_MS / 1000)
    assert ended == [[]]


def test_long_poll_in_one_thread_does_not_block_other_polls(cluster, lite, monkeypatch):
    consumer, at_it, ended = lite(topic=cluster.topic()), threading.Event(), []
    cache = implementation_of(consumer)._request_cache
    poll = cache.poll
    monkeypatch.setattr(cache, "poll", lambda *given: (at_it.set(), poll(*given))[1])
    patient = threading.Thread(target=lambda: consumer.poll(3_600_000))
    patient.start()
    assert at_it.wait(PATIENCE_MS / 1000)
    hasty = threading.Thread(target=lambda: ended.append(consumer.poll(10)))
    hasty.start()
    hasty.join(PATIENCE_MS / 1000)
    assert ended == [[]]
    assert patient.is_alive()
    consumer.shutdown()
    patient.join(PATIENCE_MS / 1000)


def test_threads_that_poll_one_consumer_get_each_message_once_and_all_are_committed(cluster, lite):
    topic, group = cluster.topic(queues=2), cluster.group()
    cluster.send(topic, *numbers(200), queues=2)
    consumer, seen = lite(group, topic, pull_batch_size=3), []

    def poll():
        while len(seen) < 200:
            seen.extend(message.body.decode() for message in consumer.poll(50))

    threads = [threading.Thread(target=poll) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_MS / 1000)
    assert sorted(seen) == numbers(200)
    consumer.poll(0)
    consumer.shutdown()
    assert [cluster.stored_offset(group, topic, queue_id) for queue_id in (0, 1)] == [100, 100]


def test_reset_offsets_moves_all_queues_before_storing_any_at_a_broker(cluster, lite, monkeypatch):
    """Otherwise the last queues would be consumed and committed meanwhile."""
    topic = cluster.topic(queues=4)
    consumer = lite(cluster.group(), topic)
    wait_until("its queues", lambda: len(consumer.assignment()) == 4)
    member, moved = implementation_of(consumer), []

    def keep(*_):
        moved.append({each.reset_count for each in member._assigned_queues.all()})

    monkeypatch.setattr(member._offset_store, "store_offset", keep)
    member.reset_offsets(topic, dict.fromkeys(consumer.assignment(), 0))
    assert moved == [{1}] * 4


def test_commit_during_a_reset_is_kept(cluster, lite, monkeypatch):
    topic, group = cluster.topic(queues=2), cluster.group()
    cluster.send(topic, *numbers(10), queues=2)
    consumer = lite(group, topic, auto_commit=False)
    polled(consumer, 10)
    store, told = implementation_of(consumer)._offset_store, []
    keep = store.store_offset

    def keep_behind_a_commit(queue, offset):
        if not told:
            told.append(queue)
            polled(consumer, 10)
            consumer.commit()
        keep(queue, offset)

    monkeypatch.setattr(store, "store_offset", keep_behind_a_commit)
    implementation_of(consumer).reset_offsets(topic, dict.fromkeys(consumer.assignment(), 0))
    assert {store.offsets(topic)[queue] for queue in consumer.assignment()} == {5}
    assert cluster.stored_offset(group, topic, ({0, 1} - {told[0].queue_id}).pop()) == 5


def test_committed_returns_the_stored_not_the_polled_offset(cluster, lite):
    topic, group = cluster.topic(queues=1), cluster.group()
    cluster.send(topic, *numbers(10), queues=1)
    consumer = lite(group, topic, auto_commit=False)
    queue = cluster.queue(topic)
    assert polled(consumer, 10) == numbers(10)
    stored = cluster.stored_offset(group, topic)
    assert consumer.committed(queue) == stored
    assert stored in (None, 0)
    store = implementation_of(consumer)._offset_store
    store.update_offset(queue, 7, increase_only=True)  # waits to be persisted
    assert consumer.committed(queue) == cluster.stored_offset(group, topic) == stored
    consumer.commit({queue: 3})
    assert consumer.committed(queue) == cluster.stored_offset(group, topic) == 3
    consumer.seek(queue, 1)
    assert consumer.committed(queue) == 3
