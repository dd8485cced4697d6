"""Manifest files: their content matches the files when they are saved; no code relies on more."""

import errno
import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.disks.faulty_disk import FaultyDisk
from support.stores.small_store import bodies, components_of, crash, message, open_store
from support.suite.log_records import lines_of

from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies import decode_body, encode_body
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.json_table import with_checksum
from rocketpoll.broker.store.queues.manifest import DELETIONS, MANIFEST, Deletions, StoreManifest
from rocketpoll.broker.store.queues.queue_table import QueueSpan

offsets = st.integers(0, 1 << 62)
spans = st.dictionaries(
    st.tuples(st.sampled_from(["T", "%RETRY%g", "x" * 255]), st.integers(0, 4095)),
    st.tuples(offsets, offsets),
)


@given(spans)
def test_manifest_spans_round_trip(found):
    queues = [QueueSpan(*key, *span) for key, span in sorted(found.items())]
    manifest = StoreManifest(
        safe_offset=7, spans=StoreManifest.spans_of(queues), index_files=("1",)
    )
    again = decode_body(StoreManifest, encode_body(manifest))
    assert again == manifest
    assert sorted(again.queues()) == queues
    gone = Deletions(deleted_topics={"T": 3}, half_deleted=("T",))
    left = again.with_deletions(gone)
    assert sorted(left.queues()) == [each for each in queues if each.topic != "T"]
    assert (left.safe_offset, left.deleted_topics, left.half_deleted) == (7, {"T": 3}, ("T",))
    assert again.with_deletions(replace(gone, serial=1)) == again


MANIFEST_OF_ALL = StoreManifest(
    safe_offset=123_456,
    log_min_offset=4096,
    spans={"T": (0, 0, 30, 1, 5, 31), "%RETRY%g": (0, 7, 7)},
    index_files=("20261122151953144",),
    entries_were_confirmed=True,
    holes=((5000, 5100),),
    deleted_topics={"U": 77},
    half_deleted=("U",),
)


def test_manifest_without_checksum_is_limited_by_the_log_size(tmp_path):
    long = replace(MANIFEST_OF_ALL, spans={"T": (0, 0, 30, 1, 0, 1 << 60)})
    assert list(long.without_impossible_queues().queues()) == [("T", 0, 0, 30)]
    store = fill(tmp_path)
    store.shutdown()
    path = tmp_path / "config" / MANIFEST
    path.write_bytes(encode_body(replace(noted(tmp_path), spans=long.spans)))
    again = open_store(tmp_path)
    assert [len(bodies(again, "T", queue_id)) for queue_id in (0, 1)] == [10, 10]
    again.shutdown()


@pytest.mark.parametrize("spans", [{"T": (0, 0)}, {"T": (0, -5, 30)}, {"../T": (0, 0, 0)}])
def test_invalid_manifest_spans_are_refused(spans):
    with pytest.raises(BodyError, match="three numbers for each queue"):
        StoreManifest(spans=spans)


def noted(root):
    return decode_body(StoreManifest, (root / "config" / MANIFEST).read_bytes())


def fill(root, count=20, **settings):
    store = open_store(root, **settings)
    for number in range(count):
        store.put_message(message(number, keys="k", queue_id=number % 2))
    return store


def test_checkpoint_records_one_consistent_moment(tmp_path):
    store = fill(tmp_path)
    store.save_checkpoint()
    found = noted(tmp_path)
    assert found.safe_offset == store.state().written_offset
    assert list(found.queues()) == [("T", 0, 0, 10), ("T", 1, 0, 10)]
    assert found.index_files == components_of(store).index.file_names
    store.shutdown()


def opened_files(monkeypatch):
    """Record the files of queues and index that are opened from now on, by directory."""
    from rocketpoll.broker.store.files.disk import LocalDisk  # noqa: PLC0415  # its class is patched

    opened = []
    open_file = LocalDisk.open
    monkeypatch.setattr(
        LocalDisk, "open", lambda disk, path: opened.append(path) or open_file(disk, path)
    )
    return opened


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_start_of_a_large_store_opens_no_unneeded_queue_files(tmp_path, monkeypatch, end):
    sync = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "check_whole_log_bytes": 0}
    store = fill(tmp_path, **sync)
    store.wait_until_stored(store.put_message(message("last")))
    store.save_checkpoint()
    if end == "kill":
        crash(store)
    else:
        store.shutdown()
    opened = opened_files(monkeypatch)
    again = open_store(tmp_path, **sync)
    assert [path for path in opened if "consumequeue" in path.parts] == []
    assert len(bodies(again)) == 11
    again.shutdown()


@pytest.mark.parametrize("missing", ["checkpoint", f"config/{MANIFEST}"])
def test_missing_checkpoint_or_manifest_rebuilds_all_from_the_log(tmp_path, missing):
    fill(tmp_path).shutdown()
    (tmp_path / missing).unlink()
    (tmp_path / f"{missing}.bak").unlink(missing_ok=True)
    shutil.rmtree(tmp_path / "consumequeue" / "T" / "1")
    again = open_store(tmp_path)
    assert [bodies(again, "T", queue_id) for queue_id in (0, 1)] == [
        [str(number) for number in range(queue_id, 20, 2)] for queue_id in (0, 1)
    ]
    again.shutdown()


def test_manifest_newer_or_older_than_the_checkpoint_starts_correctly(tmp_path):
    """A crash may come between the two saves, and a backup may replace a damaged manifest."""
    store = fill(tmp_path / "a")
    store.save_checkpoint()
    old = {
        name: (tmp_path / "a" / name).read_bytes() for name in ("checkpoint", f"config/{MANIFEST}")
    }
    for number in range(20, 30):
        store.put_message(message(number, queue_id=number % 2))
    store.save_checkpoint()
    crash(store)
    for name, content in old.items():
        root = tmp_path / name.replace("/", "-")
        shutil.copytree(tmp_path / "a", root)
        (root / name).write_bytes(content)
        again = open_store(root)
        for queue_id in (0, 1):
            assert bodies(again, "T", queue_id) == [
                str(number) for number in range(queue_id, 30, 2)
            ]
        again.shutdown()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_older_manifest_is_recognized_without_a_checkpoint(tmp_path, caplog, end):
    """Each save increases a counter. Deletions in an older manifest were carried out, or concern
    another topic."""
    kept = tmp_path / "kept"
    path = kept / "config" / MANIFEST
    store = fill(kept)
    store.save_checkpoint()
    versions = [path.read_bytes()]
    store.delete_topic("T")
    versions.append(path.read_bytes())
    store.finish_deletion("T")
    versions.append(path.read_bytes())
    store.put_message(message("new"))
    if end == "kill":
        crash(store)
    else:
        store.shutdown()
    versions.append(path.read_bytes())
    olds = sorted(set(versions) - {path.read_bytes()}, key=versions.index)
    for number, content in enumerate([*olds, None]):
        root = tmp_path / str(number)
        shutil.copytree(kept, root)
        if content is None:
            (root / "config" / MANIFEST).unlink()  # its backup is older, too
        else:
            (root / "config" / MANIFEST).write_bytes(content)
        caplog.clear()
        again = open_store(root)
        assert "is missing or an older copy: all queues are rebuilt" in caplog.text
        assert again.half_deleted_topics == ()
        assert bodies(again)[-1] == "new"
        again.shutdown()
    caplog.clear()
    again = open_store(kept)
    assert bodies(again) == ["new"]
    assert lines_of(caplog, "rocketpoll.broker.store") == []
    again.shutdown()


def test_manifest_without_a_save_count_does_not_revive_deleted_topics(tmp_path, caplog):
    store = fill(tmp_path)
    store.save_checkpoint()
    store.delete_topic("T")
    store.finish_deletion("T")
    crash(store)
    path = tmp_path / "config" / MANIFEST
    deletions = decode_body(Deletions, (path.parent / DELETIONS).read_bytes())
    (path.parent / DELETIONS).unlink()
    old = replace(noted(tmp_path).with_deletions(deletions), serial=0)
    path.write_bytes(with_checksum(encode_body(old)))
    again = open_store(tmp_path)
    assert "rebuilt" not in caplog.text
    assert bodies(again) == []
    again.shutdown()


def test_damaged_manifest_stays_known_over_a_kill(tmp_path, caplog):
    store = fill(tmp_path)
    store.save_checkpoint()
    store.delete_topic("T")
    store.finish_deletion("T")
    store.put_message(message("new"))
    crash(store)
    path = tmp_path / "config" / MANIFEST
    path.rename(path.with_name(f"{MANIFEST}.corrupt"))  # the state in the middle of that start
    again = open_store(tmp_path)
    assert "all queues are rebuilt" in caplog.text
    assert again.half_deleted_topics == ()
    assert bodies(again)[-1] == "new"
    again.shutdown()


class FullForAll(FaultyDisk):
    """A disk that is full from a moment on for everything that needs space, until files are
    deleted."""

    room = None

    def _run(self, call):
        if call.kind == "delete" and self.room is not None:
            self.room += 1
        if call.kind in {"write_whole", "create", "write"} and self.room is not None:
            if not self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(call.path))
            self.room -= 1
        return super()._run(call)


@pytest.mark.parametrize("gone", ["at once", "with the first queue"])
def test_rebuild_on_a_full_disk_is_noted_before_any_queue_is_written(tmp_path, gone):
    """Whenever the start is killed, no half-built queue may count as complete."""
    fill(tmp_path, check_whole_log_bytes=0).shutdown()
    shutil.rmtree(tmp_path / "consumequeue" / "T" / "0")
    disk = FullForAll(LocalDisk())
    disk.room = 0
    if gone == "at once":
        with suppress(OSError):
            crash(open_store(tmp_path, disk, check_whole_log_bytes=0))
    else:
        for room in range(1, 12):
            disk.room = room
            with suppress(OSError):
                crash(open_store(tmp_path, disk, check_whole_log_bytes=0))
    again = open_store(tmp_path, check_whole_log_bytes=0)
    for queue_id in (0, 1):
        assert bodies(again, "T", queue_id) == [str(number) for number in range(queue_id, 20, 2)]
    again.shutdown()


def test_offsets_are_not_reused_when_the_log_is_an_older_copy(tmp_path):
    """With SYNC_FLUSH, the queues contain only messages that were durable in the log."""
    sync = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "mapped_file_size_commit_log": 1 << 16}

    def put(store, texts):
        for text in texts:
            store.wait_until_stored(store.put_message(message(text)))

    store = open_store(tmp_path, **sync)
    put(store, range(10))
    store.shutdown()
    log = tmp_path / "commitlog" / ("0" * 20)
    older = log.read_bytes()
    store = open_store(tmp_path, **sync)
    put(store, range(10, 20))
    store.reput()
    crash(store)
    log.write_bytes(older)
    again = open_store(tmp_path, **sync)
    assert again.put_message(message("new")).queue_offset == 20
    assert bodies(again)[:10] == [str(number) for number in range(10)]
    again.shutdown()


def test_index_enabled_later_has_all_messages(tmp_path):
    fill(tmp_path, message_index_enable=False).shutdown()
    again = open_store(tmp_path)
    assert len(again.query_message("T", "k", 64, 0, 1 << 62)) == 20
    again.shutdown()


@pytest.mark.parametrize("hole", [[1], [1, 2, 3], [-1, 2], [2, 1], []])
def test_manifest_hole_without_start_and_end_is_refused(hole):
    data = json.dumps({"holes": [[0, 7], hole]}).encode()
    with pytest.raises(BodyError, match="needed two places, start and end"):
        decode_body(StoreManifest, data)
