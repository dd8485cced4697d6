"""MembershipLimits: limits the memory for what clients report in heartbeats.

Members are counted over all groups. Subscriptions of groups are counted in bytes, over all groups
and for each client.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rmq_spark.wire.bodies.clients import SubscriptionData

from ..tables.table import TooMany, check_limit

if TYPE_CHECKING:
    from ...common.channel import Channel

CLIENT_SHARE: Final = 16
"""The divisor of the bytes for all clients: one client may use a sixteenth of them."""
_SUBSCRIPTION_BYTES: Final = 1_024
_TAG_BYTES: Final = 256
_CODE_BYTES: Final = 192
_CHARACTER_BYTES: Final = 2


def subscription_bytes(subscriptions: Iterable[SubscriptionData]) -> int:
    """Estimate the memory of subscriptions, mostly a little too high."""
    return sum(
        _SUBSCRIPTION_BYTES
        + _TAG_BYTES * len(data.tags_set)
        + _CODE_BYTES * len(data.code_set)
        + _CHARACTER_BYTES
        * (
            len(data.topic)
            + len(data.sub_string)
            + len(data.expression_type)
            + sum(map(len, data.tags_set))
        )
        for data in subscriptions
    )


class MembershipLimits:
    """The common counts of producers and consumers."""

    def __init__(self, *, members_max: int, subscription_bytes_max: int) -> None:
        """Begin at zero; for ``members_max``, a client counts in each of its groups."""
        self._members_max = members_max
        self._bytes_max = subscription_bytes_max
        self._members = 0
        self._client_bytes: dict[Channel, int] = {}
        self._group_bytes = 0

    def reserve(
        self, connection: Channel, *, members: int = 0, client_bytes: int = 0, group_bytes: int = 0
    ) -> None:
        """Change the counts of members, of a client's bytes, and of its groups' bytes, up or down.

        Raises:
            TooMany: A limit is reached. Nothing was changed.
        """
        check_limit(
            "members of groups", self._members, self._members_max, "maxGroupMembers", more=members
        )
        said_then, kept_then = (
            self._client_bytes.get(connection, 0) + client_bytes,
            self._group_bytes + group_bytes,
        )
        if client_bytes > 0:
            self._check_bytes(said_then, self._bytes_max // CLIENT_SHARE, "one client")
        if group_bytes > 0:
            self._check_bytes(kept_then, self._bytes_max, "all clients")
        self._members += members
        self._group_bytes = kept_then
        if said_then:
            self._client_bytes[connection] = said_then
        else:
            self._client_bytes.pop(connection, None)

    def _check_bytes(self, size: int, limit: int, owner: str) -> None:
        if size > limit:
            raise TooMany(
                f"subscriptions would take {size} bytes; those of {owner} may take {limit} "
                f"(maxSubscriptionBytes={self._bytes_max})"
            )
