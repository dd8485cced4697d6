"""Commits: which half messages are committed, so that a repeated commit delivers nothing.

    known      the last commits of this process, and what was found of others
    find       the committed message of any other half message, in the index by its UNIQ_KEY

All copies of a half message count as one. Nothing is found without an index
(messageIndexEnable=false), for a producer that sets no UNIQ_KEY, or if the files of the log that
had the half message have expired: then a repeated commit delivers its message again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from rmq_spark.errors import RecordError
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.message.properties import REAL_TOPIC, UNIQ_KEY
from rmq_spark.wire.message.record import StoredMessage, decode_record
from rmq_spark.wire.names import HALF_TOPIC
from rmq_spark.wire.remoting.framing import Buffer
from rmq_spark.wire.remoting.java_numbers import INT64_MAX

from ..store.errors import IndexLimitReached, UnreadableFile, is_resource_shortage
from ..store.message_store import MessageStore
from ..store.results import PhysicalOffset
from .half_message import QUEUE_ID, prepared_queue_offset

COMMITS_MAX: Final = 10_000
"""The number of last commits that are known; older ones are searched for."""
_FOUND_MAX: Final = 32
"""The number of messages with the same UNIQ_KEY that a search examines, the newest first."""
_TRANSACTION_MASK: Final = MessageSysFlag.TRANSACTION_MASK.value
_COMMIT: Final = MessageSysFlag.TRANSACTION_COMMIT.value

_log = logging.getLogger(__name__)


class Commits:
    """The commits of a store's half messages."""

    def __init__(self, store: MessageStore) -> None:
        """Begin without known commits; those in the store are searched for."""
        self._store = store
        self._known: dict[tuple[int, str], int] = {}
        """The physical offsets of the last committed half messages, by their `_identity`."""
        self._known_from = int(store.state().written_offset)
        """From this physical offset on, the commits of all half messages are known."""

    def __contains__(self, half: StoredMessage) -> bool:
        """Return whether this half message, or a copy of it, is known as committed."""
        return _identity(half) in self._known

    def add(self, half: StoredMessage) -> None:
        """Record that the message of a half message is in its topic."""
        self._known[_identity(half)] = half.physical_offset
        if len(self._known) > COMMITS_MAX:
            oldest = self._known.pop(next(iter(self._known)))
            self._known_from = max(self._known_from, oldest + 1)

    def must_search(self, half: StoredMessage) -> bool:
        """Return whether a half message that is not known may still be a committed one."""
        is_copy = prepared_queue_offset(half) is not None
        return half not in self and (is_copy or half.physical_offset < self._known_from)

    def search(self, half: StoredMessage) -> Iterator[None]:
        """Search the index, in steps, for the message of a half message; `add` it if found.

        Raises:
            EndUnknown: The start is not finished, and may find the message.
        """
        self._store.queue_offsets(HALF_TOPIC, QUEUE_ID)
        topic, key = (half.properties.get(name, "") for name in (REAL_TOPIC, UNIQ_KEY))
        if not key:
            return
        try:
            for record in self._store.query_message_in_steps(topic, key, _FOUND_MAX, 0, INT64_MAX):
                if record is not None and self._is_commit_of(half, record):
                    self.add(half)
                    return
                yield
        except (IndexLimitReached, UnreadableFile) as error:
            if isinstance(error, UnreadableFile) and is_resource_shortage(error):
                raise
            _log.warning("half message %s may be delivered twice: %s", half.message_id, error)

    def _is_commit_of(self, half: StoredMessage, record: Buffer) -> bool:
        """Return whether a record is the committed message of a half message or of a copy."""
        try:
            committed = decode_record(record)
            if committed.sys_flag & _TRANSACTION_MASK != _COMMIT:
                return False
            position = PhysicalOffset(committed.prepared_transaction_offset)
            own = self._store.record_at(position)
            return own is not None and _identity(decode_record(own)) == _identity(half)
        except RecordError:
            return False


def _identity(half: StoredMessage) -> tuple[int, str]:
    """Return the first queue offset of a half message, and its id, if the producer has set one.

    The offset message id is of no use here: each copy has its own.
    """
    known_offset = prepared_queue_offset(half)
    first_offset = half.queue_offset if known_offset is None else known_offset
    return first_offset, half.properties.get(UNIQ_KEY, "")
