"""`dump` and `verify`: their output, and that neither changes a store."""

import dataclasses
import os
import shutil

import orjson
import pytest
from support.disks.faulty_disk import FaultyDisk, Refusal
from support.stores.small_store import LOG_FILE_BYTES, message, open_store, put_batch

from rmq_spark.wire.message.record import encode_record
from rmq_spark.wire.names import SCHEDULE_TOPIC
from rocketpoll.broker.store.errors import ForeignFile
from rocketpoll.broker.store.queues.consume_queue import ENTRY_BYTES
from rocketpoll.broker.store.tools import dump, stat, verify
from rocketpoll.broker.store.tools.inspection import StoreInspection


@pytest.fixture
def root(tmp_path):
    store = open_store(tmp_path / "store")
    for number in range(40):
        store.put_message(
            message(f"body {number} " + "x" * 100, queue_id=number % 2, tags="A", keys="k")
        )
    put_batch(store, message("b1", topic="U"), message("b2", topic="U"))
    store.shutdown()
    return tmp_path / "store"


def content(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def damage(root, position, data):
    path = root / "commitlog" / f"{position - position % LOG_FILE_BYTES:020d}"
    with path.open("r+b") as file:
        file.seek(position % LOG_FILE_BYTES)
        file.write(data)


def test_dump_command_shows_files_records_and_entries(root, capsys):
    before = content(root)
    assert dump.main([str(root), "--limit", "3"]) == 0
    text = capsys.readouterr().out
    assert "stopped in order" in text
    assert "file 00000000000000004096, 4096 bytes" in text
    assert "records: 42" in text
    assert "U/0@1" in text
    assert "tags=A keys=k" in text
    assert "queue T/1: 0 to 20" in text
    assert content(root) == before


def test_verify_command_passes_a_healthy_store(root, capsys):
    before = content(root)
    assert verify.main([str(root)]) == 0
    assert capsys.readouterr().out == "no faults found\n"
    assert content(root) == before


def test_inspection_skips_an_unreadable_first_page(root, capsys, monkeypatch):
    bad = FaultyDisk()
    bad.unreadable.append(Refusal("commitlog", 0))
    monkeypatch.setattr("rocketpoll.broker.store.tools.inspection.LocalDisk", lambda: bad)
    [(start, end)] = StoreInspection(root).recovered.holes
    assert start == 0
    assert verify.main([str(root)]) == 1
    assert f"{end} bytes from 0 on are not records" in capsys.readouterr().out
    assert dump.main([str(root)]) == 0
    assert f"HOLE 0 to {end}" in capsys.readouterr().out
    assert stat.figures(root)["holes"] == 1
    kept = sum(topic["messages"] for topic in stat.figures(root)["topics"])
    assert kept == len(list(StoreInspection(root).records())) > 10


def test_dump_and_verify_show_a_damaged_record_as_a_hole(root, capsys):
    (place, size, _), *_ = list(StoreInspection(root).records())[5:]
    damage(root, place + 100, b"\xff")
    assert verify.main([str(root)]) == 1
    assert f"commit log: {size} bytes from {place} on are not records" in capsys.readouterr().out
    assert dump.main([str(root)]) == 0
    assert f"HOLE {place} to {place + size}" in capsys.readouterr().out


def test_dump_and_verify_show_a_torn_tail(root, capsys):
    end = StoreInspection(root).recovered.end_offset
    damage(root, end + 3, b"torn")
    assert verify.main([str(root)]) == 1
    assert f"at {end + 3}, past the end" in capsys.readouterr().out
    dump.main([str(root)])
    assert f"TORN TAIL at {end + 3}" in capsys.readouterr().out


def test_verify_names_wrong_missing_and_surplus_entries(root, capsys):
    path = min((root / "consumequeue" / "T" / "0").iterdir())
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    shutil.rmtree(root / "consumequeue" / "U")
    assert verify.main([str(root)]) == 1
    text = capsys.readouterr().out
    assert "queue T/0: entry 0 is" in text
    assert "queue U/0: missing, with 2 entries" in text


def test_verify_accepts_messages_of_a_deleted_topic(tmp_path, capsys):
    root = tmp_path / "store"
    store = open_store(root)
    for topic in ("gone", "T"):
        for number in range(5):
            store.put_message(message(f"old {number}", topic))
        store.delete_topic(topic)
    store.put_message(message("new", "T"))
    store.shutdown()
    assert verify.main([str(root)]) == 0
    assert capsys.readouterr().out == "no faults found\n"
    (root / "config" / "manifest.json").write_bytes(b"{")
    before = content(root)
    assert verify.main([str(root)]) == 0, "the backup tells of them, too"
    assert content(root) == before


def as_rocketmq_leaves_it(root, *topics):
    """Return a store without recorded deletions, as RocketMQ leaves it; its table has
    these topics."""
    for path in (root / "checkpoint", *(root / "config").glob("manifest.json*")):
        path.unlink()
    table = {name: {"topicName": name} for name in topics}
    (root / "config" / "topics.json").write_bytes(orjson.dumps({"topicConfigTable": table}))


def test_verify_accepts_and_names_a_topic_deleted_by_rocketmq(tmp_path, capsys):
    root = tmp_path / "store"
    store = open_store(root)
    for number in range(5):
        store.put_message(message(number, "gone", number % 2))
        store.put_message(message(number, "T"))
    store.shutdown()
    shutil.rmtree(root / "consumequeue" / "gone")
    assert verify.main([str(root)]) == 1, "ours, which notes what it deletes"
    assert "queue gone/1: missing, with 2 entries" in capsys.readouterr().out
    as_rocketmq_leaves_it(root, "T")
    before = content(root)
    assert verify.main([str(root)]) == 0
    named, last = capsys.readouterr().out.splitlines()
    assert named.startswith("topic gone: deleted by RocketMQ; 5 messages are still in the log")
    assert last == "no faults found"
    assert content(root) == before
    again = open_store(root)
    assert again.queue_offsets("gone", 0) == (0, 3), "as was said"
    again.shutdown()


def test_verify_reports_missing_queue_of_an_existing_topic(tmp_path, capsys):
    root = tmp_path / "store"
    store = open_store(root)
    store.put_message(message("one", "T"))
    store.put_message(message("one", "U"))
    store.shutdown()
    shutil.rmtree(root / "consumequeue" / "T")
    as_rocketmq_leaves_it(root, "T", "U")
    assert verify.main([str(root)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "queue T/0: missing, with 1 entry; the next start rebuilds it",
        "1 fault",
    ]
    (root / "config" / "topics.json").unlink()
    assert verify.main([str(root)]) == 1, "nothing says that it was deleted"


def test_verify_accepts_topic_recreated_by_rocketmq(tmp_path, capsys):
    root = tmp_path / "store"
    store = open_store(root)
    for number in range(10):
        store.put_message(message(number, "T", number % 2))
    store.delete_topic("T")
    store.put_message(message("new", "T"))
    store.shutdown()
    as_rocketmq_leaves_it(root, "T")
    assert verify.main([str(root)]) == 0
    assert capsys.readouterr().out == "no faults found\n"


@pytest.mark.parametrize("tool", [dump, verify, stat])
@pytest.mark.parametrize(
    "place",
    ["commitlog/pipe", "consumequeue/pipe", "consumequeue/T/pipe", "consumequeue/T/0/pipe"],
)
def test_store_tools_name_a_fifo_and_do_not_block(root, tool, place, capsys):
    os.mkfifo(root / place)
    code = tool.main([str(root)])
    said = capsys.readouterr().err
    if tool is stat and not place.startswith("commitlog"):  # stat reads no queues
        assert (code, said) == (0, "")
    else:
        assert code == 1
        assert said.startswith(f"{root / place} is not a ")


def test_verify_accepts_expired_files(tmp_path, capsys):
    root = tmp_path / "store"
    store = open_store(root)
    for number in range(60):
        store.put_message(message(f"{number} " + "x" * 200))
    store.shutdown()
    first, *_ = sorted((root / "commitlog").iterdir())
    first.unlink()
    assert verify.main([str(root)]) == 0
    assert capsys.readouterr().out == "no faults found\n"


def test_verify_accepts_a_delayed_message_under_custom_delay_levels(tmp_path, capsys):
    root = tmp_path / "store"
    store = open_store(root, message_delay_level_ms=(70_000, 80_000))
    store.put_message(message("later", SCHEDULE_TOPIC, queue_id=1, DELAY="2"))
    store.shutdown()
    assert verify.main([str(root)]) == 0
    assert capsys.readouterr().out == "no faults found\n"


def test_dump_reads_a_crashed_store(root, capsys):
    (root / "abort").touch()
    assert dump.main([str(root)]) == 0
    assert "stopped by a crash, or still running" in capsys.readouterr().out


@pytest.mark.parametrize("sign", [b"", b"12345"])
def test_dump_and_verify_accept_records_of_a_killed_rocketmq(root, capsys, sign):
    """RocketMQ's records have no checksums, although the remaining checkpoint says that all do."""
    end = StoreInspection(root).recovered.end_offset
    theirs = encode_record(dataclasses.replace(message("theirs", topic="V"), physical_offset=end))
    damage(root, end, theirs)
    (root / "abort").write_bytes(sign)
    assert StoreInspection(root).recovered.end_offset == end + len(theirs)
    verify.main([str(root)])
    assert "commit log" not in capsys.readouterr().out
    dump.main([str(root)])
    text = capsys.readouterr().out
    assert "V/0@0" in text
    assert "checkpoint" not in text


def test_dump_and_verify_of_a_directory_without_a_store_fail(tmp_path, capsys):
    assert verify.main([str(tmp_path)]) == 1
    assert dump.main([str(tmp_path)]) == 1
    assert f"{tmp_path} has no commit log" in capsys.readouterr().err
    with pytest.raises(ForeignFile):
        StoreInspection(tmp_path)


def test_verify_names_missing_last_entries(root, capsys):
    path = max((root / "consumequeue" / "T" / "1").iterdir())
    data = path.read_bytes().rstrip(b"\0")
    last = (len(data) - 1) // ENTRY_BYTES * ENTRY_BYTES
    path.write_bytes(data[:last].ljust(path.stat().st_size, b"\0"))
    assert verify.main([str(root)]) == 1
    assert "queue T/1: 1 entry is missing, the first 19" in capsys.readouterr().out


def test_verify_counts_messages_of_a_deleted_topic_separately(tmp_path):
    store = open_store(tmp_path)
    for number in range(3):
        store.put_message(message(f"old {number}"))
    store.delete_topic("T")
    store.put_message(message("first of the next"))
    store.shutdown()
    found = stat.figures(tmp_path)
    assert found["deleted_messages"] == 3
    assert [(each["topic"], each["messages"]) for each in found["topics"]] == [("T", 1)]
