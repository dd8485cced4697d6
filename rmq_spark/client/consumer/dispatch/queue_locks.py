"""BrokerQueueLocks: acquires, renews and releases the brokers' locks of an orderly member.

    acquired     before the first pull of a queue, all queues of a broker at once; retried each
                 second
    renewed      every 20 s; a lock counts for 30 s here, and for 60 s at the broker
    released     after the offset is stored, when no listener has messages of the queue any more

Requests run in the brokers' executors. If another member of this process had the queue before, its
lock is requested only after that member's listener has finished.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from rmq_spark.client.concurrency.scheduler import PerBrokerExecutor
from rmq_spark.client.consumer.brokers.broker_client import GroupBrokerClient, group_by_broker
from rmq_spark.client.consumer.pull.pull_request import NOT_LOCKED_MS, PullRequest
from rmq_spark.client.consumer.queues.process_queue import monotonic_ms
from rmq_spark.client.errors import ClientError
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

LOCK_INTERVAL_MS: Final = 20_000
_LOCK_WAIT_MS: Final = 5_000


@dataclass(slots=True, eq=False)
class BrokerQueueLocks:
    """The locks of one member's queues. Methods may be called from any thread."""

    brokers: GroupBrokerClient
    executor: PerBrokerExecutor
    requests: Callable[[], Iterable[PullRequest]]
    """Returns the member's queues."""
    persist: Callable[[Iterable[MessageQueue]], None]
    """Stores offsets, where the next owners begin."""
    on_unlocked: Callable[[Sequence[PullRequest]], None]
    """Called with queues after their unlock request, whatever its outcome."""
    prefetch_offsets: Callable[[Iterable[MessageQueue]], None]
    """Called with the queues of one broker that are locked and about to start."""

    def lock_all(self) -> None:
        """Lock all queues, or renew their locks."""
        queues = [request.queue for request in self.requests()]
        self.executor.run_for_each(group_by_broker(queues), self._lock, _LOCK_WAIT_MS)

    def _lock(self, broker_name: str) -> None:
        requests = [
            each
            for each in self.requests()
            if each.queue.broker_name == broker_name
            and not each.process_queue.is_dropped
            and each.ownership.acquire(self)
        ]
        # Counted from the question: when the answer comes, the lock may have expired in part.
        asked_at_ms = monotonic_ms()
        for request in requests:
            request.lock_requested_at_ms = asked_at_ms
        locked = self.brokers.lock(request.queue for request in requests)
        for request in requests:
            request.process_queue.set_locked(asked_at_ms, locked=request.queue in locked)
        self.prefetch_offsets(
            request.queue
            for request in requests
            if request.queue in locked and request.next_offset is None
        )

    def ensure_locked(self, request: PullRequest) -> bool:
        """Return whether a queue is locked; now and then, request the lock first."""
        queue, asked_at_ms = request.process_queue, request.lock_requested_at_ms
        if queue.is_locked:
            return True
        if asked_at_ms is None or monotonic_ms() - asked_at_ms >= NOT_LOCKED_MS:
            self._lock(request.queue.broker_name)
        return queue.is_locked

    def check_locked(self, request: PullRequest) -> bool:
        """Return whether a queue is locked; if not, request the lock in its broker's executor."""
        if not request.process_queue.is_locked:
            self.executor.for_broker(request.queue.broker_name).schedule(
                lambda: self.ensure_locked(request)
            )
        return request.process_queue.is_locked

    def invalidate(self, address: str) -> None:
        """Invalidate the locks of the broker at ``address``; its queues must be locked again.

        A restarted broker has no locks, and may grant them to others.
        """
        for request in self.requests():
            if self.brokers.may_be_at(request.queue.broker_name, address):
                request.process_queue.invalidate_lock()
                request.lock_requested_at_ms = None

    def unlock(self, requests: Iterable[PullRequest]) -> None:
        """Unlock revoked queues, after all earlier requests to their brokers."""
        given_up = {request.queue: request for request in requests}
        for broker_name, queues in group_by_broker(given_up).items():
            own = [given_up[queue] for queue in queues]
            self.executor.for_broker(broker_name).schedule(partial(self._unlock_now, own))

    def _unlock_now(self, requests: Sequence[PullRequest]) -> None:
        try:
            with ExitStack() as stack:
                own = [
                    request.queue
                    for request in requests
                    if stack.enter_context(request.ownership.pin(self))
                ]
                self.persist(own)
                self.brokers.unlock(own)
        except ClientError as error:
            _log.warning(
                "unlocking %s failed, and it stays locked for up to a minute: %s",
                requests[0].queue,
                error,
            )
        finally:
            self.on_unlocked(requests)
