"""A real RocketMQ broker serves a directory into which sinks have committed staged batches.

It sees only the log and does not know batches. Afterwards our store serves the messages that this
broker has added, and continues the batches that are still staged.
"""

from __future__ import annotations

import shutil
from collections import Counter

import pytest
from support.rocketmq.shared_store import Place, all_queues, check_same, java_queues
from support.spark.streaming_engine import Engine
from support.stores.small_store import components_of, crash, message
from support.stores.staged_batches import Sink, admitted

from rocketpoll import read_table
from rocketpoll.broker.store.errors import BatchRefused
from rocketpoll.broker.store.results import PutMessageStatus

pytestmark = pytest.mark.interop

TOPICS = {"Orders": 2, "Refunds": 1}
QUEUES = [(topic, queue_id) for topic, queues in TOPICS.items() for queue_id in range(queues)]
ROWS = 40  # rows of a queue in a batch: more than one pull
COMMITTED, ABORTED, AGAIN, FAILED, UNFINISHED = range(5)


@pytest.fixture
def place(rocketmq, tmp_path) -> Place:
    return Place(rocketmq, tmp_path.name, tmp_path / "store", TOPICS)


class Life:
    """The messages sent to a store and staged in it, and those that must be visible."""

    def __init__(self):
        self.sent = 0
        self.visible = Counter()

    def rows_of(self, batch_id, word="row"):
        """Return chunks of a batch, two for each queue."""
        return [
            (*queue, [f"{word} {batch_id} {queue} {part} {row}" for row in range(ROWS)])
            for part in range(2)
            for queue in QUEUES
        ]

    def stage(self, store, batch_id, attempt="a"):
        return Sink(store).stage(batch_id, self.rows_of(batch_id), attempt)

    def commit(self, store, batch_id, attempt, **more):
        Sink(store).commit(batch_id, attempt, **more)
        self.see(batch_id)

    def see(self, batch_id):
        for *_, bodies in self.rows_of(batch_id):
            self.visible.update(bodies)

    def send(self, store):
        """Send another producer's message to each queue."""
        for queue in QUEUES:
            self.sent += 1
            body = f"other {self.sent}"
            result = store.wait_until_stored(store.put_message(message(body, *queue)))
            assert result.status is PutMessageStatus.PUT_OK
            self.visible[body] += 1

    def tell(self, store):
        """Stage and commit batches of every kind, among other messages."""
        sink = Sink(store)
        self.send(store)
        attempt = self.stage(store, COMMITTED)
        sink.stage(COMMITTED, self.rows_of(COMMITTED, "of another attempt"), "b")
        self.commit(store, COMMITTED, attempt, between=lambda: self.send(store))
        self.stage(store, ABORTED)
        sink.abort(ABORTED)
        self.commit(store, AGAIN, self.stage(store, AGAIN))
        with pytest.raises(BatchRefused, match="is closed"):
            sink.commit(
                FAILED,
                self.stage(store, FAILED),
                admit=a_topic_that_closes(),
                between=lambda: self.send(store),
            )
        self.send(store)
        return self.stage(store, UNFINISHED)


def a_topic_that_closes():
    """Return a topic that accepts the first chunks of a batch, and refuses the others."""
    asked = []

    def admit(topic):
        asked.append(topic)
        if len(asked) > len(QUEUES):
            raise BatchRefused(f"{topic} is closed")

    return admit


def bodies_in(queues):
    return Counter(
        bytes.fromhex(each["body"]).decode()
        for held in queues.values()
        for each in held["messages"]
    )


def check_served(place, life, ours):
    """Check that Java gets each committed row once; send one more message."""
    with place.java_broker() as broker:
        theirs = java_queues(broker, QUEUES)
        assert bodies_in(theirs) == life.visible
        check_same(theirs, ours)
        send_from_java(broker, life)
        broker.kill()


def send_from_java(broker, life):
    for topic, queue_id in QUEUES:
        life.sent += 1
        body = f"other {life.sent}"
        empty = {"keys": None, "tags": None, "flag": 0, "delayLevel": 0, "properties": {}}
        one = [{"body": body.encode().hex(), **empty}]
        result = broker.ask("send", topic=topic, queueId=queue_id, messages=one)
        assert result["status"] == "SEND_OK"
        life.visible[body] += 1


def test_java_serves_committed_batches_once_and_no_others(place):
    life = Life()
    store = place.our_store()
    unfinished = life.tell(store)
    ours = all_queues(store, QUEUES)
    assert bodies_in(ours) == life.visible
    store.shutdown()
    check_served(place, life, ours)

    store = place.our_store()  # after a killed RocketMQ
    assert store.state().holes == ()
    assert bodies_in(all_queues(store, QUEUES)) == life.visible
    assert Sink(store).last == AGAIN
    life.commit(store, UNFINISHED, unfinished)
    ours = all_queues(store, QUEUES)
    assert bodies_in(ours) == life.visible
    store.shutdown()
    check_served(place, life, ours)


def test_our_readers_see_no_data_loss_in_a_directory_served_by_rocketmq(place):
    """RocketMQ returns the blank entries of a gap unchanged, also at the start of a queue."""
    life = Life()
    store = place.our_store()
    sink, attempt = Sink(store), life.stage(store, COMMITTED)

    def send():
        if store._appender.next_offset(QUEUES[-1]):  # the first rows of all queues are in the log
            life.send(store)

    with pytest.raises(BatchRefused, match="is closed"):
        sink.commit(COMMITTED, attempt, admit=a_topic_that_closes(), between=send)
    life.tell(store)
    ours, rolled_back = all_queues(store, QUEUES), offsets_rolled_back(store)
    assert {ours[queue]["minOffset"] for queue in QUEUES} == {0}
    assert all(rolled_back.values())
    assert 0 in rolled_back[QUEUES[0]]
    store.shutdown()
    with place.java_broker() as broker:
        check_tables(place, life)
        send_from_java(broker, life)
        check_tables(place, life)
        query = Engine(place.name_server, subscribe=",".join(TOPICS))
        query.start()
        query.run()
        query.stop()
        assert Counter(row.body for row in query.rows()) == life.visible
        broker.kill()
    store = place.our_store()
    assert bodies_in(all_queues(store, QUEUES)) == life.visible
    assert offsets_rolled_back(store) == rolled_back
    store.shutdown()


def offsets_rolled_back(store):
    return {queue: store.staged_batches.rolled_back_offsets(*queue, 0, 1_000) for queue in QUEUES}


def check_tables(place, life):
    found = Counter()
    for topic in TOPICS:
        found.update(map(bytes.decode, read_table(topic, place.name_server)["body"].to_pylist()))
    assert found == life.visible


@pytest.fixture
def killed(place, tmp_path):
    """Return a directory as left by a kill during a copy, and the messages that must be visible."""
    life = Life()
    store = place.our_store()
    attempt = life.tell(store)
    copies, visible = [], []

    def look():
        life.send(store)
        if components_of(store).batch_table.under_way is not None:
            shutil.copytree(place.root, tmp_path / f"copy-{len(copies)}")
            copies.append(tmp_path / f"copy-{len(copies)}")
            visible.append(Counter(life.visible))

    Sink(store).commit(UNFINISHED, attempt, between=look)
    store.shutdown()
    shutil.rmtree(place.root)
    middle = len(copies) // 2
    copies[middle].rename(place.root)
    life.visible = visible[middle]
    return life, attempt


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_java_serves_no_row_of_a_copy_that_a_kill_has_ended_once_our_broker_was_there(
    place, killed, ending
):
    life, attempt = killed
    store = place.our_store()
    ours = all_queues(store, QUEUES)
    assert bodies_in(ours) == life.visible
    if ending == "stopped":
        store.shutdown()
    else:
        crash(store)
    check_served(place, life, ours)
    go_on(place, life, attempt)


def go_on(place, life, attempt):
    """Open our store again, and commit the staged batches."""
    store = place.our_store()
    assert store.state().holes == ()
    assert bodies_in(all_queues(store, QUEUES)) == life.visible
    life.commit(store, UNFINISHED, attempt, admit=admitted)
    ours = all_queues(store, QUEUES)
    assert bodies_in(ours) == life.visible
    store.shutdown()
    check_served(place, life, ours)


def test_batch_copy_killed_halfway_is_visible_in_java_and_rolled_back_by_our_broker(place, killed):
    """The limit of ADR 37: only our broker knows that the batch is not committed."""
    life, attempt = killed
    of_batch = Counter(body for *_, bodies in life.rows_of(UNFINISHED) for body in bodies)
    with place.java_broker() as broker:
        found = bodies_in(java_queues(broker, QUEUES))
        assert found - of_batch == life.visible
        assert 0 < (found & of_batch).total() < of_batch.total()
        send_from_java(broker, life)
        broker.kill()
    go_on(place, life, attempt)
