"""Stores that hold what other programs have put there: light queues of RocketMQ."""

from __future__ import annotations

import logging

import pytest
from stores import QUEUE_FILE_ENTRIES, message, open_store, put_batch, read_all

from rocketpoll.broker.store.checkpoint import CHECKPOINT, CHECKPOINT_BYTES
from rocketpoll.broker.store.consume_queue import ENTRY_BYTES
from rocketpoll.broker.store.results import PutMessageStatus
from rocketpoll.broker.store.verify import findings

LIGHT_QUEUES = ("%LMQ%a", "%LMQ%$orders$lite-1")
"""The names of a light queue, and of one of a lite topic, whose name no topic may have."""


def files_below(directory):
    return {
        path.relative_to(directory): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def with_light_queues(tmp_path):
    """A store whose messages RocketMQ dispatched to light queues as well, as it writes them."""
    store = open_store(tmp_path)
    put_batch(store, *map(message, range(6)))
    store.reput()
    entries = [bytes(store._queues.get("T", 0).read(number, 1)) for number in (1, 3, 5)]
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
def test_light_queues_of_rocketmq_stay_as_they_are_and_become_no_topics(
    with_light_queues, caplog, ends
):
    root = with_light_queues
    if ends == "killed":
        (root / "abort").touch()
    before = light_files(root)
    with caplog.at_level(logging.WARNING):
        store = open_store(root)
    said = [each for each in caplog.messages if "light queues" in each]
    (line,) = said
    assert line.startswith(f"{root / 'consumequeue'} has 2 light queues of RocketMQ 5 (%LMQ%...)")
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
def test_nothing_is_put_into_a_light_queue_and_deleting_it_leaves_its_files(
    with_light_queues, name
):
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
    """RocketMQ takes such sends; their entries are in its files already."""
    root = with_light_queues
    before = light_files(root)
    store = open_store(root)
    with monkeypatch.context() as patch:
        patch.setattr("rocketpoll.broker.store.appender.light_queue_fault", lambda _: None)
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
