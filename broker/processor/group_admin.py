"""GroupAdminProcessor: consumer groups as operators create, change, look at and delete them.

What is answered with success is on the disk; what cannot be saved is taken back. How far
groups are is `consume_stats`'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

from broker.connection import Connection, Steps
from broker.processor.after_saving import AfterSaving
from broker.processor.request import (
    Handlers,
    RequestRejected,
    answer,
    answer_in_steps,
    body_in_steps,
    body_of,
    header_of,
    reply,
)
from broker.state.broker_stats import BrokerStats
from broker.state.consumer_offset import ConsumerOffsetManager
from broker.state.subscription_group import SubscriptionGroupManager, group_fault
from broker.state.topic_config import TopicConfigManager
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, SubscriptionGroupList
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import RemotingCommand


class GroupAdminProcessor:
    """Groups, one by one and all together."""

    def __init__(
        self,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        offsets: ConsumerOffsetManager,
        stats: BrokerStats,
        after_saving: AfterSaving,
        work: Callable[[Iterator[None]], None],
    ) -> None:
        """``work`` takes all the steps that it is given, at once or bit by bit."""
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._stats = stats
        self._after_saving = after_saving
        self._work = work

    def handlers(self) -> Handlers:
        """The requests that are answered here."""
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.update_all,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.get_all,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.get,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
        }

    def update(self, connection: Connection, request: RemotingCommand) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: a group that is there is overwritten."""
        changes = ExitStack()
        self._put(body_of(request, SubscriptionGroupConfig), changes)
        self._after_saving.answer(connection, request, self._groups.save, answer(request), changes.close)

    def update_all(self, connection: Connection, request: RemotingCommand) -> Steps:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: nothing if a name is wrong; wrong numbers end it."""
        body = yield from body_in_steps(request, SubscriptionGroupList)
        for config in body.group_config_list:
            yield None
            fault = group_fault(config.group_name)
            if fault:
                raise RequestRejected(ResponseCode.SYSTEM_ERROR, fault)
        changes = ExitStack()
        for config in body.group_config_list:
            yield None
            self._put(config, changes)
        self._after_saving.answer(connection, request, self._groups.save, answer(request), changes.close)
        return None

    def _put(self, config: SubscriptionGroupConfig, changes: ExitStack) -> None:
        """Create a group, or overwrite it; closing ``changes`` takes that back."""
        group = config.group_name
        before = self._groups.get(group)
        try:
            self._groups.put(config)
        except ValueError as error:
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, str(error)) from error
        changes.callback(self._groups.take_back, group, config, before)

    def get_all(self, _: Connection, request: RemotingCommand) -> Steps:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG: all of them at once, whatever page is asked for."""
        return answer_in_steps(request, self._groups.wrapper())

    def get(self, _: Connection, request: RemotingCommand) -> RemotingCommand:
        """GET_SUBSCRIPTIONGROUP_CONFIG."""
        group = header_of(request).group
        config = self._groups.get(group)
        if config is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] not exist"
            )
        return answer(request, body=config)

    def delete(self, connection: Connection, request: RemotingCommand) -> None:
        """DELETE_SUBSCRIPTIONGROUP: its offsets only if that is asked for, by either generation's name."""
        header = header_of(request)
        group = header.group_name
        offsets = self._offsets.forget_group(group) if header.remove_offset or header.clean_offset else {}
        before = self._groups.get(group)
        self._groups.delete(group)

        def take_back() -> None:
            self._groups.take_back(group, None, before)
            for topic, queues in offsets.items():
                if self._topics.get(topic) is not None or topic not in self._topics.leaving:
                    self._offsets.bring_back(group, topic, queues)  # else the topic is deleted meanwhile

        def finish() -> Iterator[None]:
            yield from self._stats.forget_group(group)
            reply(connection, request, answer(request))

        self._after_saving.go_on(connection, request, self._save, lambda: self._work(finish()), take_back)

    def _save(self) -> None:
        self._offsets.save()
        self._groups.save()
