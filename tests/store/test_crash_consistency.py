"""The store's promises about crashes, checked over many crashes; `make crash` runs more.

Each promise is a function that runs a story and raises AssertionError if the promise is broken. The
last test breaks the store on purpose, in five ways, and requires the matching promise to fail.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from support.disks.faulty_disk import (
    Fault,
    FaultIn,
    FaultyDisk,
    RecordingDisk,
    materialise,
    power_loss_states,
)
from support.disks.power_loss import states
from support.stores.small_store import (
    STORE_HOST,
    bodies,
    components_of,
    crash,
    encoded,
    message,
    open_store,
    put_batch,
    put_later,
    read_all,
)

from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk import encode_chunk
from rmq_spark.wire.message.record import decode_record
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.errors import StoreError
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.mapped_file_queue import MappedFileQueue
from rocketpoll.broker.store.log.recovery import LogRecovery
from rocketpoll.broker.store.message_store import MessageStore
from rocketpoll.broker.store.startup.directory_lock import OUR_SIGN

POWER_LOSSES = int(os.environ.get("ROCKETPOLL_POWER_LOSSES", "120"))
SECOND_POWER_LOSSES = POWER_LOSSES // 3
FLIPPED_BITS = int(os.environ.get("ROCKETPOLL_FLIPPED_BITS", "120"))
LOST_FILES = int(os.environ.get("ROCKETPOLL_LOST_FILES", "60"))
FAILURES = int(os.environ.get("ROCKETPOLL_FAILURES", "75"))

SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}


@dataclass
class Story:
    """The messages put into a store, and the operation at which each was acknowledged."""

    store: MessageStore
    now: callable = lambda: 0
    sent: dict = field(default_factory=lambda: defaultdict(list))
    acknowledged: list = field(default_factory=list)
    numbers: count = field(default_factory=count)

    def note(self, topic, queue_id, texts, result):
        self.sent[topic, queue_id] += texts
        if self.store.wait_until_stored(result).status.name == "PUT_OK":
            stored = texts[
                : result.message_count
            ]  # the second part of a chunk in two files may have failed
            self.acknowledged += [(self.now(), topic, queue_id, text) for text in stored]

    def put(self, topic="T", queue_id=0, size=20):
        text = f"{next(self.numbers)} " + "x" * size
        result = self.store.put_message(message(text, topic, queue_id, tags="A", keys="k"))
        self.note(topic, queue_id, [text], result)

    def put_batch(self, topic="T", queue_id=1):
        texts = [f"{next(self.numbers)} batch" for _ in range(4)]
        self.note(
            topic,
            queue_id,
            texts,
            put_batch(self.store, *(message(t, topic, queue_id) for t in texts)),
        )

    def put_turn(self, count=5):
        """Put messages that are written together."""
        texts = []
        for number in range(count):
            text, queue = f"{next(self.numbers)} turn " + "x" * (number * 70), ("T", number % 2)
            (fault,) = put_later(self.store, message(text, *queue, tags="A", keys="k"))
            if fault is None:
                texts.append((*queue, [text]))
            else:
                self.note(*queue, [text], fault)
        for noted, result in zip(texts, self.store.write_buffered(), strict=True):
            self.note(*noted, result)

    def put_chunk(self, topic="U", queue_id=0):
        texts = [f"{next(self.numbers)} chunk" for _ in range(20)]
        bodies = [text.encode() for text in texts]
        columns = {
            "topic": topic,
            "queueId": queue_id,
            "body": bodies,
            "storeHost": str(STORE_HOST),
        }
        chunk = encode_chunk(columns)
        self.note(
            topic, queue_id, texts, self.store.put_chunk(bytes(chunk.data), chunk.sizes.tolist())
        )

    def tell(self):
        """Run every kind of operation, over several log files."""
        self.put()
        self.put_batch()
        self.put(size=900)
        self.put_chunk()
        self.store.save_checkpoint()
        self.put("%RETRY%g", 2)
        self.put(size=1500)
        self.put_batch()
        self.put_turn()
        self.put_chunk()
        self.put(size=2500)
        self.put_turn(12)
        self.put()


def check_nothing_acknowledged_is_lost(store, story, point):
    """Check that all messages acknowledged until then exist, that all others were sent, and the
    order."""
    for (topic, queue_id), sent in story.sent.items():
        found = bodies(store, topic, queue_id)
        known = [
            text
            for at, *queue, text in story.acknowledged
            if at <= point and queue == [topic, queue_id]
        ]
        assert set(known) <= set(found), (
            f"{topic} {queue_id}: {sorted(set(known) - set(found))} lost"
        )
        assert found == [text for text in sent if text in set(found)], "order or invention"
        offsets = [each.queue_offset for each in read_all(store, topic, queue_id)]
        assert offsets == sorted(set(offsets)), "doubles"
        # A power loss may take an earlier unacknowledged message and leave a later one.
        assert offsets[: len(known)] == list(range(len(known))), "holes"


# ---- power loss


def told(tmp_path, disk_of=RecordingDisk):
    """Run the scenario; return it and the recording disk."""
    root = tmp_path / "told"
    root.mkdir()
    disk = disk_of(LocalDisk(), root)
    store = open_store(root, disk, **SYNC)
    story = Story(store, now=lambda: len(disk.operations))
    story.tell()
    store.shutdown()
    return story, disk


def check_power_losses(tmp_path, dice, states, disk_of=RecordingDisk):
    """Check power losses that drop any unflushed writes, in any order."""
    story, disk = told(tmp_path, disk_of)
    points = range(len(disk.operations) + 1)
    for _ in range(max(states // 4, 1)):
        point = dice.choice(points)
        for state in power_loss_states(disk.log(point), dice, 4, tmp_path):
            with open_after_crash(state) as again:
                check_nothing_acknowledged_is_lost(again, story, point)
                again.wait_until_stored(again.put_message(message("after")))
            with open_after_crash(state) as again:
                assert bodies(again)[-1] == "after"


class open_after_crash:  # noqa: N801  # lower case, because it is called like a function
    def __init__(self, root):
        self.store = open_store(root, **SYNC)

    def __enter__(self):
        return self.store

    def __exit__(self, *_):
        self.store.shutdown()


def test_power_loss_takes_no_acknowledged_message(tmp_path, dice):
    check_power_losses(tmp_path, dice, POWER_LOSSES)


def disk_after_a_crash(log, dice, tmp_path):
    """Return a disk after a power loss, or after a kill, which keeps unflushed writes."""
    is_kill = dice.random() < 0.5
    root = Path(tempfile.mkdtemp(prefix="crashed-", dir=tmp_path))
    materialise(log.model().seen() if is_kill else next(states(log.model(), dice, 1)), root)
    return RecordingDisk(LocalDisk(), root, log if is_kill else None)


def check_second_power_losses(tmp_path, dice, count):
    """Check a second power loss during the recovery from a crash, or soon after."""
    story, disk = told(tmp_path)
    for _ in range(max(count // 9, 1)):
        point = dice.randint(0, len(disk.operations))
        again = disk_after_a_crash(disk.log(point), dice, tmp_path)
        begun = len(again.operations)
        store = open_store(again.root, again, **SYNC)
        recovered, seen = (
            len(again.operations),
            {queue: bodies(store, *queue) for queue in story.sent},
        )
        store.wait_until_stored(store.put_message(message("again", "V")))
        for second_point in (
            recovered,
            *dice.choices(range(begun, len(again.operations) + 1), k=2),
        ):
            for state in power_loss_states(again.log(second_point), dice, 3, tmp_path):
                with open_after_crash(state) as last:
                    found = {queue: bodies(last, *queue) for queue in story.sent}
                    check_nothing_acknowledged_is_lost(last, story, point)
                    for queue, texts in seen.items() if second_point >= recovered else ():
                        assert found[queue][: len(texts)] == texts, f"seen in {queue}, and gone"
        crash(store)
        shutil.rmtree(again.root)


def test_power_loss_takes_no_parent_directory_of_the_store(tmp_path, dice):
    """A start that created the directories may have been killed before it ended."""
    for killed_after in (None, *range(0, 40, 3)):
        root = Path(tempfile.mkdtemp(prefix="killed-", dir=tmp_path))
        disk = RecordingDisk(LocalDisk(), root)
        store_root = root / "var" / "lib" / "store"
        if killed_after is not None:
            open_store(store_root, disk, **SYNC).shutdown()
            log = disk.log(killed_after)
            shutil.rmtree(root / "var")
            materialise(log.model().seen(), root)
            disk = RecordingDisk(LocalDisk(), root, log)
        store = open_store(store_root, disk, **SYNC)
        store.wait_until_stored(store.put_message(message("kept")))
        for state in power_loss_states(disk.log(), dice, 4, tmp_path):
            with open_after_crash(state / "var" / "lib" / "store") as again:
                assert bodies(again) == ["kept"]
        crash(store)


def test_power_loss_soon_after_another_crash_takes_no_acknowledged_or_seen_message(tmp_path, dice):
    check_second_power_losses(tmp_path, dice, SECOND_POWER_LOSSES)


def test_power_loss_takes_no_message_that_was_visible_to_consumers(tmp_path, dice):
    """R18: the offsets that were visible still exist afterwards."""
    root = tmp_path / "told"
    root.mkdir()
    disk = RecordingDisk(LocalDisk(), root)
    store = open_store(root, disk, **SYNC)
    seen = []
    for number in range(12):
        store.put_message(message(number))
        if number % 3 == 2:
            store.flush_future(store.state().written_offset).result(10)
        seen.append((len(disk.operations), store.queue_offsets("T", 0).next))
    crash_log = disk.log()
    for point, visible in seen:
        for state in power_loss_states(disk.log(point), dice, 3, tmp_path):
            with open_after_crash(state) as again:
                assert again.queue_offsets("T", 0).next >= visible
    assert crash_log is not None
    store.shutdown()


# ---- failing disks


def run_on_failing_disk(root, plan):
    """Run the scenario on a failing disk; return the acknowledged messages and the number of
    operations."""
    disk = FaultyDisk(LocalDisk(), plan)
    story = None
    with suppress(OSError, StoreError):
        store = open_store(root, disk, **SYNC)
        story = Story(store)
        try:
            story.tell()
        finally:
            failed = store.state().failure
            if failed:
                before = len(story.acknowledged)
                story.put()
                assert len(story.acknowledged) == before, "acknowledged after the disk had failed"
                assert bodies(store) is not None
            with suppress(OSError, StoreError):
                store.shutdown()
            store._close_files()
    return story, len(disk.operations)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("prefix", [0, 40])
def test_disk_failing_at_any_operation_loses_no_acknowledged_message(
    tmp_path, dice, persistent, prefix
):
    """R17: a failed flush never counts as a successful one, then or later."""
    _, operations = run_on_failing_disk(tmp_path / "whole", ())
    numbers = dice.sample(range(operations), min(FAILURES // 4, operations))
    for number in numbers:
        root = tmp_path / f"{number}"
        story, _ = run_on_failing_disk(root, (Fault(number, persistent=persistent, prefix=prefix),))
        again = open_store(root, **SYNC)
        if story is not None:
            check_nothing_acknowledged_is_lost(again, story, 1)
        again.wait_until_stored(again.put_message(message("after")))
        assert bodies(again)[-1] == "after"
        again.shutdown()
        shutil.rmtree(root)


def test_data_of_a_failed_flush_found_at_start_survives_power_loss(tmp_path, dice):
    """The data is in the page cache and counts as clean, so no later flush would write it."""
    root, faulty = tmp_path / "disk" / "store", FaultyDisk(LocalDisk())
    root.parent.mkdir()
    disk = RecordingDisk(faulty, root.parent)
    store = open_store(root, disk, **SYNC)
    Story(store).put()
    faulty.plan = (FaultIn(persistent=True, kinds={"flush"}, directory="commitlog"),)
    put_later(store, message("written, and not flushed"))
    (result,) = store.write_buffered()
    assert store.wait_until_stored(result).status.name != "PUT_OK"
    crash(store)
    faulty.plan = ()
    again = open_store(root, disk, **SYNC)
    seen = bodies(again)
    assert seen[-1] == "written, and not flushed"
    log = disk.log()
    crash(again)
    for left in power_loss_states(log, dice, POWER_LOSSES // 12, tmp_path):
        last = open_store(left / "store", **SYNC)
        assert bodies(last) == seen
        last.shutdown()


def test_full_disk_refuses_sends_and_recovers_without_a_restart(tmp_path, dice):
    """G4: reads continue, sends are refused, and writes resume without a restart."""
    disk = FaultyDisk(LocalDisk())
    store = open_store(tmp_path / "store", disk, **SYNC)
    story = Story(store)
    for _ in range(20):
        disk.plan = ()
        for _ in range(dice.randint(1, 4)):
            story.put(size=dice.randint(1, 900))
        before = len(story.acknowledged)
        prefix = dice.choice([0, 50, 300])
        disk.plan = (
            Fault(0, persistent=True, kinds={"write", "create"}, error=errno.ENOSPC, prefix=prefix),
        )
        refused = [store.put_message(message("refused " + "x" * 200))]
        for number in range(3):
            put_later(store, message(f"refused {number}" + "x" * 200))
        refused += store.write_buffered()
        assert [each.status.name for each in refused] == ["SERVICE_NOT_AVAILABLE"] * 4
        assert all("full" in each.remark for each in refused)
        assert len(bodies(store)) == before
        assert store.state().failure is None
    disk.plan = ()
    story.put()
    store.shutdown()
    again = open_store(tmp_path / "store", **SYNC)
    check_nothing_acknowledged_is_lost(again, story, 1)
    again.shutdown()


# ---- missing files and flipped bits


def tell_quietly(root):
    store = open_store(root)
    story = Story(store)
    story.tell()
    store.shutdown()
    return story


def tables_of(store):
    """Return every entry of every queue, and the messages that the index finds."""
    queues = {
        (topic, queue_id): queue.entries(queue.min_offset, 10**6).tolist()
        for topic, queue_id, queue in components_of(store).queues
        if queue.max_offset > queue.min_offset
    }
    return queues, [bytes(record) for record in store.query_message("T", "k", 64, 0, 1 << 62)]


@pytest.mark.parametrize("after_a_crash", [False, True])
def test_queue_and_index_files_that_are_missing_or_empty_are_made_again(
    tmp_path, dice, after_a_crash
):
    """R12, R13: any of these files; rebuilt files equal those of a new store."""
    origin = tmp_path / "origin"
    tell_quietly(origin)
    reference = tmp_path / "reference"
    shutil.copytree(origin, reference)
    for name in ("consumequeue", "index", "checkpoint"):
        path = reference / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    store = open_store(reference)
    expected = tables_of(store)
    store.shutdown()
    files = [path.relative_to(origin) for path in origin.rglob("*") if path.is_file()]
    derived = [path for path in files if path.parts[0] in ("consumequeue", "index")]
    assert len(derived) > 6
    for _ in range(LOST_FILES // 2):
        root = tmp_path / "damaged"
        shutil.copytree(origin, root)
        for path in dice.sample(derived, dice.randint(1, len(derived))):
            if dice.random() < 0.5:
                (root / path).unlink()
            else:
                (root / path).write_bytes(b"")
        if after_a_crash:
            (root / "abort").write_bytes(OUR_SIGN)
        try:
            store = open_store(root)
        except StoreError as error:
            # Missing files before a gap, and truncated files in the middle, are named.
            assert "lacks the file" in str(error) or "has 0 bytes" in str(error)
        else:
            assert tables_of(store) == expected
            store.shutdown()
        shutil.rmtree(root)


def check_flipped_bits(tmp_path, dice, bits):
    """Check that every flipped bit of the log is detected, and costs at most one message."""
    origin = tmp_path / "origin"
    story = tell_quietly(origin)
    store = open_store(origin)
    whole = {key: read_all(store, *key) for key in story.sent}
    end = store.state().written_offset
    store.shutdown()
    for _ in range(bits):
        root = tmp_path / "flipped"
        shutil.copytree(origin, root)
        position = dice.randrange(end)
        path = root / "commitlog" / f"{position - position % 4096:020d}"
        data = bytearray(path.read_bytes())
        data[position % 4096] ^= 1 << dice.randrange(8)
        path.write_bytes(data)
        store = open_store(root)
        hit = [
            each
            for messages in whole.values()
            for each in messages
            if each.physical_offset <= position < each.physical_offset + len(encoded(each))
        ]
        for key, messages in whole.items():
            found = read_all(store, *key)
            assert found == [each for each in messages if each not in hit], f"bit at {position}"
        assert bool(store.state().holes) == bool(hit) or not hit, (
            f"bit at {position} went unnoticed"
        )
        store.shutdown()
        shutil.rmtree(root)


def test_flipped_bit_is_detected_and_costs_at_most_one_message(tmp_path, dice):
    check_flipped_bits(tmp_path, dice, FLIPPED_BITS)


# ---- the checks detect broken stores


class WithoutDirectoryFlush(RecordingDisk):
    """A disk whose directories are never flushed."""

    def flush_directory(self, path):
        pass


def acknowledge_early(monkeypatch):
    monkeypatch.setattr(MessageStore, "wait_until_stored", lambda _, result, __=0: result)


def no_flush(monkeypatch):
    monkeypatch.setattr(MappedFileQueue, "flush", lambda _: None)


def no_checksum(monkeypatch):
    checks = "rocketpoll.broker.store.records.integrity"
    monkeypatch.setattr(f"{checks}.is_intact", lambda _: True)
    monkeypatch.setattr(
        f"{checks}.decode_record", lambda data: decode_record(data, check_crc=False)
    )


def truncate_at_first(monkeypatch):
    monkeypatch.setattr(LogRecovery, "_next_record", lambda _, __: None)


def recover_without_a_flush(monkeypatch):
    monkeypatch.setattr(MappedFileQueue, "flush_loaded", lambda _: None)


def no_fault(_):
    pass


@pytest.mark.wide
@pytest.mark.parametrize(
    ("fault", "check", "found"),
    [
        (acknowledge_early, check_power_losses, True),
        (no_flush, check_power_losses, True),
        (recover_without_a_flush, check_second_power_losses, True),
        (no_checksum, check_flipped_bits, True),
        (truncate_at_first, check_flipped_bits, True),
        (no_fault, check_power_losses, False),
        (no_fault, check_second_power_losses, False),
        (no_fault, check_flipped_bits, False),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_sabotaged_store_is_found_by_the_crash_checks(tmp_path, monkeypatch, fault, check, found):
    fault(monkeypatch)
    dice = random.Random(8)
    noticed = False
    try:
        check(tmp_path, dice, 1_200 if found else 120)  # ends with the first failure
    except (
        AssertionError,
        RecordError,
    ):  # the second: a damaged record was returned as a good one
        noticed = True
    assert noticed is found


def test_store_without_directory_flushes_is_found_by_the_crash_checks(tmp_path):
    with pytest.raises((AssertionError, StoreError)):
        check_power_losses(tmp_path, random.Random(7), 200, WithoutDirectoryFlush)


def test_crash_test_stories_span_several_log_files(tmp_path):
    tell_quietly(tmp_path)
    assert len(list(Path(tmp_path / "commitlog").iterdir())) >= 3
