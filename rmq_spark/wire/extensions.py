"""Extensions: features beyond RocketMQ that a client and a rocketpoll broker agree on first.

The client sends `RequestCode.EXTENSIONS` with the names it knows, in the JSON header that every
broker reads. A rocketpoll broker answers with those it knows too, and both may use these from then
on. A RocketMQ broker answers REQUEST_CODE_NOT_SUPPORTED: then no extension is used.

A broker never starts using an extension by itself, so that standard clients never see one.

READ_FILES also needs a proof that the client can read the broker's files. The client asks once
more, with a nonce; the broker writes the `proof_content` of the nonce and this connection into a
file of its store, where the client reads it.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated, Final, NamedTuple

from rmq_spark.wire.message.hosts import Host

NONCE_BYTES: Final = 16
PROOF_PREFIX: Final = "proof."
"""The beginning of the names of proof files; digits follow."""

PROOF_BYTES_MAX: Final = 512
_NONCE: Final = re.compile(r"[0-9a-f]{32}")
_PROOF_NAME: Final = re.compile(r"proof\.[0-9]{1,9}")
_LOG_DIRECTORY: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")


class Extension(Enum):
    """A feature beyond RocketMQ; the value is its name on the wire."""

    MSGPACK_HEADER = "msgpack-header"
    PULL_CHUNK = "pull-chunk"
    APPEND_CHUNK = "append-chunk"
    STAGED_BATCHES = "staged-batches"
    READ_FILES = "proven-files"  # not "read-files", which trusted a proof without a nonce


class LogLocation(NamedTuple):
    """The files of a broker's commit log, as its answer to a nonce names them.

    Attributes:
        directory: The directory of the store, as the broker sees it.
        log_name: Name of the directory in it that has the files of the log.
        file_bytes: Size of each of these files.
        proof_name: Name of the proof file in ``directory``.
    """

    directory: str
    log_name: str
    file_bytes: int
    proof_name: str


def proof_content(nonce: str, broker: Host, client: Host, machine: str) -> bytes:
    """Return the content of a proof file.

    The hosts of the connection are part of it: a broker that relays the nonce to another broker
    does so on a connection with other hosts. Two connections have the same hosts only on different
    machines or in different network namespaces, which ``machine`` distinguishes.

    Args:
        nonce: The number that the client has just drawn.
        broker: The broker's end of the connection on which the nonce travels.
        client: The client's end of that connection.
        machine: Identity of the machine and of the network namespace.
    """
    return f"rocketpoll {nonce} {broker} {client} {machine}\n".encode()


def is_nonce(text: str | None) -> bool:
    """Return whether a text can be a nonce."""
    return text is not None and _NONCE.fullmatch(text) is not None


class ExtensionsHeader(NamedTuple):
    """The header of request and response: names joined by commas, unknown ones ignored.

    A request may have a nonce. The response also has the hosts for records that the client encodes
    itself and, if the request has a nonce, the location of the commit log's files.
    """

    names: str
    born_host: str | None = None
    store_host: str | None = None
    nonce: str | None = None
    store_directory: str | None = None
    log_name: str | None = None
    log_file_bytes: Annotated[int, 64] | None = None
    proof_name: str | None = None

    @classmethod
    def of(
        cls,
        extensions: frozenset[Extension],
        born_host: str | None = None,
        store_host: str | None = None,
    ) -> ExtensionsHeader:
        """Return the header that offers these extensions."""
        names = ",".join(sorted(extension.value for extension in extensions))
        return cls(names, born_host, store_host)

    def with_log_location(self, location: LogLocation) -> ExtensionsHeader:
        """Return a copy of the header that also names the files of the commit log."""
        directory, log_name, file_bytes, proof_name = location
        return self._replace(
            store_directory=directory,
            log_name=log_name,
            log_file_bytes=file_bytes,
            proof_name=proof_name,
        )

    @property
    def log_location(self) -> LogLocation | None:
        """The files of the commit log; None if the header names none, or invalid ones."""
        directory, log_name, proof_name = self.store_directory, self.log_name, self.proof_name
        if not directory or log_name is None or proof_name is None:
            return None
        if not _LOG_DIRECTORY.fullmatch(log_name) or not _PROOF_NAME.fullmatch(proof_name):
            return None
        if self.log_file_bytes is None or self.log_file_bytes <= 0:
            return None
        return LogLocation(directory, log_name, self.log_file_bytes, proof_name)

    @property
    def extensions(self) -> frozenset[Extension]:
        """The extensions among the names that this version knows."""
        names = set(self.names.split(","))
        return frozenset(extension for extension in Extension if extension.value in names)
