"""BrokerAdminProcessor: answers operators' requests about the whole broker.

No request changes a setting: in other brokers, attackers have used that.
"""

from __future__ import annotations

from collections.abc import Callable

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.cluster_lists import KVTable
from rmq_spark.wire.bodies.configs import DataVersion
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.headers.topics import GetBrokerConfigResponseHeader

from ...common.channel import Channel
from ...state.stats.broker_stats import STATS_NAMES
from ..processor import BrokerParts, Processor, handles
from ..request import header_of, success_response, system_error
from .configuration import properties_text_for_operators, read_only_error
from .runtime_info import RuntimeInfo, SendQueue


class BrokerAdminProcessor(Processor):
    """The responses to requests about settings, figures and housekeeping."""

    def __init__(self, broker: BrokerParts, send_queue: Callable[[], SendQueue]) -> None:
        super().__init__(broker)
        self.config = broker.config
        started_ms = broker.now_ms()
        self._runtime_info = RuntimeInfo(broker, send_queue, started_ms)
        self._config_version = DataVersion(timestamp=started_ms)

    @handles(RequestCode.UPDATE_BROKER_CONFIG)
    def update_config(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Refuse UPDATE_BROKER_CONFIG: settings cannot be changed remotely."""
        raise read_only_error(request)

    @handles(RequestCode.GET_BROKER_CONFIG)
    def get_config(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_BROKER_CONFIG; its version is the start, as settings do not change later."""
        header = GetBrokerConfigResponseHeader(encode_body(self._config_version).decode())
        return success_response(request, header)._replace(
            body=properties_text_for_operators(self.config)
        )

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO)
    def get_runtime_info(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_BROKER_RUNTIME_INFO with all current figures."""
        return success_response(
            request, body=KVTable(table=self._runtime_info.table(self._broker.now_ms()))
        )

    @handles(RequestCode.GET_ALL_DELAY_OFFSET)
    def get_delay_offsets(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_ALL_DELAY_OFFSET with the offset up to which each delay level is delivered."""
        return success_response(request, body=self._broker.schedule.offsets())

    @handles(RequestCode.VIEW_BROKER_STATS_DATA)
    def view_stats(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer VIEW_BROKER_STATS_DATA with one counter over a minute, an hour and a day."""
        header = header_of(request)
        data = self._broker.stats.data(header.stats_name, header.stats_key)
        if data is None:
            known = (
                "" if header.stats_name in STATS_NAMES else f"; there are {', '.join(STATS_NAMES)}"
            )
            raise system_error(
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist{known}"
            )
        return success_response(request, body=data)

    @handles(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG)
    def clean(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer DELETE_EXPIRED_COMMITLOG and CLEAN_EXPIRED_CONSUMEQUEUE by starting a cleanup."""
        self._broker.clean()
        return success_response(request)
