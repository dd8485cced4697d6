"""SubscriptionFilters: caches the filters of pulls by subscription.

Clients choose the texts and may send any number, so the cache is limited in bytes; invalid
subscriptions and large filters are not cached.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rmq_spark.wire.bodies.clients import SQL92_EXPRESSION, TAG_EXPRESSION, SubscriptionData
from rmq_spark.wire.codes import ResponseCode

from ...filter.errors import FilterError
from ...filter.filter_limits import FilterLimits
from ...filter.subscription import build_subscription_data, message_filter
from ...filter.tags_filter import TagsFilter
from ...state.members.client_channel_info import subscription_bytes
from ..request import RequestRejected, system_error

if TYPE_CHECKING:
    from ...filter.sql_filter import SqlFilter

CACHED_MAX: Final = 1_024
CACHED_BYTES_MAX: Final = 16 << 20
"""The maximum for filters by text, and again for filters by subscription, in estimated bytes."""
_FILTER_BYTES_MAX: Final = CACHED_BYTES_MAX // 16
"""The largest filter that is cached, in bytes: a larger one is rare, and would evict many."""
_ENTRY_BYTES: Final = 512

SubscriptionFilter: TypeAlias = "TagsFilter | SqlFilter | None"


class SubscriptionFilters:
    """Filters within one broker's limits; invalid ones are refused with RocketMQ's codes."""

    def __init__(self, limits: FilterLimits) -> None:
        self._is_sql_enabled = limits.enable_property_filter
        self._limits = limits
        self._by_text = _FilterCache()
        self._by_subscription = _FilterCache()

    def for_text(
        self, topic: str, text: str | None, expression_type: str | None
    ) -> SubscriptionFilter:
        """Return the filter of a pull with its own subscription; None if all messages match."""
        key = topic, text, expression_type
        known = self._by_text.get(key)
        if known is not None:
            return known[1]
        try:
            subscription = build_subscription_data(topic, text, expression_type)
        except FilterError as error:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        found = self._build_filter(subscription)
        self._by_text.put(key, found, sum(map(sys.getsizeof, key)) + _size_of(found))
        return found

    def for_subscription(self, subscription: SubscriptionData) -> SubscriptionFilter:
        """Return the filter of a heartbeat's subscription; None if all messages match.

        Subscriptions are compared by identity, because a comparison by value would take a tenth of
        a pull's time. SQL expressions are cached by text as well, because each heartbeat creates a
        new, equal subscription.
        """
        known = self._by_subscription.get(id(subscription))
        if known is not None and known[0] is subscription:
            return known[1]
        if subscription.expression_type == SQL92_EXPRESSION and not subscription.class_filter_mode:
            found = self.for_text(subscription.topic, subscription.sub_string, SQL92_EXPRESSION)
        else:
            found = self._build_filter(subscription)
        size = subscription_bytes([subscription]) + _size_of(found)
        self._by_subscription.put(id(subscription), found, size, subscription)
        return found

    def check(self, subscription: SubscriptionData) -> None:
        """Refuse a subscription that this broker cannot filter by; cache SQL expressions."""
        if subscription.expression_type == SQL92_EXPRESSION:
            self.for_text(subscription.topic, subscription.sub_string, SQL92_EXPRESSION)
        else:
            self._build_filter(subscription)

    def _build_filter(self, subscription: SubscriptionData) -> SubscriptionFilter:
        kind = subscription.expression_type or TAG_EXPRESSION
        if kind != TAG_EXPRESSION and not self._is_sql_enabled:
            raise system_error(
                f"The broker does not support consumer to filter message by {kind}: "
                "enablePropertyFilter is false"
            )
        try:
            return message_filter(subscription, self._limits)
        except FilterError as error:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error


class _FilterCache:
    """Filters by key, up to a number and a total of bytes; the oldest are evicted first."""

    def __init__(self) -> None:
        self.bytes = 0
        self._entries: dict[Hashable, tuple[Any, SubscriptionFilter, int]] = {}

    def get(self, key: Hashable) -> tuple[Any, SubscriptionFilter, int] | None:
        """Return source, filter and size; None if the filter is not cached."""
        return self._entries.get(key)

    def put(
        self, key: Hashable, found: SubscriptionFilter, size: int, source: object = None
    ) -> None:
        """Cache a filter with its source, unless it is large."""
        size += _ENTRY_BYTES
        if size > _FILTER_BYTES_MAX:
            return
        self._discard(key)
        while self._entries and (
            len(self._entries) >= CACHED_MAX or self.bytes + size > CACHED_BYTES_MAX
        ):
            self._discard(next(iter(self._entries)))
        self._entries[key] = source, found, size
        self.bytes += size

    def _discard(self, key: Hashable) -> None:
        known = self._entries.pop(key, None)
        if known is not None:
            self.bytes -= known[2]


def _size_of(found: SubscriptionFilter) -> int:
    return 0 if found is None else found.size_bytes
