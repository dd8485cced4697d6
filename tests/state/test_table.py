"""Tables save their changes; a failed save is repeated with the next one."""

import threading

import pytest
from support.brokers.state_tables import offsets_in

from rocketpoll.broker.state.tables.table import SavedTable


class Slow:
    """A table whose disk can be slow, and can fail."""

    def __init__(self):
        self.saved = []
        self.error = None
        self.meanwhile = lambda: None

    def load(self, default):
        return default

    def save(self, value):
        self.meanwhile()
        if self.error:
            raise self.error
        self.saved.append(value)


def test_saved_table_writes_only_changes():
    table, number = Slow(), [1]
    saver = SavedTable(table, lambda: number[0])
    saver.save()
    assert table.saved == []
    saver.is_dirty = True
    saver.save()
    saver.save()
    assert table.saved == [1]


def test_change_during_a_table_save_is_saved_next_time():
    table, number = Slow(), [1]
    saver = SavedTable(table, lambda: number[0])

    def change():
        number[0], saver.is_dirty = 2, True

    saver.is_dirty = True
    table.meanwhile = change
    saver.save()
    assert saver.is_dirty
    table.meanwhile = lambda: None
    saver.save()
    assert table.saved == [1, 2]
    assert not saver.is_dirty


def test_table_stays_dirty_after_a_failed_save():
    table = Slow()
    saver = SavedTable(table, lambda: 1)
    saver.is_dirty = True
    table.error = OSError("full")
    with pytest.raises(OSError, match="full"):
        saver.save()
    assert saver.is_dirty
    table.error = None
    saver.save()
    assert table.saved == [1]


def test_table_saver_reports_saved_state_after_the_write():
    table, told = Slow(), []
    saver = SavedTable(table, lambda: "all", told.append)
    saver.is_dirty = True
    table.error = OSError("full")
    with pytest.raises(OSError, match="full"):
        saver.save()
    assert told == []
    table.error = None
    table.meanwhile = lambda: told.append("not yet")
    saver.save()
    saver.save()
    assert told == ["not yet", "all"]


def test_concurrent_table_saves_keep_the_later_state():
    table, number = Slow(), [1]
    saver = SavedTable(table, lambda: number[0])
    held, let_go = threading.Event(), threading.Event()

    def hold_up():
        held.set()
        let_go.wait(10)

    table.meanwhile = hold_up
    saver.is_dirty = True
    first = threading.Thread(target=saver.save)
    first.start()
    held.wait(10)
    number[0], saver.is_dirty = 2, True
    second = threading.Thread(target=saver.save)
    second.start()
    let_go.set()
    first.join()
    second.join()
    assert table.saved == [1, 2]


def test_offset_commits_continue_while_another_thread_saves(tmp_path):
    offsets = offsets_in(tmp_path)
    errors = []

    def save():
        try:
            for _ in range(20):
                offsets.save()
        except BaseException as error:
            errors.append(error)

    saver = threading.Thread(target=save)
    saver.start()
    number = 0
    while saver.is_alive() or number < 100:
        offsets.commit(f"g{number % 50}", f"T{number}", 0, number)
        number += 1
    saver.join()
    assert errors == []
    offsets.save()
    assert offsets_in(tmp_path).wrapper() == offsets.wrapper()
