"""ProofFiles: files that prove to a client on this machine that it sees the same store.

    client ── nonce ──> broker ── writes it, and the connection's ends ──> <store>/proof.7
       └────────────────────── reads it there ─────────────────────────────────┘

A file lasts as long as its connection. There are at most `PROOFS_MAX`; the next start deletes files
that a crash has left. If a file cannot be written, such as on a full disk, the client pulls its
records through the socket.
"""

from __future__ import annotations

import logging
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from rmq_spark.wire.extensions import PROOF_PREFIX, LogLocation, proof_content
from rmq_spark.wire.message.hosts import Host

from .disk import LocalDisk
from .mapped_file_queue import MappedFileQueue

PROOFS_MAX: Final = 256
"""The maximum number of connections that read files at the same time; others pull."""

_log = logging.getLogger(__name__)


class ProofFiles:
    """The proof files of one store, by connection."""

    def __init__(self, disk: LocalDisk, root: Path, files: MappedFileQueue) -> None:
        self._disk = disk
        self._root = root
        self._log_location = _log_location_of(root, files)
        self._machine = machine_identity()
        self._numbers: dict[object, int] = {}
        self._is_failing = False

    def discard_leftovers(self) -> None:
        """Delete files that a crash has left; call this at the start, with the store locked."""
        with suppress(OSError):
            for name in self._disk.names(self._root):
                if name.startswith(PROOF_PREFIX):
                    self._disk.delete(self._root / name)

    def write(
        self, connection: object, nonce: str, broker: Host, client: Host
    ) -> LogLocation | None:
        """Write the proof of a connection, replacing its last one; return the log's location.

        ``broker`` and ``client`` are the ends of the connection. Return None if the client has to
        pull, because the log is outside the store, there are too many proofs, or the disk refuses.
        """
        if self._log_location is None:
            return None
        proof = proof_content(nonce, broker, client, self._machine)
        self.discard(connection)
        used_numbers = set(self._numbers.values())
        number = next((each for each in range(PROOFS_MAX) if each not in used_numbers), None)
        if number is None:
            return None
        path = self._path(number)
        try:
            self._disk.delete(path)
            with closing(self._disk.create(path, len(proof))) as file:
                self._numbers[connection] = number
                file.write(proof, 0)
        except OSError as error:
            self.discard(connection)
            if not self._is_failing:
                _log.warning("proof files cannot be written, clients pull instead: %s", error)
            self._is_failing = True
            return None
        if self._is_failing:
            _log.info("proof files can be written again")
        self._is_failing = False
        return self._log_location._replace(proof_name=path.name)

    def discard(self, connection: object) -> None:
        """Delete the proof of a connection, if it has one."""
        number = self._numbers.pop(connection, None)
        if number is not None:
            with suppress(OSError):
                self._disk.delete(self._path(number))

    def close(self) -> None:
        """Delete all proofs and write no more; call this while the store is still locked."""
        self._log_location = None
        for connection in list(self._numbers):
            self.discard(connection)

    def _path(self, number: int) -> Path:
        return self._root / f"{PROOF_PREFIX}{number}"


def _log_location_of(root: Path, files: MappedFileQueue) -> LogLocation | None:
    """Return where the log is; None if it is outside the store, or its path is not valid text."""
    directory = root.absolute()
    log = files.directory.absolute()
    try:
        str(log).encode()
    except UnicodeEncodeError:
        return None
    if log.parent != directory:
        return None
    return LogLocation(str(directory), log.name, files.file_size, "")


def machine_identity() -> str:
    """Return the identity of this boot of the machine and of the process's network namespace.

    Clients compute it in the same way. A part that the system does not report is empty.
    """
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/net").stat().st_ino)
    return f"{boot}/{namespace}"
