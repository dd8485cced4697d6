"""MemberRoom: the limits of what a broker remembers of clients by their heartbeats.

Members are counted over all groups. Subscriptions of groups are counted in bytes, over all groups
and for each client. It knows no client but as a key, and no group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rmq_spark.wire.bodies.clients import SubscriptionData

from ..tables.limits import TooMany, check_room

if TYPE_CHECKING:
    from ...common.connection import Connection

SHARE: Final = 16
"""The divisor of the bytes for all clients: one client may use a sixteenth of them."""
_BYTES_OF_ONE: Final = 1_024
_BYTES_OF_TAG: Final = 256
_BYTES_OF_CODE: Final = 192
_BYTES_OF_CHARACTER: Final = 2


def subscription_bytes(subscriptions: Iterable[SubscriptionData]) -> int:
    """Estimate the memory that subscriptions take, mostly a little more than they do."""
    return sum(
        _BYTES_OF_ONE
        + _BYTES_OF_TAG * len(data.tags_set)
        + _BYTES_OF_CODE * len(data.code_set)
        + _BYTES_OF_CHARACTER
        * (
            len(data.topic)
            + len(data.sub_string)
            + len(data.expression_type)
            + sum(map(len, data.tags_set))
        )
        for data in subscriptions
    )


class MemberRoom:
    """The common counts of producers and consumers."""

    def __init__(self, *, members_max: int, subscription_bytes_max: int) -> None:
        """Begin at zero; for ``members_max``, a client counts in each of its groups."""
        self._members_max = members_max
        self._bytes_max = subscription_bytes_max
        self._members = 0
        self._said: dict[Connection, int] = {}
        self._kept = 0

    def take(
        self, connection: Connection, *, members: int = 0, said: int = 0, kept: int = 0
    ) -> None:
        """Change the counts of members, of a client's bytes, and of its groups' bytes, up or down.

        Raises:
            TooMany: There is no room for more. Nothing was counted.
        """
        check_room(
            "members of groups", self._members, self._members_max, "maxGroupMembers", more=members
        )
        said_then, kept_then = self._said.get(connection, 0) + said, self._kept + kept
        if said > 0:
            self._check_bytes(said_then, self._bytes_max // SHARE, "one client")
        if kept > 0:
            self._check_bytes(kept_then, self._bytes_max, "all clients")
        self._members += members
        self._kept = kept_then
        if said_then:
            self._said[connection] = said_then
        else:
            self._said.pop(connection, None)

    def _check_bytes(self, size: int, limit: int, whose: str) -> None:
        if size > limit:
            raise TooMany(
                f"subscriptions would take {size} bytes; those of {whose} may take {limit} "
                f"(maxSubscriptionBytes={self._bytes_max})"
            )
