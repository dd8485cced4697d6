"""Topics whose names differ only in case have separate queues, on case-sensitive and
case-insensitive disks."""

import os
import shutil

import pytest
from support.stores.small_store import bodies, crash, message, open_store

from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.queues.queue_table import TopicDirectories

TOPICS = ("Orders", "orders", "ORDERS")


class DiskWithoutCapitals(LocalDisk):
    """A disk that ignores case in names, and keeps the spelling of the creator."""

    def __init__(self, root):
        super().__init__()
        self._root = root

    def _there(self, path):
        if not path.is_relative_to(self._root):
            return path
        found = self._root
        for name in path.relative_to(self._root).parts:
            names = os.listdir(found) if found.is_dir() else []  # noqa: PTH208  # names, not paths
            found /= next((each for each in names if each.lower() == name.lower()), name)
        return found

    def create(self, path, size):
        return super().create(self._there(path), size)

    def open(self, path):
        return super().open(self._there(path))

    def read(self, path):
        return super().read(self._there(path))

    def write_whole(self, path, data):
        super().write_whole(self._there(path), data)

    def rename(self, path, new_path):
        super().rename(self._there(path), self._there(new_path.parent) / new_path.name)

    def delete(self, path):
        super().delete(self._there(path))

    def make_directory(self, path):
        super().make_directory(self._there(path))

    def flush_directory(self, path):
        super().flush_directory(self._there(path))

    def names(self, path):
        return super().names(self._there(path))

    def list_directories(self, paths):
        return super().list_directories([self._there(path) for path in paths])


@pytest.fixture(params=[DiskWithoutCapitals, lambda _: LocalDisk()], ids=["no capitals", "usual"])
def disk(request, tmp_path):
    return request.param(tmp_path)


def put_in_turn(store, texts):
    for text in texts:
        for topic in TOPICS:
            store.put_message(message(f"{topic} {text}", topic))


@pytest.mark.parametrize("end", [crash, lambda store: store.shutdown()], ids=["kill", "stop"])
@pytest.mark.parametrize("made_again", [False, True])
def test_topics_differing_in_case_keep_their_messages_over_restarts(
    tmp_path, disk, end, made_again
):
    """The limit of open files is so low that each file is opened again by name."""
    texts = []
    for life in range(3):
        store = open_store(tmp_path, disk, open_files_max=2)
        put_in_turn(store, new := [f"{life}.{number}" for number in range(12)])
        texts += new
        for topic in TOPICS:
            assert bodies(store, topic) == [f"{topic} {text}" for text in texts]
        end(store)
        if made_again:
            shutil.rmtree(tmp_path / "consumequeue")


def test_deleting_one_topic_keeps_those_that_differ_in_case(tmp_path, disk):
    store = open_store(tmp_path, disk)
    put_in_turn(store, "ab")
    store.delete_topic("orders")
    store.deleted_topic_files.delete_some()
    for _ in range(2):
        assert bodies(store, "orders") == []
        for topic in ("Orders", "ORDERS"):
            assert bodies(store, topic) == [f"{topic} a", f"{topic} b"]
        store.shutdown()
        store = open_store(tmp_path, disk)
    put_in_turn(store, "c")
    assert bodies(store, "orders") == ["orders c"]
    assert bodies(store, "ORDERS") == ["ORDERS a", "ORDERS b", "ORDERS c"]
    store.shutdown()


def test_topics_on_a_case_sensitive_disk_have_rocketmqs_paths(tmp_path):
    store = open_store(tmp_path)
    put_in_turn(store, "a")
    store.shutdown()
    assert sorted(os.listdir(tmp_path / "consumequeue")) == sorted(TOPICS)  # noqa: PTH208  # names, not paths


def test_store_moved_between_case_sensitive_and_insensitive_disks_keeps_topics(tmp_path):
    store = open_store(tmp_path, DiskWithoutCapitals(tmp_path))
    put_in_turn(store, "a")
    store.shutdown()
    store = open_store(tmp_path)
    put_in_turn(store, "b")
    for topic in TOPICS:
        assert bodies(store, topic) == [f"{topic} a", f"{topic} b"]
    store.shutdown()


def test_directory_above_encodes_capital_letters(tmp_path):
    directories = TopicDirectories(DiskWithoutCapitals(tmp_path), tmp_path)
    assert [directories.path_of(topic).relative_to(tmp_path).as_posix() for topic in TOPICS] == [
        "Orders",
        ".0/orders",
        ".3f/ORDERS",
    ]
