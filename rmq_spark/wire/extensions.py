"""The abilities of rocketpoll's peers beyond RocketMQ, once both have said that they have them.

A client that wants more asks `RequestCode.EXTENSIONS` with the names it knows, in the JSON header
that everybody reads. A rocketpoll broker answers with those of them it knows too, and both may use
these from then on. A RocketMQ broker answers REQUEST_CODE_NOT_SUPPORTED: nothing beyond it, then.

A broker never starts using an extension by itself, so that no standard client sees one.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, NamedTuple


class Extension(Enum):
    """An ability beyond RocketMQ; the value is its name on the wire."""

    MSGPACK_HEADER = "msgpack-header"
    PULL_CHUNK = "pull-chunk"
    APPEND_CHUNK = "append-chunk"
    STAGED_BATCHES = "staged-batches"
    READ_FILES = "read-files"


class LogPlace(NamedTuple):
    """The files of a broker's log, as it tells of them with READ_FILES.

    Attributes:
        directory: The directory in which they are, as the broker sees it.
        file_bytes: The size of each of them.
        proof_path: A file beside them.
        proof: What that one holds: whoever finds just that there sees the broker's own files.
    """

    directory: str
    file_bytes: int
    proof_path: str
    proof: str


class ExtensionsHeader(NamedTuple):
    """The header of request and answer: names joined by commas, unknown ones ignored.

    The answer also says which hosts must be in records that the client encodes itself, and with
    READ_FILES where the files of the log are.
    """

    names: str
    born_host: str | None = None
    store_host: str | None = None
    log_directory: str | None = None
    log_file_bytes: Annotated[int, 64] | None = None
    proof_path: str | None = None
    proof: str | None = None

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

    def with_log_at(self, place: LogPlace) -> ExtensionsHeader:
        """Return the same header that says where the files of the log are."""
        directory, file_bytes, proof_path, proof = place
        return self._replace(
            log_directory=directory, log_file_bytes=file_bytes, proof_path=proof_path, proof=proof
        )

    @property
    def log_place(self) -> LogPlace | None:
        """The files of the log, or None if the header does not say where they are."""
        if not self.log_directory or not self.proof_path or not self.proof:
            return None
        if self.log_file_bytes is None or self.log_file_bytes <= 0:
            return None
        return LogPlace(self.log_directory, self.log_file_bytes, self.proof_path, self.proof)

    @property
    def extensions(self) -> frozenset[Extension]:
        """The extensions among the names that this version knows."""
        names = set(self.names.split(","))
        return frozenset(extension for extension in Extension if extension.value in names)
