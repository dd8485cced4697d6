"""KVConfigProcessor: the name server's key-value configurations, which tools use."""

from __future__ import annotations

from rmq_spark.wire.bodies.cluster_lists import KVTable
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.headers.namesrv import GetKVConfigResponseHeader

from ...common.channel import Channel, ResponseSteps
from ...state.tables.changes import Change
from ...state.tables.kv_config import KVName
from ..processor import Processor, handles
from ..request import (
    RequestRejected,
    header_of,
    success_response,
    success_response_in_steps,
)


class KVConfigProcessor(Processor):
    """The responses to put, get, delete and list. Success means that the change is on the disk."""

    @handles(RequestCode.PUT_KV_CONFIG)
    def put(self, connection: Channel, request: RemotingCommand) -> None:
        """Answer PUT_KV_CONFIG: set a value."""
        header = header_of(request)
        with self._broker.kv_configs.changes.begin() as change:
            self._broker.kv_configs.put(header.namespace, header.key, header.value, change)
        self._commit(connection, request, change)

    @handles(RequestCode.GET_KV_CONFIG)
    def get(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_KV_CONFIG with a value."""
        header = header_of(request)
        value = self._broker.kv_configs.get(header.namespace, header.key)
        if value is None:
            raise RequestRejected(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return success_response(request, GetKVConfigResponseHeader(value))

    @handles(RequestCode.DELETE_KV_CONFIG)
    def delete(self, connection: Channel, request: RemotingCommand) -> None:
        """Answer DELETE_KV_CONFIG, with success even if there is no such key."""
        header = header_of(request)
        with self._broker.kv_configs.changes.begin() as change:
            self._broker.kv_configs.delete(header.namespace, header.key, change)
        self._commit(connection, request, change)

    def _commit(
        self, connection: Channel, request: RemotingCommand, change: Change[KVName, str]
    ) -> None:
        self._broker.reply_after_save.commit_change(
            connection, request, self._broker.kv_configs.save, success_response(request), change
        )

    @handles(RequestCode.GET_KVLIST_BY_NAMESPACE)
    def get_all(self, _: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer GET_KVLIST_BY_NAMESPACE with all values of a namespace."""
        namespace = header_of(request).namespace
        table = self._broker.kv_configs.list(namespace)
        if not table:
            raise RequestRejected(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}"
            )
        return success_response_in_steps(request, KVTable(table=dict(table)))
