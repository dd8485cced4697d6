"""Offsets in a local file: Java's format, backups, and power failures while they are saved."""

import multiprocessing
import os
import signal
from enum import Enum
from pathlib import Path

import pytest
from support.brokers.broker_kinds import wait_until

from rmq_spark.client.consumer.offsets.local_offset_store import LocalFileOffsetStore, offset_file
from rmq_spark.client.consumer.queues.queue_identity import LastMessage
from rmq_spark.client.errors import OffsetFileDamaged
from rmq_spark.wire.message_queue import MessageQueue
from rocketpoll import ConsumeFromWhere, EmbeddedBroker, MessageModel, PushConsumer, PushSettings

QUEUE, OTHER = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)

# Java's format: indented, with objects as keys.
OF_JAVA = b"""{
	"offsetTable":{{
			"brokerName":"broker-a",
			"queueId":0,
			"topic":"T"
		}:12,{
			"brokerName":"broker-a",
			"queueId":1,
			"topic":"T"
		}:0
	}
}"""


@pytest.fixture
def path(tmp_path):
    return offset_file("10.0.0.1@DEFAULT", "G", tmp_path)


def opened(path):
    store = LocalFileOffsetStore(lambda: path)
    store.load()
    return store


def written(path, **offsets):
    store = opened(path)
    for number, offset in offsets.items():
        store.update_offset(QUEUE if number == "first" else OTHER, offset, increase_only=False)
    store.persist_all([])
    return store


class Groups(str, Enum):
    BILLING = "billing"


def broadcast(broker, group, directory):
    """Return the messages of a consumer in BROADCASTING mode until there are no more."""
    bodies = []
    settings = PushSettings(
        message_model=MessageModel.BROADCASTING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        local_offset_directory=directory,
    )

    def listen(messages, _):
        bodies.extend(message.body for message in messages)

    with PushConsumer(group, broker.address, listener=listen, settings=settings) as consumer:
        consumer.subscribe("T")
        wait_until("the last message", lambda: b"last" in bodies)
    return bodies


def test_local_offset_file_of_an_enum_group_has_its_plain_name(tmp_path):
    with EmbeddedBroker() as broker:
        broker.create_topic("T", queues=1)
        for group in (Groups.BILLING, "billing", Groups.BILLING):
            broker.send("T", "last")
            assert broadcast(broker, group, tmp_path) == [b"last"]
    [file] = tmp_path.rglob("offsets.json")
    assert file.parent.name == "billing"


def test_local_offset_file_path_equals_that_of_java(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert offset_file("10.0.0.1@DEFAULT", "G") == (
        tmp_path / ".rocketmq_offsets" / "10.0.0.1@DEFAULT" / "G" / "offsets.json"
    )


def test_missing_local_offset_file_means_no_offsets(path):
    assert opened(path).offsets("T") == {}
    assert opened(path).stored_offset(QUEUE) is None


def test_local_offset_store_reads_files_written_by_java(path):
    path.parent.mkdir(parents=True)
    path.write_bytes(OF_JAVA)
    assert opened(path).offsets("T") == {QUEUE: 12, OTHER: 0}


def test_local_offset_store_writes_files_that_java_reads(path):
    written(path, first=12, second=0)
    assert opened(path).offsets("T") == {QUEUE: 12, OTHER: 0}
    assert path.read_bytes() == b"".join(OF_JAVA.split())


LAST = LastMessage(
    queue_offset=11,
    store_timestamp=1_700_000_000_000,
    commit_log_offset=4_711,
    message_id="0A000001",
    born_timestamp=1_699_999_999_999,
    body_crc=2**32 - 1,
)


def test_last_message_of_a_queue_is_stored_with_its_offset(path):
    store = opened(path)
    store.update_offset(QUEUE, 12, increase_only=False)
    store.last_messages[QUEUE] = LAST
    store.persist_all([])
    again = opened(path)
    assert (again.last_messages.get(QUEUE), again.last_messages.get(OTHER)) == (LAST, None)
    again.persist(OTHER, 3)
    assert opened(path).last_messages.get(QUEUE) == LAST


def test_local_offset_file_rewritten_by_java_has_no_last_messages(path):
    store = opened(path)
    store.last_messages[QUEUE] = LAST
    store.persist(QUEUE, 12)
    path.write_bytes(OF_JAVA)
    assert opened(path).last_messages.get(QUEUE) is None


def test_local_offset_of_a_removed_queue_is_kept_in_the_file(path):
    store = written(path, first=12)
    store.remove_offset(QUEUE)
    store.persist(OTHER, 3)
    assert opened(path).offsets("T") == {QUEUE: 12, OTHER: 3}


def test_read_offset_falls_back_to_the_store(path):
    store = opened(path)
    written(path, first=12)
    assert store.known_offset(QUEUE) is None
    assert store.read_offset(QUEUE) == 12


def test_unchanged_local_offsets_are_not_written(path):
    store = written(path, first=12)
    before = path.stat().st_ino
    store.persist_all([])
    assert path.stat().st_ino == before


@pytest.mark.parametrize(
    "damage", [b"", b'{"offsetTable":{{"brok', b"\0" * 80], ids=["empty", "torn", "zeros"]
)
def test_damaged_local_offset_file_is_replaced_by_its_backup(path, damage, caplog):
    written(path, first=12)
    written(path, first=13)
    path.write_bytes(damage)
    assert opened(path).offsets("T") == {QUEUE: 12}
    assert "using its backup" in caplog.text


def test_two_damaged_offset_files_raise_with_advice(path):
    written(path, first=12)
    written(path, first=13)
    for each in path.parent.iterdir():
        each.write_bytes(b"")
    with pytest.raises(OffsetFileDamaged, match="Repair one of them, or delete both"):
        opened(path)


def _write_and_read(path, offsets, faults):
    try:
        for offset in offsets:
            store = opened(path)
            store.persist(QUEUE, offset)
            store.persist(OTHER, offset << 40)  # longer numbers than the others
    except Exception as error:  # the test raises it
        faults.put(repr(error))
    faults.put(None)


def test_concurrent_processes_keep_the_local_offset_file_intact(path):
    spawn = multiprocessing.get_context("spawn")
    faults = spawn.Queue()
    writers = [
        spawn.Process(target=_write_and_read, args=(path, range(each, 200 + each), faults))
        for each in range(3)
    ]
    for writer in writers:
        writer.start()
    said = [faults.get(timeout=120) for _ in writers]
    for writer in writers:
        writer.join()
    assert said == [None] * 3
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "offsets.json",
        "offsets.json.bak",
    ]


def _stand_still_while_writing(path, begun):
    def stand_still(_):
        begun.set()
        signal.pause()

    os.fsync = stand_still
    opened(path).persist(QUEUE, 1)


def test_temporary_file_of_a_killed_writer_is_removed_at_start(path):
    written(path, first=12)
    spawn = multiprocessing.get_context("spawn")
    begun = spawn.Event()
    writer = spawn.Process(target=_stand_still_while_writing, args=(path, begun))
    writer.start()
    assert begun.wait(120)
    [new] = path.parent.glob("*.tmp")
    others = [path.with_name(name) for name in ("offsets.json.tmp", "offsets.json.old", "my.tmp")]
    for each in others:
        each.touch()
    written(path, first=13)
    assert new.exists()  # its writer is still running
    writer.kill()
    writer.join()
    assert opened(path).offsets("T") == {QUEUE: 13}
    assert not new.exists()
    assert all(each.exists() for each in others)


class PowerCut(Exception):
    pass


@pytest.mark.parametrize("calls", range(5))
def test_power_failure_during_offset_save_leaves_old_or_new_offsets(path, monkeypatch, calls):
    store = written(path, first=12)
    left = calls

    def cut(real):
        def call(*arguments, **more):
            nonlocal left
            if left == 0:
                raise PowerCut
            left -= 1
            return real(*arguments, **more)

        return call

    store.update_offset(QUEUE, 13, increase_only=True)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", cut(os.fsync))
        patched.setattr(Path, "replace", cut(Path.replace))
        try:
            store.persist_all([])
        except PowerCut:
            assert calls < 4
        else:
            assert calls == 4
    assert opened(path).offsets("T")[QUEUE] == (12 if calls < 3 else 13)
    store.persist_all([])
    assert opened(path).offsets("T") == {QUEUE: 13}
