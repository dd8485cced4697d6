"""Asker: one question about many queues, asked of all their brokers before the first answer is waited for.

A broker that cannot be reached is asked again, by `retry_timeout_ms`; until then its queues have no answer.
It knows no question: what is asked, and what the answer is where a queue is gone, comes with each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Final

from rmq_spark.client.errors import (
    CONNECTION_FAULTS,
    BrokerNotFound,
    BrokerRefused,
    ClientError,
    SystemBusy,
    TopicNotFound,
)
from rmq_spark.client.instance import ClientInstance
from rmq_spark.spark.access import Access
from rmq_spark.spark.addresses import BrokerAddresses
from rmq_spark.spark.patience import Patience
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.2

_NO_SUCH_QUEUE: Final = "is illegal"
"""What brokers say of a queue's number that a topic has not, or no more and without any message."""

AWAY: Final = (*CONNECTION_FAULTS, BrokerNotFound, SystemBusy)
"""Brokers that may do better later."""


def is_gone(error: BrokerRefused) -> bool:
    """Tell whether a broker refuses because it has no such topic, or no such queue."""
    return isinstance(error, TopicNotFound) or _NO_SUCH_QUEUE in (error.remark or "")


class Asker:
    """Asks the brokers of many queues the same question. For one thread."""

    def __init__(self, instance: ClientInstance, access: Access, on_away: Callable[[], None]) -> None:
        """Take whom to tell that a broker has not answered, and may have moved."""
        self.addresses = BrokerAddresses(instance)
        self._on_away = on_away
        self._patience = Patience(
            access.retry_timeout_ms, time.monotonic, time.sleep, pause_seconds=_PAUSE_SECONDS
        )

    def ask(
        self,
        queues: Iterable[MessageQueue],
        question: Callable[[MessageQueue], Future[Any]],
        *,
        gone: Any,
        every: bool,
    ) -> dict[MessageQueue, Any]:
        """Return what is answered for each queue.

        Args:
            queues: What is asked about.
            question: Asks a queue's broker.
            gone: What counts as the answer of a broker that does not know the queue any more.
            every: Whether to wait until all have answered.

        Raises:
            ClientError: A broker has not answered for too long.
        """
        missing = list(queues)
        found: dict[MessageQueue, Any] = {}
        while missing:
            fault = self._asked_once(missing, question, gone, found)
            missing = [queue for queue in missing if queue not in found]
            if fault is None:
                self._patience.reset()
                break
            if found and not every:
                break
            if not self._patience.is_waiting:
                _log.warning("waiting for a broker: %s", fault)
            if not self._patience.pause():
                raise fault
            if not every:
                break
        return found

    def _asked_once(
        self,
        queues: Iterable[MessageQueue],
        question: Callable[[MessageQueue], Future[Any]],
        gone: Any,
        found: dict[MessageQueue, Any],
    ) -> ClientError | None:
        asked: list[tuple[MessageQueue, Future[Any]]] = []
        fault: ClientError | None = None
        for queue in queues:
            try:
                asked.append((queue, question(queue)))
            except AWAY as error:  # noqa: PERF203  # the other brokers are to be asked all the same
                fault = error
        for queue, answer in asked:
            try:
                found[queue] = answer.result()
            except AWAY as error:  # noqa: PERF203  # the same
                fault = error
            except BrokerRefused as error:
                if not is_gone(error):
                    raise
                found[queue] = gone
        if fault is not None:
            self.addresses.look_again()
            self._on_away()
        return fault
