"""Configuration: what follows from the settings in several processors: text and topic names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_spark.errors import escape_surrogates
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.command import RemotingCommand

from ...settings.config import BrokerConfig
from ...settings.settings import settings_of
from ..request import RequestRejected

_MQADMIN_DEFAULTS: Final[Mapping[str, str]] = {
    "brokerId": "0",
    "filterServerNums": "0",
    "msgTraceTopicName": "RMQ_SYS_TRACE_TOPIC",
    "slaveReadEnable": "false",
    "traceTopicEnable": "false",
    "useTLS": "false",
}
"""Settings that this broker lacks, as it behaves; exportConfigs of 4.9 fails without them."""


def properties_text(config: BrokerConfig) -> bytes:
    """Return all settings as ``key=value`` lines. None of them is a secret."""
    return _lines(settings_of(config))


def properties_text_for_operators(config: BrokerConfig) -> bytes:
    """Return all settings, and those of RocketMQ's that mqadmin's exportConfigs needs to find."""
    return _lines({**_MQADMIN_DEFAULTS, **settings_of(config)})


def _lines(settings: Mapping[str, object]) -> bytes:
    return escape_surrogates(
        "".join(f"{name}={value}\n" for name, value in settings.items())
    ).encode()


def read_only_error(request: RemotingCommand) -> RequestRejected:
    """Return the refusal of a remote change of settings."""
    return RequestRejected(
        ResponseCode.NO_PERMISSION,
        f"remote configuration is read-only ({RequestCode(request.code).name}): change the "
        "broker's file, and send it SIGHUP or restart it",
    )


def reserved_topics(config: BrokerConfig) -> frozenset[str]:
    """Return the topics named after cluster and broker: made at a start, and not to be changed."""
    cluster = config.broker_cluster_name
    return frozenset({cluster, config.broker_name, f"{cluster}_REPLY_TOPIC"})
