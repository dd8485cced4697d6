"""Recovery of a log after a crash or with a bad disk."""

import os
import re
import shutil
import subprocess
from itertools import pairwise

import pytest
from support.disks.faulty_disk import FaultyDisk, Refusal
from support.stores.small_store import (
    LOG_FILE_BYTES,
    QUEUE_FILE_ENTRIES,
    bodies,
    crash,
    message,
    open_store,
    read_all,
)
from support.suite.selection import WIDE, some, spread

from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message.record import encode_blank, encode_record
from rocketpoll.broker.store.append.record_encoding import draft_of
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.errors import UnreadableFile
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.file_pool import FileGroup, FilePool
from rocketpoll.broker.store.files.mapped_file_queue import MappedFileQueue
from rocketpoll.broker.store.log.checkpoint_file import Checkpoint, save_checkpoint
from rocketpoll.broker.store.log.recovery import LogRecovery
from rocketpoll.broker.store.queues.consume_queue import ENTRY_BYTES
from rocketpoll.broker.store.startup.directory_lock import OUR_SIGN

LOG = "commitlog"


def fill(root, texts, **settings):
    store = open_store(root, **settings)
    places = [store.put_message(message(text, keys=f"k{n}")) for n, text in enumerate(texts)]
    store.shutdown()
    return [(place.physical_offset, place.end_offset) for place in places]


def log_path(root, offset):
    return root / LOG / f"{offset - offset % LOG_FILE_BYTES:020d}"


def overwrite(root, offset, data):
    with log_path(root, offset).open("r+b") as file:
        file.seek(offset % LOG_FILE_BYTES)
        file.write(data)


def crashed(root):
    """Make a directory look as if its last user was killed before its second checkpoint."""
    (root / "abort").write_bytes(OUR_SIGN)
    save_checkpoint(LocalDisk(), root / "checkpoint", Checkpoint(0, 0))
    (root / "config" / "manifest.json").unlink()
    (root / "config" / "manifest.json.bak").unlink(missing_ok=True)


def recover(root):
    files = MappedFileQueue(FileGroup(FilePool(LocalDisk())), root / LOG, LOG_FILE_BYTES)
    files.load()
    found = LogRecovery(files, Checkpoint(0, 0)).scan_from(0)
    files.close()
    return found


def test_recovery_of_an_empty_log_ends_at_zero(tmp_path):
    files = MappedFileQueue(FileGroup(FilePool(LocalDisk())), tmp_path / LOG, LOG_FILE_BYTES)
    files.load()
    assert LogRecovery(files, Checkpoint(0, 0)).scan_from(0).end_offset == 0


def test_recovery_ends_after_the_last_whole_record(tmp_path):
    places = fill(tmp_path, [f"{n}" * 200 for n in range(60)])
    found = recover(tmp_path)
    assert (found.end_offset, found.holes) == (places[-1][1], ())
    assert found.timeline.last_ms == 1_700_000_000_000


def test_recovery_of_a_log_cut_in_its_last_records_keeps_the_whole_ones(tmp_path):
    """R14, R15: valid records are kept, torn ones are wiped, and a shorter append
    revives nothing."""
    texts = ["first", "second one", "the third", "4"]
    origin = tmp_path / "origin"
    places = fill(origin, texts)
    boundaries = {end + beside for _, end in places[1:] for beside in (-1, 0, 1)}
    cuts = range(places[1][0], places[-1][1])
    for cut in sorted({*boundaries, *some(cuts, "ROCKETPOLL_CUTS", 60)} & {*cuts}):
        root = tmp_path / f"cut-{cut}"
        shutil.copytree(origin, root)
        overwrite(root, cut, bytes(places[-1][1] - cut))
        crashed(root)
        whole = [text for text, (_, end) in zip(texts, places, strict=True) if end <= cut]
        store = open_store(root)
        assert bodies(store) == whole
        assert store.state().holes == ()
        end = store.state().written_offset
        assert end == (places[len(whole) - 1][1] if whole else 0)
        assert not any(log_path(root, end).read_bytes()[end:])
        store.put_message(message("x"))
        assert bodies(store) == [*whole, "x"]
        store.shutdown()
        again = open_store(root)
        assert bodies(again) == [*whole, "x"]
        again.shutdown()
        shutil.rmtree(root)


@pytest.mark.parametrize(
    "at", [0, 4, 8, 12, 16, 20, 28, 36, 40, 48, 56, 64, 72, 80, 84, 88, 95, 98, -1, -11]
)
def test_recovery_makes_a_damaged_record_a_hole_and_keeps_the_rest(tmp_path, at):
    """G3: all records after it are kept, and no queue offset changes."""
    texts = [f"body {n}" for n in range(8)]
    places = fill(tmp_path, texts)
    start, end = places[3]
    position = start + at if at >= 0 else end + at
    byte = log_path(tmp_path, position).read_bytes()[position % LOG_FILE_BYTES]
    overwrite(tmp_path, position, bytes([byte ^ 0x01]))
    crashed(tmp_path)
    store = open_store(tmp_path)
    assert store.state().holes == ((start, end),)
    kept = {each.queue_offset: each.body.decode() for each in read_all(store, "T", 0)}
    assert kept == {n: text for n, text in enumerate(texts) if n != 3}
    assert store.put_message(message("next")).queue_offset == 8
    assert bodies(store)[-1] == "next"
    store.shutdown()


def test_bad_record_before_the_checkpoint_is_kept_as_a_hole(tmp_path):
    """A bad last record was acknowledged: it is kept as a hole, and nothing is wiped."""
    texts = ["one", "two"]
    places = fill(tmp_path, texts)
    overwrite(tmp_path, places[1][0] + 90, b"\xff")
    damaged = log_path(tmp_path, 0).read_bytes()
    store = open_store(tmp_path)
    assert store.state().holes == (places[1],)
    assert log_path(tmp_path, 0).read_bytes() == damaged
    assert bodies(store) == ["one"]
    assert store.put_message(message("three")).queue_offset == 2
    store.shutdown()


def test_unreadable_page_becomes_a_hole_and_appends_continue(tmp_path, monkeypatch):
    sizes = {"mapped_file_size_commit_log": 1 << 16, "max_message_size": 1 << 14}
    texts = [f"{number} " + "x" * 900 for number in range(40)]
    fill(tmp_path, texts, **sizes)
    crashed(tmp_path)
    read = MappedFileQueue.read

    def refuses(files, offset, size):
        if files.file_size == 1 << 16 and offset < 12_288 and offset + size > 8_192:
            raise UnreadableFile("a page is bad")
        return read(files, offset, size)

    monkeypatch.setattr(MappedFileQueue, "read", refuses)
    store = open_store(tmp_path, **sizes)
    assert not store.is_opening
    [(start, end)] = store.state().holes
    assert (start <= 8_192, end >= 12_288) == (True, True)
    assert store.put_message(message("next")).queue_offset == len(texts)
    found = bodies(store)
    assert found[-1] == "next"
    assert found[:-1] == [text for text in texts if text in found]
    assert len(found) > 30
    store.shutdown()


def test_recovery_with_a_damaged_blank_record_loses_nothing(tmp_path):
    texts = [f"{n}" * 700 for n in range(8)]
    places = fill(tmp_path, texts)
    blank_at = next(end for (_, end), (start, _) in pairwise(places) if start > end)
    overwrite(tmp_path, blank_at, bytes(8))
    crashed(tmp_path)
    store = open_store(tmp_path)
    assert bodies(store) == texts
    store.shutdown()


def test_recovery_makes_a_garbage_log_file_one_hole(tmp_path):
    texts = [f"{n}" * 700 for n in range(10)] * 2
    places = fill(tmp_path, texts)
    overwrite(tmp_path, LOG_FILE_BYTES, b"\xa5" * LOG_FILE_BYTES)
    crashed(tmp_path)
    store = open_store(tmp_path)
    (hole,) = store.state().holes
    assert hole == (LOG_FILE_BYTES, 2 * LOG_FILE_BYTES)
    kept = [
        text
        for text, (start, _) in zip(texts, places, strict=True)
        if not LOG_FILE_BYTES <= start < 2 * LOG_FILE_BYTES
    ]
    assert bodies(store) == kept
    store.shutdown()


def test_recovery_ends_the_log_at_a_record_of_another_place(tmp_path):
    """Stale bytes of another position form a valid record with a valid CRC, but do not belong
    there."""
    places = fill(tmp_path, ["one", "two"])
    end = places[-1][1]
    overwrite(tmp_path, end, encode_record(message("stale")))
    crashed(tmp_path)
    store = open_store(tmp_path)
    assert bodies(store) == ["one", "two"]
    assert not any(log_path(tmp_path, end).read_bytes()[end:])
    store.shutdown()


def test_torn_tail_in_the_next_file_is_truncated(tmp_path):
    places = fill(tmp_path, ["one", "x" * 3700, "y" * 300])
    assert places[2][0] == LOG_FILE_BYTES
    overwrite(tmp_path, LOG_FILE_BYTES, b"\0\0\0\x70 torn")
    crashed(tmp_path)
    store = open_store(tmp_path)
    assert len(bodies(store)) == 2
    assert not any(log_path(tmp_path, LOG_FILE_BYTES).read_bytes())
    store.put_message(message("next"))
    assert bodies(store)[-1] == "next"
    store.shutdown()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_recovery_after_a_crash_just_after_a_file_roll(tmp_path, count):
    """R10: the end of the previous file is dispatched again as well."""
    texts = ["x" * 1800, "y" * 1800, "z" * 100][:count]
    fill(tmp_path, texts)
    blank = encode_blank(100)
    assert len(blank) == 8
    crashed(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    assert bodies(store) == texts
    store.shutdown()


@pytest.mark.parametrize("check_whole_log_bytes", [0, 1 << 20])
@pytest.mark.parametrize("at", [90, -12])
def test_recovered_hole_stays_a_hole_at_every_later_start(
    tmp_path, caplog, at, check_whole_log_bytes
):
    """Queues may be rebuilt from a log so large that a start does not scan all of it. The hole
    looks like a record: only its checksum shows the flipped bit."""
    settings = {"check_whole_log_bytes": check_whole_log_bytes}
    texts = [f"body {n}" for n in range(8)]
    places = fill(tmp_path, texts)
    start, end = places[3]
    position = start + at if at >= 0 else end + at
    byte = log_path(tmp_path, position).read_bytes()[position % LOG_FILE_BYTES]
    overwrite(tmp_path, position, bytes([byte ^ 0x01]))
    crashed(tmp_path)
    whole = [text for n, text in enumerate(texts) if n != 3]
    open_store(tmp_path, **settings).shutdown()
    caplog.clear()
    for lost in ((), (), ("consumequeue",), ()):
        for name in lost:
            shutil.rmtree(tmp_path / name)
        store = open_store(tmp_path, **settings)
        assert bodies(store) == whole
        assert store.state().holes == ((start, end),)
        assert not [each for each in caplog.records if each.levelname == "ERROR"]
        store.shutdown()


@pytest.mark.parametrize("check_whole_log_bytes", [0, 1 << 20])
def test_message_in_a_hole_returns_when_its_file_is_repaired(tmp_path, check_whole_log_bytes):
    settings = {"check_whole_log_bytes": check_whole_log_bytes}
    texts = [f"body {n}" for n in range(8)]
    position = fill(tmp_path, texts)[3][0] + 90
    right = log_path(tmp_path, position).read_bytes()[position % LOG_FILE_BYTES]
    overwrite(tmp_path, position, bytes([right ^ 0x01]))
    crashed(tmp_path)
    store = open_store(tmp_path, **settings)
    assert bodies(store) == [text for text in texts if text != "body 3"]
    store.shutdown()
    overwrite(tmp_path, position, bytes([right]))
    for _ in range(2):
        store = open_store(tmp_path, **settings)
        assert (bodies(store), store.state().holes) == (texts, ())
        store.shutdown()


PADDED = {"mapped_file_size_commit_log": 1 << 18, "max_message_size": 1 << 18}
PADDED_TEXTS = [f"{n}" * 140_000 for n in range(4)]
"""Messages so large that each takes a log file of its own, half of which is blank."""
LONG_AGO = 1_600_000_000


def padded(root):
    """Return a store with old files that was killed before any checkpoint."""
    places = fill(root, PADDED_TEXTS, **PADDED)
    crashed(root)
    (root / "checkpoint").unlink()
    for file in (root / LOG).iterdir():
        os.utime(file, (LONG_AGO, LONG_AGO))
    return places


def test_recovery_does_not_write_over_sparse_blanks(tmp_path):
    """Sparse blanks take no space; writing them would fill a nearly full disk."""
    padded(tmp_path)
    disk = FaultyDisk(LocalDisk())  # counts the bytes written from now on
    store = open_store(tmp_path, disk, **PADDED)
    assert not store.is_opening
    assert len(PADDED_TEXTS) * 140_000 < disk.used < len(PADDED_TEXTS) * 170_000
    assert bodies(store) == PADDED_TEXTS
    store.shutdown()


def test_recovery_keeps_file_modification_times(tmp_path):
    """Retention uses these times: otherwise no file would expire for days."""
    padded(tmp_path)
    store = open_store(tmp_path, **PADDED)
    assert {file.stat().st_mtime for file in (tmp_path / LOG).iterdir()} == {LONG_AGO}
    store.shutdown()


@pytest.mark.parametrize("after", ["a stop", "a kill"])
def test_unreadable_page_without_messages_stops_no_start(tmp_path, after):
    places = fill(tmp_path, PADDED_TEXTS, **PADDED)
    if after == "a kill":
        crashed(tmp_path)
    disk = FaultyDisk()
    for _, end in places:  # the first whole page after each message
        disk.unreadable.append(Refusal(LOG, end + 8192 - end % 4096))
    for n in range(2):
        store = open_store(tmp_path, disk, **PADDED)
        assert (store.state().holes, len(bodies(store))) == ((), len(PADDED_TEXTS) + n)
        assert store.put_message(message("after")).queue_offset == len(PADDED_TEXTS) + n
        store.shutdown()


def test_unreadable_page_past_the_end_is_refused_with_useful_advice(tmp_path):
    root = tmp_path / "my data"
    end = fill(root, PADDED_TEXTS, **PADDED)[-1][1]
    page = end + 16_384 - end % 4096
    with (root / LOG / f"{3 << 18:020}").open("r+b") as file:
        file.seek(page - (3 << 18))
        file.write(b"\0")
    disk = FaultyDisk()
    disk.unreadable.append(Refusal(LOG, page))
    with pytest.raises(UnreadableFile, match="the end of the commit log is unknown") as refused:
        open_store(root, disk, **PADDED)
    advice = re.search("dd if=.*", str(refused.value))[0]
    subprocess.run(["/bin/sh", "-c", advice], check=True)
    store = open_store(root, **PADDED)  # the copy of its file has other blocks on the disk
    assert bodies(store) == PADDED_TEXTS
    store.shutdown()


KEPT = QUEUE_FILE_ENTRIES // 2


def without_its_end(root, how):
    """Return a killed store whose log lost most messages in a power loss, and whose queues have
    all."""
    store = open_store(root, flush_disk_type=FlushDiskType(how))
    for number in range(4 * QUEUE_FILE_ENTRIES):
        put = store.put_message(message(number))
        store.wait_until_stored(put)
        if number == 0:
            store.save_checkpoint()
        if number == KEPT - 1:
            end = put.end_offset
    store.wait_until_stored(store.put_message(message("of a queue that came later", "U")))
    crash(store)
    for path in sorted((root / LOG).iterdir()):
        kept = max(min(end - int(path.name), LOG_FILE_BYTES), 0)
        path.write_bytes(path.read_bytes()[:kept].ljust(LOG_FILE_BYTES, b"\0"))
    return [str(number) for number in range(KEPT)]


def test_queue_entries_of_messages_lost_in_a_power_loss_are_removed(tmp_path):
    kept = without_its_end(tmp_path, "ASYNC_FLUSH")
    store = open_store(tmp_path)
    assert bodies(store) == kept
    assert store.queue_nums() == {"T": 1}
    (path,) = (each for each in (tmp_path / "consumequeue").rglob("*") if each.is_file())
    assert path.read_bytes()[KEPT * ENTRY_BYTES :].strip(b"\0") == b""
    assert store.put_message(message("next")).queue_offset == KEPT
    store.shutdown()


def test_offset_seen_by_a_consumer_is_not_reused_after_its_message_is_lost(tmp_path):
    kept = without_its_end(tmp_path, "SYNC_FLUSH")
    store = open_store(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    assert bodies(store) == kept
    put = store.wait_until_stored(store.put_message(message("next")))
    assert put.queue_offset == 4 * QUEUE_FILE_ENTRIES
    assert bodies(store) == [*kept, "next"]
    store.shutdown()


# ---- records within bodies

BODY_AT = (
    layout.HEAD_BYTES + 2 * layout.HOST_V4_BYTES + layout.STORE_TIMESTAMP_BYTES + layout.TAIL_BYTES
)
DAMAGED, SAME_SIZE = 2, 40
"""The number of the damaged message, and the body size of the others."""


def record_in_a_body(at):
    """Return a whole record of another topic for a log position, as a sender may put it into a
    body."""
    draft = draft_of(message("FORGED", topic="Payments"))
    draft.prepare()
    return draft.encode(1, at, 1_700_000_000_000)


def log_with_a_record_in_a_body(root, count):
    """Store messages, the third with a record in its body; return the bodies and their
    positions."""
    store = open_store(root, mapped_file_size_commit_log=1 << 16)
    store.put_message(message("honest", topic="Payments"))
    sent, places = [], []
    for number in range(count):
        at = store.confirm_offset() + BODY_AT
        body = f"{number}".encode().ljust(SAME_SIZE, b".")
        if number == DAMAGED:
            body = b"12345678" + record_in_a_body(at + 8) + b"the rest"
        put = store.put_message(message(body))
        sent.append(body)
        places.append((put.physical_offset, put.end_offset))
    store.shutdown()
    return sent, places


@pytest.mark.parametrize("ends", ["stopped", "killed"])
@pytest.mark.parametrize("behind", spread(2, [0, 1, 5]))
def test_flipped_bit_in_a_record_never_exposes_records_in_its_body(tmp_path, ends, behind, dice):
    sent, places = log_with_a_record_in_a_body(tmp_path / "good", DAMAGED + 1 + behind)
    start, end = places[DAMAGED]
    head = range(start * 8, (start + BODY_AT) * 8)
    of_size = [*range(start * 8, (start + 4) * 8), *range((start + BODY_AT - 4) * 8, head.stop)]
    bits = sorted({*dice.sample(head, 40), *of_size, *dice.sample(range(head.stop, end * 8), 20)})
    for bit in bits if WIDE else bits[ends == "killed" :: 2]:
        root = shutil.copytree(tmp_path / "good", tmp_path / "damaged")
        path = root / LOG / f"{0:020d}"
        data = bytearray(path.read_bytes())
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        if ends == "killed":
            crashed(root)
        store = open_store(root, mapped_file_size_commit_log=1 << 16)
        assert bodies(store, "Payments") == ["honest"], bit
        found = [each.body for each in read_all(store, "T", 0)]
        assert found == sent[:DAMAGED] + sent[DAMAGED + 1 :], bit
        store.shutdown()
        again = open_store(root, mapped_file_size_commit_log=1 << 16)
        assert bodies(again, "Payments") == ["honest"], bit
        again.shutdown()
        shutil.rmtree(root)


@pytest.mark.parametrize("at", spread(12, range(0, 400, 7)))
def test_torn_log_end_revives_no_record_inside_a_body(tmp_path, at):
    sent, places = log_with_a_record_in_a_body(tmp_path, DAMAGED + 1)
    path = tmp_path / LOG / f"{0:020d}"
    data = path.read_bytes()
    cut = min(places[DAMAGED][0] + at, places[DAMAGED][1] - 1)
    path.write_bytes(data[:cut].ljust(len(data), b"\0"))
    crashed(tmp_path)
    store = open_store(tmp_path, mapped_file_size_commit_log=1 << 16)
    assert bodies(store, "Payments") == ["honest"]
    assert [each.body for each in read_all(store, "T", 0)] == sent[:DAMAGED]
    assert store.state().written_offset == places[DAMAGED][0]
    store.shutdown()
