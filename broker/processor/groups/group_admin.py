"""GroupAdminProcessor: creates, changes, lists and deletes consumer groups for operators.

It reports success only when the change is on the disk; a change that cannot be saved is undone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, SubscriptionGroupList
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.remoting.command import RemotingCommand

from ...common.channel import Channel, ResponseSteps
from ...state.tables.table import Change
from ..processor import Processor, handles
from ..reply_after_save import Saving
from ..request import (
    RequestRejected,
    body_in_steps,
    body_of,
    header_of,
    reply,
    success_response,
    success_response_in_steps,
    system_error,
)


class GroupAdminProcessor(Processor):
    """The responses to requests about the configuration of groups."""

    @handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def update(self, connection: Channel, request: RemotingCommand) -> None:
        """Answer UPDATE_AND_CREATE_SUBSCRIPTIONGROUP; an existing group is overwritten."""
        config = body_of(request, SubscriptionGroupConfig)
        groups = self._broker.groups
        with self._broker.reply_after_save.saving(connection, request, groups) as change:
            self._put(config, change)

    @handles(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    def update_all(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST; one invalid group refuses all.

        If other clients use up the limit of groups while a long list is processed, the groups
        created before that stay, and the response says so.
        """
        body = yield from body_in_steps(request, SubscriptionGroupList)
        configs = body.group_config_list
        for config in configs:
            yield None
            self._refuse_if_deleting(config.group_name)
        try:
            yield from self._broker.groups.check_list(configs)
        except ValueError as error:
            raise system_error(str(error)) from error
        return (
            yield from self._broker.reply_after_save.put_all(
                connection, request, self._broker.groups, configs, self._put
            )
        )

    def _put(
        self, config: SubscriptionGroupConfig, change: Change[str, SubscriptionGroupConfig]
    ) -> None:
        self._refuse_if_deleting(config.group_name)
        try:
            self._broker.groups.put(config, change)
        except ValueError as error:
            raise system_error(str(error)) from error

    def _refuse_if_deleting(self, group: str) -> None:
        if group in self._broker.groups.deleting:
            raise system_error(f"the group {group} is being deleted; ask again when that is done")

    @handles(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def get_all(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer GET_ALL_SUBSCRIPTIONGROUP_CONFIG with all groups that the client may see.

        It ignores which page is requested.
        """
        wrapper = self._broker.groups.wrapper()
        visible = self._broker.access.visible_to(connection)
        if not visible.is_all:
            groups = {}
            for name, config in wrapper.subscription_group_table.items():
                yield None
                if visible.has_group(name):
                    groups[name] = config
            forbidden = {
                group: topics
                for group, topics in (wrapper.forbidden_table or {}).items()
                if group in groups
            }
            wrapper = replace(
                wrapper, subscription_group_table=groups, forbidden_table=forbidden or None
            )
        return (yield from success_response_in_steps(request, wrapper))

    @handles(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def get(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_SUBSCRIPTIONGROUP_CONFIG with one group's configuration.

        A missing group is created if autoCreateSubscriptionGroup allows it, as in 5.x: RocketMQ's
        proxy sends this request before a consumer of a new group starts.
        """
        group = header_of(request).group
        config = self._broker.groups.find_or_create(group)
        if config is None:
            raise RequestRejected(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] not exist"
            )
        return success_response(request, body=config)

    @handles(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    def delete(self, connection: Channel, request: RemotingCommand) -> None:
        """Answer DELETE_SUBSCRIPTIONGROUP; removeOffset or cleanOffset deletes its offsets.

        Nothing changes until the table without the group is on the disk. The offsets are removed
        afterwards: offsets of a missing group do no harm, but a group without offsets would skip
        messages.
        """
        header = header_of(request)
        group = header.group_name
        without_offsets = header.remove_offset or header.clean_offset
        self._refuse_if_deleting(group)
        self._broker.groups.begin_deletion(group)

        def discard() -> None:
            self._broker.groups.delete(group)
            if without_offsets:
                self._broker.offsets.discard_group(group)
            self._broker.run_steps(finish())

        def finish() -> Iterator[None]:
            yield from self._broker.stats.discard_group(group)
            if not without_offsets:
                reply(connection, request, success_response(request))
                return
            failure = (
                f"the group {group} is deleted, but its offsets are still on the disk, retrying"
            )
            self._broker.reply_after_save.reply(
                connection, request, self._broker.offsets.save, success_response(request), failure
            )

        groups = self._broker.groups
        saving = Saving(
            groups.save, discard, lambda: groups.cancel_deletion(group), overwrite=groups.save
        )
        self._broker.reply_after_save.run(connection, request, saving)
