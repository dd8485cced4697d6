"""mypy distinguishes queue offsets and physical offsets in the store's whole interface."""

import os
import re
import subprocess
import sys

import pytest
from support.programs.python_programs import ROOT

from rocketpoll.broker.store.results import FIRST_IN_QUEUE, LOG_START, PhysicalOffset, QueueOffset

OLDEST = "3.10" if sys.version_info < (3, 12) else "3.12"
"""The oldest Python for which `make types` checks the sources and caches the result."""

PROGRAM = """\
from rocketpoll.broker.store.log.commit_log import CommitLog
from rocketpoll.broker.store.queues.consume_queue import ConsumeQueue
from rocketpoll.broker.store.message_store import MessageStore
from rocketpoll.broker.store.results import PhysicalOffset, QueueOffset
from rocketpoll.broker.store.dispatch.reput import ReputMessageService

def mixed_up(
    store: MessageStore, log: CommitLog, queue: ConsumeQueue, reput: ReputMessageService
) -> None:
    first, end = store.queue_offsets("T", 0)
    found = store.get_message("T", 0, first)
    place = store.confirm_offset()
    store.get_message("T", 0, found.next_begin_offset)
    store.get_message("T", 0, first + 1)
    store.get_message("T", 0, end - 1)
    store.get_message("T", 0, QueueOffset(5))
    store.record_at(place)
    store.record_at(place - found.record_bytes)
    log.read(place, log.written_offset - place)
    count: int = end - first
    queue.read(first, count)
    store.get_message("T", 0, place)  # refused
    store.get_message("T", 0, end - first)  # refused
    store.get_message("T", 0, 5)  # refused
    store.record_at(first)  # refused
    store.record_at(found.next_begin_offset)  # refused
    store.record_at(place - place)  # refused
    store.flush_future(end)  # refused
    store.was_deleted("T", first)  # refused
    log.read(first, 100)  # refused
    log.restore(first, log.timeline, place)  # refused
    queue.append(place, b"")  # refused
    queue.expire_before(first)  # refused
    queue.skip_to(first, first)  # refused
    reput.suspend_from(end)  # refused
    reput.restore(place, end, ())  # refused
    a_place: PhysicalOffset = first  # refused
    a_number: QueueOffset = place + 1  # refused
"""


@pytest.mark.deep
def test_queue_and_physical_offsets_are_distinct_types_for_mypy(tmp_path):
    """With the project's settings and mypy's cache of the store."""
    program = tmp_path / "mixed_up.py"
    program.write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-version", OLDEST, program],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT)},
    )
    lines = PROGRAM.splitlines()
    expected = [number for number, line in enumerate(lines, 1) if line.endswith("# refused")]
    refused = [int(line) for line in re.findall(r"mixed_up\.py:(\d+): error", ended.stdout)]
    assert refused == expected, ended.stdout + ended.stderr


def test_offset_types_are_plain_integers_at_run_time():
    assert PhysicalOffset is QueueOffset is int
    assert (LOG_START, FIRST_IN_QUEUE) == (0, 0)
