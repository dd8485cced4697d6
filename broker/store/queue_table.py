"""QueueTable: all consume queues: consumequeue/<topic>/<queueId>/, by topic and number.

The files of a topic that goes are renamed as one, which takes no time, and are deleted by and by
(`left_topics`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from rmq_spark.wire.message_queue import QueueKey
from rmq_spark.wire.names import is_light_queue
from rocketpoll.broker.store.consume_queue import ENTRY_BYTES, ConsumeQueue
from rocketpoll.broker.store.disk import is_passed_over
from rocketpoll.broker.store.errors import ForeignFile, UnreadableFile
from rocketpoll.broker.store.file_pool import FileGroup, FilePool, never
from rocketpoll.broker.store.left_topics import LeftTopics, files_of
from rocketpoll.broker.store.offsets import LOG_START, QueueOffset
from rocketpoll.broker.store.topic_directories import TopicDirectories

TOPIC_CHARACTERS_MAX = 255
_TOPICS_AT_A_TIME = 512
_END = attrgetter("max_offset")
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")


def topic_fault(topic: str) -> str | None:
    """Return what is wrong with a topic's name, which becomes a directory's; None if nothing is."""
    if _TOPIC.fullmatch(topic):
        return None
    if not topic:
        return "the topic is blank"
    return (
        f"the topic {topic[:60]!r} must have at most {TOPIC_CHARACTERS_MAX} characters of % | a-z "
        "A-Z 0-9 _ -"
    )


class QueueSpan(NamedTuple):
    """The content of one queue: its first offset, and the one that its next message gets."""

    topic: str
    queue_id: int
    min_offset: QueueOffset
    max_offset: QueueOffset


class QueueEnds(NamedTuple):
    """All queues of one moment, and the end of each then."""

    queues: Mapping[QueueKey, ConsumeQueue]
    max_offsets: Sequence[QueueOffset]

    def spans(self, left_out: Container[str] = ()) -> Iterator[QueueSpan]:
        """Yield what the queues held then, but for what has expired since, and for some topics."""
        for ((topic, queue_id), queue), max_offset in zip(
            self.queues.items(), self.max_offsets, strict=True
        ):
            if topic not in left_out:
                yield QueueSpan(topic, queue_id, min(queue.min_offset, max_offset), max_offset)


class QueueTable:
    """The consume queues that exist. One writer; any number of readers."""

    def __init__(self, pool: FilePool, directory: Path, file_size: int) -> None:
        """Prepare without touching the disk, until queues are loaded or made."""
        self._disk = pool.disk
        self._group = FileGroup(pool, directory)
        self._directory = directory
        self._directories = TopicDirectories(pool.disk, directory)
        self.left_topics = LeftTopics(pool.disk, directory.with_name(f"{directory.name}.deleted"))
        """Files of deleted topics, which are to go."""
        self._file_size = file_size
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self.expired_before = LOG_START
        """The place in the log before which records have no offered entries any more."""
        self._to_be_carried: list[QueueKey] = []
        """Queues with files behind their ends, which a start has found and whose
        messages come again."""
        self.light_queues = 0
        """Directories of RocketMQ's light queues, which are left as they are and not served: their
        entries lead to records of other topics, and could not be made again from the log."""
        self._left: list[Path] = []
        """Files that lie behind one that is missing or has lost its bytes."""

    def load(self) -> None:
        """Find the queues and their files by names and sizes, without reading any.

        Then `resume` has to say where each queue stands, unless all are to be made again: `clear`.

        Raises:
            ForeignFile: Something is not a file of a consume queue, or has another size.
        """
        found = list(self._directories.found())
        topics = [(topic, path) for topic, path in found if not is_light_queue(topic)]
        self.light_queues = len(found) - len(topics)
        for start in range(0, len(topics), _TOPICS_AT_A_TIME):
            self._load_topics(topics[start : start + _TOPICS_AT_A_TIME])
        self.left_topics.load()

    def _load_topics(self, topics: Sequence[tuple[str, Path]]) -> None:
        found = self._disk.look_into([directory for _, directory in topics])
        paths: dict[QueueKey, Path] = {}
        for (topic, directory), names in zip(topics, found, strict=True):
            is_topic = topic_fault(topic) is None
            for name, size in names.items():
                path = directory / name
                if is_passed_over(name):
                    continue
                if not is_topic or not name.isdecimal() or size is not None:
                    raise ForeignFile(
                        f"{path} is no consume queue: <topic>/<number> was expected. Move it away"
                    )
                paths[topic, int(name)] = path
        for (key, path), sizes in zip(
            paths.items(), self._disk.look_into(list(paths.values())), strict=True
        ):
            queue = self._queues[key] = ConsumeQueue(self._group, path, self._file_size)
            try:
                left = queue.adopt(sizes)
            except ForeignFile as error:
                self._refuse_damaged(path, sizes)
                if {None, 0, self._file_size}.issuperset(sizes.values()):
                    raise
                raise ForeignFile(
                    f"{error}; or, to have all queues made again from the log, leave the broker "
                    f"stopped, delete {self._directory}, and start the broker"
                ) from None
            self._left += [path / name for name in left]

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
            elif size % ENTRY_BYTES or self._has_file_of_its_size():
                fault = f"has {size} bytes instead of {self._file_size}: it is damaged"
            else:
                continue
            raise ForeignFile(
                f"{directory / name} {fault}. To have the queue made again from the log, leave the "
                f"broker stopped, delete {directory}, and start the broker"
            )

    def _has_file_of_its_size(self) -> bool:
        """Return whether any file of any queue has the size that all should have."""
        looked_into = [self._directory]
        for _ in range(2):  # topics, and the queues of each
            found = zip(looked_into, self._disk.look_into(looked_into), strict=True)
            looked_into = [
                path / name for path, sizes in found for name, size in sizes.items() if size is None
            ]
        return any(self._file_size in sizes.values() for sizes in self._disk.look_into(looked_into))

    def resume(self, spans: Iterable[QueueSpan], deleted_topics: Container[str]) -> bool:
        """Let each queue stand where it did at a checkpoint; return False if a file is missing.

        What came later comes again, as do queues that came later; their files stay for that, but
        for those of topics that were deleted. `delete_leftovers` deletes what nothing came to.
        """
        later = dict(self._queues)
        resumed: set[str] = set()
        for topic, queue_id, min_offset, max_offset in spans:
            queue = self._queues.get((topic, queue_id))
            if queue is not None and queue.resume(min_offset, max_offset):
                del later[topic, queue_id]
                resumed.add(topic)
                if queue.has_files_behind:
                    self._to_be_carried.append((topic, queue_id))
            elif min_offset != max_offset:
                return False
        for path in self._left:
            self._disk.delete(path)
        aside = self._deleted_put_aside({topic for topic, _ in later} - resumed, deleted_topics)
        for (topic, queue_id), queue in later.items():
            if topic in aside:
                continue
            if topic not in deleted_topics and queue.begin_again():
                self._to_be_carried.append((topic, queue_id))
            else:
                self._delete_later_queue(topic, queue_id, queue)
        return True

    def _deleted_put_aside(self, topics: Iterable[str], deleted: Container[str]) -> set[str]:
        """Take out those of some topics that are deleted, and return them.

        Files that cannot be moved away are left, to be deleted one by one.
        """
        aside = set()
        for topic in topics:
            if topic in deleted:
                with suppress(OSError):
                    self.put_aside(topic)
                    aside.add(topic)
        return aside

    def _delete_later_queue(self, topic: str, queue_id: int, queue: ConsumeQueue) -> None:
        queue.close()
        self._group.forget_names(queue.directory)
        self._delete_queue(queue.directory)
        del self._queues[topic, queue_id]

    def delete_leftovers(self) -> None:
        """Delete files behind the ends of queues, and queues to which nothing came again.

        Raises:
            OSError: The disk does not let one go.
        """
        while self._to_be_carried:
            topic, queue_id = self._to_be_carried[-1]
            queue = self._queues.get((topic, queue_id))
            if queue is not None and queue.max_offset:
                queue.delete_behind()
            elif queue is not None:
                self._delete_later_queue(topic, queue_id, queue)
            self._to_be_carried.pop()

    def wipe_behind(self) -> None:
        """Write zeros behind the last entry of each queue, where a crash may have left others."""
        for _, _, queue in self:
            with suppress(UnreadableFile):  # its readers are told
                queue.wipe_behind()

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, or None if it does not exist."""
        return self._queues.get((topic, queue_id))

    def get_or_make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue, made if it is missing; its files come with its first entry."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            fault = topic_fault(topic)
            if fault:
                raise ForeignFile(fault)
            path = self._directories.of(topic) / str(queue_id)
            queue = self._queues[topic, queue_id] = ConsumeQueue(self._group, path, self._file_size)
        return queue

    def __iter__(self) -> Iterator[tuple[str, int, ConsumeQueue]]:
        """Yield topic, number and queue of each."""
        for (topic, queue_id), queue in sorted(self._queues.items()):
            yield topic, queue_id, queue

    def __len__(self) -> int:
        """Return the number of queues."""
        return len(self._queues)

    def ends(self) -> QueueEnds:
        """Record where each queue ends now, as fast as possible."""
        queues = dict(self._queues)
        return QueueEnds(queues, list(map(_END, queues.values())))

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

    def put_aside(self, topic: str) -> None:
        """Take a topic out, at once; its files are `left_topics` from then on.

        Raises:
            OSError: The disk refuses. The topic is as it was.
        """
        queues = {
            queue_id: queue for (name, queue_id), queue in self._queues.items() if name == topic
        }
        path = self._directories.of(topic)
        is_there = topic in self._disk.names(path.parent)  # else no queue of it has had an entry
        if is_there and not is_light_queue(topic):
            directory = self.left_topics.free_place()
            with self._group.lock:  # nobody opens one of its files meanwhile
                self._move(path, directory)
                self._group.forget_names(path)
                # No later checkpoint finds them there again.
                self._group.names_changed(path.parent)
                for queue_id, queue in queues.items():
                    queue.moved_to(directory / str(queue_id))
            self.left_topics.add(directory, queues)
        for queue_id in queues:
            del self._queues[topic, queue_id]

    def _move(self, directory: Path, new_directory: Path) -> None:
        try:
            self._disk.rename(directory, new_directory)
        except OSError:  # it may have come about nevertheless
            if new_directory.name not in self._disk.names(new_directory.parent):
                raise

    def hide(self, topic: str, before: Mapping[int, QueueOffset]) -> None:
        """Offer no entries of a topic before these offsets; all of its other queues are new."""
        for name, queue_id, queue in self:
            if name == topic and queue_id in before:
                queue.min_offset = min(before[queue_id], queue.max_offset)

    def _delete_queue(self, directory: Path) -> None:
        for name in self._disk.names(directory):
            self._disk.delete(directory / name)
        self._disk.delete(directory)

    def clear(self) -> None:
        """Forget every queue: they are about to be made again from the log."""
        self._group.close()
        for topic in dict.fromkeys(topic for topic, _ in self._queues):
            for path in files_of(self._disk, self._directories.of(topic)):
                self._disk.delete(path)
        self._queues.clear()
        self._to_be_carried.clear()
        self._left.clear()

    def flush(self, is_over: Callable[[], bool] = never) -> bool:
        """Return when all entries are on the disk; False if ``is_over`` has ended that early.

        Raises:
            OSError: A directory cannot be opened for that, or its flush has failed.
            StoreFailed: The disk has failed.
        """
        return self._group.flush(is_over)

    def close(self) -> None:
        """Close all files, without a flush."""
        for _, _, queue in self:
            queue.close()
        self._group.close()
