"""BatchTable: what it says after a restart."""

from __future__ import annotations

import pytest

from rmq_spark.wire.bodies.staged_batches import BatchSpan, CommittedBatch
from rocketpoll.broker.store import batch_table
from rocketpoll.broker.store.batch_table import BATCH_TABLE, BatchTable, OpenBatch
from rocketpoll.broker.store.disk import LocalDisk
from rocketpoll.broker.store.errors import BatchRefused, DamagedTable

SPAN = BatchSpan(topic="T", queue_id=1, queue_offset=5, count=3, crc=9, body_bytes=7)
FIRST = CommittedBatch(batch_id=1, owner="q", rows=3, spans=(SPAN,))
OPEN = OpenBatch(sink="s", batch_id=1, log_offset=0)


def opened(directory):
    table = BatchTable(LocalDisk(), directory)
    table.load()
    return table


def test_a_commit_is_found_with_all_that_it_was(tmp_path):
    table = opened(tmp_path)
    table.begin(OPEN)
    assert opened(tmp_path).under_way == OPEN
    table.finish("s", FIRST)
    found = opened(tmp_path)
    assert (found.under_way, found.last("s"), found.last("t")) == (None, FIRST, None)


def test_what_is_given_up_leaves_the_last_batch(tmp_path):
    table = opened(tmp_path)
    table.finish("s", FIRST)
    table.begin(OPEN)
    table.give_up()
    assert (opened(tmp_path).under_way, opened(tmp_path).last("s")) == (None, FIRST)


def test_a_mark_is_never_what_other_messages_carry():
    assert OPEN.mark == 1


def test_the_number_of_sinks_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_table, "SINKS_MAX", 1)
    table = opened(tmp_path)
    table.check_owner("s", "q")
    table.finish("s", FIRST)
    table.check_owner("s", "q")
    with pytest.raises(BatchRefused, match="there are 1 sinks already"):
        table.check_owner("t", "q")


def test_a_damaged_table_is_no_empty_one(tmp_path):
    table = opened(tmp_path)
    table.finish("s", FIRST)
    (tmp_path / BATCH_TABLE).write_bytes(b"{")
    with pytest.raises(DamagedTable, match=BATCH_TABLE):
        opened(tmp_path)
