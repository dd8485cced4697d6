"""Queue offsets of rolled-back rows are distinguished from those of lost messages."""

import json
import os
import shutil

import pytest
from support.stores.small_store import crash, message, open_store, read_all
from support.stores.staged_batches import roll_back, roll_back_between

from rmq_spark.wire.message.record_layout import RECORD_BYTES_MIN
from rocketpoll.broker.store.queues.consume_queue import blank_entries
from rocketpoll.broker.store.queues.rolled_back_offsets import RolledBackOffsets, RolledBackRange
from rocketpoll.broker.store.results import PutMessageStatus
from rocketpoll.broker.store.tools.dump import dump_lines

KEY = ("T", 0)


def gap_of(store):
    """Return the offsets of the queue without messages."""
    there = {each.queue_offset for each in read_all(store, *KEY)}
    return set(range(store.queue_offsets(*KEY).next)) - there


def test_gap_of_a_rolled_back_batch_is_marked(tmp_path):
    store = open_store(tmp_path)
    roll_back_between(store)
    gap = gap_of(store)
    assert gap
    assert store.staged_batches.rolled_back_offsets(*KEY, 0, 1_000) == gap
    assert store.staged_batches.rolled_back_offsets(*KEY, min(gap) + 1, 1) == {min(gap) + 1}
    assert store.staged_batches.rolled_back_offsets("U", 0, 0, 1_000) == set()
    store.shutdown()
    assert [line.split()[1:3] for line in dump_lines(tmp_path, 20) if "code" in line].count(
        ["rolled", "back"]
    ) == len(gap)


@pytest.mark.parametrize("lost", [0, -1])
def test_rebuilt_queue_keeps_gap_of_rolled_back_rows(tmp_path, lost):
    store = open_store(tmp_path)
    roll_back_between(store)
    gap, messages = gap_of(store), read_all(store, *KEY)
    crash(store)
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "checkpoint").unlink(missing_ok=True)
    behind = [each for each in messages if each.queue_offset > max(gap)]
    before = [each for each in messages if each.queue_offset < min(gap)]
    damaged = (before[1:], behind[:-1])[lost][lost]  # next to the gap, before or after it
    damage(tmp_path, damaged)
    store = open_store(tmp_path)
    assert gap_of(store) == gap | {damaged.queue_offset}
    assert store.staged_batches.rolled_back_offsets(*KEY, 0, 1_000) == gap
    store.shutdown()


def test_reader_at_the_start_of_a_rolled_back_queue_has_lost_nothing(tmp_path):
    store = open_store(tmp_path)
    sent = roll_back_between(store, before=0)
    assert min(gap_of(store)) == 0
    assert store.queue_offsets(*KEY).first == 0
    assert [each.body.decode() for each in read_all(store, *KEY)] == sent
    crash(store)
    for directory in ("absent", "consumequeue"):
        shutil.rmtree(tmp_path / directory, ignore_errors=True)
        store = open_store(tmp_path)
        assert store.queue_offsets(*KEY).first == 0
        assert store.staged_batches.rolled_back_offsets(*KEY, 0, 1_000) == gap_of(store)
        store.shutdown()


def test_rolled_back_gap_is_marked_over_checkpoints_and_kills(tmp_path, monkeypatch):
    """Also between the rolled-back rows and the next message of their queue."""
    for name in ("RUN_RECORDS_MAX", "ONE_BY_ONE_MAX"):
        monkeypatch.setattr(f"rocketpoll.broker.store.dispatch.reput.{name}", 1)
    pieces, is_all = 0, False
    while not is_all:
        store = open_store(tmp_path / str(pieces), wake_reput=lambda: None)
        roll_back_between(store)
        for _ in range(pieces):
            is_all = store.reput(lambda: True)
        store.save_checkpoint()
        crash(store)
        store = open_store(tmp_path / str(pieces))
        gap = gap_of(store)
        assert gap
        assert store.staged_batches.rolled_back_offsets(*KEY, 0, 1_000) == gap
        store.shutdown()
        pieces += 1
    assert pieces > len(gap)


def damage(root, *messages):
    """Make the log lose messages."""
    for each in messages:
        place = each.physical_offset
        files = [path for path in (root / "commitlog").iterdir() if int(path.name) <= place]
        with max(files).open("r+b") as log:
            os.pwrite(log.fileno(), bytes(4), place - int(max(files).name))


def lose(root, *messages):
    """Make a stopped store lose messages and queues; return it started."""
    damage(root, *messages)
    shutil.rmtree(root / "consumequeue")
    return open_store(root)


def put(store, *texts):
    for text in texts:
        assert store.put_message(message(text, *KEY)).status is PutMessageStatus.PUT_OK


def test_reused_rolled_back_offsets_count_as_lost_if_their_messages_are(tmp_path):
    store = open_store(tmp_path)
    roll_back(store)
    put(store, "1", "2", "3", "4")
    messages = read_all(store, *KEY)
    assert [each.queue_offset for each in messages] == list(range(5))
    store.shutdown()
    store = lose(tmp_path, messages[2])
    assert gap_of(store) == {2}
    assert store.staged_batches.rolled_back_offsets(*KEY, 0, 1_000) == set()
    store.shutdown()


@pytest.mark.parametrize("lost", [slice(1, 2), slice(1, 4)])
def test_rolled_back_offsets_that_may_be_reused_count_as_lost(tmp_path, lost):
    store = open_store(tmp_path)
    roll_back(store)
    put(store, "1", "2", "3", "4")
    messages = read_all(store, *KEY)
    store.shutdown()
    store = lose(tmp_path, *messages[lost])
    assert gap_of(store) == set(range(5)[lost])
    assert store.staged_batches.rolled_back_offsets(*KEY, 0, 1_000) == set()
    store.shutdown()


@pytest.mark.parametrize("is_said", [True, False])
def test_rolled_back_rows_of_a_deleted_topic_do_not_affect_the_recreated_one(tmp_path, is_said):
    store = open_store(tmp_path)
    roll_back(store)
    store.save_checkpoint()
    store.delete_topic("T")
    put(store, "0", "1", "2")
    messages = read_all(store, *KEY)
    assert [each.queue_offset for each in messages] == [0, 1, 2]
    store.shutdown()
    if not is_said:
        for name in ("manifest.json", "manifest.json.bak"):
            (tmp_path / "config" / name).unlink()
        (tmp_path / "checkpoint").unlink()
    store = lose(tmp_path, messages[1])
    assert gap_of(store) == {1}
    assert store.staged_batches.rolled_back_offsets(*KEY, 0, 1_000) == set()
    store.shutdown()


def test_full_log_check_at_start_forgets_rolled_back_rows_that_queues_have_passed(tmp_path):
    store = open_store(tmp_path)
    roll_back_between(store)
    store.shutdown()
    store = open_store(tmp_path)
    store.shutdown()
    manifest = json.loads((tmp_path / "config" / "manifest.json").read_bytes())
    assert manifest["takenBack"] == {}


def rows(start, stop, first, last=None):
    return RolledBackRange(range(start, stop), first, first if last is None else last)


def test_rolled_back_rows_are_forgotten_with_the_next_message_of_their_queue():
    rolled_back = RolledBackOffsets()
    for each in (rows(3, 4, 10), rows(7, 9, 100, 110), rows(9, 10, 120), rows(20, 21, 300)):
        for _ in range(2):
            rolled_back.add(KEY, each)
    assert rolled_back.gaps_before(KEY, 21, 400, ()) == [range(3, 4), range(7, 10), range(20, 21)]
    assert rolled_back.gaps_before(KEY, 10, 200, ()) == [range(3, 4), range(7, 10)]
    rolled_back.discard(KEY, 9, 115)  # the message at 115 has offset 8; the row after it stays
    assert rolled_back.gaps_before(KEY, 21, 400, ()) == [range(9, 10), range(20, 21)]
    noted = rolled_back.to_manifest(250)
    assert noted == {"T": (0, 9, 10, 100, 120)}
    rolled_back.discard_topic("T", 200)
    assert rolled_back.gaps_before(KEY, 21, 400, ()) == [range(20, 21)]
    rolled_back.discard(KEY, 21, 400)
    rolled_back.discard(("U", 0), 21, 400)
    assert rolled_back.gaps_before(KEY, 21, 400, ()) == []
    rolled_back.restore(noted, 120)
    assert rolled_back.to_manifest(999) == {}
    rolled_back.restore(noted, 121)
    assert rolled_back.to_manifest(999) == noted


def test_reused_rolled_back_offsets_are_forgotten():
    rolled_back = RolledBackOffsets()
    rolled_back.add(KEY, rows(5, 8, 100, 110))
    rolled_back.discard(KEY, 6, 200)  # 6 and 7 come next: if they are missing, they are lost
    assert rolled_back.gaps_before(KEY, 8, 400, ()) == []
    assert rolled_back.to_manifest(999) == {}


def test_rolled_back_rows_before_a_large_hole_do_not_count():
    rolled_back = RolledBackOffsets()
    rolled_back.add(KEY, rows(5, 8, 1_000, 1_200))
    room = RECORD_BYTES_MIN * 4  # space for 5 to 8, which 9 follows
    for size, counts in ((room - 1, True), (room, False)):
        hole = 2_000, 2_000 + size
        assert bool(rolled_back.gaps_before(KEY, 9, 9_000, [hole])) is counts
        assert rolled_back.gaps_before(KEY, 9, 1_500, [hole])
        assert rolled_back.gaps_before(KEY, 9, 9_000, [(100, 900)])


def test_blank_entries_cover_each_offset_of_a_gap():
    lost, rolled_back = (
        blank_entries(range(1), 4_096),
        blank_entries(range(1), 4_096, [range(1)]),
    )
    assert lost != rolled_back
    ranges = [range(2), range(4, 6), range(5, 7), range(9, 30)]
    assert blank_entries(range(1, 11), 4_096, ranges) == b"".join(
        rolled_back if each in {1, 4, 5, 6, 9, 10} else lost for each in range(1, 11)
    )
