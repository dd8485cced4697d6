"""BrokerAdminProcessor: answers operators' requests about the whole broker.

No request changes a setting: in other brokers, attackers have used that.
"""

from __future__ import annotations

from collections.abc import Callable

from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.cluster_lists import KVTable
from rmq_spark.wire.bodies.configs import DataVersion, DelayOffsetSerializeWrapper
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import RemotingCommand
from rmq_spark.wire.headers.topics import GetBrokerConfigResponseHeader

from ...common.channel import Channel
from ...settings.config import BrokerConfig
from ...state.stats.broker_stats import STATS_NAMES, BrokerStats
from ..request import Handlers, RequestRejected, header_of, success_response
from .configuration import properties_text_for_operators, read_only_error
from .runtime_info import RuntimeInfo


class BrokerAdminProcessor:
    """The responses to requests about settings, figures and housekeeping."""

    def __init__(
        self,
        config: BrokerConfig,
        runtime_info: RuntimeInfo,
        stats: BrokerStats,
        delay_offsets: Callable[[], DelayOffsetSerializeWrapper],
        clean: Callable[[], object],
        started_ms: int,
        now_ms: Callable[[], int],
    ) -> None:
        """Take what the answers need; ``clean`` deletes old files soon, without delay here."""
        self.config = config
        self._runtime_info = runtime_info
        self._stats = stats
        self._delay_offsets = delay_offsets
        self._clean = clean
        self._config_version = DataVersion(timestamp=started_ms)
        self._now_ms = now_ms

    def handlers(self) -> Handlers:
        """Return the handlers of the requests that are answered here."""
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.update_config,
            RequestCode.GET_BROKER_CONFIG: self.get_config,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.get_runtime_info,
            RequestCode.GET_ALL_DELAY_OFFSET: self.get_delay_offsets,
            RequestCode.VIEW_BROKER_STATS_DATA: self.view_stats,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.clean,
        }

    def update_config(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Refuse UPDATE_BROKER_CONFIG: settings cannot be changed remotely."""
        raise read_only_error(request)

    def get_config(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_BROKER_CONFIG; its version is the start, as settings do not change later."""
        header = GetBrokerConfigResponseHeader(encode_body(self._config_version).decode())
        return success_response(request, header)._replace(
            body=properties_text_for_operators(self.config)
        )

    def get_runtime_info(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_BROKER_RUNTIME_INFO with all current figures."""
        return success_response(
            request, body=KVTable(table=self._runtime_info.table(self._now_ms()))
        )

    def get_delay_offsets(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_ALL_DELAY_OFFSET with the offset up to which each delay level is delivered."""
        return success_response(request, body=self._delay_offsets())

    def view_stats(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer VIEW_BROKER_STATS_DATA with one counter over a minute, an hour and a day."""
        header = header_of(request)
        data = self._stats.data(header.stats_name, header.stats_key)
        if data is None:
            known = (
                "" if header.stats_name in STATS_NAMES else f"; there are {', '.join(STATS_NAMES)}"
            )
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist{known}",
            )
        return success_response(request, body=data)

    def clean(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer DELETE_EXPIRED_COMMITLOG and CLEAN_EXPIRED_CONSUMEQUEUE by starting a cleanup."""
        self._clean()
        return success_response(request)
