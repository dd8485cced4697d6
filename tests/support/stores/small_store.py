"""Small stores for tests: files of a few kilobytes, a movable clock, and short messages."""

from __future__ import annotations

import dataclasses
import gc
import itertools
from pathlib import Path

from support.disks.faulty_disk import ManualClock

from rmq_spark.wire.message.hosts import parse_host
from rmq_spark.wire.message.properties import encode_properties
from rmq_spark.wire.message.record import StoredMessage, decode_records, encode_record
from rmq_spark.wire.message.record_layout import with_empty_checksum
from rocketpoll.broker.filter.subscription import build_subscription_data, message_filter
from rocketpoll.broker.store.append.record_encoding import (
    RecordRun,
    RecordTemplate,
    UniformParts,
    draft_of,
)
from rocketpoll.broker.store.bulk import lazy_numpy as np
from rocketpoll.broker.store.components import COMMIT_LOG, CONSUME_QUEUE, StoreComponents
from rocketpoll.broker.store.config import FlushDiskType, StoreConfig
from rocketpoll.broker.store.errors import UnreadableFile
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.index.index_keys import hash_records
from rocketpoll.broker.store.maintenance.checkpointer import Checkpointer
from rocketpoll.broker.store.message_store import MessageStore
from rocketpoll.broker.store.queues.consume_queue import ENTRY_BYTES
from rocketpoll.broker.store.records.integrity import record_sizes
from rocketpoll.broker.store.results import PhysicalOffset, PutMessageResult

STORE_HOST = parse_host("127.0.0.1:10911")
LOG_FILE_BYTES = 4096
_opened = itertools.count(1)
QUEUE_FILE_ENTRIES = 8


def small_config(root: Path, **settings) -> StoreConfig:
    """Return a configuration with files so small that each test uses many of them."""
    small = {
        "mapped_file_size_commit_log": LOG_FILE_BYTES,
        "mapped_file_size_consume_queue": QUEUE_FILE_ENTRIES * ENTRY_BYTES,
        "max_hash_slot_num": 64,
        "max_index_num": 256,
        "flush_disk_type": FlushDiskType.ASYNC_FLUSH,
    }
    return StoreConfig(store_path_root_dir=root, **{**small, **settings})


def message(body, topic="T", queue_id=0, tags=None, keys=None, **properties) -> StoredMessage:
    """Return a message from a producer on this machine."""
    named = {"KEYS": keys, "TAGS": tags, **properties}
    return StoredMessage(
        topic=topic,
        body=body if isinstance(body, bytes) else str(body).encode(),
        properties_text=encode_properties({name: value for name, value in named.items() if value}),
        queue_id=queue_id,
        born_timestamp=1_600_000_000_000,
        born_host=STORE_HOST,
        store_host=STORE_HOST,
    )


def encoded(each: StoredMessage) -> bytes:
    """Encode a message as the store does, with space for its checksum."""
    text = with_empty_checksum(each.properties_text)
    return encode_record(dataclasses.replace(each, properties_text=text))


class Listener:
    """A listener that records its calls."""

    def __init__(self):
        self.arrivals = []

    def arriving(self, topic, queue_id, max_offset, tags_codes):
        self.arrivals.append((topic, queue_id, max_offset, list(tags_codes)))


def open_store(
    root: Path,
    disk: LocalDisk | None = None,
    clock=None,
    listener=None,
    wake_reput=None,
    **settings,
) -> MessageStore:
    """Open a small store in a directory; with ``wake_reput``, only calls of `reput` dispatch."""
    # A store has reference cycles; hundreds of crashed ones would keep files open until a
    # collection.
    if next(_opened) % 50 == 0:
        gc.collect()
    config = small_config(root, **settings)
    disk, clock = disk or LocalDisk(), clock or ManualClock()
    return MessageStore(config, disk, clock, listener, wake_reput)


def components_of(store: MessageStore) -> StoreComponents:
    """Return the components of a store, for tests of their interaction."""
    return store._components


def checkpointer_of(store: MessageStore) -> Checkpointer:
    """Return the checkpointer of a store, for tests of its single steps."""
    return store._checkpointer


def log_files(store: MessageStore) -> list[Path]:
    """Return the files of the log, oldest first."""
    return sorted((store.cleaner.config.store_path_root_dir / COMMIT_LOG).iterdir())


def write_entry(
    store: MessageStore, queue_offset: int, entry: bytes, topic: str = "T", queue_id: int = 0
) -> None:
    """Overwrite an entry in a consume queue file, as damage would."""
    config = store.cleaner.config
    directory = config.store_path_root_dir / CONSUME_QUEUE / topic / str(queue_id)
    first, place = divmod(queue_offset * ENTRY_BYTES, config.mapped_file_size_consume_queue)
    name = f"{first * config.mapped_file_size_consume_queue:020d}"
    with (directory / name).open("r+b") as file:
        file.seek(place)
        file.write(entry)


def expire_log_files(store: MessageStore, end_offset: int) -> None:
    """Delete the log's files before an offset and the entries that point into them, without a
    checkpoint."""
    parts = components_of(store)
    parts.log.files.delete_before(PhysicalOffset(end_offset))
    checkpointer_of(store).expire_entries()
    parts.index.delete_before(parts.log.min_offset)


def put_later(store: MessageStore, *messages: StoredMessage) -> list:
    """Put messages for the next `write_buffered`; return the error of each, or None."""
    drafts = [draft_of(each) for each in messages]
    return [
        store.put_buffered(
            RecordTemplate(draft), draft.body, draft.properties, draft.born_timestamp
        )
        for draft in drafts
    ]


def put_batch(store: MessageStore, *messages: StoredMessage) -> PutMessageResult:
    """Put messages with different flags, bodies and properties as one atomic batch."""
    drafts = [draft_of(each) for each in messages]
    parts = UniformParts(
        [draft.flag for draft in drafts],
        [draft.body for draft in drafts],
        [draft.properties for draft in drafts],
    )
    template = RecordTemplate(drafts[0])
    return store.put_batch(RecordRun.uniform(template, parts, drafts[0].born_timestamp))


def crash(store: MessageStore) -> None:
    """Close the store without a flush, as a kill does."""
    flushed_offset = store.flusher._flushed_offset
    store.flusher._flush = lambda: flushed_offset
    store.flusher.stop()
    components_of(store).log.close()
    components_of(store).queues.close()
    store._lock.release()


def messages_of(result) -> list[StoredMessage]:
    """Return the messages of a get result."""
    return list(decode_records(b"".join(result.buffers)))


def read_all(
    store: MessageStore, topic: str, queue_id: int, start: int | None = None
) -> list[StoredMessage]:
    """Return all messages of a queue, read as a consumer does."""
    __tracebackhide__ = True
    low, high = store.queue_offsets(topic, queue_id, allow_incomplete=True)
    offset = low if start is None else start
    found = []
    while offset < high:
        result = store.get_message(topic, queue_id, offset)
        assert result.next_begin_offset > offset
        found += messages_of(result)
        offset = result.next_begin_offset
    return found


def served_and_refused(
    store: MessageStore, topic: str, queue_id: int, **limits
) -> tuple[list[int], list[int]]:
    """Return the readable offsets of a queue, and the offsets at which a get is refused."""
    __tracebackhide__ = True
    at, high = store.queue_offsets(topic, queue_id)
    served, refused = [], []
    while at < high:
        try:
            found = store.get_message(topic, queue_id, at, **limits)
        except UnreadableFile as error:
            assert f"/consumequeue/{topic}/{queue_id}," in str(error)
            refused.append(at)
            at += 1
            continue
        assert found.next_begin_offset > at
        served += [each.queue_offset for each in messages_of(found)]
        at = found.next_begin_offset
    return served, refused


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[str]:
    return [each.body.decode() for each in read_all(store, topic, queue_id)]


def wants(*tags, by_text=False):
    """Return the message filter of a subscription to these tags."""
    return message_filter(build_subscription_data("T", " || ".join(tags)), by_text=by_text)


def holds_all(store):
    """Return whether the index has all keys of the log, in order and each once."""
    log = components_of(store).log
    start, keys = log.min_offset, []
    while start < log.written_offset:
        data = log.files.read(start, min(log.files.space_left(start), log.written_offset - start))
        sizes = record_sizes(data)
        keys.append(hash_records(data, sizes, start))
        start = PhysicalOffset(start + log.files.space_left(start))
    between = range(log.min_offset, log.written_offset)
    return components_of(store).index.matches(
        *map(np.concatenate, zip(*keys, strict=True)), between
    )


def reads_of(store, monkeypatch):
    """Record the positions at which reput reads the log."""
    reput, read = components_of(store).reput, []
    look = reput._next_records

    def next_records(start, *limits):
        read.append(start)
        return look(start, *limits)

    monkeypatch.setattr(reput, "_next_records", next_records)
    return read


class StoreThatRefuses:
    """A store whose messages are put by another function, which may refuse them."""

    def __init__(self, store, put_message):
        self._store = store
        self.put_message = put_message

    def __getattr__(self, name):
        return getattr(self._store, name)
