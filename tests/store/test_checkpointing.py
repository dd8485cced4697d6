"""Checkpoints hold after a power loss, whatever happened before, during and after them.

Stories delete and recreate topics, expire log files, write checkpoints and reopen stores; then the
power fails at any moment and takes pages of any file with it, also of a queue.
"""

import os
import random
import shutil

import pytest
from support.disks.faulty_disk import RecordingDisk, power_loss_states
from support.stores.small_store import (
    bodies,
    components_of,
    crash,
    expire_log_files,
    log_files,
    message,
    open_store,
)
from support.suite.selection import spread

from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.queues.consume_queue import ENTRY_BYTES

STORIES = int(os.environ.get("ROCKETPOLL_POWER_LOSSES", "120")) // 10
SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
MANY_ENTRIES = {"mapped_file_size_consume_queue": ENTRY_BYTES * 10_000}
LARGE_LOG = {"mapped_file_size_commit_log": 1 << 20}


def put(store, *texts, topic="T", queue_id=0):
    for text in texts:
        stored = store.wait_until_stored(store.put_message(message(text, topic, queue_id)))
        assert stored.status.name == "PUT_OK"
    return stored


def test_power_loss_during_a_store_checkpoint_loses_nothing_it_states(tmp_path, dice):
    """Everything that the checkpoint states must be durable before it is written."""
    root = tmp_path / "told"
    root.mkdir()
    disk = RecordingDisk(LocalDisk(), root)
    store = open_store(root, disk, **SYNC)
    texts = [f"{number}" for number in range(12)]
    for half in (texts[:6], texts[6:]):
        for text in half:
            store.wait_until_stored(store.put_message(message(text, keys=text)))
        begun = len(disk.operations)
        store.save_checkpoint()
        for moment in range(begun, len(disk.operations) + 1):
            for state in power_loss_states(disk.log(moment), dice, 3, tmp_path):
                again = open_store(state, **SYNC)
                assert bodies(again) == texts[: texts.index(half[-1]) + 1]
                assert all(len(again.query_message("T", text, 2, 0, 1 << 60)) == 1 for text in half)
                again.shutdown()
    store.shutdown()


def test_power_loss_during_a_queue_rebuild_at_start_loses_nothing(tmp_path, dice):
    """The previous checkpoint describes the old files, not the rebuilt ones."""
    root = tmp_path / "told"
    root.mkdir()
    store = open_store(root, **SYNC)
    texts = [f"{number}" for number in range(6)]
    for topic in "TU":
        put(store, *texts, topic=topic)
    store.shutdown()
    shutil.rmtree(root / "consumequeue" / "U")
    disk = RecordingDisk(LocalDisk(), root)
    store = open_store(root, disk, **SYNC)
    put(store, "new")
    crash(store)
    for moment in range(len(disk.operations) + 1):
        for state in power_loss_states(disk.log(moment), dice, 3, tmp_path):
            again = open_store(state, **SYNC)
            assert bodies(again)[:6] == texts
            assert bodies(again, "U") == texts
            again.shutdown()


def test_queue_offsets_are_not_reused_when_expired_queues_are_rebuilt(tmp_path):
    store = open_store(tmp_path)
    put(store, "old")
    put(store, *("y" * 500 for _ in range(20)), topic="U")
    expire_log_files(store, int(log_files(store)[-1].name))
    store.shutdown()
    shutil.rmtree(tmp_path / "consumequeue" / "U")
    for number in (1, 2):
        again = open_store(tmp_path)
        assert again.queue_offsets("T", 0).next == number
        assert again.put_message(message("new")).queue_offset == number
        crash(again)


def test_key_query_after_a_lost_log_end_finds_new_messages(tmp_path):
    """The index may have reached the disk before the end of the log."""
    store = open_store(tmp_path, **LARGE_LOG)
    end = put(store, "kept").end_offset
    store.save_checkpoint()
    for key in ("lost 1", "lost 2"):
        store.put_message(message(key, keys=key.replace(" ", "")))
    assert store.query_message("T", "lost2", 1, 0, 1 << 60)
    components_of(store).index.flush()
    crash(store)
    path = tmp_path / "commitlog" / ("0" * 20)
    path.write_bytes(path.read_bytes()[:end].ljust(1 << 20, b"\0"))
    again = open_store(tmp_path, **LARGE_LOG)
    again.put_message(message("new", keys="new"))
    assert len(again.query_message("T", "new", 1, 0, 1 << 60)) == 1
    assert again.query_message("T", "lost1", 1, 0, 1 << 60) == []
    again.shutdown()


class Story:
    """The operations on a store, and when it acknowledged each message; times are numbers of
    operations."""

    def __init__(self, root, dice):
        self.disk = RecordingDisk(LocalDisk(), root)
        self._root, self._dice = root, dice
        self._settings = {
            **SYNC,
            **dice.choice([{}, MANY_ENTRIES]),
            **dice.choice([{}, {"mapped_file_size_commit_log": 1 << 14}]),
        }
        self._store = self.open(root, self.disk)
        self._number = 0
        self.moments = []
        """Times with much concurrent activity."""
        self.kept = {}
        """By queue: text, position in the log, and time of the acknowledgement."""
        self.deleted = {}
        """By deleted topic: the log position at which a new one begins, and begin and end of the
        deletion."""

    def open(self, root, disk=None):
        return open_store(root, disk, **self._settings)

    def tell(self, steps):
        acts = {
            self._put: 3,
            self._put_many: 1,
            self._delete: 1,
            self._expire: 1,
            self._checkpoint: 1,
            self._restart_queue: 1,
            self._begin_anew: 4,
        }
        for _ in range(steps):
            self._dice.choices(list(acts), list(acts.values()))[0]()
        self._store.shutdown()

    def _put(self, topic=None, queue_id=None, size=None):
        dice = self._dice
        queue = topic or dice.choice("TTU"), dice.randrange(2) if queue_id is None else queue_id
        self._number += 1
        text = f"{self._number} " + "x" * (size or dice.choice([1, 30, 900]))
        result = put(self._store, text, topic=queue[0], queue_id=queue[1])
        self.kept.setdefault(queue, []).append((text, result.physical_offset, self.now()))

    def _put_many(self, topic="U", count=60):
        for _ in range(count):
            self._put(topic, 0, 1)
        self.moments.append(self.now())

    def _begin_anew(self):
        """Give a queue that lost its first messages some new ones, and many more after a
        checkpoint."""
        topic = self._dice.choice("TU")
        self._dice.choice([lambda: self._delete(topic), self._expire])()
        self._put(topic, 0)
        self._checkpoint()
        self._put_many(topic, self._dice.choice([60, 300, 600]))

    def _delete(self, topic=None):
        topic = topic or self._dice.choice("TU")
        begin, place = self.now(), self._store.state().written_offset
        self._store.delete_topic(topic)
        self.deleted.setdefault(topic, []).append((place, begin, self.now()))

    def _expire(self):
        files = log_files(self._store)
        if len(files) > 2:
            expire_log_files(self._store, int(files[self._dice.randrange(1, len(files))].name))
            if self._dice.random() < 0.7:  # otherwise a crash could come between the two
                self._store.save_checkpoint()

    def _checkpoint(self):
        self._store.save_checkpoint()

    def _restart_queue(self):
        if self._dice.random() < 0.5:
            self._store.shutdown()
        else:
            crash(self._store)
        self._store = self.open(self._root, self.disk)

    def now(self):
        return len(self.disk.operations)

    def check(self, store, moment):
        """Check that all messages acknowledged until then exist, unless they were deleted or have
        expired."""
        first = store.state().min_offset
        assert store.state().holes == ()
        for (topic, queue_id), messages in self.kept.items():
            deletions = self.deleted.get(topic, [])
            certain = max((place for place, _, end in deletions if end <= moment), default=0)
            possible = max((place for place, begin, _ in deletions if begin <= moment), default=0)
            found = bodies(store, topic, queue_id)
            due = [
                text
                for text, place, at in messages
                if at <= moment and place >= max(first, possible)
            ]
            allowed = [text for text, place, _ in messages if place >= certain]
            are_due, are_found = set(due), set(found)
            assert [text for text in found if text in are_due] == due, (
                f"{topic} {queue_id} has lost some"
            )
            assert [text for text in allowed if text in are_found] == found, (
                f"{topic} {queue_id}: order"
            )


@pytest.mark.parametrize("number", spread(4, range(STORIES)))
def test_power_loss_after_random_operations_loses_nothing(tmp_path, dice, number):
    dice = random.Random(f"{dice.random()} {number}")
    root = tmp_path / "told"
    root.mkdir()
    story = Story(root, dice)
    story.tell(6)
    moments = dice.sample(story.moments, min(3, len(story.moments)))
    for moment in [*moments, dice.randint(0, story.now())]:
        for state in power_loss_states(story.disk.log(moment), dice, 8, tmp_path):
            for _ in range(2):
                again = story.open(state)
                story.check(again, moment)
                put(again, "after", topic="After")
                again.shutdown()
    shutil.rmtree(root)
