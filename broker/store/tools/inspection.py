"""StoreInspection: opens a store read-only; nothing in it is changed, not even locked.

`dump`, `verify` and `stat` use it. A store that is in use can be inspected as well; its newest
messages may then be missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rmq_spark.wire.bodies.configs import TopicConfigSerializeWrapper
from rmq_spark.wire.message.record import StoredMessage, decode_blank, decode_record
from rmq_spark.wire.names import is_light_queue

from ..errors import ForeignFile, StoreError
from ..files.disk import LocalDisk, is_ignored_name
from ..files.file_pool import FileGroup, FilePool
from ..files.json_table import JsonTable
from ..files.mapped_file_queue import MappedFileQueue
from ..log.checkpoint_file import CHECKPOINT, Checkpoint, load_checkpoint
from ..log.commit_log import BLANK_BYTES
from ..log.recovery import LogRecovery, RecoveredLog, nonzero_pieces_after, reliable_checkpoint
from ..queues.consume_queue import ConsumeQueue
from ..queues.manifest import DELETIONS, MANIFEST, Deletions, StoreManifest
from ..results import PhysicalOffset
from ..startup.directory_lock import AbortFile

_TOPICS: Final = "topics.json"


class StoreInspection:
    """The log and the consume queues of a directory."""

    def __init__(self, root: Path) -> None:
        """Open a store for reading only.

        Raises:
            ForeignFile: There is no store, or a start would have to repair it first.
            DamagedTable: The manifest cannot be read.
            OSError: The disk refuses.
        """
        self.root = root
        self._disk = LocalDisk()
        self._pool = FilePool(self._disk)
        log = root / "commitlog"
        if not log.is_dir() or not any(log.iterdir()):
            raise ForeignFile(
                f"{root} has no commit log: pass the directory of a store (storePathRootDir)"
            )
        self.log = MappedFileQueue(FileGroup(self._pool), log, _file_size(log))
        self.log.load()
        self.checkpoint: Checkpoint | None = reliable_checkpoint(
            load_checkpoint(self._disk, root / CHECKPOINT),
            self.log,
            is_foreign=AbortFile(self._disk, root).is_foreign(),
        )
        recovery = LogRecovery(self.log, self.checkpoint)
        self.recovered: RecoveredLog = recovery.scan_from(PhysicalOffset(self.log.first_offset))
        config = root / "config"
        deletions = JsonTable(self._disk, config / DELETIONS, Deletions).peek(Deletions())
        manifest = JsonTable(self._disk, config / MANIFEST, StoreManifest).peek(StoreManifest())
        self._manifest = manifest.with_deletions(deletions) if deletions.serial else manifest

    @property
    def was_stopped_in_order(self) -> bool:
        """True if the last broker that used the store stopped cleanly."""
        return self._disk.size_of(self.root / "abort") is None

    @property
    def torn_tail_at(self) -> PhysicalOffset | None:
        """The position past the end of the log with bytes that are not a record, or None."""
        found = next(nonzero_pieces_after(self.log, self.recovered.end_offset), None)
        if found is None:
            return None
        position, piece = found
        return position + len(piece) - len(bytes(piece).lstrip(b"\0"))

    def records(self) -> Iterator[tuple[PhysicalOffset, int, StoredMessage]]:
        """Yield position, size and message of each valid record."""
        position = PhysicalOffset(self.log.first_offset)
        holes = dict(self.recovered.holes)
        while position < self.recovered.end_offset:
            if position in holes:  # skip the hole, whose first bytes may be unreadable
                position = holes[position]
                continue
            head = self.log.read(position, BLANK_BYTES)
            if decode_blank(head) is not None:
                position += self.log.space_left(position)
            else:
                size = int.from_bytes(head[:4], "big")
                yield position, size, decode_record(self.log.read(position, size))
                position += size

    def begin_of(self, topic: str) -> PhysicalOffset:
        """Return where a topic's messages begin in the log, past those of deleted topics."""
        first = PhysicalOffset(self.log.first_offset)
        return max(first, self._manifest.deleted_topics.get(topic, first))

    def is_known(self, topic: str) -> bool:
        """Return whether a broker has this topic or has lost it; False if RocketMQ deleted it.

        RocketMQ only removes a deleted topic from its table. Our broker also saves deletions in the
        manifest: if the last checkpoint is its own, only the manifest counts.
        """
        return self.checkpoint is not None or not self._topics or topic in self._topics

    @cached_property
    def _topics(self) -> Collection[str]:
        table = JsonTable(self._disk, self.root / "config" / _TOPICS, TopicConfigSerializeWrapper)
        return table.peek(TopicConfigSerializeWrapper()).topic_config_table.keys()

    def queues(self) -> Iterator[tuple[str, int, ConsumeQueue]]:
        """Yield topic, number and queue of each consume queue that has files."""
        directory, group = self.root / "consumequeue", FileGroup(self._pool)
        for topic in self._disk.names(directory):
            if is_ignored_name(topic) or (directory / topic).is_file():
                continue
            if is_light_queue(topic):  # the log does not show its content
                continue
            for path in sorted(_directories(directory / topic), key=_number):
                if self._disk.names(path):
                    queue = ConsumeQueue(group, path, _file_size(path))
                    queue.load()
                    yield topic, _number(path), queue


def _directories(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise ForeignFile(f"{directory} is not a directory: expected the queues of a topic")
    return [path for path in directory.iterdir() if not is_ignored_name(path.name)]


def _number(path: Path) -> int:
    if not (path.name.isdecimal() and path.is_dir()):
        raise ForeignFile(f"{path} is not a consume queue: expected <topic>/<number>")
    return int(path.name)


def _file_size(directory: Path) -> int:
    sizes = set()
    for path in directory.iterdir() if directory.is_dir() else ():
        if is_ignored_name(path.name) or (path.is_dir() and not path.name.isdecimal()):
            continue
        if not path.is_file():  # opening a pipe would block
            raise ForeignFile(f"{path} is not a file: expected files of a store")
        sizes.add(path.stat().st_size)
    if len(sizes) != 1 or 0 in sizes:
        raise ForeignFile(
            f"{directory} has files of {sorted(sizes)} bytes: expected one size. Start the "
            "broker, which repairs what a crash has left"
        )
    return sizes.pop()


def run_tool(
    module: str,
    description: str | None,
    lines: Callable[[argparse.Namespace], Iterable[str]],
    arguments: Sequence[str] | None,
    options: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> int:
    """Run the command line of a tool that prints ``lines``; return its exit code."""
    parser = argparse.ArgumentParser(
        prog=f"python -m rocketpoll.broker.store.tools.{module}", description=description
    )
    parser.add_argument("directory", type=Path, help="storePathRootDir of the store")
    for name, how in options.items():
        parser.add_argument(name, **how)
    given = parser.parse_args(arguments)
    try:
        for line in lines(given):
            print(line)
    except (StoreError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0
