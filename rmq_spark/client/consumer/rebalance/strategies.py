"""Strategies: divide the queues of a topic among the members of a group.

Every member computes its own share from the same two lists, in the same order. The shares fit
together only if all members use the same strategy with exactly the same result. So these are
RocketMQ's, and a group may mix Python and Java members. Lists are ordered as Java orders strings,
by UTF-16 code units.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol

from rmq_spark.wire.message_queue import MessageQueue

Room = str
_ROOM_SEPARATOR = "@"


class AllocateMessageQueueStrategy(Protocol):
    """An allocation rule; all lists are in order (`in_queue_order`, `in_java_order`)."""

    @property
    def name(self) -> str:
        """RocketMQ's name of the strategy."""

    def allocate(
        self, my_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues of member ``my_id``; empty if it is not among ``client_ids``."""


def in_java_order(texts: Collection[str]) -> list[str]:
    """Return texts as Java sorts them."""
    return sorted(texts, key=_utf_16)


def in_queue_order(queues: Collection[MessageQueue]) -> list[MessageQueue]:
    """Return queues as Java sorts them: by topic, broker and number."""
    return sorted(
        queues, key=lambda each: (_utf_16(each.topic), _utf_16(each.broker_name), each.queue_id)
    )


def _utf_16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


class AllocateMessageQueueAveragely(NamedTuple):
    """Gives each member consecutive queues, some members one more (AVG). The default."""

    name: str = "AVG"

    def allocate(
        self, my_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the member's range of the queues."""
        if my_id not in client_ids:
            return []
        index = client_ids.index(my_id)
        each, remainder = divmod(len(queues), len(client_ids))
        start = index * each + min(index, remainder)
        return list(queues[start : start + each + (index < remainder)])


class AllocateMessageQueueAveragelyByCircle(NamedTuple):
    """Deals the queues to the members like cards (AVG_BY_CIRCLE)."""

    name: str = "AVG_BY_CIRCLE"

    def allocate(
        self, my_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return every n-th queue, where n is the number of members."""
        if my_id not in client_ids:
            return []
        return list(queues[client_ids.index(my_id) :: len(client_ids)])


class AllocateMessageQueueByConfig(NamedTuple):
    """Gives this member the configured queues, whatever members there are (CONFIG)."""

    message_queues: tuple[MessageQueue, ...] = ()
    name: str = "CONFIG"

    def allocate(
        self,
        my_id: str,  # noqa: ARG002  # the interface of all strategies
        queues: Sequence[MessageQueue],  # noqa: ARG002  # as above
        client_ids: Sequence[str],  # noqa: ARG002  # as above
    ) -> list[MessageQueue]:
        """Return the queues that were configured."""
        return list(self.message_queues)


class AllocateMessageQueueByMachineRoom(NamedTuple):
    """Shares only queues of brokers in some rooms, by names like ``room@broker`` (MACHINE_ROOM)."""

    rooms: frozenset[Room] = frozenset()
    name: str = "MACHINE_ROOM"

    def allocate(
        self, my_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the member's range of the queues in these rooms, and perhaps one left over."""
        if my_id not in client_ids:
            return []
        index = client_ids.index(my_id)
        room_queues = [queue for queue in queues if self._is_in_rooms(queue)]
        each, remainder = divmod(len(room_queues), len(client_ids))
        share = room_queues[index * each : (index + 1) * each]
        if index < remainder:
            share.append(room_queues[each * len(client_ids) + index])
        return share

    def _is_in_rooms(self, queue: MessageQueue) -> bool:
        # Java's split drops trailing empty parts: "room@" has no second part.
        parts = queue.broker_name.rstrip(_ROOM_SEPARATOR).split(_ROOM_SEPARATOR)
        return len(parts) == 2 and parts[0] in self.rooms


class AllocateMachineRoomNearby(NamedTuple):
    """Gives queues to members in their room; queues of rooms without members go to all."""

    strategy: AllocateMessageQueueStrategy
    broker_room: Callable[[MessageQueue], Room]
    consumer_room: Callable[[str], Room]

    @property
    def name(self) -> str:
        """Name that contains the strategy by which a room's queues are shared."""
        return f"MACHINE_ROOM_NEARBY-{self.strategy.name}"

    def allocate(
        self, my_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the member's share of its room's queues, then of each room without members."""
        if my_id not in client_ids:
            return []
        queues_by_room: dict[Room, list[MessageQueue]] = {}
        for queue in queues:
            queues_by_room.setdefault(_check_room(self.broker_room(queue), queue), []).append(queue)
        members_by_room: dict[Room, list[str]] = {}
        for client_id in client_ids:
            members_by_room.setdefault(
                _check_room(self.consumer_room(client_id), client_id), []
            ).append(client_id)
        own_room = self.consumer_room(my_id)
        own_room_queues = queues_by_room.pop(own_room, [])
        share = (
            self.strategy.allocate(my_id, own_room_queues, members_by_room[own_room])
            if own_room_queues
            else []
        )
        for room in in_java_order(queues_by_room):
            if room not in members_by_room:
                share += self.strategy.allocate(my_id, queues_by_room[room], client_ids)
        return share


def _check_room(room: Room, of: object) -> Room:
    if not room:
        raise ValueError(
            f"there is no machine room for {of}: name one for each broker and each consumer"
        )
    return room


class AllocateMessageQueueConsistentHash(NamedTuple):
    """Puts members and queues on a ring; a queue belongs to the member at the next point.

    A member that joins or leaves moves few queues, but the shares may be uneven.
    """

    virtual_nodes: int = 10
    name: str = "CONSISTENT_HASH"

    def allocate(
        self, my_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues whose next point on the ring is the member's."""
        if my_id not in client_ids:
            return []
        # A later member takes over a point that equals an earlier one's.
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
            if owners[points[bisect_left(points, _ring_point(_java_text(queue))) % len(points)]]
            == my_id
        ]


def _ring_point(text: str) -> int:
    from hashlib import md5  # noqa: PLC0415  # brings OpenSSL, which no other strategy needs

    digest = md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


def _java_text(queue: MessageQueue) -> str:
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )
