"""LocalFileOffsetStore: keeps offsets in a file of this machine, for consumers in BROADCASTING.

    ~/.rocketmq_offsets/<lasting id>/<group>/offsets.json     {"offsetTable":{{"brokerName":...}:1},
                                                               "lastMessages":{{...}:{...}}}
                                             offsets.json.bak the state before that

Java's consumers read and write the same file, without the last messages. These show whether a topic
was deleted and recreated while no consumer ran here.

Each write makes a new file under a unique name, which replaces the old one once it is on disk. So
every reader sees a complete file, and if the power fails, one of the two is whole. If both are
damaged, loading raises an error, because otherwise everything would silently be consumed again, or
nothing. If the file cannot be written, consuming continues, and the next write stores the same
offsets or later ones.

Several processes of one machine and group may share the file. A writer holds a shared lock of the
directory, which ends with its process. A consumer that starts while no process writes removes what
killed writers have left.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rmq_spark.client.consumer.offsets.offset_store import OffsetStore
from rmq_spark.client.consumer.queues.queue_identity import LastMessage
from rmq_spark.client.errors import OffsetFileDamaged, OffsetFileFailed
from rmq_spark.client.failure_log import FailureLog
from rmq_spark.errors import BodyError
from rmq_spark.wire.bodies import decode_body, encode_body
from rmq_spark.wire.message_queue import MessageQueue

if sys.platform != "win32":
    import fcntl

DIRECTORY = Path(".rocketmq_offsets")
"""Directory of the offset files below the home directory, unless another is set."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSerializeWrapper:
    """Content of the offset file: the offsets, as in Java, and the last message of each queue."""

    offset_table: Mapping[MessageQueue, int] = field(default_factory=dict)
    last_messages: Mapping[MessageQueue, LastMessage] | None = None


def offset_file(persistent_id: str, group: str, directory: Path | None = None) -> Path:
    """Return the path of a consumer's offset file, by its client's `persistent_id`."""
    return (directory or Path.home() / DIRECTORY) / persistent_id / group / "offsets.json"


class LocalFileOffsetStore(OffsetStore):
    """An `OffsetStore` that keeps offsets in a file."""

    def __init__(self, path: Callable[[], Path]) -> None:
        """Make a store; ``path`` is called each time, because a fork may change its result."""
        super().__init__()
        self._path = path
        self.last_messages: dict[MessageQueue, LastMessage] = {}
        self._write_lock = threading.Lock()
        self._last_written: OffsetSerializeWrapper | None = None
        self._failure_log = FailureLog()

    def load(self) -> None:
        """Load the offsets of the file; a missing file counts as empty."""
        kept = self._read()
        with self._mutex:
            self._offsets = {**kept.offset_table, **self._offsets}
        self.last_messages = {**(kept.last_messages or {}), **self.last_messages}
        with suppress(OSError), _open_directory(self._path().parent) as directory:
            _lock(directory, is_shared=False)
            for left in self._path().parent.glob(f"{self._path().name}.*.tmp"):
                left.unlink(missing_ok=True)

    def stored_offset(self, queue: MessageQueue) -> int | None:
        """Return the offset that the file has, or None."""
        kept = self._read().offset_table.get(queue)
        return None if kept is None or kept < 0 else kept

    def persist_all(self, queues: Collection[MessageQueue]) -> None:  # noqa: ARG002  # the file holds all
        """Write the file, if anything has changed; log a failure and the recovery once each."""
        try:
            self._save()
        except OffsetFileFailed as error:
            self._failure_log.record_failure("storing offsets", error, time.monotonic())
        else:
            self._failure_log.record_success("storing offsets", time.monotonic())

    def store_offset(
        self,
        queue: MessageQueue,  # noqa: ARG002  # the file holds all
        offset: int,  # noqa: ARG002  # the offsets in memory include it
    ) -> None:
        """Write the file, if there is anything new."""
        self._save()

    def _save(self) -> None:
        with self._write_lock:
            content = OffsetSerializeWrapper(
                offset_table=self.offsets(),
                last_messages=dict(self.last_messages) or None,
            )
            if content != self._last_written:
                try:
                    self._write(content)
                except OSError as error:
                    raise OffsetFileFailed(
                        str(self._path()), "written", describe_os_error(error)
                    ) from error
                self._last_written = content

    def remove_offset(self, queue: MessageQueue) -> None:
        """Do nothing, because in BROADCASTING a queue returns to the same consumer."""

    def _write(self, content: OffsetSerializeWrapper) -> None:
        path = self._path()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
        with _open_directory(path.parent) as directory:
            with suppress(OSError):  # without locks, no process removes files
                _lock(directory, is_shared=True)
            try:
                with new.open("xb") as file:
                    file.write(encode_body(content))
                    file.flush()
                    os.fsync(file.fileno())
                with suppress(FileNotFoundError):  # no file yet, or another process replaced it
                    path.replace(self._backup)
                new.replace(path)
            except BaseException:
                with suppress(OSError):  # the error has been reported
                    new.unlink(missing_ok=True)
                raise
            if directory is not None:
                os.fsync(directory)

    def _read(self) -> OffsetSerializeWrapper:
        why = ""
        for path in (self._path(), self._backup):
            try:
                content = decode_body(OffsetSerializeWrapper, path.read_bytes())
            except FileNotFoundError:
                continue
            except OSError as error:
                raise OffsetFileFailed(str(path), "read", describe_os_error(error)) from error
            except BodyError as error:
                why = why or str(error)
                continue
            if why:
                _log.warning("%s is damaged (%s): using its backup", self._path(), why)
            return content
        if why:
            raise OffsetFileDamaged(str(self._path()), why)
        return OffsetSerializeWrapper()

    @property
    def _backup(self) -> Path:
        return self._path().with_name(self._path().name + ".bak")


def describe_os_error(error: OSError) -> str:
    """Return the system's message about an error, with the file that it concerns."""
    of = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{of}"


def _lock(directory: int | None, *, is_shared: bool) -> None:
    """Lock an open directory; raise OSError if that is impossible, as on Windows."""
    if sys.platform == "win32":
        raise OSError(errno.ENOTSUP, "this system cannot lock a directory")
    assert directory is not None  # noqa: S101  # only Windows has none
    fcntl.flock(directory, fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def _open_directory(directory: Path) -> Iterator[int | None]:
    """Yield a descriptor of a directory, or None on Windows, which has no such descriptors."""
    if sys.platform == "win32":
        yield None
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
