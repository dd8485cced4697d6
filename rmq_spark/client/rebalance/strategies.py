"""How the queues of a topic are given to the members of a group.

Every member computes its own share from the same two lists, in the same order: the shares fit together only
if all use the same strategy, with the same result to the last queue. So these are RocketMQ's, and a group may
have Java's members too. Order is that of Java's strings, by UTF-16 code units.

A strategy knows names and numbers, no broker: who the members are is the business of `rebalance`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from rmq_spark.wire.message_queue import MessageQueue

Room = str
_ROOM_SEPARATOR = "@"


class AllocateMessageQueueStrategy(Protocol):
    """One way of sharing. ``queues`` and ``client_ids`` are in order (`in_queue_order`, `in_java_order`)."""

    @property
    def name(self) -> str:
        """RocketMQ's name for it."""

    def allocate(
        self, my_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """My share; empty if I am no member (any more)."""


def in_java_order(texts: Collection[str]) -> list[str]:
    """Texts as Java sorts them."""
    return sorted(texts, key=_utf_16)


def in_queue_order(queues: Collection[MessageQueue]) -> list[MessageQueue]:
    """Queues as Java sorts them: by topic, broker and number."""
    return sorted(queues, key=lambda each: (_utf_16(each.topic), _utf_16(each.broker_name), each.queue_id))


def _utf_16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


class AllocateMessageQueueAveragely(NamedTuple):
    """Neighbouring queues, as many for each as can be: the first members get one more. The default."""

    name: str = "AVG"

    def allocate(
        self, my_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """My stretch of the queues."""
        if my_id not in client_ids:
            return []
        mine = client_ids.index(my_id)
        each, left_over = divmod(len(queues), len(client_ids))
        start = mine * each + min(mine, left_over)
        return list(queues[start : start + each + (mine < left_over)])


class AllocateMessageQueueAveragelyByCircle(NamedTuple):
    """The queues are dealt like cards."""

    name: str = "AVG_BY_CIRCLE"

    def allocate(
        self, my_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Every so-manieth queue."""
        if my_id not in client_ids:
            return []
        return list(queues[client_ids.index(my_id) :: len(client_ids)])


class AllocateMessageQueueByConfig(NamedTuple):
    """The same queues for ever, whoever else is there."""

    message_queues: tuple[MessageQueue, ...] = ()
    name: str = "CONFIG"

    def allocate(
        self,
        my_id: str,  # noqa: ARG002  # the interface of all strategies
        queues: Sequence[MessageQueue],  # noqa: ARG002  # the same
        client_ids: Sequence[str],  # noqa: ARG002  # the same
    ) -> list[MessageQueue]:
        """The configured queues."""
        return list(self.message_queues)


class AllocateMessageQueueByMachineRoom(NamedTuple):
    """Only queues of brokers in some rooms, by names like ``room@broker``."""

    rooms: frozenset[Room] = frozenset()
    name: str = "MACHINE_ROOM"

    def allocate(
        self, my_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """My stretch of these rooms' queues, and one of those left over at the end."""
        if my_id not in client_ids:
            return []
        mine = client_ids.index(my_id)
        near = [queue for queue in queues if self._is_near(queue)]
        each, left_over = divmod(len(near), len(client_ids))
        share = near[mine * each : (mine + 1) * each]
        if mine < left_over:
            share.append(near[each * len(client_ids) + mine])
        return share

    def _is_near(self, queue: MessageQueue) -> bool:
        # Java's split drops what is empty at the end: "room@" has no second part.
        parts = queue.broker_name.rstrip(_ROOM_SEPARATOR).split(_ROOM_SEPARATOR)
        return len(parts) == 2 and parts[0] in self.rooms


class AllocateMachineRoomNearby(NamedTuple):
    """Queues go to members in their room; those of rooms without members go to everybody."""

    strategy: AllocateMessageQueueStrategy
    broker_room: Callable[[MessageQueue], Room]
    consumer_room: Callable[[str], Room]

    @property
    def name(self) -> str:
        """The name says how a room's queues are shared."""
        return f"MACHINE_ROOM_NEARBY-{self.strategy.name}"

    def allocate(
        self, my_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """My share of my room's queues, then of each room without members."""
        if my_id not in client_ids:
            return []
        queues_by_room: dict[Room, list[MessageQueue]] = {}
        for queue in queues:
            queues_by_room.setdefault(_checked(self.broker_room(queue), queue), []).append(queue)
        members_by_room: dict[Room, list[str]] = {}
        for client_id in client_ids:
            members_by_room.setdefault(_checked(self.consumer_room(client_id), client_id), []).append(
                client_id
            )
        my_room = self.consumer_room(my_id)
        near = queues_by_room.pop(my_room, [])
        share = self.strategy.allocate(my_id, near, members_by_room[my_room]) if near else []
        for room in in_java_order(queues_by_room):
            if room not in members_by_room:
                share += self.strategy.allocate(my_id, queues_by_room[room], client_ids)
        return share


def _checked(room: Room, of: object) -> Room:
    if not room:
        raise ValueError(f"there is no machine room for {of}: name one for each broker and each consumer")
    return room


class AllocateMessageQueueConsistentHash(NamedTuple):
    """Members and queues lie on a ring; a queue belongs to the next point of a member.

    So a member that joins or leaves moves few queues, but the shares may be uneven.
    """

    virtual_nodes: int = 10
    name: str = "CONSISTENT_HASH"

    def allocate(
        self, my_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues whose next point is mine."""
        if my_id not in client_ids:
            return []
        # A later member takes over a point that is the same as an earlier one's.
        owners = {
            _ring_point(f"{client_id}-{number}"): client_id
            for client_id in client_ids
            for number in range(self.virtual_nodes)
        }
        points = sorted(owners)
        if not points:
            return []
        return [
            queue
            for queue in queues
            if owners[points[bisect_left(points, _ring_point(_java_text(queue))) % len(points)]] == my_id
        ]


def _ring_point(text: str) -> int:
    from hashlib import md5  # noqa: PLC0415  # brings OpenSSL, which no other strategy needs

    digest = md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _java_text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
