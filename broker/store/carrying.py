"""Carrying: what is confirmed goes to consume queues and index; what keeps it from that is noted.

`reput` does the work. Something that is lacking hinders it for a while; any other failure is the
store's. This module must not know who waits for messages, nor when it is called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rmq_spark.errors import RecordError
from rocketpoll.broker.store.errors import StoreError, StoreFailed
from rocketpoll.broker.store.lacks import Hindrance, may_succeed_later
from rocketpoll.broker.store.reput import ReputMessageService

_log = logging.getLogger(__name__)


class Carrying:
    """The carrying of a store's messages; ``fail`` is told of a failure that no waiting mends."""

    def __init__(self, reput: ReputMessageService, fail: Callable[[StoreError], object]) -> None:
        self._reput = reput
        self._fail = fail
        self.hindrance = Hindrance("messages are not carried to their consume queues")

    def run(self, is_over: Callable[[], bool]) -> bool:
        """Carry what is confirmed; return whether that is all, and not stopped by ``is_over``."""
        is_all = True
        try:
            is_all = self._reput.run(is_over)
        except Exception as error:  # noqa: BLE001  # else nobody would see what is acknowledged
            if may_succeed_later(error):
                self.hindrance.begin(error)
                return False
            if isinstance(error, (OSError, StoreError, RecordError)):
                self._fail(StoreFailed("writing a consume queue or the index failed", error))
            else:
                failed = "carrying messages to their consume queues failed"
                _log.exception(failed)
                self._fail(StoreFailed(f"{failed}: {error!r}"))
        if not self._reput.has_ended:  # else nobody has tried what was hindered
            self.hindrance.end()
        return is_all
