"""Rows prepared for dispatch during a commit match those read from the log."""

import random
from collections import defaultdict

import pytest
from support.stores import staged_batches
from support.stores.small_store import (
    Listener,
    bodies,
    components_of,
    holds_all,
    message,
    open_store,
    read_all,
    reads_of,
)
from support.stores.staged_batches import Sink
from support.suite.selection import some

from rmq_spark.wire.message.properties import tags_code
from rocketpoll.broker.store.append import chunk_appender
from rocketpoll.broker.store.dispatch import hidden_entries
from rocketpoll.broker.store.errors import BatchRefused
from rocketpoll.broker.store.records import recent_writes

QUEUES = [("T", 0), ("T", 1), ("U", 0)]


@pytest.fixture(autouse=True)
def _few_at_a_time(monkeypatch):
    monkeypatch.setattr(chunk_appender, "_PART_RECORDS", 3)
    monkeypatch.setattr(chunk_appender, "RECORDS_PER_STEP", 5)
    monkeypatch.setattr(hidden_entries, "_KEYS_MAX", 2)
    monkeypatch.setattr(staged_batches, "message", tagged)


def tagged(text, topic="T", queue_id=0):
    """Return a message whose tags and keys depend on its text; some have none."""
    number = int(text.split()[-1])
    tags = f"tag {number % 3}" if number % 4 else None
    keys = " ".join(f"k{each}" for each in range(number % 5)) or None
    return message(text, topic, queue_id, tags=tags, keys=keys)


def open_with_room(root, **settings):
    """Open a store whose files end within chunks, with space for many keys."""
    listener = Listener()
    settings = {"mapped_file_size_commit_log": 1 << 14, "max_index_num": 1 << 12, **settings}
    return open_store(root, listener=listener, **settings), listener


def places_of_rows(store):
    """Return the positions of all rows in the log."""
    found = [each for queue in QUEUES for each in read_all(store, *queue)]
    return {each.physical_offset for each in found if each.body.startswith(b"row")}


def test_dispatch_of_committed_rows_does_not_read_them_again(tmp_path, monkeypatch):
    store, listener = open_with_room(tmp_path, mapped_file_size_commit_log=1 << 20)
    read = reads_of(store, monkeypatch)
    sink = Sink(store)
    chunks = [(*queue, [f"row {n}" for n in range(40)]) for queue in QUEUES]
    sink.commit(0, sink.stage(0, chunks))
    assert not places_of_rows(store).intersection(read)
    assert {queue: bodies(store, *queue) for queue in QUEUES} == {
        (topic, queue_id): texts for topic, queue_id, texts in chunks
    }
    codes = {0, *(tags_code(f"tag {n}") for n in range(3))}
    assert [(*told[:3], set(told[3])) for told in listener.arrivals] == [
        (*queue, 40, codes) for queue in QUEUES
    ]
    with components_of(store).reput.caught_up():
        assert holds_all(store)
    assert not places_of_rows(store).intersection(read)
    assert not components_of(store).reput._precomputed.entries
    assert not components_of(store).reput._precomputed.keys
    store.shutdown()


class Story:
    """Batches that are committed or rolled back, while others send and topics are deleted. The same
    seed gives the same events, whatever reput caches."""

    def __init__(self, root, seed):
        self.dice = random.Random(seed)
        self.store, self.listener = open_with_room(root)
        self.count = 0

    def texts(self, name, most):
        count = self.dice.randint(1, most)
        self.count += count
        return [f"{name} {self.count + n}" for n in range(count)]

    def batch(self, batch_id):
        sink = Sink(self.store)
        chunks = [
            (*self.dice.choice(QUEUES), self.texts("row", 40))
            for _ in range(self.dice.randint(1, 5))
        ]
        fails_at = self.dice.choice([None, self.dice.randint(1, 30)])
        admitted = 0

        def admit(_):
            nonlocal admitted
            admitted += 1
            if admitted == fails_at:
                raise BatchRefused("gone")

        attempt = sink.stage(batch_id, chunks)
        try:
            sink.commit(batch_id, attempt, between=self.between, admit=admit)
        except BatchRefused:
            sink.abort(batch_id)

    def between(self):
        """Do what other clients do during a commit."""
        act = self.dice.random()
        if act < 0.3:
            for text in self.texts("other", 3):
                self.store.put_message(tagged(text, *self.dice.choice(QUEUES)))
        elif act < 0.33:
            self.store.delete_topic("U")

    def end(self):
        """Return the final content."""
        codes = defaultdict(set)
        for topic, queue_id, _, new in self.listener.arrivals:
            codes[topic, queue_id].update(new or ())
        with components_of(self.store).reput.caught_up():
            assert holds_all(self.store)
        found = {queue: bodies(self.store, *queue) for queue in QUEUES}
        ends = {queue: self.store.queue_offsets(*queue) for queue in QUEUES}
        self.store.shutdown()
        return found, ends, codes


def told(root, seed):
    story = Story(root, seed)
    for batch_id in range(6):
        story.between()
        story.batch(batch_id)
    return story.end()


@pytest.mark.parametrize("bytes_max", [hidden_entries.BYTES_MAX, 700])
@pytest.mark.parametrize("seed", some(range(200), "ROCKETPOLL_WORKED_AHEAD", 5))
def test_precomputed_dispatch_equals_reading_the_log(tmp_path, monkeypatch, seed, bytes_max):
    monkeypatch.setattr(hidden_entries, "BYTES_MAX", bytes_max)
    worked_out = told(tmp_path / "memory", seed)
    monkeypatch.setattr(recent_writes, "_UNCOMMITTED_MAX", 0)
    assert worked_out == told(tmp_path / "log", seed)


def test_precomputed_dispatch_of_rolled_back_rows_is_discarded(tmp_path):
    store, _ = open_with_room(tmp_path)
    ahead, known = components_of(store).reput._precomputed, []

    def admit(_):
        known.append((len(ahead.entries) > 0, len(ahead.keys) > 0))
        if len(known) > 4:
            raise BatchRefused("gone")

    sink = Sink(store)
    attempt = sink.stage(0, [("T", 0, [f"row {n}" for n in range(40)])])
    with pytest.raises(BatchRefused):
        sink.commit(0, attempt, admit=admit)
    assert known[-1] == (True, True)
    assert (len(ahead.entries), len(ahead.keys), ahead.step()) == (0, 0, False)
    assert bodies(store) == []
    assert store.query_message("T", "k1", 100, 0, 1 << 62) == []
    sink.commit(0, attempt)
    assert len(bodies(store)) == 40
    store.shutdown()
