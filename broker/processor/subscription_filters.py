"""SubscriptionFilters: the filters of clients' subscriptions, remembered for their pulls."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from rmq_spark.wire.bodies.clients import TAG_EXPRESSION, SubscriptionData
from rmq_spark.wire.codes import ResponseCode
from rocketpoll.broker.config import FilterLimits
from rocketpoll.broker.filter.errors import FilterError
from rocketpoll.broker.filter.sql_limits import SqlLimits
from rocketpoll.broker.filter.subscription import build_subscription_data, message_filter
from rocketpoll.broker.filter.tags_filter import TagsFilter
from rocketpoll.broker.processor.request import RequestRejected

if TYPE_CHECKING:
    from rocketpoll.broker.filter.sql_filter import SqlFilter

_REMEMBERED = 1_024

Filter: TypeAlias = "TagsFilter | SqlFilter | None"


class SubscriptionFilters:
    """Filters within one broker's limits. A wrong subscription is refused with RocketMQ's codes."""

    def __init__(self, limits: FilterLimits) -> None:
        self._takes_sql = limits.enable_property_filter
        self._limits = SqlLimits(
            expression_bytes_max=limits.expression_bytes_max,
            depth_max=limits.depth_max,
            nodes_max=limits.nodes_max,
        )
        self.subscription_of: Callable[[str, str | None, str | None], SubscriptionData] = lru_cache(
            _REMEMBERED
        )(self._subscription)
        self._filter_by_value: Callable[[SubscriptionData], Filter] = lru_cache(_REMEMBERED)(self._filter)
        self._filters: dict[int, tuple[SubscriptionData, Filter]] = {}

    def filter_of(self, subscription: SubscriptionData) -> Filter:
        """Return the filter of a subscription, or None where all messages pass.

        Pulls come with the same object again and again: to look it up by value takes a tenth of a
        pull.
        """
        known = self._filters.get(id(subscription))
        if known is not None and known[0] is subscription:
            return known[1]
        found = self._filter_by_value(subscription)
        if len(self._filters) >= _REMEMBERED:
            self._filters.clear()
        self._filters[id(subscription)] = subscription, found
        return found

    def check(self, subscription: SubscriptionData) -> None:
        """Refuse a subscription that this broker cannot filter by."""
        self.filter_of(subscription)

    def _subscription(self, topic: str, text: str | None, expression_type: str | None) -> SubscriptionData:
        try:
            return build_subscription_data(topic, text, expression_type)
        except FilterError as error:
            raise RequestRejected(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error

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
