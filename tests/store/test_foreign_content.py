"""Stores with foreign content: RocketMQ's light queues, and arbitrary names in any directory."""

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest
from support.stores.small_store import (
    QUEUE_FILE_ENTRIES,
    components_of,
    message,
    open_store,
    put_batch,
    read_all,
)

from rocketpoll.broker.store.errors import ForeignFile
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.log.checkpoint_file import CHECKPOINT, CHECKPOINT_BYTES
from rocketpoll.broker.store.queues.consume_queue import ENTRY_BYTES
from rocketpoll.broker.store.results import PutMessageStatus
from rocketpoll.broker.store.tools.verify import findings

LIGHT_QUEUES = ("%LMQ%a", "%LMQ%$orders$lite-1")
"""Names of a light queue, and of one of a lite topic, which is not a valid topic name."""


def files_below(directory):
    return {
        path.relative_to(directory): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def with_light_queues(tmp_path):
    """Return a store whose messages RocketMQ dispatched to light queues as well."""
    store = open_store(tmp_path)
    put_batch(store, *map(message, range(6)))
    store.reput()
    entries = [
        bytes(components_of(store).queues.get("T", 0).read(number, 1)) for number in (1, 3, 5)
    ]
    store.shutdown()
    for name in LIGHT_QUEUES:
        queue = tmp_path / "consumequeue" / name / "0"
        queue.mkdir(parents=True)
        content = b"".join(entries).ljust(QUEUE_FILE_ENTRIES * ENTRY_BYTES, b"\0")
        (queue / f"{0:020d}").write_bytes(content)
    (tmp_path / CHECKPOINT).write_bytes(bytes(CHECKPOINT_BYTES))  # without our mark
    return tmp_path


def light_files(root):
    return {name: files_below(root / "consumequeue" / name) for name in LIGHT_QUEUES}


@pytest.mark.parametrize("ends", ["stopped", "killed"])
def test_light_queues_of_rocketmq_are_kept_and_become_no_topics(with_light_queues, caplog, ends):
    root = with_light_queues
    if ends == "killed":
        (root / "abort").touch()
    before = light_files(root)
    with caplog.at_level(logging.WARNING):
        store = open_store(root)
    said = [each for each in caplog.messages if "light queues" in each]
    (line,) = said
    assert line.startswith(f"{root / 'consumequeue'} has 2 light queues (%LMQ%...) of RocketMQ 5")
    assert store.queue_nums() == {"T": 1}
    put_batch(store, *map(message, range(6, 9)))
    store.reput()
    assert [each.body for each in read_all(store, "T", 0)] == [b"%d" % n for n in range(9)]
    assert store.save_checkpoint()
    store.clean()
    store.shutdown()
    open_store(root).shutdown()
    assert light_files(root) == before
    assert list(findings(root)) == []


@pytest.mark.parametrize("name", LIGHT_QUEUES[:1])
def test_light_queue_is_refused_for_writes_and_kept_at_deletion(with_light_queues, name):
    before = light_files(with_light_queues)
    store = open_store(with_light_queues)
    refused = store.put_message(message("x", topic=name))
    assert refused.status is PutMessageStatus.MESSAGE_ILLEGAL
    assert refused.remark.startswith(f"the topic {name} is a light queue of RocketMQ 5")
    store.delete_topic(name)
    store.shutdown()
    assert light_files(with_light_queues) == before


def test_records_that_were_sent_to_a_light_queue_itself_get_no_entries_from_us(
    with_light_queues, monkeypatch
):
    """RocketMQ accepts such sends, and has written their entries into its own files."""
    root = with_light_queues
    before = light_files(root)
    store = open_store(root)
    with monkeypatch.context() as patch:
        patch.setattr(
            "rocketpoll.broker.store.append.message_appender.light_queue_fault", lambda _: None
        )
        put_batch(store, message("x", topic="%LMQ%a"), message("y", topic="%LMQ%a"))
    put_batch(store, message("z"))
    store.reput()
    store.shutdown()
    (root / CHECKPOINT).write_bytes(bytes(CHECKPOINT_BYTES))
    store = open_store(root)
    assert store.state().holes == ()
    assert store.queue_nums() == {"T": 1}
    assert read_all(store, "T", 0)[-1].body == b"z"
    store.shutdown()
    assert light_files(root) == before


def test_light_queues_in_the_manifest_of_an_earlier_release_are_not_made(with_light_queues):
    root = with_light_queues
    manifest = root / "config" / "manifest.json"
    text = manifest.read_text().partition(',"checksum"')[0] + "}"
    assert '"spans":{' in text
    manifest.write_text(text.replace('"spans":{', '"spans":{"%LMQ%a":[0,0,6],'))
    before = light_files(root)
    store = open_store(root)
    assert store.queue_nums() == {"T": 1}
    store.shutdown()
    assert light_files(root) == before


# ---- arbitrary names

DIRECTORIES = (
    ".",
    "commitlog",
    "consumequeue",
    "consumequeue/T",
    "consumequeue/T/0",
    "consumequeue.deleted",
    "index",
    "config",
    "staging",
)
LOST_AND_FOUND = "lost+found"


def make_file(path):
    path.write_bytes(b"not of a store")


def make_link(path):
    target = next(each for each in path.parents if each.name == "store").with_name("elsewhere")
    target.mkdir(exist_ok=True)
    path.symlink_to(target)


CONTENTS = {
    LOST_AND_FOUND: Path.mkdir,
    ".nfs000000000001f0a200000001": make_file,
    ".DS_Store": make_file,
    "backup": Path.mkdir,
    "linked": make_link,
    "notes.txt~": make_file,
    f"{0:020d}.bak": make_file,
    "gr\udcf6sse": make_file,
    "n" * 255: make_file,
    "two\nlines": make_file,
}


def is_served(directory, name):
    """Return whether a store starts with this name in a directory; otherwise it must name it in the
    refusal."""
    if name.startswith(".") or name == LOST_AND_FOUND:
        return True
    is_directory = CONTENTS[name] is not make_file
    return {
        "commitlog": is_directory,
        "index": is_directory,
        "consumequeue": True,  # a topic without queues, or a file, which no code takes for one
        "consumequeue/T": False,
        "consumequeue/T/0": is_directory,
    }.get(directory, True)


class LockedDirectories(LocalDisk):
    """Denies access to the content of lost+found, which belongs to another user."""

    def list_directories(self, paths):
        for path in paths:
            if path.name == LOST_AND_FOUND:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return super().list_directories(paths)

    def names(self, path):
        assert path.name != LOST_AND_FOUND
        return super().names(path)


@pytest.mark.parametrize("directory", DIRECTORIES)
@pytest.mark.parametrize("name", CONTENTS)
def test_foreign_file_in_a_store_is_ignored_or_refused_by_name(tmp_path, directory, name):
    root = tmp_path / "store"
    store = open_store(root)
    store.put_message(message("first", keys="k"))
    store.put_message(message("gone", topic="Gone"))
    store.delete_topic("Gone")
    store.shutdown()
    (root / directory).mkdir(exist_ok=True)
    path = root / directory / name
    CONTENTS[name](path)
    if not is_served(directory, name):
        with pytest.raises(ForeignFile) as refused:
            open_store(root, LockedDirectories())
        assert str(path) in str(refused.value)
        assert "Move it away" in str(refused.value)
        shutil.move(path, tmp_path / "away")
    for number in range(2):
        store = open_store(root, LockedDirectories())
        store.put_message(message("more", keys="k"))
        assert len(read_all(store, "T", 0)) == 2 + number
        assert len(store.query_message("T", "k", 9, 0, 1 << 62)) == 2 + number
        store.deleted_topic_files.delete_some()
        store.clean()
        store.shutdown()
        assert list(findings(root)) == []
    is_sink = directory == "staging" and CONTENTS[name] is Path.mkdir  # an empty one is removed
    assert path.exists() == is_served(directory, name) or is_sink


PATHS = {
    "spaces": "a b  c",
    "two lines": "a\nb",
    "quotes": 'it\'s "so" $HOME',
    "no UTF-8": "gr\udcf6sse",
    "long": "/".join(["d" * 250] * 14),
    "a slash at its end": "store/",
    "dots": "x/../store/.",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_store_at_an_unusual_path_is_served(tmp_path, path):
    (tmp_path / "x").mkdir()
    root = Path(f"{tmp_path}/{path}")
    for number in range(2):
        store = open_store(root)
        store.put_message(message("x", keys="k"))
        assert len(read_all(store, "T", 0)) == number + 1
        assert len(store.query_message("T", "k", 9, 0, 1 << 62)) == number + 1
        store.shutdown()
    assert list(findings(root)) == []


@pytest.mark.parametrize("name", ["commitlog", "consumequeue", "index", "config", "consumequeue/T"])
def test_store_directory_may_be_a_symlink_to_another_disk(tmp_path, name):
    root = tmp_path / "store"
    store = open_store(root)
    store.put_message(message("first", keys="k"))
    store.shutdown()
    shutil.move(root / name, tmp_path / "disk")
    (tmp_path / "disk" / LOST_AND_FOUND).mkdir()
    (root / name).symlink_to(tmp_path / "disk")
    for number in range(2):
        store = open_store(root, LockedDirectories())
        store.put_message(message("more", keys="k"))
        assert len(read_all(store, "T", 0)) == 2 + number
        store.shutdown()
    assert (root / name).is_symlink()
