"""LocalFileOffsetStore: offsets in a file of this machine. What consumers in BROADCASTING use.

    ~/.rocketmq_offsets/<client id>/<group>/offsets.json         {"offsetTable":{{"brokerName":...}:12}}
                                            offsets.json.bak     the state before that

Java's consumers read the same file, and write it. Each write goes to a new file, which takes the old one's
place when it is on the disk: whenever the power fails, one of the two is whole. If both are damaged that is
an error: without it, everything would quietly be consumed again, or nothing.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rmq_spark.client.consumer.offset_table import OffsetTable, ReadOffsetType
from rmq_spark.client.errors import OffsetFileDamaged
from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.message_queue import MessageQueue

DIRECTORY = Path(".rocketmq_offsets")
"""Below the home directory, unless told otherwise."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSerializeWrapper:
    """The file, as Java writes it."""

    offset_table: Mapping[MessageQueue, int] = field(default_factory=dict)


def offset_file(client_id: str, group: str, directory: Path | None = None) -> Path:
    """Where a consumer's offsets are."""
    return (directory or Path.home() / DIRECTORY) / client_id / group / "offsets.json"


class LocalFileOffsetStore:
    """An `OffsetStore` in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._backup = path.with_name(path.name + ".bak")
        self._table = OffsetTable()
        self._writing = threading.Lock()
        self._written: Mapping[MessageQueue, int] | None = None

    def load(self) -> None:
        """Take over what the file says; no file is as good as an empty one."""
        self._table.add_missing(self._read())

    def update_offset(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Remember it, until it is persisted."""
        self._table.update(queue, offset, increase_only=increase_only)

    def read_offset(self, queue: MessageQueue, kind: ReadOffsetType) -> int | None:
        """From memory, or the file."""
        return self._table.read(queue, kind, lambda queue: self._read().get(queue))

    def persist_all(self, queues: Collection[MessageQueue]) -> None:  # noqa: ARG002  # the file holds all
        """Write the file, if there is anything new."""
        with self._writing:
            offsets = self._table.all()
            if offsets != self._written:
                self._write(offsets)
                self._written = offsets

    def persist(self, queue: MessageQueue) -> None:
        """Write the file."""
        self.persist_all((queue,))

    def remove_offset(self, queue: MessageQueue) -> None:
        """Nothing: in BROADCASTING a queue comes back to the consumer that had it."""

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        """What is known in memory of a topic."""
        return self._table.of_topic(topic)

    def _write(self, offsets: Mapping[MessageQueue, int]) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._path.with_name(self._path.name + ".tmp")
        with new.open("wb") as file:
            file.write(encode_body(OffsetSerializeWrapper(offset_table=offsets)))
            file.flush()
            os.fsync(file.fileno())
        if self._path.exists():
            self._path.replace(self._backup)
        new.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _read(self) -> Mapping[MessageQueue, int]:
        why = ""
        for path in (self._path, self._backup):
            try:
                offsets = decode_body(OffsetSerializeWrapper, path.read_bytes()).offset_table
            except FileNotFoundError:
                continue
            except BodyError as error:
                why = why or str(error)
                continue
            if why:
                _log.warning("%s is damaged (%s); its backup is taken", self._path, why)
            return offsets
        if why:
            raise OffsetFileDamaged(str(self._path), why)
        return {}
