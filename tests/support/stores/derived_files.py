"""Comparison of the consume queues and the index of two stores, from their files, entry by entry.

Tests use it to compare a store with one rebuilt from its log. Both must have flushed, for example
by `save_checkpoint`. Files may differ: names of index files, and entries past the count in a
header, depend on timing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rmq_spark.wire.message_queue import QueueKey
from rocketpoll.broker.store.components import CONSUME_QUEUE, INDEX
from rocketpoll.broker.store.config import StoreConfig
from rocketpoll.broker.store.files.disk import LocalDisk
from rocketpoll.broker.store.files.file_pool import FileGroup, FilePool
from rocketpoll.broker.store.index.index_file import IndexHeader, IndexSizes
from rocketpoll.broker.store.queues.consume_queue import ConsumeQueue

_HEADER = np.dtype(">i8, >i8, >i8, >i8, >i4, >i4")
_ENTRY = np.dtype(
    [("key_hash", ">i4"), ("physical_offset", ">i8"), ("time", ">i4"), ("previous", ">i4")]
)


class QueueContent(NamedTuple):
    """The entries of one consume queue."""

    min_offset: int
    entries: list[tuple[int, int, int]]


class IndexContent(NamedTuple):
    """The entries of one index file."""

    header: IndexHeader
    slots: list[int]
    entries: list[tuple[int, ...]]


def differences(config: StoreConfig, root: Path, other: Path) -> list[str]:
    """Return the first few differences between two directories with these settings."""
    ours, theirs = queue_contents(config, root), queue_contents(config, other)
    found = [
        f"consume queue {name}: {_first(ours.get(name), theirs.get(name))}"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]
    our_index, their_index = index_contents(config, root), index_contents(config, other)
    if len(our_index) != len(their_index):
        found.append(f"index: {len(our_index)} files, and {len(their_index)}")
    found += [
        f"index file {number}: {_first(one, another)}"
        for number, (one, another) in enumerate(zip(our_index, their_index, strict=False))
        if one != another
    ]
    return found


def queue_contents(config: StoreConfig, root: Path) -> dict[QueueKey, QueueContent]:
    """Return all queues that have entries."""
    group, found = FileGroup(FilePool(LocalDisk())), {}
    for path in sorted(root.glob(f"{CONSUME_QUEUE}/*/*")):
        queue = ConsumeQueue(group, path, config.mapped_file_size_consume_queue)
        queue.load()
        if queue.min_offset < queue.max_offset:
            entries = [entry for part in _parts(queue) for entry in part]
            found[path.parent.name, int(path.name)] = QueueContent(queue.min_offset, entries)
        queue.close()
    return found


def _parts(queue: ConsumeQueue) -> Iterator[list[tuple[int, int, int]]]:
    offset = queue.min_offset
    while offset < queue.max_offset:
        part = queue.entries(offset, queue.max_offset - offset).tolist()
        yield part
        offset += len(part)


def index_contents(config: StoreConfig, root: Path) -> list[IndexContent]:
    """Return all index files that have entries, oldest first."""
    sizes = IndexSizes(config.max_hash_slot_num, config.max_index_num)
    found = []
    for path in sorted((root / INDEX).glob("*")):
        data = path.read_bytes()
        header = IndexHeader(*np.frombuffer(data, _HEADER, 1)[0].tolist())
        slots = np.frombuffer(data, ">i4", sizes.hash_slot_num, _HEADER.itemsize).tolist()
        entries = np.frombuffer(data, _ENTRY, header.index_count, sizes.entries_at)[1:].tolist()
        if entries:
            found.append(IndexContent(header, slots, entries))
    return found


def _first(one, another) -> str:
    """Return the first position at which the two differ."""
    if one is None or another is None:
        return f"{'here' if another is None else 'there'} only"
    for name, ours, theirs in zip(type(one)._fields, one, another, strict=True):
        if ours != theirs and isinstance(ours, list):
            at = next(
                (at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None
            )
            if at is None:
                return f"{len(ours)} {name}, and {len(theirs)}"
            return f"{name} {at}: {ours[at]}, and {theirs[at]}"
        if ours != theirs:
            return f"{name}: {ours}, and {theirs}"
    return "nothing"
