"""Records of the batch journal survive a crash or damage at its end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpoll.broker.store.errors import DamagedTable
from rocketpoll.broker.store.files.disk import LocalDisk, LocalFile
from rocketpoll.broker.store.staging import commit_table
from rocketpoll.broker.store.staging.commit_table import BatchJournal

PAGE = 4_096
NOTES = [b"first", b"second " * 1_000, b"", b"fourth"]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(commit_table, "JOURNAL_BYTES", 8 * PAGE)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "batches.journal"


def journal_at(path, *notes, generation=1):
    """Return a journal with these entries."""
    journal = BatchJournal(LocalDisk(), path)
    journal.create()
    journal.start_generation(generation)
    for each in notes:
        journal.append(each)
    return journal


def noted(path, generation=1):
    """Return the entries that a restart reads."""
    journal = BatchJournal(LocalDisk(), path)
    try:
        return journal.load(generation)
    finally:
        journal.close()


def test_journal_entries_are_read_in_order_and_appending_continues(path):
    journal_at(path, *NOTES).close()
    again = BatchJournal(LocalDisk(), path)
    assert again.load(1) == NOTES
    again.append(b"fifth")
    again.close()
    assert noted(path) == [*NOTES, b"fifth"]


def test_missing_batch_journal_is_damage_unless_the_table_is_new(path):
    assert noted(path, generation=0) == []
    with pytest.raises(DamagedTable, match="it is missing"):
        noted(path)


def test_new_journal_generation_ignores_earlier_entries(path):
    journal = journal_at(path, *NOTES)
    journal.start_generation(2)
    assert noted(path, generation=2) == []
    journal.append(b"of the second")
    journal.close()
    assert noted(path, generation=2) == [b"of the second"]
    with pytest.raises(DamagedTable, match="has generation 1 and is an older copy"):
        noted(path)


def test_journal_reports_when_it_is_full(path):
    journal = journal_at(path, *NOTES)
    assert journal.has_room(PAGE - 24)
    assert journal.has_room(1, 1, 1)
    assert not journal.has_room(1, 1, 1, 1)
    assert not journal.has_room(3 * PAGE)
    journal.close()


@pytest.mark.parametrize("kept", [0, 1, 23, 24, 25, 28])
def test_journal_entry_cut_off_by_a_crash_is_ignored(path, kept):
    journal_at(path, b"whole", b"torn").close()
    data = bytearray(path.read_bytes())
    data[PAGE + kept : 2 * PAGE] = bytes(PAGE - kept)
    path.write_bytes(data)
    assert noted(path) == [b"whole"] + ([b"torn"] if kept == 28 else [])


@given(at=st.integers(0, 27), number=st.integers(0, 2), bit=st.integers(0, 7))
def test_damaged_journal_entry_is_refused_unless_it_is_the_last(tmp_path_factory, at, number, bit):
    path = tmp_path_factory.mktemp("journal") / "batches.journal"
    notes = [b"0000", b"1111", b"2222"]
    journal_at(path, *notes).close()
    data = bytearray(path.read_bytes())
    data[number * PAGE + at] ^= 1 << bit
    path.write_bytes(data)
    if number == 2:
        assert noted(path) == notes[:2]
    else:
        with pytest.raises(DamagedTable, match=r"Nothing was changed\. Restore"):
            noted(path)


def test_batch_journal_of_a_wrong_size_is_refused(path):
    journal_at(path, b"noted").close()
    path.write_bytes(path.read_bytes()[:PAGE])
    with pytest.raises(DamagedTable, match="it has 4096 bytes"):
        noted(path)


def test_journal_preallocated_before_a_kill_is_recreated_and_flushed(path, monkeypatch):
    """Otherwise a power loss may remove it when the table is saved, which then lacks
    its entries."""
    path.write_bytes(bytes(commit_table.JOURNAL_BYTES))
    again, flush, flushes = BatchJournal(LocalDisk(), path), LocalFile.flush, []
    assert again.load(0) == []
    monkeypatch.setattr(LocalFile, "flush", lambda self: flushes.append(flush(self)))
    again.create()
    again.close()
    assert flushes
