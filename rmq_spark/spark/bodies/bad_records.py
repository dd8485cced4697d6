"""BadRecordHandler: fails, nulls or skips messages that cannot be read, as the user says.

    fail    the query ends, and the error names the message
    null    its row has a body that is null; of a record that cannot be read at all only its place
            is known
    skip    it has no row

Each is named by its place, in the error or in a warning; of very many in one task the first are.
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
    """The counter and log of the messages of one task that cannot be read."""

    def __init__(self, policy: OnBadRecord) -> None:
        self.policy = policy
        self._count = 0

    @property
    def keeps_rows(self) -> bool:
        """True if such a message keeps its row, with a null body."""
        return self.policy is OnBadRecord.NULL

    def report(self, queue: MessageQueue, queue_offset: int, problem: object) -> None:
        """Count and log a message that cannot be read, as the option says.

        Raises:
            RecordFault: Such a message is to end the query.
        """
        if self.policy is OnBadRecord.FAIL:
            raise RecordFault(queue, queue_offset, str(problem))
        self._count += 1
        if self._count <= LOGGED_MAX:
            done = "its body is null" if self.policy is OnBadRecord.NULL else "it is left out"
            _log.warning(
                "the message at offset %d of %s cannot be read, %s: %s",
                queue_offset,
                describe_queue(queue),
                done,
                problem,
            )
        if self._count == LOGGED_MAX:
            _log.warning("no more of them are named in this task")
