"""BadRecordHandler: handles messages that cannot be read, by option ``onBadRecord``.

    fail         the query fails, and the error names the message
    null         the row has a null body; if the whole record is unreadable, only its position is
                 known
    skip         the message has no row
    dead_letter  the message has no row, and is stored in another topic before the task continues

The error or a warning names each message by its position. If a task has very many, only the first
are named, and all are counted at its end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final

from rmq_spark.client.damaged_records import BadRecord
from rmq_spark.errors import format_count
from rmq_spark.spark.errors import RecordFault
from rmq_spark.spark.options.values import OnBadRecord

_log = logging.getLogger(__name__)

LOGGED_MAX: Final = 20

_DONE: Final = {
    OnBadRecord.NULL: "its body is null",
    OnBadRecord.SKIP: "it is skipped",
    OnBadRecord.DEAD_LETTER: "it is a dead letter",
}


class BadRecordHandler:
    """Counts and logs the messages of one task that cannot be read; logs the count at its end."""

    def __init__(
        self, policy: OnBadRecord, send: Callable[[Sequence[BadRecord]], None] | None = None
    ) -> None:
        self.policy = policy
        self._send = send
        self._count = 0

    @property
    def keeps_rows(self) -> bool:
        """True if an unreadable message keeps its row, with a null body."""
        return self.policy is OnBadRecord.NULL

    def report(self, records: Sequence[BadRecord]) -> None:
        """Report unreadable messages: fail, or log and count them, and send dead letters."""
        if self.policy is OnBadRecord.FAIL:
            queue, queue_offset, problem, _ = records[0]
            raise RecordFault(queue, queue_offset, str(problem))
        if self._send is not None:
            self._send(records)
        for queue, queue_offset, problem, _ in records[: max(LOGGED_MAX - self._count, 0)]:
            _log.warning(
                "offset %d of %s cannot be read, and %s: %s",
                *(queue_offset, str(queue), _DONE[self.policy], problem),
            )
        before, self._count = self._count, self._count + len(records)
        if before < LOGGED_MAX <= self._count:
            _log.warning("this task logs no more unreadable messages")

    def __enter__(self) -> BadRecordHandler:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._count:
            messages = format_count(self._count, "message")
            _log.warning("onBadRecord=%s applied to %s of a task", self.policy.value, messages)
