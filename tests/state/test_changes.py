import pytest

from rocketpoll.broker.state.tables.table import PendingChanges


class Names:
    """A table of plain values, and the changes of it."""

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


def test_what_is_refused_is_as_it_was_before_all():
    names = Names(a=1)
    first, second = names.change(a=2, b=2), names.change(a=3, b=3)
    first.rollback()
    assert names.values == {"a": 3, "b": 3}
    second.rollback()
    assert names.values == {"a": 1}


def test_a_refusal_goes_back_to_what_is_still_under_way():
    names = Names()
    first, second = names.change(a=1), names.change(a=2)
    second.rollback()
    assert names.values == {"a": 1}
    first.rollback()
    assert names.values == {}


def test_what_was_saved_last_is_what_a_refusal_goes_back_to():
    names = Names()
    first, second = names.change(a=1), names.change(a=2)
    first.commit()
    second.rollback()
    assert names.values == {"a": 1}


def test_what_was_overwritten_by_what_is_saved_is_not_taken_back():
    names = Names()
    first, second = names.change(a=1), names.change(a=2)
    second.commit()
    first.rollback()
    assert names.values == {"a": 2}


def test_two_changes_to_the_same_value_are_two():
    names = Names()
    first, second = names.change(a=1), names.change(a=1)
    first.rollback()
    assert names.values == {"a": 1}
    second.rollback()
    assert names.values == {}


def test_a_change_of_one_name_twice_is_taken_back_as_one():
    names = Names()
    with names.changes.begin() as change:
        names.put(change, a=1)
        names.put(change, a=2)
    change.rollback()
    assert names.values == {}


def test_what_an_error_has_left_of_a_change_stays_also_when_others_are_refused():
    names = Names()
    with pytest.raises(ValueError, match="no more"), names.changes.begin() as change:
        broken_off(names, change)
    names.change(a=2).rollback()
    assert names.values == {"a": 1}


def test_a_name_that_is_gone_for_good_is_not_brought_back():
    names = Names(a=1)
    change = names.change(a=2)
    names.values.clear()
    names.changes.forget("a")
    change.rollback()
    assert names.values == {}


def test_nothing_is_kept_of_changes_that_are_decided():
    names = Names()
    changes = [names.change(a=number, b=number) for number in range(4)]
    for change in changes[:2]:
        change.rollback()
    for change in changes[2:]:
        change.commit()
    assert names.changes._names == {}
