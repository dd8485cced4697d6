"""Redelivery: redelivers or buries messages that a listener could not consume.

    concurrent   sent back to their broker (CONSUMER_SEND_MSG_BACK), which redelivers them through
                 the group's retry topic, later each time, and makes dead letters of them after the
                 maximum number of times; if the broker does not accept them, they are sent to the
                 retry topic of any broker
    orderly      retried in place; after the maximum number of times sent to the retry topic, whose
                 broker makes dead letters of them; a message that added properties make too large
                 for that is sent back to its broker, which makes a dead letter of the stored record

No error makes this module drop a message: if no broker accepts it, it stays with its consumer, and
`consume_services` calls the listener again after a pause. A dropped message would hold its queue's
offset back forever.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from rmq_spark.client.api.broker_api import BrokerApi
from rmq_spark.client.concurrency.scheduler import PerBrokerExecutor
from rmq_spark.client.consumer.brokers.broker_client import GroupBrokerClient
from rmq_spark.client.errors import BrokerRefused, MessageIllegal, RouteNotFound
from rmq_spark.client.instance.routes import Routes
from rmq_spark.client.message import MessageExt
from rmq_spark.errors import RocketPollError
from rmq_spark.wire.codes import MessageSysFlag
from rmq_spark.wire.compression import compress_body
from rmq_spark.wire.headers.members import SendMessageRequestHeader
from rmq_spark.wire.message.properties import DELAY, UNIQ_KEY, encode_properties
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import DEFAULT_TOPIC, dlq_topic, is_system_group, retry_topic

_log = logging.getLogger(__name__)

FIRST_DELAY_LEVEL = 3
DEAD_LETTER = -1
"""Delay level that makes a dead letter of a message at once."""

CONCURRENT_TIMES_MAX = 16
ORDERLY_TIMES_MAX = (1 << 31) - 1
_COMPRESSED = MessageSysFlag.COMPRESSED
_TYPE = MessageSysFlag.COMPRESSION_MASK
_DROPPED_PROPERTIES = ("TRAN_MSG", "CONSUME_START_TIME", "MIN_OFFSET", "MAX_OFFSET")


@dataclass(frozen=True, slots=True)
class Redelivery:
    """Sends the failed messages of one group back to brokers."""

    group: str
    brokers: GroupBrokerClient
    api: BrokerApi
    routes: Routes
    max_reconsume_times: int

    def send_back(self, message: MessageExt, delay_level: int) -> bool:
        """Send a message back for redelivery; return whether any broker has accepted it."""

        def send_to_broker() -> None:
            self.brokers.send_back(message, delay_level, self.max_reconsume_times)

        failed = "sending %s back failed (%s): sending it to the retry topic"
        return _try(message, send_to_broker, failed) or _try(
            message, lambda: self._send(message), "sending %s to the retry topic failed: %s"
        )

    def send_to_dlq(self, message: MessageExt) -> bool:
        """Make a dead letter of a message without retries left; return whether a broker took it."""

        def send_or_return() -> None:
            try:
                self._send(message)
            except (MessageIllegal, RouteNotFound) as refused:
                _log.info("%s is sent back as a dead letter: %s", message.message_id, refused)
                self.brokers.send_back(message, DEAD_LETTER, self.max_reconsume_times)

        return _try(message, send_or_return, "making %s a dead letter failed, retrying: %s")

    def _send(self, message: MessageExt) -> None:
        queues = self.routes.publish_queues(retry_topic(self.group))
        address_of, is_silent = self.routes.master_address, self.api.connections.is_silent
        reachable = [each for each in queues if not is_silent(address_of(each.broker_name))]
        queue = random.choice(reachable or queues)  # noqa: S311  # not for cryptography
        compression, body = _recompress(message)
        header = self._header(message, queue, compression)
        self.api.send(address_of(queue.broker_name), header, body, message.message_id)

    def _header(
        self, message: MessageExt, queue: MessageQueue, compression: int
    ) -> SendMessageRequestHeader:
        kept = message.properties.items()
        properties = {name: text for name, text in kept if name not in _DROPPED_PROPERTIES}
        properties["RETRY_TOPIC"] = message.real_topic
        properties.setdefault("ORIGIN_MESSAGE_ID", message.message_id)
        properties.setdefault(UNIQ_KEY, message.message_id)
        properties[DELAY] = str(FIRST_DELAY_LEVEL + message.reconsume_times)
        return SendMessageRequestHeader(
            producer_group=self.group,
            topic=retry_topic(self.group),
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=1,
            queue_id=queue.queue_id,
            sys_flag=compression,
            born_timestamp=message.born_timestamp,
            flag=message.flag,
            properties=encode_properties(properties),
            reconsume_times=message.reconsume_times + 1,
            unit_mode=False,
            max_reconsume_times=self.max_reconsume_times,
            batch=False,
            broker_name=queue.broker_name,
        )


def _try(message: MessageExt, action: Callable[[], object], failed: str) -> bool:
    """Run an action on a message; if it fails, log why and return False."""
    try:
        action()
    except Exception as error:  # noqa: BLE001  # a busy listener may change the message's properties
        is_ours = isinstance(error, RocketPollError)
        why = str(error) if is_ours else f"{type(error).__name__}: {error}"
        _log.warning(failed, message.message_id, why)
        return False
    return True


def _recompress(message: MessageExt) -> tuple[int, bytes]:
    """Return flags and body: compressed as by the sender, or plain with flags 0.

    Brokers limit the stored size, so the shorter form is returned.
    """
    if not message.sys_flag & _COMPRESSED:
        return 0, message.body
    found = MessageSysFlag(message.sys_flag) & _TYPE
    body = compress_body(message.body, found or MessageSysFlag.COMPRESSION_ZLIB)
    if len(body) >= len(message.body):
        return 0, message.body
    return int(found | _COMPRESSED), body


# ---- DeadLetterQueue: makes dead letters of messages that cannot be read, which have a `fault`.

DLQ_RETRY_MS = 5_000
SENT_MAX = 10_000
"""Most dead letters that a member remembers, in order not to send them twice."""


class DeadLetterQueue:
    """Sends the unreadable messages of one consumer to the dead-letter topic."""

    def __init__(
        self,
        group: str,
        brokers: GroupBrokerClient,
        executor: PerBrokerExecutor,
        *,
        is_clustering: bool,
    ) -> None:
        self._group = group
        self._brokers = brokers
        self._executor = executor
        self._is_enabled = is_clustering and not is_system_group(group)
        self._sent: dict[tuple[MessageQueue, int, str], None] = {}

    def send(
        self, message: MessageExt, is_wanted: Callable[[], bool], on_done: Callable[[], object]
    ) -> None:
        """Send a message to the dead-letter topic, retrying until stored; then call ``on_done``.

        Each try asks ``is_wanted`` first, and gives up if it returns False.
        """
        if _message_key(message) not in self._sent:
            topic = dlq_topic(self._group)
            consequence = f"it is sent to {topic}" if self._is_enabled else "it is skipped"
            _log.error(
                "the message at offset %d of %s cannot be read, and %s: %s",
                message.queue_offset,
                message.queue,
                consequence,
                message.fault,
            )
        executor = self._executor.for_broker(message.queue.broker_name)

        def send_until_done() -> None:
            if is_wanted():
                if self._try_send(message):
                    on_done()
                else:
                    executor.schedule(send_until_done, DLQ_RETRY_MS)

        executor.schedule(send_until_done)

    def _try_send(self, message: MessageExt) -> bool:
        if not self._is_enabled or _message_key(message) in self._sent:
            return True

        def send_to_broker() -> None:
            try:
                self._brokers.send_back(message, DEAD_LETTER, 0)
            except BrokerRefused as error:
                _log.info("%s is sent to the dead-letter topic: %s", message.message_id, error)
                self._brokers.send_dead_letter(message)

        if not _try(message, send_to_broker, "making %s a dead letter failed, retrying: %s"):
            return False  # a dropped message would hold the queue's offset back forever
        while len(self._sent) >= SENT_MAX:
            del self._sent[next(iter(self._sent))]
        self._sent[_message_key(message)] = None
        return True


def _message_key(message: MessageExt) -> tuple[MessageQueue, int, str]:
    """Return a message's queue, offset and id; the id differs if the topic was recreated."""
    return message.queue, message.queue_offset, message.offset_message_id
