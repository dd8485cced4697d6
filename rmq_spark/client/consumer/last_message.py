"""LastMessage: the marks by which the last message that came of a queue is known again.

This module asks nobody, and does not know what follows from it: see `last_known`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from rmq_spark.client.message import MessageExt


@dataclass(frozen=True, slots=True, kw_only=True)
class LastMessage:
    """A message of a queue, and three marks of it, of which one flipped bit changes one."""

    queue_offset: int
    store_timestamp: int
    commit_log_offset: int
    message_id: str
    born_timestamp: int
    body_crc: int

    @classmethod
    def of(cls, message: MessageExt) -> LastMessage:
        """Return the marks of a message."""
        is_unique = message.message_id != message.offset_message_id  # else it is the place again
        return cls(
            queue_offset=message.queue_offset,
            store_timestamp=message.store_timestamp,
            commit_log_offset=message.commit_log_offset,
            message_id=message.message_id if is_unique else "",
            born_timestamp=message.born_timestamp,
            body_crc=zlib.crc32(message.body),
        )

    def is_another(self, message: MessageExt) -> bool:
        """Return whether a message is not the one of these marks, whichever of them is damaged."""
        pairs = zip(self._marks, LastMessage.of(message)._marks, strict=True)
        return sum(own != its for own, its in pairs) > 1

    @property
    def _marks(self) -> tuple[int, int, tuple[str, int, int]]:
        content = self.message_id, self.born_timestamp, self.body_crc
        return self.store_timestamp, self.commit_log_offset, content
