"""What a power loss may leave of a directory tree."""

import pickle
import random
from itertools import chain, product
from pathlib import PurePath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.disks.file_versions import PAGE, Image
from support.disks.power_loss import PowerLossModel, every_state, states
from support.suite.selection import count


def model_of(**files):
    """Return a model of durable files in its root."""
    return PowerLossModel({PurePath(name): Image.of(data) for name, data in files.items()})


def path(name):
    return PurePath(name)


def create(model, name, data=b""):
    """Create a file whose content is durable, while its name is not."""
    model.end_flush(model.begin_write_whole(path(name), data))


def flush(model, name=""):
    model.end_flush(model.begin_flush(model.find(path(name))))


def contents(tree):
    return {name.as_posix(): image and image.content for name, image in tree.items()}


def found(model):
    """Return all names and contents that a power loss may leave, without torn pages."""
    trees = every_state(lambda choices: model.draw(choices, choices))
    return {frozenset(contents(tree).items()) for tree in trees}


def names(model):
    return {tuple(sorted(name for name, _ in state)) for state in found(model)}


# ---- names


def test_power_loss_model_shows_unflushed_changes_to_programs():
    model = model_of(old=b"old", gone=b"gone")
    model.write(model.find(path("old")), b"new!", 0)
    model.delete(path("gone"))
    model.end_flush(model.begin_write_whole(path("small"), b"data"))
    assert contents(model.seen()) == {"old": b"new!", "small": b"data"}


def test_failed_directory_flush_promises_nothing():
    model = PowerLossModel()
    create(model, "small")
    model.fail_flush(model.begin_flush(model.find(path(""))))
    assert names(model) == {(), ("small",)}
    flush(model)
    assert names(model) == {("small",)}


def test_unflushed_directory_loses_its_flushed_content():
    model = PowerLossModel()
    model.make_directory(path("a"))
    model.make_directory(path("a/b"))
    create(model, "a/b/small", b"data")
    flush(model, "a/b")
    flush(model, "a")
    assert names(model) == {(), ("a", "a/b", "a/b/small")}
    flush(model)
    assert names(model) == {("a", "a/b", "a/b/small")}


def test_durably_deleted_directory_takes_its_unflushed_deletions_along():
    model = PowerLossModel({path("a"): None, path("a/x"): Image.of(b"x")})
    model.delete(path("a/x"))
    model.delete(path("a"))
    assert names(model) == {("a", "a/x"), ("a",), ()}
    flush(model)
    assert names(model) == {()}


def test_renamed_file_keeps_its_content_and_inode():
    model = model_of(log=bytes(4))
    inode = model.find(path("log"))
    model.rename(path("log"), path("old"))
    again = model.create(path("log"))
    model.write(inode, b"old", 0)
    model.write(again, b"new", 0)
    assert model.find(path("old")) == inode
    for name in ("old", "log", ""):
        flush(model, name)
    assert found(model) == {frozenset({("old", b"old\0"), ("log", b"new")})}


def test_operations_on_a_deleted_file_have_no_effect():
    model = model_of(x=b"x")
    inode = model.find(path("x"))
    under_way = model.begin_flush(inode)
    model.delete(path("x"))
    flush(model)
    model.write(inode, b"y", 0)
    model.truncate(inode, 0)
    model.end_flush(under_way)
    model.end_flush(model.begin_flush(inode))
    model.fail_flush(model.begin_flush(inode))
    assert found(model) == {frozenset()}


def test_power_loss_model_refuses_duplicate_names_and_missing_directories():
    model = model_of(x=b"")
    with pytest.raises(FileExistsError, match="has x already"):
        model.create(path("x"))
    with pytest.raises(FileNotFoundError, match="no directory a for y"):
        model.make_directory(path("a/y"))
    assert model.find(path("a/y")) is None


# Few names, so that they are reused often.
DIRECTORIES = ("a", "b")
NAMES = ("a/x", "b/x", "b/y")
numbers = st.integers(0, 5)
kinds = st.sampled_from(["create", "create", "rename", "rename", "delete", "begin", "end", "flush"])
steps = st.lists(st.tuples(kinds, numbers, numbers), min_size=5, max_size=12)


class History:
    """Changes names in a model, and records every change."""

    def __init__(self):
        self.model = PowerLossModel({path(directory): None for directory in DIRECTORIES})
        self.changes = []  # (file, name, new name, directories that may still lose it)
        self._seen = {}
        self._under_way = []

    def create(self, one, _):
        if free := [name for name in NAMES if name not in self._seen]:
            name, file = free[one % len(free)], len(self.changes)
            create(self.model, name, bytes([file]))
            self._seen[name] = file
            self._note(file, None, name)

    def rename(self, one, other):
        if self._seen:
            name = self._pick(one)
            new_name = [each for each in NAMES if each != name][other % (len(NAMES) - 1)]
            self.model.rename(path(name), path(new_name))
            file = self._seen[new_name] = self._seen.pop(name)
            self._note(file, name, new_name)

    def delete(self, one, _):
        if self._seen:
            name = self._pick(one)
            self.model.delete(path(name))
            self._note(self._seen.pop(name), name, None)

    def begin(self, one, _):
        directory = DIRECTORIES[one % len(DIRECTORIES)]
        flush = self.model.begin_flush(self.model.find(path(directory)))
        self._under_way.append((flush, directory, len(self.changes)))

    def end(self, one, _):
        if self._under_way:
            flush, directory, count = self._under_way.pop(one % len(self._under_way))
            self.model.end_flush(flush)
            for *_, unflushed in self.changes[:count]:
                unflushed.discard(directory)

    def flush(self, one, _):
        self.begin(one, _)
        self.end(-1, _)

    def _pick(self, number):
        return list(self._seen)[number % len(self._seen)]

    def _note(self, file, *names):
        self.changes.append((file, *names, {str(path(name).parent) for name in names if name}))


@given(steps)
@settings(max_examples=count("ROCKETPOLL_NAME_HISTORIES", 300, wide=1000))
def test_possible_names_follow_exactly_from_the_history(steps):
    """The full history applies the rules literally."""
    history = History()
    for step, one, other in steps:
        getattr(history, step)(one, other)
    assert found(history.model) == set(allowed(history.changes))


def allowed(changes_of_all):
    """Yield every outcome: for each file all durable changes, and any number of later ones."""
    of_one = {}
    for number, (file, _, _, unflushed) in enumerate(changes_of_all):
        of_one.setdefault(file, []).append((number, not unflushed))
    choices = []
    for changes in of_one.values():
        numbers = [number for number, _ in changes]
        flushed = [at for at, (_, is_flushed) in enumerate(changes, 1) if is_flushed]
        certain = max(flushed, default=0)
        choices.append([numbers[:count] for count in range(certain, len(numbers) + 1)])
    for happened in product(*choices):
        names = {}
        for number in sorted(chain.from_iterable(happened)):
            file, name, new_name, _ = changes_of_all[number]
            if names.get(name) == file:
                del names[name]
            if new_name:
                names[new_name] = file
        left = {name: bytes([file]) for name, file in names.items()}
        yield frozenset({**dict.fromkeys(DIRECTORIES), **left}.items())


# ---- drawn states


def some_changes():
    model = model_of(log=bytes(8 * PAGE))
    for page in range(8):
        model.write(model.find(path("log")), b"x" * PAGE, page * PAGE)
    create(model, "small", b"data")
    return model


def drawn(model, seed=1, count=60):
    return [contents(tree) for tree in states(model, random.Random(seed), count)]


def test_first_power_loss_state_lost_the_most_and_the_second_nothing():
    worst, best, *_ = drawn(some_changes())
    assert worst == {"log": bytes(8 * PAGE)}
    assert best == {"log": b"x" * 8 * PAGE, "small": b"data"}


def test_power_loss_may_keep_names_without_content_and_content_without_names():
    model = PowerLossModel()
    for name in ("a", "b", "c", "d"):
        model.write(model.create(path(name)), b"data", 0)
    found = drawn(model)
    assert dict.fromkeys("abcd", b"") in found
    assert any(state and len(state) < 4 and set(state.values()) == {b"data"} for state in found)


def test_power_loss_states_repeat_with_the_same_seed_and_are_unique():
    once, again, other = drawn(some_changes()), drawn(some_changes()), drawn(some_changes(), seed=2)
    assert once == again != other
    assert len(once) > 30


def test_fully_durable_tree_has_one_state():
    tree = {path("d"): None, path("d/x"): Image.of(b"x" * 5000)}
    assert list(states(PowerLossModel(tree), random.Random(1), 60)) == [tree]


def test_power_loss_model_can_start_from_a_state():
    for tree in states(some_changes(), random.Random(1), 20):
        assert drawn(PowerLossModel(tree)) == [contents(tree)]


def test_size_of_the_model_is_independent_of_past_operations():
    def size_after(rounds):
        model = PowerLossModel()
        for number in range(rounds):
            model.make_directory(path("d"))
            create(model, "d/new", bytes([number % 251]) * PAGE)
            flush(model, "d")
            model.rename(path("d/new"), path("table"))
            model.delete(path("d"))
            flush(model)
        return len(pickle.dumps(model))

    assert size_after(1000) < size_after(10) + 100
