"""The abilities of rocketpoll's peers beyond RocketMQ, once both have said that they have them.

A client that wants more asks `RequestCode.EXTENSIONS` with the names it knows, in the JSON header
that everybody reads. A rocketpoll broker answers with those of them it knows too, and both may use
these from then on. A RocketMQ broker answers REQUEST_CODE_NOT_SUPPORTED: nothing beyond it, then.

A broker never starts using an extension by itself, so that no standard client sees one.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Extension(Enum):
    """An ability beyond RocketMQ; the value is its name on the wire."""

    MSGPACK_HEADER = "msgpack-header"
    PULL_CHUNK = "pull-chunk"
    APPEND_CHUNK = "append-chunk"
    STAGED_BATCHES = "staged-batches"


class ExtensionsHeader(NamedTuple):
    """The header of request and answer: names joined by commas, unknown ones ignored.

    The answer also says which hosts must be in records that the client encodes itself.
    """

    names: str
    born_host: str | None = None
    store_host: str | None = None

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

    @property
    def extensions(self) -> frozenset[Extension]:
        """The extensions among the names that this version knows."""
        names = set(self.names.split(","))
        return frozenset(extension for extension in Extension if extension.value in names)
