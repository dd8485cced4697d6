"""A recreated topic is recognized from the log when no manifest records it any more."""

import shutil

import pytest
from support.stores.small_store import (
    bodies,
    components_of,
    crash,
    message,
    open_store,
    write_entry,
)
from support.suite.log_records import lines_of
from support.suite.selection import count

from rocketpoll.broker.store.dispatch.reput import RecreatedTopics
from rocketpoll.broker.store.queues.consume_queue import ENTRY_STRUCT

QUEUES = range(3)
TOPICS = ("T", "U")
STORIES = count("ROCKETPOLL_TOPIC_HISTORIES", 16, wide=100)


@pytest.fixture(params=["few", "many"])
def _dispatch(request, monkeypatch):
    """Dispatch records to their queues a few or many at a time."""
    if request.param == "many":
        for room in ("dispatch.reput", "startup.consistency_check"):
            monkeypatch.setattr(f"rocketpoll.broker.store.{room}.FEW_MAX", 0)
        monkeypatch.setattr("rocketpoll.broker.store.bulk.bulk_tools.are_loaded", lambda: True)


def put(store, *texts, topic="T", queue_id=0):
    for text in texts:
        assert store.put_message(message(text, topic, queue_id)).status.name == "PUT_OK"


def named(generation, count):
    return [f"{generation}{number}" for number in range(count)]


def forget_manifest(root):
    for path in (root / "config").glob("manifest.json*"):
        path.unlink()


def damage(root, texts):
    for path in (root / "commitlog").iterdir():
        data = path.read_bytes()
        for text in texts:
            data = data.replace(text.encode(), b"?" * len(text))
        path.write_bytes(data)


def contents(store):
    return {
        (topic, queue_id): bodies(store, topic, queue_id) for topic in TOPICS for queue_id in QUEUES
    }


def warnings(caplog):
    return lines_of(caplog, "rocketpoll.broker.store")


def assert_next_start_is_quiet(root, caplog, found):
    caplog.clear()
    again = open_store(root)
    assert contents(again) == found
    again.shutdown()
    assert not warnings(caplog)


@pytest.mark.usefixtures("_dispatch")
@pytest.mark.parametrize("new_count", [1, 5, 10, 15])
def test_recreated_topic_is_served_after_the_manifest_was_lost(tmp_path, new_count, caplog):
    store = open_store(tmp_path)
    put(store, *named("old", 10))
    put(store, *named("kept", 3), topic="U")
    store.delete_topic("T")
    put(store, *named("new", new_count))
    store.shutdown()
    forget_manifest(tmp_path)
    again = open_store(tmp_path)
    assert bodies(again) == named("new", new_count)
    assert again.queue_offsets("T", 0) == (0, new_count)
    assert bodies(again, "U") == named("kept", 3)
    assert sum("T was deleted and recreated" in text for text in warnings(caplog)) == 1
    found = contents(again)
    again.shutdown()
    assert_next_start_is_quiet(tmp_path, caplog, found)
    last = open_store(tmp_path)
    put(last, "later")
    assert bodies(last) == [*named("new", new_count), "later"]
    last.shutdown()


@pytest.mark.usefixtures("_dispatch")
@pytest.mark.parametrize(
    ("damaged", "check_whole_log_bytes"), [(["new0"], 1 << 20), (["new0", "new1", "old9"], 0)]
)
def test_recreated_topic_is_served_though_its_first_messages_are_damaged(
    tmp_path, damaged, check_whole_log_bytes, caplog
):
    """The first remaining offset is not 0."""
    store = open_store(tmp_path)
    put(store, *named("old", 10))
    store.delete_topic("T")
    put(store, *named("new", 5))
    store.shutdown()
    forget_manifest(tmp_path)
    damage(tmp_path, damaged)
    again = open_store(tmp_path, check_whole_log_bytes=check_whole_log_bytes)
    whole = [text for text in named("new", 5) if text not in damaged]
    assert bodies(again) == whole
    assert again.queue_offsets("T", 0).next == 5
    assert sum("T was deleted and recreated" in text for text in warnings(caplog)) == 1
    again.shutdown()
    last = open_store(tmp_path, check_whole_log_bytes=check_whole_log_bytes)
    put(last, "later")
    assert bodies(last) == [*whole, "later"]
    last.shutdown()


def test_repeated_dispatch_of_an_existing_topic_is_no_recreation(tmp_path, caplog):
    store = open_store(tmp_path)
    put(store, *named("kept", 10), topic="U")
    with components_of(store).reput.paused():
        components_of(store).reput.rewind_to(0)
    put(store, "next", topic="U")
    assert bodies(store, "U") == [*named("kept", 10), "next"]
    assert components_of(store).reput.recreated_topics.topics == set()
    crash(store)
    again = open_store(tmp_path)
    assert bodies(again, "U") == [*named("kept", 10), "next"]
    again.shutdown()
    assert not warnings(caplog)


@pytest.mark.parametrize("leads_to", [(1, 50), (0, 0), (1, 1 << 30)])
def test_damaged_queue_entry_is_not_taken_for_a_recreated_topic(tmp_path, leads_to, caplog):
    """The entry leads to another message, to nothing, or past the end of the log."""
    store = open_store(tmp_path)
    put(store, *named("first", 5), queue_id=1)
    put(store, *named("second", 5))
    with components_of(store).reput.paused():
        place, size = leads_to
        write_entry(store, 4, ENTRY_STRUCT.pack(place, size, 0))
        components_of(store).reput.rewind_to(0)
    put(store, "next")
    assert bodies(store, queue_id=1) == named("first", 5)
    assert (
        components_of(store).reput.recreated_topics.topics,
        components_of(store).dispatcher.deleted_topics,
    ) == (
        set(),
        {},
    )
    assert not warnings(caplog)
    crash(store)


@pytest.mark.parametrize("new_count", [3, 40])
def test_older_manifest_is_not_applied_to_a_recreated_topic(tmp_path, new_count):
    """No start compares the whole log, so an older manifest alone must suffice."""
    store = open_store(tmp_path, check_whole_log_bytes=0)
    put(store, *named("old", 20))
    store.save_checkpoint()
    older = (tmp_path / "config" / "manifest.json").read_bytes()
    store.delete_topic("T")
    put(store, *named("new", new_count))
    store.shutdown()
    (tmp_path / "config" / "manifest.json").write_bytes(older)
    for _ in range(2):
        again = open_store(tmp_path, check_whole_log_bytes=0)
        assert bodies(again) == named("new", new_count)
        assert again.queue_offsets("T", 0) == (0, new_count), "offsets are dense"
        again.shutdown()


@pytest.mark.parametrize("lost", ["missing", "damaged"])
def test_recreated_topic_is_not_taken_for_half_deleted(tmp_path, lost):
    """The backup may describe a deletion that has been completed."""
    store = open_store(tmp_path)
    put(store, *named("old", 5))
    store.save_checkpoint()
    store.delete_topic("T")
    store.finish_deletion("T")
    put(store, *named("new", 3))
    manifest = tmp_path / "config" / "manifest.json"
    crash(store)
    if lost == "damaged":
        manifest.write_bytes(manifest.read_bytes()[:-3])
    else:
        manifest.unlink()
        (tmp_path / "config" / "manifest.json.bak").unlink()
    again = open_store(tmp_path)
    assert again.half_deleted_topics == ()
    assert bodies(again) == named("new", 3)
    crash(again)
    second = open_store(tmp_path)
    assert second.half_deleted_topics == ()
    assert bodies(second) == named("new", 3)
    second.shutdown()


class History:
    """The operations on two topics, and the expected content of the last topic of each name."""

    def __init__(self, root, dice):
        self.root, self.dice = root, dice
        self.living = {}
        self.numbers = iter(range(1 << 20))
        self.store = open_store(root)
        self.older = []

    def go_on(self):
        dice = self.dice
        what = dice.choices(["put", "delete", "stop", "kill", "checkpoint"], [8, 3, 1, 1, 1])[0]
        topic = dice.choice(TOPICS)
        if what == "put":
            queue = topic, dice.choice(QUEUES)
            texts = [f"{topic} {next(self.numbers)}" for _ in range(dice.randrange(1, 12))]
            put(self.store, *texts, topic=topic, queue_id=queue[1])
            self.living.setdefault(queue, []).extend(texts)
        elif what == "delete":
            self.store.delete_topic(topic)
            self.living = {
                queue: texts for queue, texts in self.living.items() if queue[0] != topic
            }
        elif what == "checkpoint":
            self.store.save_checkpoint()
        else:
            crash(self.store) if what == "kill" else self.store.shutdown()
            self.store = open_store(self.root)
        manifest = self.root / "config" / "manifest.json"
        if manifest.exists():
            self.older.append(manifest.read_bytes())

    def lose_manifest(self):
        forget_manifest(self.root)
        if self.older and self.dice.random() < 0.5:
            (self.root / "config" / "manifest.json").write_bytes(self.dice.choice(self.older))

    def hidden_fields(self, found):
        """Return the messages that should be served."""
        return {
            queue: texts
            for queue, texts in self.living.items()
            if [text for text in found[queue] if text in texts] != texts
        }


@pytest.mark.usefixtures("_dispatch")
def test_restart_after_random_history_serves_all_topics(tmp_path, dice, caplog):
    for number in range(STORIES):
        root = tmp_path / str(number)
        history = History(root, dice)
        for _ in range(dice.randrange(4, 20)):
            history.go_on()
        (crash if dice.random() < 0.3 else type(history.store).shutdown)(history.store)
        history.lose_manifest()
        again = open_store(root)
        found = contents(again)
        assert history.hidden_fields(found) == {}
        again.shutdown()
        assert_next_start_is_quiet(root, caplog, found)
        shutil.rmtree(root)


class QueueOfAnother:
    """A queue whose last entry leads to a record of another queue of its topic."""

    def __init__(self, record):
        self.record = record
        self.is_cleared = False

    def last_entry(self):
        return self.record

    def clear(self):
        self.is_cleared = True


@pytest.mark.parametrize("queue_id", [0, 1])
def test_end_of_a_deleted_topic_is_found_by_the_last_entrys_record(tmp_path, queue_id):
    store = open_store(tmp_path)
    put(store, *named("x", 5), queue_id=1)
    place = store.state().written_offset
    put(store, "last", queue_id=1)
    size = store.state().written_offset - place
    queue = QueueOfAnother((5, place, size))
    entries = ENTRY_STRUCT.pack(place + size, size, 0)
    made_again = RecreatedTopics(components_of(store).log, components_of(store).dispatcher)
    made_again.reset_queue("T", queue_id, queue, entries)
    assert queue.is_cleared == (queue_id == 1)
    assert made_again.topics == ({"T"} if queue_id == 1 else set())
    store.shutdown()
