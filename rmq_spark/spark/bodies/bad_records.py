"""BadRecordHandler: fails, nulls or skips messages that cannot be read, by option ``onBadRecord``.

    fail    the query fails, and the error names the message
    null    the row has a null body; if the whole record is unreadable, only its position is known
    skip    the message has no row

The error or a warning names each message by its position. If a task has very many, only the first
are named.
"""

from __future__ import annotations

import logging
from typing import Final

from rmq_spark.spark.errors import RecordFault, describe_queue
from rmq_spark.spark.options.values import OnBadRecord
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

LOGGED_MAX: Final = 20


class BadRecordHandler:
    """Counts and logs the messages of one task that cannot be read."""

    def __init__(self, policy: OnBadRecord) -> None:
        self.policy = policy
        self._count = 0

    @property
    def keeps_rows(self) -> bool:
        """True if such a message keeps its row, with a null body."""
        return self.policy is OnBadRecord.NULL

    def report(self, queue: MessageQueue, queue_offset: int, problem: object) -> None:
        """Count and log a message that cannot be read, or fail, by option ``onBadRecord``."""
        if self.policy is OnBadRecord.FAIL:
            raise RecordFault(queue, queue_offset, str(problem))
        self._count += 1
        if self._count <= LOGGED_MAX:
            done = "its body is null" if self.policy is OnBadRecord.NULL else "it is skipped"
            _log.warning(
                "the message at offset %d of %s cannot be read, and %s: %s",
                queue_offset,
                describe_queue(queue),
                done,
                problem,
            )
        if self._count == LOGGED_MAX:
            _log.warning("this task logs no more of them")
