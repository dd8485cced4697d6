"""The whole store, compared with a dict, over stops, crashes and deletions."""

import errno
import os
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.disks.faulty_disk import (
    Fault,
    FaultyDisk,
    ManualClock,
    RecordingDisk,
    materialise,
    power_loss_states,
)
from support.stores.small_store import (
    STORE_HOST,
    bodies,
    crash,
    expire_log_files,
    log_files,
    message,
    messages_of,
    open_store,
    put_batch,
    read_all,
    small_config,
)
from support.suite.log_records import lines_of

from rmq_spark.wire.chunk import encode_chunk
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.errors import ForeignFile, StoreInUse
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.message_store import MessageStore

STORIES = int(os.environ.get("ROCKETPOLL_STORIES", "40"))


def put(store, *texts, **more):
    for text in texts:
        store.put_message(message(text, **more))


def test_messages_survive_a_clean_stop(tmp_path):
    store = open_store(tmp_path)
    put(store, "one", "two", keys="k")
    store.shutdown()
    assert not (tmp_path / "abort").exists()
    again = open_store(tmp_path)
    assert bodies(again) == ["one", "two"]
    assert len(again.query_message("T", "k", 10, 0, 1 << 62)) == 2
    assert not again.state().recovered_from_crash
    assert again.put_message(message("three")).queue_offset == 2
    again.shutdown()


@pytest.mark.parametrize("end", [MessageStore.shutdown, crash], ids=["stop", "crash"])
def test_store_times_do_not_go_back_after_restart(tmp_path, end):
    for text, now_ms in (("before", 90_000), ("behind", 20_000), ("later", 100_000)):
        store = open_store(tmp_path, clock=ManualClock(now_ms))
        store.put_message(message(text))
        times = [each.store_timestamp for each in read_all(store, "T", 0)]
        end(store)
    assert times == [90_000, 90_000, 100_000]


def test_recovered_messages_survive_a_power_loss(tmp_path, dice):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    disk = RecordingDisk(LocalDisk(), first)
    store = open_store(first, disk, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    put(store, "one", "two", "x" * 3_000, "three")  # over two files, without a flush
    killed = disk.log()
    crash(store)
    materialise(killed.model().seen(), second)
    disk = RecordingDisk(LocalDisk(), second, killed)
    store = open_store(second, disk, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    seen = bodies(store)
    assert len(seen) == 4
    for state in power_loss_states(disk.log(), dice, 5, tmp_path):
        again = open_store(state)
        assert bodies(again) == seen
        again.shutdown()
    store.shutdown()


def test_second_store_on_the_same_directory_is_refused(tmp_path):
    store = open_store(tmp_path)
    put(store, "one")
    with pytest.raises(StoreInUse):
        open_store(tmp_path)
    put(store, "two")
    assert bodies(store) == ["one", "two"]
    store.shutdown()
    open_store(tmp_path).shutdown()


def test_store_files_of_other_sizes_are_refused_unchanged(tmp_path):
    store = open_store(tmp_path)
    put(store, "one")
    store.shutdown()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ForeignFile, match="start with the size that it was written with"):
        open_store(tmp_path, mapped_file_size_commit_log=8192)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: data for path, data in after.items() if "commitlog" in str(path)} == {
        path: data for path, data in before.items() if "commitlog" in str(path)
    }
    again = open_store(tmp_path)
    assert bodies(again) == ["one"]
    again.shutdown()


@pytest.mark.parametrize(
    ("size", "queues", "is_damaged"),
    [(79, 1, True), (199, 1, True), (80, 2, True), (320, 2, True), (80, 1, False), (320, 1, False)],
)
def test_queue_file_of_wrong_size_is_rebuilt(tmp_path, size, queues, is_damaged):
    """If a single file has a wrong size that is a multiple of entries, the setting may have
    changed."""
    store = open_store(tmp_path)
    for queue_id in range(queues):
        store.put_message(message("one", queue_id=queue_id))
    store.shutdown()
    path = tmp_path / "consumequeue" / "T" / "0" / f"{0:020}"
    path.write_bytes(path.read_bytes()[:size].ljust(size, b"\0"))
    if is_damaged:
        with pytest.raises(
            ForeignFile, match=f"{path} has {size} bytes .* it is damaged"
        ) as refused:
            open_store(tmp_path)
        assert f"delete {path.parent}," in str(refused.value)
    else:
        with pytest.raises(ForeignFile, match="start with the size that it was written with"):
            open_store(tmp_path)
    path.unlink()
    path.parent.rmdir()
    again = open_store(tmp_path)
    assert [bodies(again, queue_id=queue_id) for queue_id in range(queues)] == [["one"]] * queues
    again.shutdown()


def test_store_after_shutdown_refuses_messages(tmp_path):
    store = open_store(tmp_path)
    store.shutdown()
    assert store.put_message(message("x")).status.name == "SERVICE_NOT_AVAILABLE"


def test_deleted_topic_stays_deleted_after_a_rebuild_from_the_log(tmp_path):
    """The log still has its messages, which no consumer may get."""
    store = open_store(tmp_path)
    put(store, "old", "older", keys="k")
    put(store, "other", topic="U")
    store.delete_topic("T")
    assert store.queue_offsets("T", 0) == (0, 0)
    put(store, "new")
    assert bodies(store) == ["new"]
    store.shutdown()
    for lost in (["checkpoint"], ["consumequeue"], ["consumequeue", "index", "checkpoint"]):
        for name in lost:
            path = tmp_path / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        again = open_store(tmp_path)
        assert bodies(again) == ["new"]
        assert bodies(again, "U") == ["other"]
        again.shutdown()


class StoreMachine(RuleBasedStateMachine):
    """Compares a store with a dict of lists."""

    topics = st.sampled_from(["A", "B", "%RETRY%g"])
    queue_ids = st.integers(0, 2)
    texts = st.text("xyz", min_size=1, max_size=300)
    tags = st.sampled_from([None, "red", "AaAa", "BBBB"])

    @initialize(flush_disk_type=st.sampled_from(FlushDiskType))
    def start(self, flush_disk_type):
        self.root = Path(tempfile.mkdtemp(prefix="store-machine-"))
        self.clock = ManualClock()
        self.flush_disk_type = flush_disk_type
        self.model = defaultdict(list)
        self.first = defaultdict(int)
        self.numbers = iter(range(10**9))
        self.open()

    def open(self):
        config = small_config(self.root, flush_disk_type=self.flush_disk_type)
        self.store = MessageStore(config, LocalDisk(), self.clock)

    def stored(self, result):
        done = self.store.wait_until_stored(result)
        assert done.status.name == "PUT_OK", done
        self.store.reput()
        return done

    @rule(
        topic=topics,
        queue_id=queue_ids,
        text=texts,
        tags=tags,
        keys=st.sampled_from([None, "k", "k l"]),
    )
    def put_message(self, topic, queue_id, text, tags, keys):
        text = f"{next(self.numbers)} {text}"
        result = self.stored(self.store.put_message(message(text, topic, queue_id, tags, keys)))
        assert result.queue_offset == len(self.model[topic, queue_id])
        self.model[topic, queue_id].append((text, tags, keys))

    @rule(
        topic=topics, queue_id=queue_ids, batch=st.lists(texts, min_size=1, max_size=5), tags=tags
    )
    def put_batch(self, topic, queue_id, batch, tags):
        batch = [f"{next(self.numbers)} {text}" for text in batch]
        self.stored(
            put_batch(self.store, *(message(text, topic, queue_id, tags) for text in batch))
        )
        self.model[topic, queue_id] += [(text, tags, None) for text in batch]

    @rule(topic=topics, queue_id=queue_ids, count=st.integers(1, 60), tags=tags)
    def put_chunk(self, topic, queue_id, count, tags):
        texts = [f"{next(self.numbers)}" for _ in range(count)]
        chunk = encode_chunk(
            {
                "topic": topic,
                "queueId": queue_id,
                "body": [text.encode() for text in texts],
                "tags": [tags] * count,
                "storeHost": str(STORE_HOST),
            }
        )
        self.stored(self.store.put_chunk(bytes(chunk.data), chunk.sizes.tolist()))
        self.model[topic, queue_id] += [(text, tags, None) for text in texts]

    @rule(milliseconds=st.sampled_from([-86_400_000, -1, 1, 1000, 3_600_000]))
    def move_the_clock(self, milliseconds):
        self.clock.now_ms += milliseconds

    @rule()
    def restart(self):
        self.store.shutdown()
        self.open()

    @rule()
    def crash_and_restart(self):
        crash(self.store)
        self.open()
        assert self.store.state().recovered_from_crash
        assert self.store.state().holes == ()

    @rule()
    def checkpoint(self):
        self.store.save_checkpoint()

    @rule(topic=topics)
    def delete_topic(self, topic):
        self.store.delete_topic(topic)
        for key in [key for key in self.model if key[0] == topic]:
            del self.model[key]
            self.first.pop(key, None)

    @precondition(lambda self: len(log_files(self.store)) > 2)
    @rule()
    def expire(self):
        expire_log_files(self.store, int(log_files(self.store)[1].name))
        self.store.save_checkpoint()
        for key in self.model:
            self.first[key] = self.store.queue_offsets(*key).first

    @invariant()
    def queues_hold_what_the_dict_holds(self):
        for (topic, queue_id), expected in self.model.items():
            low, high = self.store.queue_offsets(topic, queue_id)
            assert high == len(expected) or (high == 0 and not expected)
            assert low >= self.first[topic, queue_id]
            found = read_all(self.store, topic, queue_id)
            assert [(each.body.decode(), each.tags, each.keys) for each in found] == expected[low:]
            assert [each.queue_offset for each in found] == list(range(low, high))
            times = [each.store_timestamp for each in found]
            assert times == sorted(times)

    @rule(topic=topics, key=st.sampled_from(["k", "l"]))
    def query(self, topic, key):
        expected = sorted(
            text
            for (name, queue_id), messages in self.model.items()
            for offset, (text, _, keys) in enumerate(messages)
            if name == topic and keys and key in keys.split()
            and offset >= self.store.queue_offsets(name, queue_id).first
        )  # fmt: skip
        records = self.store.query_message(topic, key, 64, 0, 1 << 62)
        found = {messages_of_one(record) for record in records}
        assert set(expected) <= found or len(expected) > 30

    def teardown(self):
        if hasattr(self, "store"):
            self.store.shutdown()
            shutil.rmtree(self.root)


def messages_of_one(record):
    class Result:
        buffers = (record,)

    return messages_of(Result)[0].body.decode()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=STORIES, stateful_step_count=25, deadline=None)


def test_queue_nums_lists_topics_with_messages(tmp_path):
    store = open_store(tmp_path)
    assert store.queue_nums() == {}
    for topic, queue_id in (("T", 2), ("T", 10), ("T", 9), ("U", 0)):
        store.put_message(message("a", topic=topic, queue_id=queue_id))
    assert store.queue_nums() == {"T": 11, "U": 1}
    store.delete_topic("T")
    assert store.queue_nums() == {"U": 1}
    store.shutdown()


@pytest.mark.parametrize("flush_disk_type", list(FlushDiskType))
def test_shutdown_that_cannot_flush_reports_it(tmp_path, flush_disk_type):
    disk = FaultyDisk(LocalDisk())
    settings = {"flush_disk_type": flush_disk_type, "flush_interval_commit_log_ms": 3_600_000}
    store = open_store(tmp_path, disk, **settings)
    end = store.put_message(message("taken")).end_offset
    disk.plan = [Fault(persistent=True, kinds=frozenset(["flush"]))]
    said = store.shutdown()
    assert f"flushing {tmp_path / 'commitlog'}" in said
    assert f"messages from 0 to {end} of the commit log may not be on the disk" in said


def test_shutdown_without_space_for_its_checkpoint_reports_it(tmp_path):
    disk = FaultyDisk()
    store = open_store(tmp_path, disk)
    store.put_message(message("taken"))
    disk.lack(errno.ENOSPC)
    assert "no checkpoint is taken: the disk is full" in store.shutdown()
    disk.lack(None)
    assert open_store(tmp_path, disk).shutdown() is None


def test_checkpoint_interrupted_by_shutdown_does_not_report_recovery(tmp_path, caplog):
    disk = FaultyDisk()
    store = open_store(tmp_path, disk)
    store.put_message(message("taken"))
    disk.lack(errno.ENOSPC)
    assert not store.save_checkpoint()
    store.stop_accepting("it is told to stop")
    assert not store.save_checkpoint()
    assert "no checkpoint is taken: the disk is full" in store.state().degradation
    assert not any(
        "resolved: no checkpoint" in line for line in lines_of(caplog, "rocketpoll.broker")
    )
    disk.lack(None)
    assert store.shutdown() is None
    assert any("resolved: no checkpoint" in line for line in lines_of(caplog, "rocketpoll.broker"))
