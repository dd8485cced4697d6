"""All consume queues: consumequeue/<topic>/<queueId>/, found, made and removed by topic and number.

The files of a topic that goes are renamed as one into consumequeue.deleted/, which takes no time, and deleted
there; what a crash leaves there, the next start deletes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from broker.store.consume_queue import ConsumeQueue
from broker.store.disk import Disk
from broker.store.errors import ForeignFile, MissingFile

TOPIC_CHARACTERS_MAX = 255
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")


def topic_fault(topic: str) -> str | None:
    """What is wrong with a topic's name, which is to become a directory's; None if nothing is."""
    if _TOPIC.fullmatch(topic):
        return None
    if not topic:
        return "the topic is blank"
    return (
        f"the topic {topic[:60]!r} must have at most {TOPIC_CHARACTERS_MAX} characters of % | a-z A-Z 0-9 _ -"
    )


class TopicAside(NamedTuple):
    """A topic that was taken out: where its files are, and its queues."""

    directory: Path | None
    queues: Mapping[int, ConsumeQueue]


class QueueTable:
    """The consume queues that exist. One writer; any number of readers."""

    def __init__(self, disk: Disk, directory: Path, file_size: int) -> None:
        """Touches nothing on the disk before it is loaded or a queue is made."""
        self._disk = disk
        self._directory = directory
        self._deleted = directory.with_name(f"{directory.name}.deleted")
        self._file_size = file_size
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self.is_damaged = False

    def load(self) -> None:
        """Open what is there; if something is not, ``is_damaged`` says so, and all should be made again."""
        for topic in self._disk.names(self._directory):
            for name in self._disk.names(self._directory / topic):
                path = self._directory / topic / name
                if topic_fault(topic) or not name.isdecimal():
                    raise ForeignFile(f"{path} is no consume queue: <topic>/<number> was expected")
                queue = self._queues[topic, int(name)] = ConsumeQueue(self._disk, path, self._file_size)
                try:
                    queue.load()
                except MissingFile:
                    self.is_damaged = True
                self.is_damaged |= queue.is_damaged
        for name in self._disk.names(self._deleted):
            self._delete_files(self._deleted / name)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if it exists."""
        return self._queues.get((topic, queue_id))

    def get_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; its files come with its first entry."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            fault = topic_fault(topic)
            if fault:
                raise ForeignFile(fault)
            path = self._directory / topic / str(queue_id)
            queue = self._queues[topic, queue_id] = ConsumeQueue(self._disk, path, self._file_size)
        return queue

    def __iter__(self) -> Iterator[tuple[str, int, ConsumeQueue]]:
        """Topic, number and queue of each."""
        for (topic, queue_id), queue in sorted(self._queues.items()):
            yield topic, queue_id, queue

    def spans(self) -> list[tuple[str, int, int, int]]:
        """Topic, number, first and next offset of each; it takes no longer than it has to."""
        return [(*key, queue.min_offset, queue.max_offset) for key, queue in self._queues.items()]

    def put_aside(self, topic: str) -> TopicAside:
        """Take a topic out, at once; it is left to `delete`."""
        directory = None
        if topic in self._disk.names(self._directory):  # else no queue of it has had an entry
            taken = self._disk.names(self._deleted)
            directory = self._deleted / str(next(n for n in count() if str(n) not in taken))
            self._disk.make_directory(self._deleted)
            self._disk.rename(self._directory / topic, directory)
        queues = {queue_id: queue for (name, queue_id), queue in self._queues.items() if name == topic}
        for queue_id in queues:
            del self._queues[topic, queue_id]
        return TopicAside(directory, queues)

    def keep_from(self, topic: str, queue_id: int, aside: TopicAside, physical_offset: int) -> None:
        """Put the entries of a queue that was put aside back, from a place in the log on."""
        queue = aside.queues.get(queue_id)
        if queue is not None:
            for first, entries in queue.entries_from(physical_offset):
                self.get_or_make(topic, queue_id).append(first, entries)

    def flush_aside(self, aside: TopicAside) -> None:
        """Return when no power loss can bring back what was put aside."""
        if aside.directory is not None:
            self._disk.flush_directory(self._directory)
            self._disk.flush_directory(self._deleted)

    def delete(self, aside: TopicAside) -> None:
        """Delete the files of a topic that was put aside; it takes as long as there are files."""
        for queue in aside.queues.values():
            queue.close()
        if aside.directory is not None:
            with suppress(OSError):  # the next start does it
                self._delete_files(aside.directory)

    def _delete_files(self, topic_directory: Path) -> None:
        for queue_id in self._disk.names(topic_directory):
            for file in self._disk.names(topic_directory / queue_id):
                self._disk.delete(topic_directory / queue_id / file)
            self._disk.delete(topic_directory / queue_id)
        self._disk.delete(topic_directory)

    def clear(self) -> None:
        """Forget every queue: they are about to be made again from the log."""
        self.close()
        for topic in {topic for topic, _ in self._queues}:
            self._delete_files(self._directory / topic)
        self._queues.clear()
        self.is_damaged = False

    def flush(self) -> None:
        """Return when all entries are on the disk."""
        for _, _, queue in self:
            queue.flush()

    def close(self) -> None:
        """Close all files, without a flush."""
        for _, _, queue in self:
            queue.close()
