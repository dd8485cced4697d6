"""Pending changes of a table are rolled back one by one."""

import pytest

from rocketpoll.broker.state.tables.table import PendingChanges


class Names:
    """A table of plain values, and its pending changes."""

    def __init__(self, **values):
        self.values = values
        self.changes = PendingChanges(self._restore)

    def _restore(self, name, value):
        if value is None:
            del self.values[name]
        else:
            self.values[name] = value

    def change(self, **values):
        with self.changes.begin() as change:
            self.put(change, **values)
        return change

    def put(self, change, **values):
        for name, value in values.items():
            before = self.values.get(name)
            self.values[name] = value
            change.record(name, before, value)


def broken_off(names, change):
    names.put(change, a=1)
    raise ValueError("no more")


def test_rolled_back_change_restores_the_pending_one_before_it():
    names = Names()
    first, second = names.change(a=1), names.change(a=2)
    second.rollback()
    assert names.values == {"a": 1}
    first.rollback()
    assert names.values == {}


def test_rollback_keeps_value_overwritten_by_a_committed_change():
    names = Names()
    first, second = names.change(a=1), names.change(a=2)
    second.commit()
    first.rollback()
    assert names.values == {"a": 2}


def test_change_broken_off_by_an_error_survives_other_rollbacks():
    names = Names()
    with pytest.raises(ValueError, match="no more"), names.changes.begin() as change:
        broken_off(names, change)
    names.change(a=2).rollback()
    assert names.values == {"a": 1}


def test_rollback_does_not_restore_a_forgotten_name():
    names = Names(a=1)
    change = names.change(a=2)
    names.values.clear()
    names.changes.discard("a")
    change.rollback()
    assert names.values == {}
