"""SubscriptionGroupManager: the configurations of consumer groups.

The table is saved as subscriptionGroup.json, in RocketMQ's format. `consumers` has the connected
members.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, SubscriptionGroupWrapper
from rmq_spark.wire.names import SYSTEM_GROUPS, group_fault

from .table import Change, NamedTable, Table, check_limit, int32_fault
from .topic_config import QUEUE_NUMS_MAX

__all__ = ["SubscriptionGroupManager", "group_fault"]

_log = logging.getLogger(__name__)
GROUP_BYTES_MAX: Final = 2_560
"""The maximum JSON size of a group: a change writes all, and 5,000 must fit into a response."""


class SubscriptionGroupManager(NamedTable[SubscriptionGroupWrapper, str, SubscriptionGroupConfig]):
    """All groups. A change is durable after the next `save`."""

    def __init__(
        self,
        table: Table[SubscriptionGroupWrapper],
        *,
        auto_create: bool,
        max_groups: int,
        now_ms: Callable[[], int],
    ) -> None:
        """Load the table; with ``auto_create``, a group is created with its first member."""
        loaded = table.load(SubscriptionGroupWrapper())
        super().__init__(table, dict(loaded.subscription_group_table), self._wrapper_to_save)
        self._auto_create = auto_create
        self.max_groups = max_groups
        self._now_ms = now_ms
        self._forbidden = loaded.forbidden_table  # 5.x: not used here, but kept
        self.groups: Mapping[str, SubscriptionGroupConfig] = MappingProxyType(self._values)
        self._deleting: dict[str, None] = {}
        self.deleting: Container[str] = self._deleting
        """Groups after `begin_deletion`: unchanged until the table is saved or the save fails."""
        self.data_version = loaded.data_version
        for group, config in loaded.subscription_group_table.items():
            if config.group_name != group:  # the table was edited by hand
                _log.warning(
                    "subscriptionGroup.json has group %s under the key %s: using the key",
                    config.group_name,
                    group,
                )
                self._set(group, replace(config, group_name=group))
        for group in sorted(SYSTEM_GROUPS - self._values.keys()):
            self._set(group, SubscriptionGroupConfig(group_name=group))

    def find_or_create(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group; create it if allowed and if its name is valid, or return None.

        RocketMQ creates any group with the prefix ``CID_RMQ_SYS_``. Here the groups of its tools
        exist from the start, so that no client creates others in spite of the setting.
        """
        if group not in self._values and self._auto_create and group_fault(group) is None:
            self._check_limit()
            self._set(group, SubscriptionGroupConfig(group_name=group))
        return self._values.get(group)

    def put(
        self,
        config: SubscriptionGroupConfig,
        change: Change[str, SubscriptionGroupConfig] | None = None,
    ) -> None:
        """Create a group, or overwrite it, as part of a change that may still be refused."""
        _check(config)
        if config.group_name not in self._values:
            self._check_limit()
        self._change(config.group_name, config, change)

    def check_list(self, configs: Iterable[SubscriptionGroupConfig]) -> Iterator[None]:
        """Check in steps whether `put` would accept these groups one after another."""
        new: dict[str, None] = {}
        for config in configs:
            yield
            _check(config)
            if config.group_name not in self._values and config.group_name not in new:
                check_limit("groups", len(self._values) + len(new), self.max_groups, "maxGroups")
                new[config.group_name] = None

    def _check_limit(self) -> None:
        check_limit("groups", len(self._values), self.max_groups, "maxGroups")

    def begin_deletion(self, group: str) -> None:
        """Leave a group out of the next `save`; until then it is unchanged.

        Call `delete` or `cancel_deletion` afterwards.
        """
        self._deleting[group] = None
        if group in self._values:
            self._mark_changed()

    def cancel_deletion(self, group: str) -> None:
        """Keep a group whose deletion could not be saved."""
        del self._deleting[group]
        if group in self._values:
            self._mark_changed()

    def delete(self, group: str) -> None:
        """Delete a group after it was left out of a save; its offsets are in another table."""
        self.changes.discard(group)
        self._values.pop(group, None)
        del self._deleting[group]

    def wrapper(self) -> SubscriptionGroupWrapper:
        """Return all groups and their version, for responses."""
        return self._wrapper(dict(self._values))

    def _wrapper_to_save(self) -> SubscriptionGroupWrapper:
        # Read this before the groups: a group deleted in between is then in neither copy.
        leaving = tuple(self._deleting)
        groups = dict(self._values)
        for group in leaving:
            groups.pop(group, None)
        return self._wrapper(groups)

    def _wrapper(self, groups: Mapping[str, SubscriptionGroupConfig]) -> SubscriptionGroupWrapper:
        return SubscriptionGroupWrapper(
            subscription_group_table=groups,
            forbidden_table=self._forbidden,
            data_version=self.data_version,
        )

    def _mark_changed(self) -> None:
        self.data_version = self.data_version.next_version(self._now_ms())
        self.is_dirty = True


def _check(config: SubscriptionGroupConfig) -> None:
    fault = (
        group_fault(config.group_name)
        or _fault_of_numbers(config)
        or _fault_of_types(config)
        or _fault_of_size(config)
    )
    if fault is not None:
        raise ValueError(fault)


def _fault_of_numbers(config: SubscriptionGroupConfig) -> str | None:
    if not 0 <= config.retry_queue_nums <= QUEUE_NUMS_MAX:
        return (
            f"group {config.group_name} needs 0 to {QUEUE_NUMS_MAX} retry queues, "
            f"not {config.retry_queue_nums}"
        )
    if config.retry_max_times < 0:
        return (
            f"group {config.group_name} cannot retry {config.retry_max_times} times; 0 means never"
        )
    return (
        int32_fault(f"retryMaxTimes of group {config.group_name}", config.retry_max_times)
        or int32_fault(f"groupSysFlag of group {config.group_name}", config.group_sys_flag)
        or int32_fault(
            f"consumeTimeoutMinute of group {config.group_name}", config.consume_timeout_minute
        )
    )


def _fault_of_types(config: SubscriptionGroupConfig) -> str | None:
    """Return which value a broker in Java could not parse, or None."""
    if not isinstance(config.group_retry_policy, dict | None):
        return f"groupRetryPolicy of group {config.group_name} must be an object"
    subscriptions = config.subscription_data_set
    if subscriptions is not None and not (
        isinstance(subscriptions, list) and all(isinstance(each, dict) for each in subscriptions)
    ):
        return f"subscriptionDataSet of group {config.group_name} must be a list of objects"
    return None


def _fault_of_size(config: SubscriptionGroupConfig) -> str | None:
    size = len(encode_body(config))
    if size <= GROUP_BYTES_MAX:
        return None
    return (
        f"group {config.group_name} takes {size} bytes, over {GROUP_BYTES_MAX}: make its "
        "attributes, groupRetryPolicy or subscriptionDataSet shorter"
    )
