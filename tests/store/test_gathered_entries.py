"""Hidden entries are written step by step and become visible together."""

import errno
import os

import pytest
from support.disks.faulty_disk import Fault, FaultyDisk

from rmq_spark.wire.message.record_layout import BLANK_SIZE
from rocketpoll.broker.store.dispatch.hidden_entries import CODES_MAX, HiddenEntries
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.file_pool import FileGroup, FilePool
from rocketpoll.broker.store.queues.consume_queue import ENTRY_STRUCT, ConsumeQueue

KEY = ("T", 0)


def queue_in(tmp_path, disk=None):
    group = FileGroup(FilePool(disk or LocalDisk()), tmp_path)
    return ConsumeQueue(group, tmp_path / "T" / "0", 200)


def entries(first, count):
    """Return entries of records of 100 bytes."""
    return b"".join(ENTRY_STRUCT.pack(100 * n, 100, n) for n in range(first, first + count))


def numbers(queue):
    found = []
    while queue.min_offset + len(found) < queue.max_offset:
        found += queue.entries(queue.min_offset + len(found), 10)["tags_code"].tolist()
    return found


def test_hidden_entries_become_visible_at_once(tmp_path):
    queue, gathered = queue_in(tmp_path), HiddenEntries()
    queue.append(0, entries(0, 3))
    for first in (3, 10, 17):
        gathered.add(KEY, queue, first, entries(first, 7), range(first, first + 7), 0)
        assert gathered.has_any_of(KEY)
        assert numbers(queue) == [0, 1, 2]
    (shown,) = gathered.publish()
    assert numbers(queue) == list(range(24))
    assert (shown.key, shown.queue, sorted(shown.tags_codes)) == (KEY, queue, list(range(3, 24)))
    assert not gathered.has_any_of(KEY)
    assert gathered.publish() == []


def test_hidden_entries_added_twice_appear_once(tmp_path):
    disk = FaultyDisk(LocalDisk())
    queue, gathered = queue_in(tmp_path, disk), HiddenEntries()
    gathered.add(KEY, queue, 0, entries(0, 5), range(5), 0)
    disk.plan = [Fault(len(disk.operations) + 1)]
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        gathered.add(KEY, queue, 5, entries(5, 15), range(5, 20), 0)
    gathered.add(KEY, queue, 5, entries(5, 15), range(5, 20), 0)
    gathered.add(KEY, queue, 3, entries(3, 19), range(3, 22), 0)
    gathered.publish()
    assert numbers(queue) == list(range(22))


def test_discarded_hidden_entries_are_overwritten(tmp_path):
    queue, gathered = queue_in(tmp_path), HiddenEntries()
    gathered.add(KEY, queue, 0, entries(50, 5), range(5), 0)
    gathered.discard()
    assert gathered.publish() == []
    queue.append(0, entries(0, 2))
    assert numbers(queue) == [0, 1]


def test_gaps_before_and_between_hidden_entries_are_filled(tmp_path):
    queue, gathered = queue_in(tmp_path), HiddenEntries()
    queue.append(0, entries(0, 1))
    for first in (3, 8):
        gathered.add(KEY, queue, first, entries(first, 2), range(first, first + 2), 7)
    gathered.publish()
    found = queue.entries(0, 10)
    blank = [(each["physical_offset"], each["size"]) == (7, BLANK_SIZE) for each in found]
    assert blank == [False, True, True, False, False, True, True, True, False, False]
    assert [code for code in numbers(queue) if code] == [3, 4, 8, 9]


def test_hidden_entries_with_too_many_tags_codes_match_any_code(tmp_path):
    queue, gathered = queue_in(tmp_path), HiddenEntries()
    gathered.add(KEY, queue, 0, entries(0, 1), range(CODES_MAX), 0)
    gathered.add(KEY, queue, 1, entries(1, 1), range(CODES_MAX), 0)
    (shown,) = gathered.publish()
    assert sorted(shown.tags_codes) == list(range(CODES_MAX))
    gathered.add(KEY, queue, 2, entries(2, 1), range(CODES_MAX + 1), 0)
    gathered.add(KEY, queue, 3, entries(3, 1), [1], 0)
    (shown,) = gathered.publish()
    assert shown.tags_codes is None
