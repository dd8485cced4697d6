"""QueueTable: all consume queues, by topic and number, in consumequeue/<topic>/<queueId>/.

The directory of a deleted topic is renamed at once, and its files are deleted gradually
(`deleted_topic_files`).
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.names import is_light_queue

from ..errors import EndUnknown, ForeignFile, UnreadableFile
from ..files.disk import LocalDisk, is_ignored_name
from ..files.file_pool import FileGroup, FilePool, never_stop
from ..records.fields import topic_fault
from ..results import FIRST_IN_QUEUE, LOG_START, PhysicalOffset, QueueOffset
from .consume_queue import ENTRY_BYTES, ConsumeQueue

# ---- RecoveredEnds: the minimum end that a queue must have before its end is reported.

_UNKNOWN: Final = QueueOffset(sys.maxsize)


class RecoveredEnds:
    """The queue ends that a start has found; empty before its scan and after it has finished."""

    def __init__(self, reput_from_offset: Callable[[], PhysicalOffset]) -> None:
        self._reput_from_offset = reput_from_offset
        self._end_offset: PhysicalOffset | None = None
        self._ends: Mapping[QueueKey, QueueOffset] = {}

    def start(self, end_offset: PhysicalOffset, ends: Mapping[QueueKey, QueueOffset]) -> None:
        """Set the recovered end of the log, and the ends of queues."""
        self._ends = ends
        self._end_offset = end_offset

    def finish(self) -> None:
        """Require no ends any more: all queues have reached theirs."""
        self._end_offset = None
        self._ends = {}

    def lower_bound(self, topic: str, queue_id: int) -> QueueOffset:
        """Return the end that a queue must have to be reported; call this before reading it."""
        end_offset = self._end_offset
        if end_offset is None:
            return FIRST_IN_QUEUE
        if self._reput_from_offset() < end_offset:
            return _UNKNOWN
        return self._ends.get((topic, queue_id), FIRST_IN_QUEUE)


def end_unknown_error(topic: str, queue_id: int, reason: str | None) -> EndUnknown:
    """Return the error for a queue whose end is not known yet, with the reason."""
    return EndUnknown(
        f"the end of queue {queue_id} of {topic} is not known yet, because recovered messages are "
        f"not in their consume queues: {reason or 'they are being dispatched'}"
    )


# ---- DeletedTopicFiles: files of deleted topics, deleted gradually:
# consumequeue.deleted/<n>/<queueId>/.

FILES_AT_A_TIME: Final = 512
"""Files and directories deleted in one call, so that other disk requests are not delayed and a stop
is quick."""


def files_of(disk: LocalDisk, topic: Path) -> Iterator[Path]:
    """Yield the files and directories of a topic, each directory after its content."""
    for queue_id in disk.names(topic):
        for name in disk.names(topic / queue_id):
            yield topic / queue_id / name
        yield topic / queue_id
    yield topic


class _DeletedTopic(NamedTuple):
    """The files of one deleted topic, and its queues, which readers may still have open."""

    directory: Path
    queues: Mapping[Path, ConsumeQueue]


class DeletedTopicFiles:
    """The deleted topics whose files still exist. One thread deletes; another may add."""

    def __init__(self, disk: LocalDisk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._topics: deque[_DeletedTopic] = deque()
        self._number = -1
        """The highest directory number in use."""

    def __len__(self) -> int:
        """Return the number of topics that still have files."""
        return len(self._topics)

    def load(self) -> None:
        """Find the files that an earlier run did not delete."""
        names = [name for name in self._disk.names(self._directory) if name.isdecimal()]
        self._topics.extend(_DeletedTopic(self._directory / name, {}) for name in names)
        self._number = max(map(int, names), default=-1)

    def new_path(self) -> Path:
        """Return a path to which the directory of a topic can be renamed."""
        self._disk.make_directory(self._directory)
        self._number += 1
        return self._directory / str(self._number)

    def add(self, directory: Path, queues: Mapping[int, ConsumeQueue]) -> None:
        """Add the files of a topic that was moved here, to be deleted gradually, queue by queue."""
        by_path = {directory / str(queue_id): queue for queue_id, queue in queues.items()}
        self._topics.append(_DeletedTopic(directory, by_path))

    def delete_some(self) -> None:
        """Delete some files; call this again until none is left.

        Raises:
            OSError: A file could not be deleted. Files of other topics are deleted nevertheless.
        """
        room, refusal = FILES_AT_A_TIME, None
        for _ in range(len(self._topics)):
            directory, queues = self._topics[0]
            try:
                for path in files_of(self._disk, directory):
                    if not room:
                        break
                    if path.parent in queues:  # a file, which a reader may have opened
                        queues[path.parent].close()
                    self._disk.delete(path)
                    room -= 1
                else:
                    self._topics.popleft()
            except OSError as error:
                refusal = error
                self._topics.rotate(-1)
            if not room:
                break
        if refusal is not None:
            raise refusal


# ---- TopicDirectories: the directory of each topic's queues: consumequeue/<topic>/, as in
# RocketMQ.

_CASE_DIRECTORY: Final = re.compile(r"\.[0-9a-f]+")


class TopicDirectories:
    """The directories of one store, by topic."""

    def __init__(self, disk: LocalDisk, root: Path) -> None:
        self._disk = disk
        self._root = root
        self._case_directories: dict[str, Path] = {}
        self._first_spelling: dict[str, str] = {}
        """The first of the topics whose names differ only in case, by the name in lower case."""
        self._is_case_sensitive: bool | None = None

    def list_topics(self) -> Iterator[tuple[str, Path]]:
        """Yield the topic and the path of each directory; the topic may be an invalid name."""
        for name in self._disk.names(self._root):
            is_case_directory = _CASE_DIRECTORY.fullmatch(name)
            if is_ignored_name(name) and not is_case_directory:
                continue
            if not is_case_directory:
                self._first_spelling.setdefault(name.lower(), name)
                yield name, self._root / name
                continue
            for topic in self._disk.names(self._root / name):
                self._case_directories[topic] = self._root / name / topic
                yield topic, self._case_directories[topic]

    def path_of(self, topic: str) -> Path:
        """Return the directory of a topic, whether it exists or not.

        Raises:
            OSError: It cannot be determined whether the file system is case-sensitive.
        """
        if topic not in self._case_directories:
            first = self._first_spelling.setdefault(topic.lower(), topic)
            if first == topic or self._are_distinct_names(first, topic):
                return self._root / topic
            capitals = sum(1 << at for at, letter in enumerate(topic) if letter.isupper())
            self._case_directories[topic] = self._root / f".{capitals:x}" / topic
        return self._case_directories[topic]

    def _are_distinct_names(self, first: str, topic: str) -> bool:
        if self._is_case_sensitive is None:
            self._disk.make_directory(self._root / first / "0")  # as for its first queue
            is_listed = topic in self._disk.names(self._root)
            self._is_case_sensitive = is_listed or not self._disk.names(self._root / topic)
        return self._is_case_sensitive


_TOPICS_AT_A_TIME = 512
_END = attrgetter("max_offset")


class QueueSpan(NamedTuple):
    """The content of one queue: its first offset, and the offset of its next message."""

    topic: str
    queue_id: int
    min_offset: QueueOffset
    max_offset: QueueOffset


class QueueEndsSnapshot(NamedTuple):
    """All queues, and the end of each, at one point in time."""

    queues: Mapping[QueueKey, ConsumeQueue]
    max_offsets: Sequence[QueueOffset]

    def spans(self, excluded: Container[str] = ()) -> Iterator[QueueSpan]:
        """Yield the span of each queue when the snapshot was taken, without expired entries."""
        for ((topic, queue_id), queue), max_offset in zip(
            self.queues.items(), self.max_offsets, strict=True
        ):
            if topic not in excluded:
                yield QueueSpan(topic, queue_id, min(queue.min_offset, max_offset), max_offset)


class QueueTable:
    """The consume queues that exist. One writer; any number of readers."""

    def __init__(self, pool: FilePool, directory: Path, file_size: int) -> None:
        self._disk = pool.disk
        self._group = FileGroup(pool, directory)
        self._directory = directory
        self._directories = TopicDirectories(pool.disk, directory)
        self.deleted_topic_files = DeletedTopicFiles(
            pool.disk, directory.with_name(f"{directory.name}.deleted")
        )
        """Files of deleted topics, to be deleted gradually."""
        self._file_size = file_size
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self.expired_before = LOG_START
        """The physical offset before which queues offer no entries."""
        self._untrimmed_queues: list[QueueKey] = []
        """Queues that a start has found with files past their ends; the messages of these files
        are dispatched again."""
        self.light_queue_count = 0
        """The number of directories of RocketMQ's light queues, which are neither changed nor
        served: their entries lead to records of other topics, and cannot be rebuilt from the
        log."""
        self._leftover_files: list[Path] = []
        """Files that follow a missing or truncated file."""

    def load(self) -> None:
        """Find the queues and their files by names and sizes, without reading any.

        After that, call `restore` to set the bounds of each queue, or `clear` to rebuild all.
        """
        found = list(self._directories.list_topics())
        topics = [(topic, path) for topic, path in found if not is_light_queue(topic)]
        self.light_queue_count = len(found) - len(topics)
        for start in range(0, len(topics), _TOPICS_AT_A_TIME):
            self._load_topics(topics[start : start + _TOPICS_AT_A_TIME])
        self.deleted_topic_files.load()

    def _load_topics(self, topics: Sequence[tuple[str, Path]]) -> None:
        found = self._disk.list_directories([directory for _, directory in topics])
        paths: dict[QueueKey, Path] = {}
        for (topic, directory), names in zip(topics, found, strict=True):
            is_topic = topic_fault(topic) is None
            for name, size in names.items():
                path = directory / name
                if is_ignored_name(name):
                    continue
                if not is_topic or not name.isdecimal() or size is not None:
                    raise ForeignFile(
                        f"{path} is not a consume queue: expected <topic>/<number>. Move it away"
                    )
                paths[topic, int(name)] = path
        for (key, path), sizes in zip(
            paths.items(), self._disk.list_directories(list(paths.values())), strict=True
        ):
            queue = self._queues[key] = ConsumeQueue(self._group, path, self._file_size)
            try:
                left = queue.adopt(sizes)
            except ForeignFile as error:
                self._refuse_damaged(path, sizes)
                if {None, 0, self._file_size}.issuperset(sizes.values()):
                    raise
                raise ForeignFile(
                    f"{error}; or, to rebuild all queues from the log, leave the broker stopped, "
                    f"delete {self._directory}, and start the broker"
                ) from None
            self._leftover_files += [path / name for name in left]

    def _refuse_damaged(self, directory: Path, sizes: Mapping[str, int | None]) -> None:
        """Refuse a directory in place of a file, or a file of a wrong size.

        Raises:
            ForeignFile: An entry is a directory, is truncated, or is too long. A size that may be
                that of other settings is not refused here.
        """
        for name, size in sizes.items():
            if size in (0, self._file_size) or not name.isdecimal():
                continue
            if size is None:
                fault = f"is a directory instead of a file of {self._file_size} bytes"
            elif size % ENTRY_BYTES or self._has_file_of_configured_size():
                fault = f"has {size} bytes instead of {self._file_size}: it is damaged"
            else:
                continue
            raise ForeignFile(
                f"{directory / name} {fault}. To rebuild the queue from the log, leave the broker "
                f"stopped, delete {directory}, and start the broker"
            )

    def _has_file_of_configured_size(self) -> bool:
        directories = [self._directory]
        for _ in range(2):  # topics, then their queues
            found = zip(directories, self._disk.list_directories(directories), strict=True)
            directories = [
                path / name for path, sizes in found for name, size in sizes.items() if size is None
            ]
        return any(
            self._file_size in sizes.values() for sizes in self._disk.list_directories(directories)
        )

    def restore(self, spans: Iterable[QueueSpan], deleted_topics: Container[str]) -> bool:
        """Restore the bounds that queues had at a checkpoint; return False if a file is missing.

        Later entries and later queues are dispatched again, and their files are kept for that,
        except those of deleted topics. `delete_leftovers` deletes the files that stay unused.
        """
        later = dict(self._queues)
        resumed: set[str] = set()
        for topic, queue_id, min_offset, max_offset in spans:
            queue = self._queues.get((topic, queue_id))
            if queue is not None and queue.restore(min_offset, max_offset):
                del later[topic, queue_id]
                resumed.add(topic)
                if queue.has_files_after_end:
                    self._untrimmed_queues.append((topic, queue_id))
            elif min_offset != max_offset:
                return False
        for path in self._leftover_files:
            self._disk.delete(path)
        moved = self._move_deleted_away({topic for topic, _ in later} - resumed, deleted_topics)
        for (topic, queue_id), queue in later.items():
            if topic in moved:
                continue
            if topic not in deleted_topics and queue.restart():
                self._untrimmed_queues.append((topic, queue_id))
            else:
                self._delete_unreferenced_queue(topic, queue_id, queue)
        return True

    def _move_deleted_away(self, topics: Iterable[str], deleted: Container[str]) -> set[str]:
        """Move away those of ``topics`` that were deleted, and return them.

        Files that cannot be moved away stay, to be deleted one by one.
        """
        moved = set()
        for topic in topics:
            if topic in deleted:
                with suppress(OSError):
                    self.move_away(topic)
                    moved.add(topic)
        return moved

    def _delete_unreferenced_queue(self, topic: str, queue_id: int, queue: ConsumeQueue) -> None:
        queue.close()
        self._group.discard_names(queue.directory)
        for name in self._disk.names(queue.directory):
            self._disk.delete(queue.directory / name)
        self._disk.delete(queue.directory)
        del self._queues[topic, queue_id]

    def delete_leftovers(self) -> None:
        """Delete files past the ends of queues, and queues that got no entries again."""
        while self._untrimmed_queues:
            topic, queue_id = self._untrimmed_queues[-1]
            queue = self._queues.get((topic, queue_id))
            if queue is not None and queue.max_offset:
                queue.delete_files_after_end()
            elif queue is not None:
                self._delete_unreferenced_queue(topic, queue_id, queue)
            self._untrimmed_queues.pop()

    def wipe_after_ends(self) -> None:
        """Write zeros past the last entry of each queue, where a crash may have left stale ones."""
        for _, _, queue in self:
            with suppress(UnreadableFile):  # readers of the queue get the error
                queue.wipe_after_end()

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None if it does not exist."""
        return self._queues.get((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, created if it is missing; its files come with its first entry."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            fault = topic_fault(topic)
            if fault:
                raise ForeignFile(fault)
            path = self._directories.path_of(topic) / str(queue_id)
            queue = self._queues[topic, queue_id] = ConsumeQueue(self._group, path, self._file_size)
        return queue

    def __iter__(self) -> Iterator[tuple[str, int, ConsumeQueue]]:
        for (topic, queue_id), queue in sorted(self._queues.items()):
            yield topic, queue_id, queue

    def __len__(self) -> int:
        return len(self._queues)

    def ends(self) -> QueueEndsSnapshot:
        """Record where each queue ends now, as fast as possible."""
        queues = dict(self._queues)
        return QueueEndsSnapshot(queues, list(map(_END, queues.values())))

    def ends_of(self, topic: str) -> dict[int, QueueOffset]:
        """Return where the queues of a topic end now, by number."""
        queues = dict(self._queues)
        return {each: queue.max_offset for (name, each), queue in queues.items() if name == topic}

    def ends_in_files(self) -> dict[QueueKey, QueueOffset]:
        """Return the end of each queue by its last file alone, regardless of the manifest."""
        ends = {}
        for topic, queue_id, queue in self:
            with suppress(UnreadableFile):
                ends[topic, queue_id] = queue.end_in_files()
        return ends

    def move_away(self, topic: str) -> None:
        """Remove a topic at once, and leave its files to `deleted_topic_files`.

        Raises:
            OSError: The disk refuses. The topic is unchanged.
        """
        queues = {
            queue_id: queue for (name, queue_id), queue in self._queues.items() if name == topic
        }
        path = self._directories.path_of(topic)
        is_there = topic in self._disk.names(path.parent)  # false if no queue has had an entry
        if is_there and not is_light_queue(topic):
            directory = self.deleted_topic_files.new_path()
            with self._group.lock:  # no thread may open its files meanwhile
                try:
                    self._disk.rename(path, directory)
                except OSError:  # the rename may have succeeded nevertheless
                    if directory.name not in self._disk.names(directory.parent):
                        raise
                self._group.discard_names(path)
                # Make the rename durable: no later checkpoint may find the files there again.
                self._group.mark_names_changed(path.parent)
                for queue_id, queue in queues.items():
                    queue.set_directory(directory / str(queue_id))
            self.deleted_topic_files.add(directory, queues)
        for queue_id in queues:
            del self._queues[topic, queue_id]

    def hide(self, topic: str, before: Mapping[int, QueueOffset]) -> None:
        """Offer no entries of a topic before these offsets; all of its other queues are new."""
        for name, queue_id, queue in self:
            if name == topic and queue_id in before:
                queue.min_offset = min(before[queue_id], queue.max_offset)

    def clear(self) -> None:
        """Discard all queues, before they are rebuilt from the log."""
        self._group.close()
        for topic in dict.fromkeys(topic for topic, _ in self._queues):
            for path in files_of(self._disk, self._directories.path_of(topic)):
                self._disk.delete(path)
        self._queues.clear()
        self._untrimmed_queues.clear()
        self._leftover_files.clear()

    def flush(self, should_stop: Callable[[], bool] = never_stop) -> bool:
        """Flush all entries; return False if ``should_stop`` ended the flush early."""
        return self._group.flush(should_stop)

    def close(self) -> None:
        """Close all files, without a flush."""
        for _, _, queue in self:
            queue.close()
        self._group.close()
