"""BatchTable after a restart, after a power loss, and with files of an older copy."""

import errno
import random
import shutil
from dataclasses import replace

import pytest
from support.disks.faulty_disk import (
    Fault,
    FaultyDisk,
    ManualClock,
    RecordingDisk,
    power_loss_states,
)

from rmq_spark.wire.bodies.staged_batches import BatchSpan, CommittedBatch
from rocketpoll.broker.common.recent_losses import RecentLosses
from rocketpoll.broker.store.errors import BatchRefused, DamagedTable
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.staging import commit_table
from rocketpoll.broker.store.staging.commit_table import (
    BATCH_JOURNAL,
    BATCH_TABLE,
    SPANS_MAX,
    BatchTable,
    OpenBatch,
)

SPAN = BatchSpan(topic="T", queue_id=1, queue_offset=5, count=3, crc=9, body_bytes=7)
FIRST = CommittedBatch(batch_id=1, owner="q", rows=3, spans=(SPAN,))
OPEN = OpenBatch(sink="s", batch_id=1, log_offset=0)
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def small_journal(monkeypatch):
    """Limit the journal to three entries, so that it fills up and the whole table is saved."""
    monkeypatch.setattr(commit_table, "JOURNAL_BYTES", 3 * 4_096)
    monkeypatch.setattr(commit_table, "_ENTRY_BYTES", 512)


def opened(directory, disk=None, clock=None):
    now_ms = clock or ManualClock()
    table = BatchTable(disk or LocalDisk(), directory, now_ms, RecentLosses(now_ms))
    table.load()
    return table


def committed(table, number, sink="s"):
    """Commit a batch of one row; return the table's entry."""
    table.begin(OpenBatch(sink=sink, batch_id=number, log_offset=number), 1)
    return table.commit(sink, replace(FIRST, batch_id=number))


def test_batch_commit_is_found_after_reopening_the_batch_table(tmp_path, clock):
    table = opened(tmp_path, clock=clock)
    table.begin(OPEN, 1)
    assert opened(tmp_path).under_way == OPEN
    first = table.commit("s", FIRST)
    assert first == replace(FIRST, committed_ms=clock.now_ms)
    found = opened(tmp_path)
    assert (found.under_way, found.last("s"), found.last("t")) == (None, first, None)


def test_rolled_back_commit_leaves_the_last_batch(tmp_path):
    table = opened(tmp_path)
    first = table.commit("s", FIRST)
    table.begin(OPEN, 1)
    table.rollback()
    assert (opened(tmp_path).under_way, opened(tmp_path).last("s")) == (None, first)


def test_batch_mark_starts_at_one_which_no_other_message_carries():
    assert OPEN.mark == 1


def test_batch_table_knows_the_last_committed_batch_and_refuses_earlier_ones(tmp_path):
    table = opened(tmp_path)
    committed(table, 40)
    assert table.is_committed("s", 40, "q")
    assert not table.is_committed("s", 41, "q")
    assert not table.is_committed("t", 0, "q")
    with pytest.raises(BatchRefused) as refused:
        table.is_committed("s", 0, "q")
    for told in ("sink s", "batch 40", "batch 0", "checkpoint", "rocketpoll sink forget s"):
        assert told in str(refused.value)


def test_forgotten_sink_stays_forgotten_after_restart(tmp_path):
    table = opened(tmp_path)
    committed(table, 40)
    committed(table, 7, "other")
    table.forget("s")
    for found in (table, opened(tmp_path)):
        assert not found.is_committed("s", 0, "another query")
        assert found.is_committed("other", 7, "q")


def test_number_of_sinks_is_limited_and_old_sinks_are_forgotten(
    tmp_path, monkeypatch, clock, caplog
):
    monkeypatch.setattr(commit_table, "SINKS_MAX", 2)
    table = opened(tmp_path, clock=clock)
    committed(table, 1, "old")
    clock.now_ms += 1
    committed(table, 1, "young")
    assert table.is_committed("old", 1, "q")
    with pytest.raises(BatchRefused, match=r"there are 2 sinks already.*rocketpoll sink forget"):
        table.is_committed("new", 0, "q")
    clock.now_ms += 7 * DAY_MS
    assert not table.is_committed("new", 0, "q")
    committed(table, 0, "new")
    assert table.evicted_sinks == 1
    assert "sink old (last batch: 1, " in caplog.text
    assert sorted(opened(tmp_path).sinks) == ["new", "young"]


def test_batch_with_more_chunks_than_the_journal_holds_is_refused(tmp_path):
    with pytest.raises(BatchRefused, match="stage more rows in each"):
        opened(tmp_path).begin(OPEN, SPANS_MAX + 1)


def test_batch_commit_takes_two_writes_and_two_flushes(tmp_path):
    disk = FaultyDisk(LocalDisk())
    table = opened(tmp_path, disk)
    committed(table, 0)
    first = len(disk.operations)
    committed(table, 1)
    kinds = [each.kind for each in disk.operations[first:]]
    assert kinds == ["write", "flush", "write", "flush"]


def test_batch_commit_begun_on_a_disk_that_fills_up_can_be_ended(tmp_path):
    disk = FaultyDisk(LocalDisk())
    table = opened(tmp_path, disk)
    for number in range(400):  # fills the journal, which saves the table
        table.begin(OpenBatch(sink="s", batch_id=number, log_offset=number), 1)
        disk.capacity = disk.used
        first = table.commit("s", replace(FIRST, batch_id=number))
        disk.capacity = None
    assert opened(tmp_path).last("s") == first


@pytest.mark.usefixtures("small_journal")
def test_batch_table_after_power_loss_has_the_last_or_the_pending_entry(tmp_path):
    root = tmp_path / "told"
    root.mkdir()
    disk = RecordingDisk(LocalDisk(), root)
    table, said = opened(root, disk), []

    def note():
        said.append((len(disk.operations), table.under_way, dict(table.sinks)))

    note()
    for number in range(9):
        table.begin(OpenBatch(sink="s", batch_id=number, log_offset=number), 1)
        note()
        if number % 3 == 2:
            table.rollback()
        else:
            table.commit("s", replace(FIRST, batch_id=number))
        note()
    dice = random.Random(7)
    for point in range(len(disk.operations) + 1):
        at = max(index for index, (count, _, _) in enumerate(said) if count <= point)
        allowed = [each[1:] for each in said[at : at + 2]]
        for state in power_loss_states(disk.log(point), dice, 4, tmp_path):
            found = opened(state)
            assert (found.under_way, dict(found.sinks)) in allowed
            found.close()


@pytest.mark.usefixtures("small_journal")
def test_batch_table_operation_that_failed_on_disk_succeeds_when_retried(tmp_path):
    def story(table, is_tried_again):
        for number in range(6):
            for step in (
                lambda n=number: table.begin(OpenBatch(sink="s", batch_id=n, log_offset=n), 1),
                lambda n=number: table.commit("s", replace(FIRST, batch_id=n)),
            ):
                try:
                    step()
                except OSError:  # noqa: PERF203  # each operation may fail
                    assert is_tried_again
                    step()

    disk = FaultyDisk(LocalDisk())
    (tmp_path / "count").mkdir()
    story(opened(tmp_path / "count", disk), is_tried_again=False)
    kinds = frozenset({"write", "write_whole", "rename", "create"})
    for number in range(len(disk.operations)):
        root = tmp_path / str(number)
        root.mkdir()
        fault = Fault(number, error=errno.ENOSPC, prefix=10, kinds=kinds)
        table = opened(root, FaultyDisk(LocalDisk(), [fault]))
        story(table, is_tried_again=True)
        assert (opened(root).under_way, opened(root).last("s")) == (None, table.last("s"))
        assert table.last("s").batch_id == 5


# ---- damaged, missing and older files


@pytest.mark.parametrize("name", [BATCH_TABLE, BATCH_JOURNAL])
def test_damaged_or_missing_batch_table_file_is_refused(tmp_path, name):
    table = opened(tmp_path)
    committed(table, 1)
    (tmp_path / name).write_bytes(b"{")
    with pytest.raises(DamagedTable, match=name):
        opened(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(DamagedTable, match=BATCH_JOURNAL):
        opened(tmp_path)


def test_batch_table_without_files_has_no_sinks(tmp_path):
    committed(opened(tmp_path), 1)
    for path in tmp_path.iterdir():
        path.unlink()
    assert opened(tmp_path).sinks == {}


def test_batch_table_with_damage_before_valid_entries_is_refused(tmp_path):
    table = opened(tmp_path)
    for number in range(4):
        committed(table, number)
    path = tmp_path / BATCH_JOURNAL
    data = bytearray(path.read_bytes())
    data[2 * 4_096 + 60] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        DamagedTable, match="entry 2 at 8192 is damaged: entry 3 follows it at 12288"
    ):
        opened(tmp_path)


@pytest.mark.usefixtures("small_journal")
def test_older_copy_of_the_batch_table_is_detected(tmp_path):
    table = opened(tmp_path)
    committed(table, 0)
    shutil.copy(tmp_path / BATCH_TABLE, tmp_path / "older")
    for number in range(1, 8):
        committed(table, number)
    shutil.copy(tmp_path / "older", tmp_path / BATCH_TABLE)
    with pytest.raises(DamagedTable, match="has generation 1 and is an older copy"):
        opened(tmp_path)


@pytest.mark.usefixtures("small_journal")
def test_damaged_batch_table_is_not_replaced_by_an_older_backup(tmp_path):
    """With the backup, later batches could be committed twice."""
    table = opened(tmp_path)
    for number in range(8):
        committed(table, number)
    path = tmp_path / BATCH_TABLE
    path.write_bytes(path.read_bytes().replace(b'"rows":3', b'"rows":4'))
    with pytest.raises(DamagedTable, match="older copy"):
        opened(tmp_path)
