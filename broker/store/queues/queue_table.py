"""QueueTable: all consume queues: consumequeue/<topic>/<queueId>/, by topic and number.

The files of a deleted topic are renamed as one, which takes no time, and are deleted gradually
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
from ..files.disk import Disk, is_ignored_name
from ..files.file_pool import FileGroup, FilePool, never_stop
from ..records.fields import topic_fault
from ..results import FIRST_IN_QUEUE, LOG_START, PhysicalOffset, QueueOffset
from .consume_queue import ENTRY_BYTES, ConsumeQueue

# ---- RecoveredEnds: the least end that a queue must have before anybody is told where it ends.

_UNKNOWN: Final = QueueOffset(sys.maxsize)


class RecoveredEnds:
    """The findings of one start; none before it has scanned, and none when it is finished."""

    def __init__(self, reput_from_offset: Callable[[], PhysicalOffset]) -> None:
        self._reput_from_offset = reput_from_offset
        self._end_offset: PhysicalOffset | None = None
        self._ends: Mapping[QueueKey, QueueOffset] = {}

    def start(self, end_offset: PhysicalOffset, ends: Mapping[QueueKey, QueueOffset]) -> None:
        """Note the end of the log, and ends of queues, that were found."""
        self._ends = ends
        self._end_offset = end_offset

    def finish(self) -> None:
        """Note that all queues end where they should."""
        self._end_offset = None
        self._ends = {}

    def lower_bound(self, topic: str, queue_id: int) -> QueueOffset:
        """Return the least end that may be reported of a queue; call this before reading it."""
        end_offset = self._end_offset
        if end_offset is None:
            return FIRST_IN_QUEUE
        if self._reput_from_offset() < end_offset:
            return _UNKNOWN
        return self._ends.get((topic, queue_id), FIRST_IN_QUEUE)


def end_unknown_error(topic: str, queue_id: int, hindrance: str | None) -> EndUnknown:
    """Return the error for a queue whose end is not known yet, with the reason."""
    return EndUnknown(
        f"the end of queue {queue_id} of {topic} is not known yet, because recovered messages are "
        f"not in their consume queues: {hindrance or 'they are being dispatched'}"
    )


# ---- DeletedTopicFiles: files of deleted topics, which nobody waits for:
# consumequeue.deleted/<n>/<queueId>/.

FILES_AT_A_TIME: Final = 512
"""Files and directories that go at a time, so that what else the disk is asked for gets its turn,
and a stop need not wait long."""


def files_of(disk: Disk, topic: Path) -> Iterator[Path]:
    """Yield the files of a topic, each file before its directory, and the topic's last."""
    for queue_id in disk.names(topic):
        for name in disk.names(topic / queue_id):
            yield topic / queue_id / name
        yield topic / queue_id
    yield topic


class _DeletedTopic(NamedTuple):
    """The files of one deleted topic, and its queues, which readers may still have open."""

    directory: Path
    queues: Mapping[Path, ConsumeQueue]
    """The queues, by their directories."""


class DeletedTopicFiles:
    """The deleted topics whose files still exist. One thread deletes; another may add."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._topics: deque[_DeletedTopic] = deque()
        self._number = -1
        """The highest number of a directory there."""

    def __len__(self) -> int:
        """Return how many topics have files left."""
        return len(self._topics)

    def load(self) -> None:
        """Find what an earlier run has left."""
        names = [name for name in self._disk.names(self._directory) if name.isdecimal()]
        self._topics.extend(_DeletedTopic(self._directory / name, {}) for name in names)
        self._number = max(map(int, names), default=-1)

    def new_path(self) -> Path:
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
        self._topics.append(_DeletedTopic(directory, by_path))

    def delete_some(self) -> None:
        """Delete some files; call this again until none is left.

        Raises:
            OSError: The disk does not let one go. Those of other topics go all the same.
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


# ---- TopicDirectories: where the queues of a topic lie: consumequeue/<topic>/, as with RocketMQ.

_CASE_DIRECTORY: Final = re.compile(r"\.[0-9a-f]+")


class TopicDirectories:
    """The directories of one store, by topic."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._root = root
        self._case_directories: dict[str, Path] = {}
        self._first_spelling: dict[str, str] = {}
        """The topic that was first to have a name, by the name in small letters."""
        self._is_case_sensitive: bool | None = None

    def list_topics(self) -> Iterator[tuple[str, Path]]:
        """Yield the directories, each with its path and, as a rule, the name of its topic."""
        for name in self._disk.names(self._root):
            is_apart = _CASE_DIRECTORY.fullmatch(name)
            if is_ignored_name(name) and not is_apart:
                continue
            if not is_apart:
                self._first_spelling.setdefault(name.lower(), name)
                yield name, self._root / name
                continue
            for topic in self._disk.names(self._root / name):
                self._case_directories[topic] = self._root / name / topic
                yield topic, self._case_directories[topic]

    def path_of(self, topic: str) -> Path:
        """Return the directory of a topic, whether it exists or not.

        Raises:
            OSError: The disk does not say whether it tells two names apart.
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
            self._disk.make_directory(self._root / first / "0")  # as its first queue would
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
    """All queues at one point in time, and the end of each then."""

    queues: Mapping[QueueKey, ConsumeQueue]
    max_offsets: Sequence[QueueOffset]

    def spans(self, excluded: Container[str] = ()) -> Iterator[QueueSpan]:
        """Yield what queues held then, without what has expired since and without some topics."""
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
        """Files of deleted topics, which are to go."""
        self._file_size = file_size
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self.expired_before = LOG_START
        """The place in the log before which records have no offered entries any more."""
        self._untrimmed_queues: list[QueueKey] = []
        """Queues with files behind their ends, which a start has found and whose
        messages come again."""
        self.light_queue_count = 0
        """Directories of RocketMQ's light queues, which are left as they are and not served: their
        entries lead to records of other topics, and could not be made again from the log."""
        self._leftover_files: list[Path] = []
        """Files that lie behind one that is missing or has lost its bytes."""

    def load(self) -> None:
        """Find the queues and their files by names and sizes, without reading any.

        After that, `restore` has to set the bounds of each queue, unless all are rebuilt: `clear`.

        Raises:
            ForeignFile: Something is not a file of a consume queue, or has another size.
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
        """Refuse a directory, or a file whose size is not that of others, or of no entries.

        Raises:
            ForeignFile: It was cut, or is too long; what is not known to be so is not refused here.
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
        """Return whether any file of any queue has the size that all should have."""
        looked_into = [self._directory]
        for _ in range(2):  # topics, and the queues of each
            found = zip(looked_into, self._disk.list_directories(looked_into), strict=True)
            looked_into = [
                path / name for path, sizes in found for name, size in sizes.items() if size is None
            ]
        return any(
            self._file_size in sizes.values() for sizes in self._disk.list_directories(looked_into)
        )

    def restore(self, spans: Iterable[QueueSpan], deleted_topics: Container[str]) -> bool:
        """Restore the bounds that queues had at a checkpoint; return False if a file is missing.

        What came later is dispatched again, as are queues that came later. Their files stay for
        that, except those of deleted topics. `delete_leftovers` deletes what stays unused.
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
        aside = self._move_deleted_away({topic for topic, _ in later} - resumed, deleted_topics)
        for (topic, queue_id), queue in later.items():
            if topic in aside:
                continue
            if topic not in deleted_topics and queue.restart():
                self._untrimmed_queues.append((topic, queue_id))
            else:
                self._delete_unreferenced_queue(topic, queue_id, queue)
        return True

    def _move_deleted_away(self, topics: Iterable[str], deleted: Container[str]) -> set[str]:
        """Take out those of some topics that are deleted, and return them.

        Files that cannot be moved away are left, to be deleted one by one.
        """
        aside = set()
        for topic in topics:
            if topic in deleted:
                with suppress(OSError):
                    self.move_away(topic)
                    aside.add(topic)
        return aside

    def _delete_unreferenced_queue(self, topic: str, queue_id: int, queue: ConsumeQueue) -> None:
        queue.close()
        self._group.discard_names(queue.directory)
        for name in self._disk.names(queue.directory):
            self._disk.delete(queue.directory / name)
        self._disk.delete(queue.directory)
        del self._queues[topic, queue_id]

    def delete_leftovers(self) -> None:
        """Delete files past the ends of queues, and queues that got nothing again."""
        while self._untrimmed_queues:
            topic, queue_id = self._untrimmed_queues[-1]
            queue = self._queues.get((topic, queue_id))
            if queue is not None and queue.max_offset:
                queue.delete_files_after_end()
            elif queue is not None:
                self._delete_unreferenced_queue(topic, queue_id, queue)
            self._untrimmed_queues.pop()

    def wipe_after_ends(self) -> None:
        """Write zeros past the last entry of each queue, where a crash may have left others."""
        for _, _, queue in self:
            with suppress(UnreadableFile):  # its readers are told
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
        """Yield topic, number and queue of each."""
        for (topic, queue_id), queue in sorted(self._queues.items()):
            yield topic, queue_id, queue

    def __len__(self) -> int:
        """Return the number of queues."""
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
        """Return the end of each queue by its last file alone, whatever was noted."""
        ends = {}
        for topic, queue_id, queue in self:
            with suppress(UnreadableFile):
                ends[topic, queue_id] = queue.end_in_files()
        return ends

    def move_away(self, topic: str) -> None:
        """Remove a topic, at once; from then on `deleted_topic_files` has its files.

        Raises:
            OSError: The disk refuses. The topic is as it was.
        """
        queues = {
            queue_id: queue for (name, queue_id), queue in self._queues.items() if name == topic
        }
        path = self._directories.path_of(topic)
        is_there = topic in self._disk.names(path.parent)  # else no queue of it has had an entry
        if is_there and not is_light_queue(topic):
            directory = self.deleted_topic_files.new_path()
            with self._group.lock:  # nobody opens one of its files meanwhile
                try:
                    self._disk.rename(path, directory)
                except OSError:  # it may have come about nevertheless
                    if directory.name not in self._disk.names(directory.parent):
                        raise
                self._group.discard_names(path)
                # No later checkpoint finds them there again.
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
        """Forget every queue: they are about to be made again from the log."""
        self._group.close()
        for topic in dict.fromkeys(topic for topic, _ in self._queues):
            for path in files_of(self._disk, self._directories.path_of(topic)):
                self._disk.delete(path)
        self._queues.clear()
        self._untrimmed_queues.clear()
        self._leftover_files.clear()

    def flush(self, should_stop: Callable[[], bool] = never_stop) -> bool:
        """Return when all entries are on the disk; False if ``should_stop`` ended that early."""
        return self._group.flush(should_stop)

    def close(self) -> None:
        """Close all files, without a flush."""
        for _, _, queue in self:
            queue.close()
        self._group.close()
