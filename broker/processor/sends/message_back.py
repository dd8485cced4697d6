"""MessageBackProcessor: stores again the messages that a consumer could not process.

    CONSUMER_SEND_MSG_BACK ─> the record at its log offset, if it is the same message
        ─> tried too often?
        ─> yes: %DLQ%group, at once
        ─> no:  %RETRY%group, after a delay that grows

The new message has the body and properties of the old one. The consumer gets success when it is
stored as safely as any other; after any other response the consumer retries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from random import randrange
from typing import Final

from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.codes import MessageSysFlag, RequestCode, TopicPermission
from rmq_spark.wire.headers.members import ConsumerSendMsgBackRequestHeader
from rmq_spark.wire.message.hosts import Host
from rmq_spark.wire.message.properties import (
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    UNIQ_KEY,
    change_properties,
)
from rmq_spark.wire.message.record import StoredMessage, decode_record, magic_of
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.java_numbers import INT32_MAX

from ...auth.rights import Action
from ...common.channel import Channel
from ...common.log_limit import LogLimit
from ...common.recent_losses import LossKind
from ...schedule.delayed_message import WITHOUT_DELAY, to_schedule_topic
from ...state.tables.topic_config import retry_topic
from ...store.results import PhysicalOffset, PutMessageResult, PutMessageStatus
from ..processor import BrokerParts, Processor, handles
from ..queues import may_read
from ..request import (
    header_of,
    no_permission,
    refuse_if_busy,
    reply,
    success_response,
    system_error,
)
from .admission import redirect_to_dlq
from .send_message import CODES, SendParts

_log = logging.getLogger(__name__)
FIRST_RETRY_LEVEL: Final = 3
"""Ten seconds with RocketMQ's levels; each return of the message adds one level."""

_POSITION_DIGITS: Final = 16
"""An offset message id ends with this many digits, the position in the log."""

_PERMANENT_FAILURES: Final = frozenset(
    [PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, PutMessageStatus.MESSAGE_ILLEGAL]
)
_WRITE = TopicPermission.WRITE.value
_STORE_V6 = MessageSysFlag.STORE_HOST_V6.value
_KEPT_FLAGS = ~(_STORE_V6 | MessageSysFlag.TRANSACTION_MASK.value)
"""The old message's flags without its transaction's state: a message that RocketMQ left prepared
must not stay hidden when a consumer sends it back.
"""


class MessageBackProcessor(Processor):
    """The responses to consumers that send messages back."""

    def __init__(
        self, broker: BrokerParts, sends: SendParts, choose_queue: Callable[[int], int] = randrange
    ) -> None:
        """Store the parts; ``choose_queue(n)`` returns a queue id below ``n``."""
        super().__init__(broker)
        self._sends = sends
        self._choose_queue = choose_queue
        self._may_write = bool(broker.config.broker_permission & _WRITE)
        self._delay_levels = len(broker.config.store.message_delay_level_ms)
        self._log_limit = LogLimit()

    @handles(RequestCode.CONSUMER_SEND_MSG_BACK)
    def consumer_send_msg_back(
        self, connection: Channel, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Store a message again, for a retry or as a dead letter.

        A message that is too large for the added properties becomes a dead letter without them. If
        even that does not fit, as a message from another broker may not, it is logged and not
        stored again, and the response is success, so that its group is not blocked.
        """
        refuse_if_busy(self._broker.busy_reason())
        header: ConsumerSendMsgBackRequestHeader = header_of(request)
        group = self._sends.retries.group(header.group)
        if not self._may_write:
            raise no_permission("the broker sending message is forbidden")
        if group.retry_queue_nums <= 0:  # the group has disabled retries
            self._record_disabled(group.group_name)
            return success_response(request)
        message = self._find(connection, header)
        retried = self._retry_message(
            message, group, header, request.version, self._broker.advertised_host(connection)
        )
        result = self._broker.store.put_message(retried)
        origin = retried.properties[RETRY_TOPIC]
        if result.status in _PERMANENT_FAILURES:
            dead_letters = self._sends.retries.dead_letter_topic(group.group_name)
            _check_writable(dead_letters)
            result = self._broker.store.put_message(
                redirect_to_dlq(_with_reconsume_time(message, retried.store_host), dead_letters)
            )
            if result.status in _PERMANENT_FAILURES:
                self._give_up(group.group_name, message, result.remark)
                return success_response(request)
        bare, name = request.without_content(), group.group_name
        self._sends.acknowledger.when_stored(
            result,
            lambda known: reply(connection, bare, self._response(bare, name, origin, known)),
        )
        return None

    def _record_disabled(self, group: str) -> None:
        """Count a failed message of a group without retries; log one a minute."""
        self._broker.stats.failed_messages_dropped["retries_disabled"] += 1
        text = (
            f"group {group} has no retry queues (retryQueueNums): its failed messages are dropped"
        )
        self._broker.losses.record(LossKind.FAILED_WITHOUT_RETRY, text)
        more = self._log_limit.admit(group, self._broker.monotonic_ms() / 1000)
        if more is not None:
            _log.warning("%s%s", text, f" ({more} more since the last line)" if more else "")

    def _give_up(self, group: str, message: StoredMessage, remark: str | None) -> None:
        self._broker.stats.failed_messages_dropped["unstorable"] += 1
        self._broker.losses.report(
            LossKind.FAILED_MESSAGE,
            f"a message that group {group} failed cannot become a dead letter: {remark}",
            f"It stays at offset {message.queue_offset} of queue {message.queue_id} of "
            f"{message.topic}.",
        )

    def _find(self, connection: Channel, header: ConsumerSendMsgBackRequestHeader) -> StoredMessage:
        """Return the message that is sent back; one that its client may not read is not found."""
        record = self._broker.store.record_at(PhysicalOffset(header.offset))
        if record is not None and not may_read(self._broker, connection, record, Action.SUB):
            record = None
        message = decode_record(record) if record is not None else None
        if message is None or not _is_same_message(message, header):
            other = "" if message is None else ": another message is there"
            raise system_error(f"look message by offset failed, {header.offset}{other}")
        return message

    def _retry_message(
        self,
        message: StoredMessage,
        group: SubscriptionGroupConfig,
        header: ConsumerSendMsgBackRequestHeader,
        client_version: int,
        store_host: Host,
    ) -> StoredMessage:
        renewed = _with_origin(message, store_host)
        is_exhausted = self._sends.retries.is_exhausted(
            group, message.reconsume_times, header.max_reconsume_times, client_version
        )
        if is_exhausted or header.delay_level < 0:
            dead_letters = self._sends.retries.dead_letter_topic(group.group_name)
            _check_writable(dead_letters)
            return redirect_to_dlq(renewed, dead_letters)
        config = self._sends.admission.admit_send_back(
            retry_topic(group.group_name), group.retry_queue_nums
        )
        _check_writable(config)
        retried = replace(
            renewed,
            topic=config.topic_name,
            queue_id=self._choose_queue(config.write_queue_nums),
            magic=magic_of(config.topic_name),
        )
        level = header.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        # A sender can store a negative reconsumeTimes, which gives no delay in RocketMQ.
        return to_schedule_topic(retried, max(1, min(level, self._delay_levels)))

    def _response(
        self, request: RemotingCommand, group: str, origin: str, result: PutMessageResult
    ) -> RemotingCommand:
        if result.status is PutMessageStatus.PUT_OK:
            # The property is the sender's, and may name any topic.
            if self._sends.admission.config_of(origin) is not None:
                self._broker.stats.record_send_back(origin, group)
            return success_response(request)
        return request.respond(CODES[result.status], result.remark)


def _is_same_message(message: StoredMessage, header: ConsumerSendMsgBackRequestHeader) -> bool:
    """Return whether a stored message is the one that a consumer sends back.

    After an older copy of the store was restored, another message may be at its offset. Clients
    send the unique id, or the offset id, which some languages always send. They send the topic
    without a namespace or, for a retry, the original topic.
    """
    message_id, topic = header.origin_msg_id, header.origin_topic
    if message_id:
        if message_id == message.properties.get(UNIQ_KEY):
            return True
        if (
            message_id[-_POSITION_DIGITS:].upper()
            != f"{message.physical_offset:0{_POSITION_DIGITS}X}"
        ):
            return False
    own = message.topic, message.properties.get(RETRY_TOPIC, message.topic)
    return not topic or any(name == topic or name.endswith(f"%{topic}") for name in own)


def _with_origin(message: StoredMessage, store_host: Host) -> StoredMessage:
    properties = message.properties
    named = {
        RETRY_TOPIC: properties.get(RETRY_TOPIC, message.topic),
        ORIGIN_MESSAGE_ID: properties.get(ORIGIN_MESSAGE_ID, message.offset_message_id),
    }
    properties_text = change_properties(message.properties_text, {**WITHOUT_DELAY, **named})
    return replace(_with_reconsume_time(message, store_host), properties_text=properties_text)


def _with_reconsume_time(message: StoredMessage, store_host: Host) -> StoredMessage:
    sys_flag = message.sys_flag & _KEPT_FLAGS | (_STORE_V6 if store_host.is_v6 else 0)
    return replace(
        message,
        sys_flag=sys_flag,
        store_host=store_host,
        reconsume_times=min(message.reconsume_times + 1, INT32_MAX),
        prepared_transaction_offset=0,
    )


def _check_writable(config: TopicConfig) -> None:
    if not config.perm & _WRITE:
        raise no_permission(f"the topic[{config.topic_name}] sending message is forbidden")
