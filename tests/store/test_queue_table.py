"""Queues of topics as files and directories."""

import random

import numpy as np
import pytest
from support.disks.faulty_disk import RecordingDisk, power_loss_states

from rocketpoll.broker.store.errors import EndUnknown, ForeignFile
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.file_pool import FilePool
from rocketpoll.broker.store.queues.consume_queue import ENTRY
from rocketpoll.broker.store.queues.queue_table import QueueTable, RecoveredEnds, end_unknown_error
from rocketpoll.broker.store.records.fields import topic_fault

ENTRIES = np.array([(0, 100, 0)], ENTRY)


@pytest.fixture
def table(tmp_path):
    return QueueTable(FilePool(LocalDisk()), tmp_path / "consumequeue", 160)


def reopened(tmp_path):
    table = QueueTable(FilePool(LocalDisk()), tmp_path / "consumequeue", 160)
    table.load()
    return table


def test_queues_are_made_when_they_get_their_first_entry(table, tmp_path):
    assert table.get("T", 0) is None
    table.get_or_create("T", 0)
    assert not (tmp_path / "consumequeue").exists()
    table.get_or_create("T", 0).append(0, ENTRIES)
    assert (tmp_path / "consumequeue" / "T" / "0" / ("0" * 20)).is_file()
    assert table.get("T", 0) is table.get_or_create("T", 0)


def test_queue_table_finds_its_queues_after_reopening(table, tmp_path):
    for topic, queue_id in (("B", 1), ("A", 10), ("A", 2), ("%RETRY%g", 0)):
        table.get_or_create(topic, queue_id).append(0, ENTRIES)
    found = [(topic, queue_id) for topic, queue_id, _ in reopened(tmp_path)]
    assert found == [("%RETRY%g", 0), ("A", 2), ("A", 10), ("B", 1)]


def test_topic_moved_away_takes_its_queue_files_along(table, tmp_path):
    for topic, queue_id in (("A", 0), ("A", 1), ("B", 0)):
        table.get_or_create(topic, queue_id).append(0, ENTRIES)
    table.move_away("A")
    assert table.get("A", 0) is None
    assert not (tmp_path / "consumequeue" / "A").exists()
    table.move_away("never was")
    assert len(table.deleted_topic_files) == 1
    table.deleted_topic_files.delete_some()
    assert len(table.deleted_topic_files) == 0
    assert [topic for topic, _, _ in table] == ["B"]
    assert [path.name for path in (tmp_path / "consumequeue").iterdir()] == ["B"]
    table.get_or_create("A", 0).append(0, ENTRIES)
    assert [topic for topic, _, _ in reopened(tmp_path)] == ["A", "B"]


HOSTILE = [
    "",
    ".",
    "..",
    "../../x",
    "a/b",
    "a\\b",
    "a b",
    "a\0b",
    "é",
    "a" * 256,
    "a\n",
    "~",
    "$(x)",
    "%2e/",
]


@pytest.mark.parametrize("topic", HOSTILE)
def test_hostile_topic_name_never_becomes_a_path(table, tmp_path, topic):
    assert topic_fault(topic) is not None
    with pytest.raises(ForeignFile, match="topic"):
        table.get_or_create(topic, 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("topic", ["T", "%RETRY%g", "%DLQ%g", "a-b_c|d", "0", "x" * 255])
def test_queue_table_accepts_topic_names_that_rocketmq_allows(topic):
    assert topic_fault(topic) is None


def test_directory_in_place_of_a_queue_file_is_named_with_advice(table, tmp_path):
    queue = tmp_path / "consumequeue" / "T" / "0"
    (queue / ("0" * 20)).mkdir(parents=True)
    with pytest.raises(ForeignFile, match="is a directory") as refused:
        reopened(tmp_path)
    assert f"{queue / ('0' * 20)} is a directory" in str(refused.value)
    assert f"leave the broker stopped, delete {queue}, and start" in str(refused.value)


def test_queue_files_of_another_size_are_refused_with_advice(table, tmp_path):
    table.get_or_create("T", 0).append(0, ENTRIES)
    larger = QueueTable(FilePool(LocalDisk()), tmp_path / "consumequeue", 320)
    with pytest.raises(ForeignFile, match="set to files of 320: start with the size") as refused:
        larger.load()
    text = str(refused.value)
    assert (
        f"rebuild all queues from the log, leave the broker stopped, delete {table._directory},"
        in text
    )
    assert "truncate" not in text  # the entries would be in files named for other offsets


@pytest.mark.parametrize("path", ["T/zero", "a b/0", "T/-1"])
def test_foreign_directories_are_named_and_left_alone(table, tmp_path, path):
    (tmp_path / "consumequeue" / path).mkdir(parents=True)
    with pytest.raises(ForeignFile, match="is not a consume queue"):
        reopened(tmp_path)
    assert (tmp_path / "consumequeue" / path).is_dir()


def test_first_flush_of_a_topic_makes_its_directory_durable(tmp_path):
    tmp_path.with_name("lost").mkdir()
    disk = RecordingDisk(LocalDisk(), tmp_path)
    table = QueueTable(FilePool(disk), tmp_path / "consumequeue", 160)
    disk.make_directory(tmp_path / "consumequeue")
    disk.flush_directory(tmp_path)
    for topic in ("T", "U"):
        table.get_or_create(topic, 0).append(0, ENTRIES)
        table.flush()
        for state in power_loss_states(disk.log(), random.Random(1), 3, tmp_path.with_name("lost")):
            assert (state / "consumequeue" / topic / "0").is_dir()


# ---- ends of queues that recovery has found


class Reput:
    carried = 0


@pytest.fixture
def reput():
    return Reput()


@pytest.fixture
def found(reput):
    return RecoveredEnds(lambda: reput.carried)


def test_lower_bound_is_zero_before_and_after_the_recovery(found, reput):
    assert found.lower_bound("T", 0) == 0
    found.start(100, {("T", 0): 7})
    reput.carried = 100
    found.finish()
    reput.carried = 50  # a deleted topic: later messages are dispatched again
    assert found.lower_bound("T", 0) == 0


def test_lower_bound_is_infinite_until_the_log_is_dispatched(found, reput):
    found.start(100, {})
    for reput.carried in (0, 99):
        assert found.lower_bound("T", 0) > 1 << 62
        assert found.lower_bound("Any", 3) > 1 << 62


def test_lower_bound_is_the_recovered_end_after_dispatch(found, reput):
    found.start(100, {("T", 1): 7})
    reput.carried = 100
    assert found.lower_bound("T", 1) == 7
    assert found.lower_bound("T", 0) == 0


def test_end_unknown_error_names_the_queue_and_the_reason():
    assert isinstance(end_unknown_error("T", 3, None), EndUnknown)
    assert "the end of queue 3 of T is not known yet" in str(end_unknown_error("T", 3, None))
    assert str(end_unknown_error("T", 3, "the disk is full: /x")).endswith(": the disk is full: /x")
