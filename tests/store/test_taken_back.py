"""Offsets that rolled-back rows have left are told apart from those of lost messages."""

import os
import shutil

import pytest
from staged_rows import roll_back_between
from stores import crash, open_store, read_all

from rocketpoll.broker.store.consume_queue import blank_entries
from rocketpoll.broker.store.dump import dump_lines
from rocketpoll.broker.store.taken_back import TakenBack

KEY = ("T", 0)


def gap_of(store):
    """The offsets that the queue has no messages at."""
    there = {each.queue_offset for each in read_all(store, *KEY)}
    return set(range(store.queue_offsets(*KEY).next)) - there


def test_a_gap_that_a_batch_has_left_says_so(tmp_path):
    store = open_store(tmp_path)
    roll_back_between(store)
    gap = gap_of(store)
    assert gap
    assert store.batches.taken_back(*KEY, 0, 1_000) == gap
    assert store.batches.taken_back(*KEY, min(gap) + 1, 1) == {min(gap) + 1}
    assert store.batches.taken_back("U", 0, 0, 1_000) == set()
    store.shutdown()
    assert [line.split()[1:3] for line in dump_lines(tmp_path, 20) if "code" in line].count(
        ["taken", "back"]
    ) == len(gap)


@pytest.mark.parametrize("lost", [0, -1])
def test_so_it_does_when_the_queue_is_made_again_and_what_is_lost_says_nothing(tmp_path, lost):
    store = open_store(tmp_path)
    roll_back_between(store)
    gap, messages = gap_of(store), read_all(store, *KEY)
    crash(store)
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / "checkpoint").unlink(missing_ok=True)
    behind = [each for each in messages if each.queue_offset > max(gap)]
    before = [each for each in messages if each.queue_offset < min(gap)]
    damaged = (before[1:], behind[:-1])[lost][lost]  # beside the gap, on either side of it
    place = damaged.physical_offset
    files = sorted((tmp_path / "commitlog").iterdir())
    file = [each for each in files if int(each.name) <= place][-1]
    with file.open("r+b") as log:
        os.pwrite(log.fileno(), bytes(4), place - int(file.name))
    store = open_store(tmp_path)
    assert gap_of(store) == gap | {damaged.queue_offset}
    assert store.batches.taken_back(*KEY, 0, 1_000) == gap
    store.shutdown()


def test_what_a_queue_has_passed_is_forgotten():
    taken_back = TakenBack()
    for start, count in ((7, 2), (9, 1), (8, 2), (20, 1), (3, 1)):
        taken_back.note(KEY, start, count)
    assert list(taken_back.of(KEY)) == [range(3, 4), range(7, 10), range(20, 21)]
    taken_back.forget(KEY, 9)
    assert list(taken_back.of(KEY)) == [range(7, 10), range(20, 21)]
    taken_back.forget(KEY, 21)
    taken_back.forget(("U", 0), 21)
    assert list(taken_back.of(KEY)) == []


def test_blank_entries_of_a_gap_are_as_many_as_it_has_offsets():
    lost, rolled_back = (
        blank_entries(range(1), 4_096),
        blank_entries(range(1), 4_096, [range(1)]),
    )
    assert lost != rolled_back
    ranges = [range(2), range(4, 6), range(5, 7), range(9, 30)]
    assert blank_entries(range(1, 11), 4_096, ranges) == b"".join(
        rolled_back if each in {1, 4, 5, 6, 9, 10} else lost for each in range(1, 11)
    )
