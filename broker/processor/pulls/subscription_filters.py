"""SubscriptionFilters: from what a client subscribes to, to the filter of its pulls; remembered.

Clients choose these texts and leave, so what is remembered is bounded in bytes; what is refused, or
large, is not remembered at all.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rmq_spark.wire.bodies.clients import SQL92_EXPRESSION, TAG_EXPRESSION, SubscriptionData
from rmq_spark.wire.codes import ResponseCode

from ...filter.errors import FilterError
from ...filter.subscription import build_subscription_data, message_filter
from ...filter.tags_filter import TagsFilter
from ...settings.config import FilterLimits
from ...state.members.membership_limits import subscription_bytes
from ..request import RequestRejected

if TYPE_CHECKING:
    from ...filter.sql_filter import SqlFilter

REMEMBERED_MAX: Final = 1_024
REMEMBERED_BYTES_MAX: Final = 16 << 20
"""Of all filters of texts, and as much of those of subscriptions,
by an estimate that is mostly too high."""
_ONE_BYTES_MAX: Final = REMEMBERED_BYTES_MAX // 16
"""The largest filter that is remembered, in bytes: a larger one is rare,
and would drive out many."""
_ENTRY_BYTES: Final = 512

Filter: TypeAlias = "TagsFilter | SqlFilter | None"


class SubscriptionFilters:
    """Filters within one broker's limits. A wrong subscription is refused with RocketMQ's codes."""

    def __init__(self, limits: FilterLimits) -> None:
        self._takes_sql = limits.enable_property_filter
        self._limits = limits
        self._of_texts = _Remembered()
        self._of_subscriptions = _Remembered()

    def of_text(self, topic: str, text: str | None, expression_type: str | None) -> Filter:
        """Return the filter of a pull that brings its own subscription.

        None where all messages pass.

        Raises:
            RequestRejected: This broker cannot filter by that.
        """
        key = topic, text, expression_type
        known = self._of_texts.get(key)
        if known is not None:
            return known[1]
        try:
            subscription = build_subscription_data(topic, text, expression_type)
        except FilterError as error:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
        found = self._filter(subscription)
        self._of_texts.put(key, found, sum(map(sys.getsizeof, key)) + _size_of(found))
        return found

    def of_subscription(self, subscription: SubscriptionData) -> Filter:
        """Return the filter of what a heartbeat subscribes to; None where all messages pass.

        Pulls come with the same object again and again: to know it by its value takes a tenth of a
        pull. An expression is known by its text as well: each heartbeat brings a new object with
        the same one.

        Raises:
            RequestRejected: This broker cannot filter by that.
        """
        known = self._of_subscriptions.get(id(subscription))
        if known is not None and known[0] is subscription:
            return known[1]
        if subscription.expression_type == SQL92_EXPRESSION and not subscription.class_filter_mode:
            found = self.of_text(subscription.topic, subscription.sub_string, SQL92_EXPRESSION)
        else:
            found = self._filter(subscription)
        size = subscription_bytes([subscription]) + _size_of(found)
        self._of_subscriptions.put(id(subscription), found, size, subscription)
        return found

    def check(self, subscription: SubscriptionData) -> None:
        """Refuse a subscription that this broker cannot filter by; remember its text at most."""
        if subscription.expression_type == SQL92_EXPRESSION:
            self.of_text(subscription.topic, subscription.sub_string, SQL92_EXPRESSION)
        else:
            self._filter(subscription)

    def _filter(self, subscription: SubscriptionData) -> Filter:
        kind = subscription.expression_type or TAG_EXPRESSION
        if kind != TAG_EXPRESSION and not self._takes_sql:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {kind}: "
                "enablePropertyFilter is false",
            )
        try:
            return message_filter(subscription, self._limits)
        except FilterError as error:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error


class _Remembered:
    """Filters by key, up to a number and to so many bytes; whoever came first goes first."""

    def __init__(self) -> None:
        self.bytes = 0
        self._known: dict[Hashable, tuple[Any, Filter, int]] = {}

    def get(self, key: Hashable) -> tuple[Any, Filter, int] | None:
        """Return what a filter was made of, the filter, and its size.

        None if it is not remembered.
        """
        return self._known.get(key)

    def put(self, key: Hashable, found: Filter, size: int, made_of: object = None) -> None:
        """Remember a filter, with what it was made of, unless that is large."""
        size += _ENTRY_BYTES
        if size > _ONE_BYTES_MAX:
            return
        self._forget(key)
        while self._known and (
            len(self._known) >= REMEMBERED_MAX or self.bytes + size > REMEMBERED_BYTES_MAX
        ):
            self._forget(next(iter(self._known)))
        self._known[key] = made_of, found, size
        self.bytes += size

    def _forget(self, key: Hashable) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self.bytes -= known[2]


def _size_of(found: Filter) -> int:
    return 0 if found is None else found.size_bytes
