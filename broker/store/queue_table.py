"""All consume queues: consumequeue/<topic>/<queueId>/, found, made and removed by topic and number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

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


class QueueTable:
    """The consume queues that exist. One writer; any number of readers."""

    def __init__(self, disk: Disk, directory: Path, file_size: int) -> None:
        """Touches nothing on the disk before it is loaded or a queue is made."""
        self._disk = disk
        self._directory = directory
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

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's queues, with their files and directories."""
        if not any(name == topic for name, _ in self._queues):
            return
        for name, queue_id, queue in list(self):
            if name == topic:
                del self._queues[topic, queue_id]
                queue.close()
                directory = self._directory / topic / str(queue_id)
                for file in self._disk.names(directory):
                    self._disk.delete(directory / file)
                self._disk.delete(directory)
        self._disk.delete(self._directory / topic)

    def clear(self) -> None:
        """Forget every queue: they are about to be made again from the log."""
        for topic in {topic for topic, _, _ in self}:
            self.delete_topic(topic)
        self.is_damaged = False

    def flush(self) -> None:
        """Return when all entries are on the disk."""
        for _, _, queue in self:
            queue.flush()

    def close(self) -> None:
        """Close all files, without a flush."""
        for _, _, queue in self:
            queue.close()
