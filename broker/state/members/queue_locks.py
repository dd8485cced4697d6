"""QueueLocks: locks of queues for groups that consume in order: one client per queue at a time.

A lock lasts a minute unless it is renewed, so the broker need not detect a client's death. A member
that has lost its connection may still be processing its queues and may reconnect, so its locks last
that long as well. Locks of non-members end with the connection. A restart of the broker loses all
locks; their holders renew them before others ask for them.

Anybody can send another client's id, so a lock belongs to the connection that holds it: only this
connection renews and releases it. When it has closed, its client can take the lock over by another
connection from the same address and user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from sys import getsizeof
from typing import TYPE_CHECKING, Final, TypeAlias

from rmq_spark.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from ...common.channel import Channel

LOCK_BYTES_MAX: Final = 128 << 20
"""The maximum memory of all locks: 200,000 with usual names. RocketMQ has no limit."""
MEMBER_SHARE: Final = 16
"""A member of a group may use 1/16 of the memory: usually the locks of 12,000 queues."""
NON_MEMBER_SHARE: Final = 128
"""A connection that is not a member yet may use 1/128: after a restart, locks come before
heartbeats.
"""
_LOCK_BYTES: Final = 512
_LIFETIME_MS: Final = 60_000
_EXPIRED_MAX: Final = 1_000
"""Expired locks discarded at a time; more would delay all other clients."""

_Key: TypeAlias = tuple[str, MessageQueue]
_Origin: TypeAlias = tuple[bytes, "str | None"]


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int
    size: int
    origin: _Origin
    """The address and the user of the holder, whose client may reconnect from there."""
    holder: Channel | None
    """None if the connection has closed."""
    is_member_lock: bool
    """True if a group member has held the lock; it may be working without a connection."""


@dataclass(slots=True)
class _ConnectionLocks:
    bytes: int = 0
    keys: dict[_Key, None] = field(default_factory=dict)


class QueueLocks:
    """All locks, by group and queue, and the memory that they use, by connection."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.bytes = 0
        self._locks: dict[_Key, _Lock] = {}
        """All locks, the least recently renewed first."""
        self._by_connection: dict[Channel, _ConnectionLocks] = {}
        self._orphaned: dict[_Key, None] = {}
        """Locks of members whose connections have closed: the first to be evicted."""

    def lock(
        self,
        connection: Channel,
        group: str,
        client_id: str,
        queues: Iterable[MessageQueue],
        *,
        is_member: bool,
    ) -> frozenset[MessageQueue]:
        """Lock free queues, renew the client's locks; return which of the queues it holds now.

        The connection's own locks are always renewed. It gets no new locks beyond its share, which
        is small if it is not a member of the group.
        """
        now_ms = self._now_ms()
        self._discard_expired(now_ms)
        share = LOCK_BYTES_MAX // (MEMBER_SHARE if is_member else NON_MEMBER_SHARE)
        size = _LOCK_BYTES + getsizeof(group) + getsizeof(client_id)
        held = set()
        for queue in queues:
            key = (group, queue)
            lock = self._locks.get(key)
            if lock is not None and not _is_owner(lock, connection, client_id):
                if not self._is_expired(lock, now_ms):
                    continue
                self._discard(key)
                lock = None
            if lock is not None:
                self._locks[key] = self._locks.pop(key)
                lock.renewed_ms = now_ms
                lock.is_member_lock |= is_member
            elif not self._has_room(connection, size, share):
                continue
            else:
                origin = _origin_of(connection)
                lock = self._locks[key] = _Lock(client_id, now_ms, size, origin, None, is_member)
                self.bytes += size
            self._assign(key, lock, connection, share)
            held.add(queue)
        return frozenset(held)

    def unlock(
        self, connection: Channel, group: str, client_id: str, queues: Iterable[MessageQueue]
    ) -> None:
        """Release the queues that a client has locked through this connection; skip all others."""
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is not None and _is_owner(lock, connection, client_id):
                self._discard((group, queue))

    def mark_member(self, connection: Channel, group: str) -> None:
        """Mark a connection's locks in a group as a member's, because it has become one.

        After a restart of the broker, members request locks before their first heartbeat.
        """
        held = self._by_connection.get(connection)
        for key in held.keys if held is not None else ():
            if key[0] == group:
                self._locks[key].is_member_lock = True

    def connection_closed(
        self, connection: Channel, is_member_online: Callable[[str, str], bool]
    ) -> Iterator[None]:
        """Release the locks of a closed connection in steps, except locks of members.

        ``is_member_online(group, client_id)`` returns whether that client may still be processing
        the group's queues.
        """
        for key in (
            tuple(self._by_connection[connection].keys) if connection in self._by_connection else ()
        ):
            yield
            lock = self._locks.get(key)
            if lock is None or lock.holder is not connection:
                continue
            if lock.is_member_lock or is_member_online(key[0], lock.client_id):
                lock.is_member_lock = True
                self._detach(key, lock)
                self._orphaned[key] = None
            else:
                self._discard(key)

    def skip_time(self, milliseconds: int) -> None:
        """Extend all locks by a jump of the clock, during which nobody could renew them."""
        for lock in self._locks.values():
            lock.renewed_ms += milliseconds

    def __len__(self) -> int:
        return len(self._locks)

    def _has_room(self, connection: Channel, size: int, share: int) -> bool:
        if not self._fits(connection, size, share):
            return False
        while self.bytes + size > LOCK_BYTES_MAX and self._orphaned:
            self._discard(next(iter(self._orphaned)))
        return self.bytes + size <= LOCK_BYTES_MAX

    def _fits(self, connection: Channel, size: int, share: int) -> bool:
        held = self._by_connection.get(connection)
        return (held.bytes if held is not None else 0) + size <= share

    def _assign(self, key: _Key, lock: _Lock, connection: Channel, share: int) -> None:
        """Assign a lock to the connection that has renewed it, if its share permits."""
        if lock.holder is connection or not self._fits(connection, lock.size, share):
            return
        self._detach(key, lock)
        self._orphaned.pop(key, None)
        lock.holder = connection
        held = self._by_connection.setdefault(connection, _ConnectionLocks())
        held.keys[key] = None
        held.bytes += lock.size

    def _detach(self, key: _Key, lock: _Lock) -> None:
        if lock.holder is None:
            return
        held = self._by_connection[lock.holder]
        del held.keys[key]
        held.bytes -= lock.size
        if not held.keys:
            del self._by_connection[lock.holder]
        lock.holder = None

    def _discard(self, key: _Key) -> None:
        lock = self._locks.pop(key)
        self._detach(key, lock)
        self._orphaned.pop(key, None)
        self.bytes -= lock.size

    def _is_expired(self, lock: _Lock, now_ms: int) -> bool:
        # after the clock was set back, the minute of a lock begins now
        lock.renewed_ms = min(lock.renewed_ms, now_ms)
        return now_ms - lock.renewed_ms > _LIFETIME_MS

    def _discard_expired(self, now_ms: int) -> None:
        for _ in range(_EXPIRED_MAX):
            oldest = next(iter(self._locks), None)
            if oldest is None or not self._is_expired(self._locks[oldest], now_ms):
                return
            self._discard(oldest)


def _is_owner(lock: _Lock, connection: Channel, client_id: str) -> bool:
    """Return whether a client may renew and release a lock by a connection."""
    if lock.client_id != client_id:
        return False
    if lock.holder is not None and not lock.holder.is_closed:
        return lock.holder is connection
    return lock.origin == _origin_of(connection)


def _origin_of(connection: Channel) -> _Origin:
    user = connection.identity
    return connection.remote_host.address, None if user is None else user.name
