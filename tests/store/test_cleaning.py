"""A clean writes the checkpoint before it applies `retention`, and logs a full disk."""

import itertools
import os
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.disks.faulty_disk import FaultyDisk, Refusal, usage_of_large_disk
from support.stores.small_store import (
    LOG_FILE_BYTES,
    bodies,
    checkpointer_of,
    components_of,
    crash,
    expire_log_files,
    message,
    open_store,
)
from support.suite.log_records import lines_of

from rocketpoll.broker.store.config import BrokerRole
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.maintenance.cleaner import Cleaner


class Disk(FaultyDisk):
    """A disk with a settable usage."""

    used = 50

    def usage(self, path):  # noqa: ARG002  # signature of the protocol
        return usage_of_large_disk(self.used / 100)


@pytest.fixture
def room(tmp_path):
    disk = Disk(LocalDisk())
    store = open_store(tmp_path, disk)
    for number in range(200):
        store.put_message(message(f"body {number}"))
    room = SimpleNamespace(disk=disk, store=store, saved=0)

    def save_checkpoint():
        room.saved += 1
        return store.save_checkpoint()

    room.cleaning = Cleaner(
        components_of(store),
        checkpointer_of(store),
        lambda: 0,
        save_checkpoint,
        store._stored_ms,
    )
    yield room
    store.shutdown()


def test_cleaning_does_nothing_without_expired_files_or_disk_pressure(room):
    assert (room.cleaning.clean(), room.saved, room.cleaning.refusal_reason) == (0, 0, None)


def test_cleaning_saves_a_checkpoint_before_and_after_deletion(room):
    room.disk.used = 95
    assert room.cleaning.clean() > 0
    assert room.saved == 2
    assert checkpointer_of(room.store).expired_offset == room.store.state().min_offset > 0


def test_cleaning_reports_full_disk_and_recovery(room):
    room.disk.used = 95
    room.cleaning.clean()
    assert "the disk is 95% full" in room.cleaning.refusal_reason
    room.disk.used = 50
    room.cleaning.clean()
    assert room.cleaning.refusal_reason is None


def test_cleaning_of_a_slave_reports_no_full_disk(room, monkeypatch):
    monkeypatch.setattr(
        room.cleaning,
        "config",
        SimpleNamespace(**{**vars(room.cleaning.config), "broker_role": BrokerRole.SLAVE}),
    )
    room.disk.used = 95
    room.cleaning.clean()
    assert room.cleaning.refusal_reason is None


class FillingDisk(FaultyDisk):
    """A disk with free space until it is full."""

    used = 50

    def usage(self, path):  # noqa: ARG002  # signature of the protocol
        return usage_of_large_disk(self.used / 100)


def files_of(root):
    """Return the numbers of files of the log, the index and each queue."""
    directories = [root / "commitlog", root / "index", *(root / "consumequeue/T").iterdir()]
    return {path.name: len(list(path.iterdir())) for path in directories}


@pytest.mark.parametrize("whole", [0, 1 << 20])
def test_cleaning_keeps_the_files_of_an_unreadable_queue_only(tmp_path, whole, caplog):
    disk = FillingDisk()
    store = open_store(tmp_path, disk, check_whole_log_bytes=whole, max_index_num=20)
    for number in range(240):
        store.put_message(message(f"body {number}", queue_id=number % 2, keys="k"))
    assert store.save_checkpoint()
    before = files_of(tmp_path)
    disk.unreadable = [Refusal("1")]
    disk.used = 95
    assert store.clean() > 0
    after = files_of(tmp_path)
    assert after["1"] == before["1"]
    assert {name for name in after if after[name] < before[name] // 2} == {
        "commitlog",
        "index",
        "0",
    }
    assert sum("cannot be read" in text for text in caplog.messages) == 1
    assert bodies(store)[-1] == "body 238"
    store.shutdown()
    caplog.clear()
    disk.unreadable.clear()
    disk.used = 50
    store = open_store(tmp_path, disk, check_whole_log_bytes=whole, max_index_num=20)
    assert lines_of(caplog, "rocketpoll.broker.store") == []
    assert [bodies(store, queue_id=number)[-1] for number in (0, 1)] == ["body 238", "body 239"]
    assert store.queue_offsets("T", 1).first > 0
    assert store.save_checkpoint()
    store.clean()
    assert files_of(tmp_path)["1"] < before["1"] // 2
    store.shutdown()


def test_cleaning_moves_a_queue_start_once_the_queue_is_readable_again(tmp_path, caplog):
    disk = FillingDisk()
    store = open_store(tmp_path, disk)
    for number in range(240):
        store.put_message(message(f"body {number}", queue_id=number % 2))
    disk.unreadable = [Refusal("1")]
    disk.used = 95
    assert store.clean() > 0
    store.clean()
    assert store.queue_offsets("T", 1).first == 0
    assert sum("cannot be read" in text for text in caplog.messages) == 1
    disk.unreadable.clear()
    saved = (tmp_path / "config" / "manifest.json").read_bytes()
    store.clean()
    first = store.queue_offsets("T", 1).first
    assert bodies(store, queue_id=1)[0] == f"body {2 * first + 1}"
    assert not checkpointer_of(store).keeps_expired
    assert (tmp_path / "config" / "manifest.json").read_bytes() != saved
    assert first > 0
    store.shutdown()


def with_messages(root):
    store = open_store(root)
    for number in range(200):
        store.put_message(message(f"body {number}"))
    return store


@pytest.mark.parametrize("looked_at_bytes", [0, 1 << 20])
def test_checkpoint_during_a_killed_clean_leaves_the_remaining_queue_entries(
    tmp_path, looked_at_bytes
):
    store = with_messages(tmp_path)
    # the state in the middle of a clean
    components_of(store).log.files.delete_before(3 * LOG_FILE_BYTES)
    store.save_checkpoint()
    crash(store)
    again = open_store(tmp_path, check_whole_log_bytes=looked_at_bytes)
    first = again.queue_offsets("T", 0).first
    assert first > 0
    assert bodies(again)[0] == f"body {first}"
    again.shutdown()


def test_expire_entries_offers_none_of_a_deleted_topics_records(tmp_path):
    """The log still has them, because its files expire later."""
    store = with_messages(tmp_path)
    place = store.put_message(message("body 200")).physical_offset
    store.put_message(message("body 201"))
    bodies(store)
    components_of(store).dispatcher.deleted_topics = {"T": place}
    checkpointer_of(store).expire_entries()
    assert store.state().min_offset < place
    assert store.queue_offsets("T", 0).first == 200
    assert bodies(store) == ["body 200", "body 201"]
    store.shutdown()


def test_queue_files_expire_only_up_to_the_saved_checkpoint(tmp_path):
    store = with_messages(tmp_path)
    for files, is_noted in [(2, True), (4, False)]:
        expire_log_files(store, files * LOG_FILE_BYTES)
        if is_noted:
            store.save_checkpoint()
    checkpointer_of(store).delete_expired()
    crash(store)
    disk = FaultyDisk(LocalDisk())
    again = open_store(tmp_path, disk)
    deleted = [each.path for each in disk.operations if each.kind == "delete"]
    assert [path for path in deleted if "consumequeue" in path.parts] == []  # none is created again
    assert bodies(again)[0] == f"body {again.queue_offsets('T', 0).first}"
    again.shutdown()


class NearlyFullDisk(LocalDisk):
    """A disk that is 95 % full."""

    def usage(self, path):  # noqa: ARG002  # signature of the protocol
        return usage_of_large_disk(0.95)


def test_store_started_on_a_nearly_full_disk_refuses_messages_at_once(tmp_path):
    """Otherwise short programs could send before the first clean, and long ones not."""
    store = open_store(tmp_path, NearlyFullDisk())
    assert store.unavailable_reason() == "the disk is 95% full, over 90%"
    store.shutdown()
    store = open_store(tmp_path, NearlyFullDisk(), disk_space_warning_level_ratio=0.96)
    assert store.unavailable_reason() is None
    store.shutdown()


def test_delete_expired_keeps_queue_files_of_a_topic_recreated_after_the_checkpoint(tmp_path):
    """The checkpoint has expired entries of the deleted topic of that name."""
    store = with_messages(tmp_path)
    expire_log_files(store, 3 * LOG_FILE_BYTES)
    store.save_checkpoint()
    assert store.queue_offsets("T", 0).first > 16
    store.delete_topic("T")
    new = [f"new {number}" for number in range(40)]
    for text in new:
        store.put_message(message(text))
    checkpointer_of(store).delete_expired()
    assert bodies(store) == new
    crash(store)
    again = open_store(tmp_path)
    assert bodies(again) == new
    again.shutdown()


class ExpiryMachine(RuleBasedStateMachine):
    """Random cleans and checkpoints, while topics are deleted and recreated.

    Each queue offers every message whose record the log still has.
    """

    queues = st.sampled_from([("T", 0), ("T", 1), ("U", 0)])

    @initialize()
    def start(self):
        self.root = Path(tempfile.mkdtemp(prefix="expiry-machine-"))
        self.store = open_store(self.root)
        self.numbers = itertools.count()
        self.model = defaultdict(list)  # queue -> texts and positions of the records

    @rule(queue=queues, count=st.sampled_from([1, 9, 30]))
    def put(self, queue, count):
        for _ in range(count):
            text = f"{next(self.numbers)}".ljust(100)
            stored = self.store.put_message(message(text, *queue))
            self.model[queue].append((text, stored.physical_offset))

    @rule()
    def files_of_the_log_expire(self):
        noted_offset = checkpointer_of(self.store).saved_offset  # as in a clean
        components_of(self.store).log.files.delete_before(noted_offset)

    @rule()
    def entries_expire(self):
        checkpointer_of(self.store).expire_entries()

    @rule()
    def save_checkpoint(self):
        self.store.save_checkpoint()

    @rule()
    def files_of_queues_are_deleted(self):
        checkpointer_of(self.store).delete_expired()

    @rule()
    def clean_up_to_the_files_of_queues(self):
        self.save_checkpoint()
        self.files_of_the_log_expire()
        self.entries_expire()
        self.save_checkpoint()

    @rule(topic=st.sampled_from(["T", "T", "U"]))
    def delete_topic(self, topic):
        self.store.delete_topic(topic)
        for queue in [queue for queue in self.model if queue[0] == topic]:
            del self.model[queue]

    @rule(queue=queues)
    def recreate_topic(self, queue):
        self.delete_topic(queue[0])
        self.put(queue, 30)

    @rule(is_killed=st.booleans())
    def restart(self, is_killed):
        if is_killed:
            crash(self.store)
        else:
            self.store.shutdown()
        self.store = open_store(self.root)

    @invariant()
    def each_queue_offers_what_the_log_has(self):
        log_min_offset = self.store.state().min_offset
        for queue, messages in self.model.items():
            first, end = self.store.queue_offsets(*queue)
            kept = sum(place >= log_min_offset for _, place in messages)
            assert end == len(messages)
            assert first <= end - kept
            texts = [text for text, _ in messages]
            if kept:
                assert bodies(self.store, *queue)[-kept:] == texts[-kept:]

    def teardown(self):
        if hasattr(self, "store"):
            self.store.shutdown()
            shutil.rmtree(self.root)


ExpiryMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("ROCKETPOLL_STORIES", "25")), stateful_step_count=25
)
TestExpiryMachine = ExpiryMachine.TestCase
