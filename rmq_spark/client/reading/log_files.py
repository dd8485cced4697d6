"""LocalLogFinder: reads records from the log files of a broker that runs on this machine.

    this side                            the broker at the other end of the connection
    draws a nonce                  ──>   writes it, and both ends of the connection, to a proof file
    opens the store's directory    <──   names the directory, the proof file, the log's directory
    finds the proof in it          ──>   pulls of positions may follow, over this connection alone
    reads records                  <──   positions, sizes

The broker is not trusted. Without a proof it could name the directory of another broker whose files
this process may read. So all files are opened by their names within one directory, which is held
open, and only if they belong to the user whose broker wrote the proof. If a broker relays the nonce
to another broker, the proof names the endpoints of a different connection. The proof is valid as
long as the connection; it is read again after each part that was read, because the broker may have
ended and another may have replaced it.

The reader pulls records that do not match the broker's description instead of using them: retention
may have deleted a file, or a crash may have truncated it. Files are read, not mapped: truncating a
file ends a read, but would kill a process that has it mapped.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rmq_spark.client.errors import ConnectionClosed, RequestTimeout
from rmq_spark.client.transport.connection import RemotingConnection
from rmq_spark.client.transport.remoting_client import RemotingClient
from rmq_spark.errors import RecordError
from rmq_spark.wire.chunk import RecordChunk
from rmq_spark.wire.chunk.buffer_slices import Positions
from rmq_spark.wire.extensions import (
    NONCE_BYTES,
    PROOF_BYTES_MAX,
    Extension,
    LogLocation,
    proof_content,
)
from rmq_spark.wire.message import record_layout as layout
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.remoting.framing import FRAME_BYTES_MAX

_log = logging.getLogger(__name__)


class LogDirectory:
    """A directory of this machine that is held open, and stays the same even if it is moved."""

    def __init__(
        self, path: str, parent_descriptor: int | None = None, owner: int | None = None
    ) -> None:
        """Open a directory; one in ``parent_descriptor`` must be ``owner``'s, and be no link."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        if parent_descriptor is not None:
            flags |= os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, dir_fd=parent_descriptor)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._owner = owner
        if owner is not None and os.fstat(self._descriptor).st_uid != owner:
            raise PermissionError(f"{path} belongs to another user than the proof")

    def read_proof(self, name: str) -> tuple[bytes, int]:
        """Return the first bytes of a regular file, and its owner."""
        descriptor, owner = self._open_file(name)
        try:
            return os.pread(descriptor, PROOF_BYTES_MAX, 0), owner
        finally:
            os.close(descriptor)

    def open_subdirectory(self, name: str, owner: int) -> LogDirectory:
        """Return a directory in this one, of which only this owner's files are read."""
        return LogDirectory(name, self._descriptor, owner)

    def read(self, name: str, position: int, buffer: memoryview) -> None:
        """Fill memory from a position in a regular file."""
        descriptor, _ = self._open_file(name)
        try:
            while buffer:
                count = os.preadv(descriptor, [buffer], position)
                if not count:
                    raise OSError(f"{name} is shorter than its broker says")
                position, buffer = position + count, buffer[count:]
        finally:
            os.close(descriptor)

    def _open_file(self, name: str) -> tuple[int, int]:
        """Open a regular file, without blocking on a pipe or following a link."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
        descriptor = os.open(name, flags, dir_fd=self._descriptor)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and self._owner in (None, status.st_uid):
            return descriptor, status.st_uid
        os.close(descriptor)
        raise OSError(f"{name} is not a regular file of the broker's user")


class LogFiles:
    """The files of a log, in a directory that holds a proof."""

    def __init__(self, directory: LogDirectory, location: LogLocation, proof: bytes) -> None:
        self._directory = directory
        self._location = location
        self._proof = proof
        self._owner = self._verify_proof()
        self._log = directory.open_subdirectory(location.log_name, self._owner)

    def read_records(
        self,
        queue: MessageQueue,
        positions: Positions,
        sizes: npt.NDArray[np.integer[Any]],
        queue_offsets: range,
    ) -> RecordChunk | None:
        """Return the records at these positions, of these sizes, back to back.

        Return None if any record is missing, or if there are more than a pull can return: then
        nothing that was read may be used.
        """
        lengths = sizes.astype(np.int64)
        ends = np.cumsum(lengths)
        if int(lengths.min()) < layout.RECORD_BYTES_MIN or int(ends[-1]) > FRAME_BYTES_MAX:
            return None
        data = np.empty(int(ends[-1]), np.uint8)
        try:
            for rows in _contiguous_runs(positions, lengths, self._location.file_bytes):
                start, end = int(ends[rows.start] - lengths[rows.start]), int(ends[rows.stop - 1])
                self._read(int(positions[rows.start]), data.data[start:end])
            records = RecordChunk(data.data, lengths)
        except (OSError, RecordError):
            return None
        are_these = _match_queue(records, queue, queue_offsets)
        are_these = are_these and bool((records.head["physical_offset"] == positions).all())
        with suppress(OSError):
            if are_these and self._verify_proof() == self._owner:
                return records
        return None

    def _read(self, log_position: int, buffer: memoryview) -> None:
        if log_position < 0:
            raise OSError(f"no log has a position {log_position}")
        position = log_position % self._location.file_bytes
        name = f"{log_position - position:0{layout.FILE_NAME_DIGITS}d}"
        self._log.read(name, position, buffer)

    def _verify_proof(self) -> int:
        """Return the user whose broker has written the proof; raise OSError if it is not there."""
        found, owner = self._directory.read_proof(self._location.proof_name)
        if found != self._proof:
            raise OSError(f"{self._location.proof_name} is not the proof that was asked for")
        return owner


def _contiguous_runs(positions: Positions, lengths: Positions, file_bytes: int) -> Iterator[slice]:
    """Yield the rows of records that lie back to back in one file."""
    files = positions // file_bytes
    is_cut = positions[1:] != (positions + lengths)[:-1]
    is_cut |= files[1:] != files[:-1]
    cuts = (np.flatnonzero(is_cut) + 1).tolist()
    yield from map(slice, [0, *cuts], [*cuts, len(positions)])


def _match_queue(records: RecordChunk, queue: MessageQueue, queue_offsets: range) -> bool:
    """Return whether all records are of a queue, and their offsets ascend in ``queue_offsets``."""
    offsets = records.head["queue_offset"].astype(np.int64)
    return bool(
        (offsets[1:] > offsets[:-1]).all()
        and int(offsets[0]) >= queue_offsets.start
        and int(offsets[-1]) < queue_offsets.stop
        and (records.head["queue_id"] == queue.queue_id).all()
        and records.has_topic(queue.topic.encode()).all()
    )


# ---- detecting brokers on this machine


class ProvenLog(NamedTuple):
    """The files of a broker's log, and the connection on which it has proven that it owns them."""

    connection: RemotingConnection
    files: LogFiles


class LocalLogFinder:
    """Finds the files of brokers that run on this machine.

    Args:
        open_directory: Opens a directory; raises OSError or ValueError if there is none.
        is_requested: Whether a user has asked for reading files, so that the log explains why they
            are not read.
        logged: Addresses of brokers, each with a reason why their files are not read, that are not
            logged again. By default those that this process has logged.
    """

    def __init__(
        self,
        open_directory: Callable[[str], LogDirectory] = LogDirectory,
        *,
        is_requested: bool = False,
        logged: set[tuple[str, str]] | None = None,
    ) -> None:
        self._open_directory = open_directory
        self._is_requested = is_requested
        self._logged = _logged_by_this_process if logged is None else logged

    def find_log(self, connections: RemotingClient, address: str) -> ProvenLog | None:
        """Return a broker's log if the broker has proven it on its connection; None to pull."""
        connection, agreement = connections.get_or_connect(address)
        is_offered = agreement is not None and Extension.READ_FILES in agreement.extensions
        find = partial(self._find_log_files, connections, is_offered=is_offered)
        found: LogFiles | None = connection.memoize(find)
        return None if found is None else ProvenLog(connection, found)

    def _find_log_files(
        self, connections: RemotingClient, connection: RemotingConnection, *, is_offered: bool
    ) -> LogFiles | None:
        """Have a broker prove on a new connection that this machine has its files."""
        try:
            return self._verify_broker(connections, connection, is_offered=is_offered)
        except _LogFilesUnavailable as error:
            self._log_once(connection.address, str(error))
            return None

    def on_missing_records(self, address: str) -> None:
        """Record that files do not hold the records that their broker has named."""
        self._log_once(
            address, "they do not hold the records that it named, which it may have deleted"
        )

    def _log_once(self, address: str, why: str) -> None:
        """Log once why files are not read; as a warning if the user asked for reading them."""
        if not self._is_requested:
            _log.debug(_UNAVAILABLE_TEXT, address, why)
        elif (address, why) not in self._logged:
            self._logged.add((address, why))
            _log.warning(_UNAVAILABLE_TEXT, address, why)

    def _verify_broker(
        self, connections: RemotingClient, connection: RemotingConnection, *, is_offered: bool
    ) -> LogFiles:
        ends = connection.endpoints
        if ends is None:
            raise ConnectionClosed(connection.address, "the system has ended the connection")
        client, broker = ends
        if not (broker.is_loopback or broker.address == client.address):
            raise _LogFilesUnavailable("it runs on another machine")
        if not is_offered:
            raise _LogFilesUnavailable("it does not offer its files")
        if not all(hasattr(os, name) for name in _SYSTEM_CALLS):
            raise _LogFilesUnavailable(f"{sys.platform} lacks the system calls for it")
        nonce = os.urandom(NONCE_BYTES).hex()
        try:
            location = connections.query_log_location(connection, nonce)
        except RequestTimeout as error:
            raise _LogFilesUnavailable("it does not answer the request for a proof") from error
        if location is None:
            raise _LogFilesUnavailable("it cannot prove that they are its own (its log says why)")
        proof = proof_content(nonce, broker, client, machine_identity())
        try:
            files = LogFiles(self._open_directory(location.directory), location, proof)
        except (OSError, ValueError) as error:
            raise _LogFilesUnavailable(
                f"{location.directory} on this machine is not its store, or not readable ({error})"
            ) from error
        if connection.endpoints != ends:
            # After the connection has ended, another broker may get one with the same endpoints.
            raise ConnectionClosed(connection.address, "it ended before its proof was read")
        return files


class _LogFilesUnavailable(Exception):
    """The files of a broker cannot be read; the text says why."""


_SYSTEM_CALLS: Final = ("preadv", "O_DIRECTORY", "O_NOFOLLOW")
"""Names in the module os that reading files requires; not every system has them."""

_UNAVAILABLE_TEXT: Final = "the files of the broker at %s are not read: %s; its records are pulled"
_logged_by_this_process: Final[set[tuple[str, str]]] = set()


def machine_identity() -> str:
    """Return the identity of this boot of the machine and of the process's network namespace.

    Brokers compute it by the same rules; parts that the system does not reveal are empty.
    """
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/net").stat().st_ino)
    return f"{boot}/{namespace}"
