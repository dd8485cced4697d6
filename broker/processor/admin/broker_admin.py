"""BrokerAdminProcessor: answers operators' requests about the whole broker.

No request changes a setting: in other brokers, attackers have exploited that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rmq_spark.errors import escape_surrogates
from rmq_spark.wire.bodies import encode_body
from rmq_spark.wire.bodies.configs import (
    DataVersion,
    TimerMetric,
    TimerMetricsSerializeWrapper,
)
from rmq_spark.wire.bodies.operators import KVTable
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.headers.operators import GetBrokerConfigResponseHeader
from rmq_spark.wire.names import reply_topic
from rmq_spark.wire.remoting.command import RemotingCommand

from ...common.channel import Channel
from ...settings.config import BrokerConfig
from ...settings.settings import settings_of
from ...state.broker_stats import STATS_NAMES
from ..processor import BrokerParts, Processor, handles
from ..request import RequestRejected, header_of, no_permission, success_response, system_error
from .runtime_info import RuntimeInfo, SendQueue

# ---- Settings as text.

_MQADMIN_DEFAULTS: Final[Mapping[str, str]] = {
    "brokerId": "0",
    "filterServerNums": "0",
    "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
    "slaveReadEnable": "false",
    "traceTopicEnable": "false",
    "useTLS": "false",
}
"""Values for settings that this broker does not have, because exportConfigs of 4.9 needs them."""


def properties_text(config: BrokerConfig, defaults: Mapping[str, str] | None = None) -> bytes:
    """Return ``key=value`` lines of ``defaults``, then of all settings, with secrets hidden."""
    settings = {**(defaults or {}), **settings_of(config)}
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    return escape_surrogates(text).encode()


def read_only_error(request: RemotingCommand) -> RequestRejected:
    """Return the refusal of a remote change of settings."""
    return no_permission(
        f"remote configuration is read-only ({RequestCode(request.code).name}): change the "
        "broker's file, and send it SIGHUP or restart it"
    )


def reserved_topics(config: BrokerConfig) -> frozenset[str]:
    """Return the topics named after cluster and broker, which are created at a start."""
    cluster = config.broker_cluster_name
    return frozenset({cluster, config.broker_name, reply_topic(cluster)})


class BrokerAdminProcessor(Processor):
    """The responses to requests about settings, figures and housekeeping."""

    def __init__(self, broker: BrokerParts, send_queue: Callable[[], SendQueue]) -> None:
        super().__init__(broker)
        self._shown_config = broker.config
        started_ms = broker.now_ms()
        self._runtime_info = RuntimeInfo(broker, send_queue, started_ms)
        self._config_version = DataVersion(timestamp=started_ms)

    @handles(RequestCode.UPDATE_BROKER_CONFIG)
    def update_config(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Refuse UPDATE_BROKER_CONFIG: settings cannot be changed remotely."""
        raise read_only_error(request)

    @handles(RequestCode.GET_BROKER_CONFIG)
    def get_config(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_BROKER_CONFIG with the settings in use and their version."""
        config = self._broker.config
        if config != self._shown_config:
            self._shown_config = config
            self._config_version = self._config_version.next_version(self._broker.now_ms())
        header = GetBrokerConfigResponseHeader(encode_body(self._config_version).decode())
        return success_response(request, header)._replace(
            body=properties_text(config, _MQADMIN_DEFAULTS)
        )

    @handles(RequestCode.GET_BROKER_RUNTIME_INFO)
    def get_runtime_info(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_BROKER_RUNTIME_INFO with all current figures."""
        return success_response(
            request, body=KVTable(table=self._runtime_info.table(self._broker.now_ms()))
        )

    @handles(RequestCode.GET_TIMER_METRICS)
    def timer_metrics(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_TIMER_METRICS with the number of waiting timer messages of each topic."""
        now_ms = self._broker.now_ms()
        counts = self._broker.timers.counts()
        body = TimerMetricsSerializeWrapper(
            timing_count={topic: TimerMetric(count, now_ms) for topic, count in counts.items()}
        )
        return success_response(request, body=body)

    @handles(RequestCode.GET_ALL_DELAY_OFFSET)
    def get_delay_offsets(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer GET_ALL_DELAY_OFFSET with the offset up to which each delay level is delivered."""
        return success_response(request, body=self._broker.schedule.offsets())

    @handles(RequestCode.VIEW_BROKER_STATS_DATA)
    def view_stats(self, connection: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer VIEW_BROKER_STATS_DATA with one counter over a minute, an hour and a day.

        Counters of topics and groups that the client may not see are refused like unknown ones.
        """
        header = header_of(request)
        data = self._broker.stats.data(header.stats_name, header.stats_key)
        if data is None or not self._may_see(connection, header.stats_key):
            known = (
                "" if header.stats_name in STATS_NAMES else f"; there are {', '.join(STATS_NAMES)}"
            )
            raise system_error(
                f"The stats <{header.stats_name}> <{header.stats_key}> not exist{known}"
            )
        return success_response(request, body=data)

    def _may_see(self, connection: Channel, stats_key: str) -> bool:
        """Return whether a client may see a counter: of the cluster, a topic, or a group in one."""
        if stats_key == self._broker.config.broker_cluster_name:
            return True
        visible = self._broker.access.visible_to(connection)
        topic, _, group = stats_key.partition("@")
        return visible.has_topic(topic) and (not group or visible.has_group(group))

    @handles(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG)
    def clean(self, _: Channel, request: RemotingCommand) -> RemotingCommand:
        """Answer DELETE_EXPIRED_COMMITLOG and CLEAN_EXPIRED_CONSUMEQUEUE: start a cleanup."""
        self._broker.clean()
        return success_response(request)
