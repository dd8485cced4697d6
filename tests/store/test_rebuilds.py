"""A start that rebuilds all queues is interrupted: the next start does only the rest.

After any interruption, queues and index equal those of an uninterrupted start.
"""

import logging
import shutil
import subprocess
import sys

import pytest
from support.brokers.fork_server import ROOT
from support.disks.faulty_disk import _WatchedDisk
from support.stores.small_store import (
    checkpointer_of,
    components_of,
    expire_log_files,
    message,
    open_store,
    small_config,
)
from support.suite.selection import count, spread

from rmq_spark.wire.message.record import decode_record
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.dispatch import reput
from rocketpoll.broker.store.errors import StartInterrupted, StoreFailed
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.message_store import MessageStore
from rocketpoll.broker.store.startup import opener

TOPICS = "ABC"
MESSAGES = 900
LOG_BYTES = 1 << 13


class Killed(BaseException):
    """Raised when the process is killed."""


class KillingDisk(_WatchedDisk):
    """Kills the process before a change of the disk; changes are numbered from the first."""

    def __init__(self, number):
        super().__init__(LocalDisk())
        self.left = number
        self.changes = 0

    def _run(self, call):
        self.changes += 1
        self.left -= 1
        if self.left < 0:
            raise Killed
        return call.run(self._disk)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """Record progress every few records, instead of every GiB of the log."""
    monkeypatch.setattr(opener, "_PROGRESS_BYTES", LOG_BYTES // 2)
    monkeypatch.setattr(reput, "ONE_BY_ONE_MAX", 4)


def settings(**others):
    usual = {
        "check_whole_log_bytes": 0,
        "mapped_file_size_commit_log": LOG_BYTES,
        "mapped_file_size_consume_queue": 16 * 20,
    }
    return {**usual, **others}


def a_store_without_queues(root, **others):
    """Create a store without queues, whose log has expired files, a hole, and deleted topics."""
    store = open_store(root, **settings(**others))
    for number in range(MESSAGES):
        topic = "D" if number % 17 == 0 else TOPICS[number % 3]
        store.put_message(message(f"{number}", topic, number % 2, keys=f"k{number % 9}"))
    store.delete_topic("D")
    store.put_message(message("of a topic that is there again", "D", 1))
    expire_log_files(store, 3 * LOG_BYTES)
    store.shutdown()
    file = sorted((root / "commitlog").iterdir())[4]
    with file.open("r+b") as damaged:
        damaged.seek(LOG_BYTES // 2)
        damaged.write(b"\xff" * 40)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")


def content(store):
    """Return everything that a store serves: queues with their bounds, and messages by key."""
    queues = {}
    for topic, queue_id, _ in components_of(store).queues:
        first, end = store.queue_offsets(topic, queue_id)
        bodies = {}
        for offset in range(first, end):
            got = store.get_message(topic, queue_id, offset, count_max=1)
            bodies[offset] = bytes(got.buffers[0]) if got.message_count else got.status
        queues[topic, queue_id] = first, end, bodies
    keys = {
        (topic, key): [decode_record(each).body for each in found]
        for topic in TOPICS + "D"
        for key in (f"k{number}" for number in range(9))
        if (found := store.query_message(topic, key, 1_000, 0, 1 << 62))
    }
    return queues, keys


def finished(root, **others):
    """Return the store's content after an undisturbed start, and after one more."""
    store = open_store(root, **settings(**others))
    found = content(store)
    store.shutdown()
    again = open_store(root, **settings(**others))
    assert content(again) == found
    assert not checkpointer_of(again).load_manifest().is_rebuilding
    again.shutdown()
    return found


@pytest.fixture(params=spread(2, ["async", "sync, looked at as a whole", "sync"]))
def flush(request):
    name, _, is_whole = request.param.partition(", ")
    kind = FlushDiskType.ASYNC_FLUSH if name == "async" else FlushDiskType.SYNC_FLUSH
    return {"flush_disk_type": kind, "check_whole_log_bytes": 1 << 20 if is_whole else 0}


def test_queue_rebuild_killed_at_any_disk_change_is_resumed(tmp_path, flush, caplog):
    """The start is killed once, or repeatedly, each time a few changes later."""
    caplog.set_level(logging.WARNING)
    a_store_without_queues(tmp_path / "store", **flush)
    shutil.copytree(tmp_path / "store", tmp_path / "whole")
    whole = finished(tmp_path / "whole", **flush)
    shutil.copytree(tmp_path / "store", tmp_path / "counted")
    disk = KillingDisk(1 << 30)
    open_store(tmp_path / "counted", disk, **settings(**flush)).shutdown()
    step = max(disk.changes // count("ROCKETPOLL_REBUILD_KILLS", 6, wide=200), 1)
    for number in range(0, disk.changes, step):
        root = tmp_path / f"killed {number}"
        shutil.copytree(tmp_path / "store", root)
        for at in (number, number // 3, 40):
            caplog.clear()
            start_and_be_killed(root, at, **flush)
            assert "its entries do not match" not in caplog.text
        assert finished(root, **flush) == whole, number
        shutil.rmtree(root)


def start_and_be_killed(root, number, **others):
    disk = KillingDisk(number)
    try:
        store = open_store(root, disk, **settings(**others))
    except (Killed, StoreFailed):  # closing files fails after the kill
        return
    disk.left = 0
    with pytest.raises((Killed, StoreFailed)):
        store.shutdown()


def watched(root, end_at=None, **others):
    """Run a start that is interrupted at some point; return its reports about queues."""
    reports = []

    def watch(doing, done, total):
        if "rebuilds" in doing and "queues" in doing:
            reports.append((done, total))
        return end_at is not None and len(reports) >= end_at

    try:
        store = MessageStore(small(root, **others), LocalDisk(), lambda: 0, on_progress=watch)
    except StartInterrupted as error:
        return reports, str(error)
    store.shutdown()
    return reports, None


def small(root, **others):
    return small_config(root, **settings(**others))


def test_interrupted_start_saves_its_progress_for_the_next(tmp_path):
    a_store_without_queues(tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "whole")
    whole = finished(tmp_path / "whole")
    reports, error = watched(tmp_path / "store", end_at=10)
    assert "the next start resumes it at" in error
    done, total = reports[-1]
    assert 0 < done < total
    rest, error = watched(tmp_path / "store", end_at=3)
    assert error is not None
    assert rest[0][1] == total - done  # nothing is repeated
    left, error = watched(tmp_path / "store")
    assert error is None
    assert left[-1][0] == left[-1][1] < rest[0][1]
    assert finished(tmp_path / "store") == whole


def test_start_interrupted_during_the_log_check_changes_nothing(tmp_path):
    a_store_without_queues(tmp_path)
    with pytest.raises(StartInterrupted, match="while it checks the commit log"):
        MessageStore(
            small(tmp_path, check_whole_log_bytes=1 << 30),
            LocalDisk(),
            lambda: 0,
            on_progress=lambda *_: True,
        )
    assert not (tmp_path / "consumequeue").exists() or not any(
        (tmp_path / "consumequeue").iterdir()
    )
    assert finished(tmp_path)


def test_interrupted_rebuild_with_a_missing_queue_file_starts_over(tmp_path):
    a_store_without_queues(tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "whole")
    whole = finished(tmp_path / "whole")
    watched(tmp_path / "store", end_at=10)
    shutil.rmtree(tmp_path / "store/consumequeue/A/0")
    assert finished(tmp_path / "store") == whole


def test_offsets_are_not_reused_after_a_killed_start(tmp_path):
    """Only the manifest may know a queue's end, because its last messages are gone."""
    store = open_store(tmp_path, **settings())
    for number in range(200):
        store.put_message(message(f"{number}", "A", 0))
    store.shutdown()
    shutil.rmtree(tmp_path / "consumequeue")
    last = max((tmp_path / "commitlog").iterdir())
    last.write_bytes(bytes(LOG_BYTES))  # the disk has lost the end
    _, error = watched(tmp_path, end_at=6)
    assert error is not None
    again = open_store(tmp_path, **settings())
    assert again.put_message(message("new", "A", 0)).queue_offset == 200
    again.shutdown()


_BROKER = """
import os, signal, sys
from rocketpoll.broker.process import service_manager
from rocketpoll.broker.store.dispatch import reput
from rocketpoll.broker.store.startup import opener

opener._PROGRESS_BYTES, reput.ONE_BY_ONE_MAX = 4096, 4
service_manager._FIRST_REPORT_SECONDS = service_manager._REPORT_SECONDS = 0
number, left = getattr(signal, sys.argv[1]), int(sys.argv[2])
del sys.argv[1:3]
report = service_manager.StartProgress.__call__

def signalled(watch, doing, *numbers):
    global left
    if "rebuilds" in doing:
        left -= 1
        if not left:
            os.kill(os.getpid(), number)
    return report(watch, doing, *numbers)

service_manager.StartProgress.__call__ = signalled
from rocketpoll.broker.__main__ import main
sys.exit(main())
"""


def start_process(root, number, left):
    """Send a signal to a broker process that rebuilds queues; return its exit code and its log."""
    words = {
        "storePathRootDir": root,
        "listenPort": 0,
        "vipChannelEnable": "false",
        "mappedFileSizeCommitLog": LOG_BYTES,
        "maxMessageSize": LOG_BYTES // 2,
        "mappedFileSizeConsumeQueue": 16 * 20,
        "maxHashSlotNum": 64,
        "maxIndexNum": 256,
        "checkWholeLogBytes": 0,
    }
    arguments = [f"{name}={value}" for name, value in words.items()]
    ended = subprocess.run(
        [sys.executable, "-c", _BROKER, number, str(left), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("number", "code"), spread(2, [("SIGTERM", 0), ("SIGINT", 0), ("SIGKILL", -9)])
)
def test_rebuild_interrupted_by_a_signal_is_resumed(tmp_path, number, code):
    """SIGTERM ends the start cleanly; after a kill, recorded progress is not repeated."""
    a_store_without_queues(tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "whole")
    whole = finished(tmp_path / "whole")
    for left in (60, 40):
        found, log = start_process(tmp_path / "store", number, left)
        assert found == code, log
        assert "the start rebuilds consume queues and index: " in log
        assert "Traceback" not in log
        if number != "SIGKILL":
            assert "the start was interrupted; the next start resumes it at " in log
    rest, _ = watched(tmp_path / "store")
    assert 0 < rest[0][1] < 84_000 - 60 * 400
    assert finished(tmp_path / "store") == whole
