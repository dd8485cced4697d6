"""Locks of queues for groups that consume in order: one client for each queue at a time.

A lock lasts a minute unless it is renewed, so that nobody has to hear of a client's death. It is
forgotten with the broker: its clients renew theirs before anybody else gets them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from rmq_spark.wire.message_queue import MessageQueue

LOCKS_MAX: Final = 200_000
"""The maximum number of locks; beyond it, none is given until some have expired."""
_FORGOTTEN_MAX = 1_000
"""Locks forgotten at a time: more would keep all others waiting."""


@dataclass
class _Lock:
    client_id: str
    renewed_ms: int


class QueueLocks:
    """All locks, by group and queue."""

    def __init__(self, now_ms: Callable[[], int], expires_ms: int = 60_000) -> None:
        self._now_ms = now_ms
        self._expires_ms = expires_ms
        self._locks: dict[tuple[str, MessageQueue], _Lock] = {}
        """The locks, those renewed longest ago first."""

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Lock free queues, renew the client's own locks, and return the queues it holds now."""
        now_ms = self._now_ms()
        self._forget_expired(now_ms)
        held = set()
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is None and len(self._locks) >= LOCKS_MAX:
                continue
            if lock is None or lock.client_id == client_id or self._is_expired(lock, now_ms):
                self._locks.pop((group, queue), None)
                self._locks[group, queue] = _Lock(client_id, now_ms)
                held.add(queue)
        return frozenset(held)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release those of the queues that the client holds."""
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is not None and lock.client_id == client_id:
                del self._locks[group, queue]

    def __len__(self) -> int:
        return len(self._locks)

    def _is_expired(self, lock: _Lock, now_ms: int) -> bool:
        # A clock that was set back must not make a lock last longer than from now on.
        lock.renewed_ms = min(lock.renewed_ms, now_ms)
        return now_ms - lock.renewed_ms > self._expires_ms

    def _forget_expired(self, now_ms: int) -> None:
        """Forget locks of groups that are gone."""
        for _ in range(_FORGOTTEN_MAX):
            oldest = next(iter(self._locks), None)
            if oldest is None or not self._is_expired(self._locks[oldest], now_ms):
                return
            del self._locks[oldest]
