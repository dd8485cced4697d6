"""Refusals of brokers: from a response code to the class of error that says what can be done.

The classes are in `errors`, where the tree of all errors is drawn. This module must not know which
request was refused, nor what is done about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmq_spark.client.errors import (
    BrokerRefused,
    ConsumerNotOnline,
    MessageIllegal,
    NoPermission,
    NotFound,
    NotSupported,
    SubscriptionRejected,
    SystemBusy,
    TopicNotFound,
)
from rmq_spark.wire.codes import ResponseCode

_KINDS: Final[Mapping[int, type[BrokerRefused]]] = {
    ResponseCode.SYSTEM_BUSY: SystemBusy,
    ResponseCode.FLOW_CONTROL: SystemBusy,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: NotSupported,
    ResponseCode.MESSAGE_ILLEGAL: MessageIllegal,
    ResponseCode.NO_PERMISSION: NoPermission,
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFound,
    ResponseCode.QUERY_NOT_FOUND: NotFound,
    ResponseCode.NO_MESSAGE: NotFound,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: SubscriptionRejected,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: SubscriptionRejected,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: SubscriptionRejected,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: SubscriptionRejected,
    ResponseCode.FILTER_DATA_NOT_EXIST: SubscriptionRejected,
    ResponseCode.FILTER_DATA_NOT_LATEST: SubscriptionRejected,
    ResponseCode.CONSUMER_NOT_ONLINE: ConsumerNotOnline,
    ResponseCode.CONSUME_MSG_TIMEOUT: ConsumerNotOnline,
}


_OF_ACCESS_LISTS: Final = "AclException"
"""Class name by which RocketMQ 4.9 reports a refusal of its access lists; it has no code."""


def refusal(code: int, remark: str | None, address: str, request_code: int) -> BrokerRefused:
    """Return the error of the class that a response code stands for."""
    if code == ResponseCode.SYSTEM_ERROR and _OF_ACCESS_LISTS in (remark or ""):
        return NoPermission(code, remark, address, request_code)
    return _KINDS.get(code, BrokerRefused)(code, remark, address, request_code)
