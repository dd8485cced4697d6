"""Past bugs of RocketMQ that no other test file of the store covers."""

import dataclasses

import pytest
from support.stores.small_store import bodies, crash, message, open_store, read_all

from rmq_spark.wire.message.record import encode_record
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.log.checkpoint_file import Checkpoint, load_checkpoint, save_checkpoint
from rocketpoll.broker.store.maintenance.checkpointer import Checkpointer
from rocketpoll.broker.store.startup.directory_lock import OUR_SIGN


def test_r11_the_checkpoint_never_runs_ahead_of_the_queues(tmp_path):
    store = open_store(tmp_path, wake_reput=lambda: None)
    store.put_message(message("not dispatched"))
    store.save_checkpoint()
    assert load_checkpoint(LocalDisk(), tmp_path / "checkpoint").safe_offset == 0
    crash(store)
    again = open_store(tmp_path)
    assert bodies(again) == ["not dispatched"]
    again.shutdown()


@pytest.mark.parametrize("sign", [b"", b"12345"])
def test_records_of_a_rocketmq_broker_that_was_killed_are_kept(tmp_path, sign):
    """Records without checksums must not count as a torn tail."""
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
    """RocketMQ's checkpoint has another mark for "all records have checksums"; its checksums differ
    from ours."""
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
    """An abort file of ours must not remain together with a checkpoint that does not cover their
    records."""
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
