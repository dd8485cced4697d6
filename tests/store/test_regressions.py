"""Regressions: past bugs of RocketMQ that no other test file of the store covers."""

import dataclasses
import threading

import pytest
from support.disks.faulty_disk import ManualClock
from support.stores.small_store import bodies, crash, message, open_store, read_all

from rmq_spark.wire.record import encode_record
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.log.checkpoint_file import Checkpoint, load_checkpoint, save_checkpoint
from rocketpoll.broker.store.maintenance.checkpointer import Checkpointer
from rocketpoll.broker.store.startup.directory_lock import OUR_SIGN


def test_r9_messages_that_were_written_but_not_dispatched_are_not_skipped_after_a_crash(tmp_path):
    store = open_store(tmp_path)
    store.put_message(message("dispatched"))
    store._wake_reput = lambda: None
    store.put_message(message("only written"))
    assert bodies(store) == ["dispatched"]
    crash(store)
    again = open_store(tmp_path)
    assert bodies(again) == ["dispatched", "only written"]
    again.shutdown()


def test_r11_the_checkpoint_never_runs_ahead_of_the_queues(tmp_path):
    store = open_store(tmp_path)
    store._wake_reput = lambda: None
    store.put_message(message("not dispatched"))
    store.save_checkpoint()
    assert load_checkpoint(LocalDisk(), tmp_path / "checkpoint").safe_offset == 0
    crash(store)
    again = open_store(tmp_path)
    assert bodies(again) == ["not dispatched"]
    again.shutdown()


@pytest.mark.parametrize("flush_disk_type", FlushDiskType)
def test_r16_topics_are_deleted_and_recreated_during_concurrent_writes(tmp_path, flush_disk_type):
    store = open_store(tmp_path, flush_disk_type=flush_disk_type)
    faults = []

    def write(writer):
        try:
            for number in range(150):
                sent = message(f"{writer} {number}", topic=f"T{number % 3}", queue_id=writer)
                put = store.put_message(sent)
                if store.wait_until_stored(put).status.name != "PUT_OK":
                    faults.append(put)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for topic in ("T0", "T1"):
            store.delete_topic(topic)
    for thread in threads:
        thread.join()
    assert faults == []
    for writer in range(3):
        assert bodies(store, "T2", writer) == [f"{writer} {number}" for number in range(2, 150, 3)]
    store.shutdown()
    open_store(tmp_path).shutdown()


@pytest.mark.parametrize("jump", [-86_400_000, -1000, 3_600_000, 315_360_000_000])
def test_r31_a_clock_that_jumps_neither_stops_a_start_nor_disorders_times(tmp_path, jump):
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    store.put_message(message("before", keys="k"))
    clock.now_ms += jump
    store.put_message(message("after", keys="k"))
    crash(store)
    again = open_store(tmp_path, clock=clock)
    clock.now_ms -= jump
    again.put_message(message("back", keys="k"))
    assert bodies(again) == ["before", "after", "back"]
    stamps = [again.earliest_timestamp("T", 0)]
    stamps += [each[1] for each in [("", again.put_message(message("x")).store_timestamp)]]
    assert stamps == sorted(stamps)
    assert again.offset_by_time("T", 0, 0) == 0
    assert len(again.query_message("T", "k", 10, 0, 1 << 62)) == 3
    again.shutdown()


@pytest.mark.parametrize("sign", [b"", b"12345"])
def test_records_of_a_rocketmq_broker_that_was_killed_are_kept(tmp_path, sign):
    """They have no checksums; that must not make them a torn tail of ours."""
    store = open_store(tmp_path)
    store.put_message(message("ours"))
    end = store.state().written_offset
    store.shutdown()
    theirs = dataclasses.replace(
        message("theirs"), queue_offset=1, physical_offset=end, store_timestamp=1_700_000_000_001
    )
    with (tmp_path / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(end)
        file.write(encode_record(theirs))
    (tmp_path / "abort").write_bytes(sign)
    again = open_store(tmp_path)
    assert bodies(again) == ["ours", "theirs"]
    again.put_message(message("ours again"))
    again.shutdown()
    last = open_store(tmp_path)
    assert bodies(last) == ["ours", "theirs", "ours again"]
    last.shutdown()


@pytest.mark.parametrize("killed", [False, True])
def test_store_with_checksums_as_properties_is_opened_whole(tmp_path, killed):
    """Its checkpoint has another mark, and says that all records have checksums: none to us."""
    open_store(tmp_path).shutdown()
    log, sent = b"", []
    for number in range(5):
        each = message(f"{number}", a="1", **{"__CRC32#": "0987654321"})
        place = {
            "queue_offset": number,
            "physical_offset": len(log),
            "store_timestamp": 1_700_000_000_000,
        }
        sent.append(dataclasses.replace(each, **place))
        log += encode_record(sent[-1])
    (tmp_path / "commitlog" / ("0" * 20)).write_bytes(log.ljust(4096, b"\0"))
    save_checkpoint(LocalDisk(), tmp_path / "checkpoint", Checkpoint(len(log), 1_700_000_000_000))
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes().replace(b"rkp2", b"rkp1"))
    if killed:
        (tmp_path / "abort").write_bytes(OUR_SIGN)
    again = open_store(tmp_path)
    assert again.state().holes == ()
    assert [each.properties for each in read_all(again, "T", 0)] == [
        each.properties for each in sent
    ]
    again.put_message(message("of today"))
    again.shutdown()
    last = open_store(tmp_path)
    assert bodies(last) == [*"01234", "of today"]
    last.shutdown()


def test_interrupted_start_over_a_killed_rocketmq_store_loses_no_record(tmp_path, monkeypatch):
    """Our sign must not stand beside a checkpoint that knows nothing of their records."""
    open_store(tmp_path).shutdown()
    theirs = dataclasses.replace(message("theirs"), store_timestamp=1_700_000_000_001)
    (tmp_path / "commitlog" / ("0" * 20)).write_bytes(encode_record(theirs).ljust(4096, b"\0"))
    (tmp_path / "abort").write_bytes(b"")
    with monkeypatch.context() as broken:
        broken.setattr(Checkpointer, "save", _ends_here)
        with pytest.raises(KeyboardInterrupt):
            open_store(tmp_path)
    again = open_store(tmp_path)
    assert bodies(again) == ["theirs"]
    again.shutdown()


def _ends_here(_):
    raise KeyboardInterrupt
