"""Writes during a flush and flushes during a write: acknowledged messages survive.

The tests use one thread: `InterruptedDisk` runs the other operation in the middle of one, so that
each order occurs and can be repeated. The last test breaks the store on purpose, and requires the
check to fail.
"""

import os
import random

import pytest
from support.disks.faulty_disk import FaultyDisk, RecordingDisk, power_loss_states
from support.stores.small_store import bodies, components_of, message, open_store

from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.file_pool import FileGroup, PooledFile
from rocketpoll.broker.store.log.commit_log import CommitLog

POWER_LOSSES = int(os.environ.get("ROCKETPOLL_POWER_LOSSES", "120"))
SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
ROUNDS = 12


class InterruptedDisk(FaultyDisk):
    """Runs another operation in the middle of one, without further nesting."""

    def __init__(self):
        super().__init__(LocalDisk())
        self.interrupt = None

    def _run(self, call):
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            interrupt(call)
        self.interrupt = interrupt
        return super()._run(call)


class Story:
    """The messages of a scenario, and when each was acknowledged."""

    def __init__(self, root):
        interrupted = InterruptedDisk()
        self.disk = RecordingDisk(interrupted, root)
        self.acknowledged = []
        self._store = open_store(root, self.disk, **SYNC)
        self._waiting = []
        self._numbers = iter(range(1000))
        interrupted.interrupt = self._interrupt

    def tell(self):
        """Wait for one message after another, each put during the flush of the previous one."""
        for number in range(ROUNDS):
            if not self._waiting:
                self._put()
            self._wait()
            if number % 4 == 3:
                self._store.save_checkpoint()
        self.disk._disk.interrupt = None
        self._wait()
        self._store.shutdown()

    def _interrupt(self, call):
        is_log = "commitlog" in call.path.parts
        if call.kind == "write" and is_log:
            components_of(self._store).log.flush()
        elif call.kind in {"flush", "write_whole"}:
            self._put()
            if not is_log:  # otherwise the only thread would wait for itself
                self._wait()

    def _put(self):
        text = f"{next(self._numbers)} " + "x" * 300
        self._waiting.append((text, self._store.put_message(message(text))))

    def _wait(self):
        waiting, self._waiting = self._waiting, []
        for text, result in waiting:
            assert self._store.wait_until_stored(result).status.name == "PUT_OK"
            self.acknowledged.append((len(self.disk.operations), text))


def check_power_losses(tmp_path, dice, states):
    root = tmp_path / "told"
    root.mkdir()
    story = Story(root)
    story.tell()
    assert len(story.acknowledged) > ROUNDS
    for _ in range(max(states // 3, 1)):
        point = dice.randint(0, len(story.disk.operations))
        for state in power_loss_states(story.disk.log(point), dice, 3, tmp_path):
            # A comparison of the whole log with its queues would repair a wrong checkpoint.
            again = open_store(state, **SYNC, check_whole_log_bytes=0)
            found = bodies(again)
            again.shutdown()
            known = [text for at, text in story.acknowledged if at <= point]
            assert found[: len(known)] == known, (
                f"of {len(known)} acknowledged {len(found)} are there"
            )


def test_writes_during_a_flush_survive_power_loss(tmp_path, dice):
    check_power_losses(tmp_path, dice, POWER_LOSSES)


# ---- the check detects a broken store


def a_flush_takes_the_marks_of_writes_that_come_inside_it(monkeypatch):
    def flush_file(self, file):
        if file in self.unflushed:
            file.open_file.flush()
            self.unflushed.pop(file, None)

    monkeypatch.setattr(FileGroup, "flush_file", flush_file)


def a_flush_counts_for_what_was_written_before_it_ended(monkeypatch):
    def flush(self):
        self._files.flush()
        self.flushed_offset = self.written_offset
        return self.flushed_offset

    monkeypatch.setattr(CommitLog, "flush", flush)


def a_write_is_marked_only_before_it_comes_about(monkeypatch):
    def write(self, data, position):
        self.group.mark_unflushed(self)
        self.open_file.write(data, position)

    monkeypatch.setattr(PooledFile, "write", write)


@pytest.mark.wide
@pytest.mark.parametrize(
    "fault",
    [
        a_flush_takes_the_marks_of_writes_that_come_inside_it,
        a_flush_counts_for_what_was_written_before_it_ended,
        a_write_is_marked_only_before_it_comes_about,
    ],
    ids=lambda fault: fault.__name__,
)
def test_deliberately_broken_store_fails_the_power_loss_check(tmp_path, monkeypatch, fault):
    fault(monkeypatch)
    with pytest.raises(AssertionError, match="acknowledged"):
        check_power_losses(tmp_path, random.Random(7), 120)
