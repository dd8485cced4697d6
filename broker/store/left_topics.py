"""LeftTopics: files of deleted topics, which nobody waits for: consumequeue.deleted/<n>/<queueId>/.

    a deletion ── moved here, as one ──▶ left ── some files at a time ──▶ gone
    a kill, a stop ── found at the next start ──▶ left

A disk may take milliseconds for each file, and a topic may have thousands: who deletes it hears of
that when it is noted and its files are out of the way. This module must not know when a topic
counts as deleted, nor who calls `delete_some` again and again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from rocketpoll.broker.store.consume_queue import ConsumeQueue
from rocketpoll.broker.store.disk import Disk

FILES_AT_A_TIME: Final = 512
"""Files and directories that go at a time, so that what else the disk is asked for gets its turn,
and a stop need not wait long."""


def files_of(disk: Disk, topic: Path) -> Iterator[Path]:
    """Yield what there is of a topic, each file before its directory, and last the topic's."""
    for queue_id in disk.names(topic):
        for name in disk.names(topic / queue_id):
            yield topic / queue_id / name
        yield topic / queue_id
    yield topic


class _Left(NamedTuple):
    """The files of one deleted topic, and its queues, whose readers may have them open."""

    directory: Path
    queues: Mapping[Path, ConsumeQueue]
    """The queues, by their directories."""


class LeftTopics:
    """The deleted topics whose files are still there. One thread deletes; another may add."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        """Prepare without touching the disk."""
        self._disk = disk
        self._directory = directory
        self._left: deque[_Left] = deque()
        self._number = -1
        """The highest number of a directory there."""

    def __len__(self) -> int:
        """Return how many topics have files left."""
        return len(self._left)

    def load(self) -> None:
        """Find what an earlier life has left."""
        names = [name for name in self._disk.names(self._directory) if name.isdecimal()]
        self._left.extend(_Left(self._directory / name, {}) for name in names)
        self._number = max(map(int, names), default=-1)

    def free_place(self) -> Path:
        """Return a path to which the directory of a topic can be renamed.

        Raises:
            OSError: The disk has no room for the directory above it.
        """
        self._disk.make_directory(self._directory)
        self._number += 1
        return self._directory / str(self._number)

    def add(self, directory: Path, queues: Mapping[int, ConsumeQueue]) -> None:
        """Have the files of a topic that was moved here deleted by and by, queue by queue."""
        by_path = {directory / str(queue_id): queue for queue_id, queue in queues.items()}
        self._left.append(_Left(directory, by_path))

    def delete_some(self) -> None:
        """Delete some files; the next call goes on, until none is left.

        Raises:
            OSError: The disk does not let one go. Those of other topics go all the same.
        """
        room, refusal = FILES_AT_A_TIME, None
        for _ in range(len(self._left)):
            directory, queues = self._left[0]
            try:
                for path in files_of(self._disk, directory):
                    if not room:
                        break
                    if path.parent in queues:  # a file, which a reader may have opened
                        queues[path.parent].close()
                    self._disk.delete(path)
                    room -= 1
                else:
                    self._left.popleft()
            except OSError as error:
                refusal = error
                self._left.rotate(-1)
            if not room:
                break
        if refusal is not None:
            raise refusal
