"""CachedPull: everything about a pull except its two offsets and its opaque.

Successive pulls of a queue by one consumer differ only in these three numbers. Parsing a pull,
checking it, and finding its filter is a third of its cost. So this is done once, and cached while
the client is connected and its topic and group are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.headers.pull import PullMessageRequestHeader

from ...common.channel import Channel
from ..fast_path.per_client_cache import LearningBudget, PerClientCache
from .pull_header import PullHeaderTemplate, header_prefix
from .subscription_filters import SubscriptionFilter

CACHED_PULLS_MAX: Final = 4_096
"""Plans of one client: one for each queue that it pulls from. One that has more starts over."""
CACHED_PULLS_TOTAL_MAX: Final = 2 * CACHED_PULLS_MAX
"""Plans of all clients: 12 MiB as a rule, 40 MiB if all are as long as may be remembered."""
_SAME_PREFIX_MAX = 8
"""Plans whose headers begin in the same way, as they are tried one after the other."""
_PULLS_PER_LEARNED = 4

_new_header: Callable[[type[PullMessageRequestHeader], tuple[Any, ...]], PullMessageRequestHeader]
_new_header = tuple.__new__


class CachedPull(NamedTuple):
    """The common part of pulls of one group from one queue, and the template of their headers."""

    header_template: PullHeaderTemplate
    header: PullMessageRequestHeader
    """The header of one of them."""
    request: RemotingCommand
    """One of them, without what is not needed for an answer."""
    topic_config: TopicConfig
    group_config: SubscriptionGroupConfig
    message_filter: SubscriptionFilter
    """The filter, if such a pull brings its own subscription."""

    def header_with(self, queue_offset: int, commit_offset: int) -> PullMessageRequestHeader:
        """Return the header of another pull, in a quarter of the time of `_replace`."""
        header = self.header
        fields = (*header[:3], queue_offset, *header[4:6], commit_offset, *header[7:])
        return _new_header(PullMessageRequestHeader, fields)


class ClientPullCache:
    """The cached pulls of one client."""

    def __init__(self) -> None:
        self.learning_budget = LearningBudget(_PULLS_PER_LEARNED, CACHED_PULLS_MAX)
        self._marks = b"", b""
        """The marks before the first two numbers, in headers of this client."""
        self._by_prefix: dict[tuple[bytes, bytes], list[CachedPull]] = {}
        """The plans by how their headers begin: nearly all differ there already."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, header: bytes) -> tuple[CachedPull, tuple[int, int, int]] | None:
        """Return the cached pull for a header, and its queue offset, commit offset and opaque."""
        if not self._count:
            return None
        for plan in self._by_prefix.get(header_prefix(header, self._marks), ()):
            numbers = plan.header_template.match(header)
            if numbers is not None:
                return plan, numbers
        return None

    def put(self, plan: CachedPull, header: bytes) -> None:
        """Cache a pull that was parsed from a header, in place of one with the same template."""
        shape = plan.header_template
        if shape.marks != self._marks or self._count >= CACHED_PULLS_MAX:
            self._by_prefix.clear()
            self._count = 0
        self._marks = shape.marks
        beginning = header_prefix(header, self._marks)
        before = self._by_prefix.get(beginning, [])
        others = [each for each in before if each.header_template != shape]
        after = self._by_prefix[beginning] = [plan, *others[: _SAME_PREFIX_MAX - 1]]
        self._count += len(after) - len(before)


class PullCache(PerClientCache[ClientPullCache]):
    """The cached pulls of all clients, up to a fixed number."""

    def __init__(self) -> None:
        super().__init__(CACHED_PULLS_TOTAL_MAX)

    def may_learn(self, connection: Channel) -> bool:
        """Return whether time may be spent to cache one more pull of a client."""
        if connection.is_closed:  # it has been forgotten already
            return False
        return self._clients.setdefault(connection, ClientPullCache()).learning_budget.spend()

    def put(self, connection: Channel, plan: CachedPull, header: bytes) -> None:
        """Cache a pull of a client, which was parsed from a header."""
        plans = self._clients[connection]
        before = len(plans)
        plans.put(plan, header)
        self.add_count(len(plans) - before)
