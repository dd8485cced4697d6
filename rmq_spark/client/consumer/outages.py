"""Outages: failures that keep a consumer from its queues are told when they begin and end.

    a broker cannot be reached    concerns all its queues: one warning, whichever of them finds out
    any other failure             concerns one queue: a warning when the kind of failure changes
    it went well                  what was told is over, and that is told as well

What is not told is logged with level DEBUG. This module knows no broker and no consumer.
"""

from __future__ import annotations

import logging

from rmq_spark.client.errors import CONNECTION_FAULTS, BrokerNotFound, BrokerRefused
from rmq_spark.client.threads.mutex import mutex
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)
_OF_ALL_QUEUES = (*CONNECTION_FAULTS, BrokerNotFound)


class Outages:
    """The failures of one kind of request of a consumer. Methods may be called from any thread."""

    def __init__(self, what: str) -> None:
        """Make a record; ``what`` names the failure in the log, as "cannot be pulled"."""
        self._what = what
        self._mutex = mutex()
        self._told: dict[MessageQueue | str, object] = {}

    def failed(self, queue: MessageQueue, error: BaseException) -> None:
        """Log that a queue's request has failed, as a warning unless that is known."""
        key, kind = _concerned(queue, error)
        with self._mutex:
            is_known = self._told.get(key) == kind
            self._told[key] = kind
        _log.log(
            logging.DEBUG if is_known else logging.WARNING, "%s %s: %s", queue, self._what, error
        )

    def went_well(self, queue: MessageQueue) -> None:
        """Log that an outage is over, if there was one."""
        if not self._told:  # the usual case
            return
        with self._mutex:
            over = [
                key for key in (queue, queue.broker_name) if self._told.pop(key, None) is not None
            ]
        for key in over:
            which = queue if key is queue else f"queues of {key}"
            _log.warning("it is over that %s %s", which, self._what)


def _concerned(queue: MessageQueue, error: BaseException) -> tuple[MessageQueue | str, object]:
    """Return the queue or broker that an error concerns, and its kind."""
    if isinstance(error, _OF_ALL_QUEUES):
        return queue.broker_name, "away"
    return queue, error.code if isinstance(error, BrokerRefused) else type(error)
