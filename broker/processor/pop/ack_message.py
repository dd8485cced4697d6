"""AckMessageProcessor: acknowledges popped messages, and changes when they are visible again.

    ACK_MESSAGE, BATCH_ACK_MESSAGE  ─> acknowledgement in the revive log; answered when it is stored
    CHANGE_MESSAGE_INVISIBLETIME    ─> a new check point, then the acknowledgement of
                                       the old one: after a crash between the two, the message is
                                       redelivered twice rather than never

Acknowledgements of messages that were popped in order go to `ConsumerOrderInfoManager` instead: the
group's offset moves to the first unacknowledged message, and the next pop may read the queue.
"""

from __future__ import annotations

from typing import Final

from rmq_spark.errors import HeaderError
from rmq_spark.wire.bodies.pop import (
    AckMsg,
    BatchAck,
    BatchAckMessageRequestBody,
    BatchAckMsg,
    PopCheckPoint,
)
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.headers.members import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from rmq_spark.wire.pop import ORDER_REVIVE_QUEUE, PopReceipt, decode_bits, real_topic
from rmq_spark.wire.remoting.command import RemotingCommand

from ...common.channel import Channel, ResponseSteps
from ...pop.pop_counters import PopQueue
from ...pop.revive_log import Ack
from ...state.tables.consumer_order_info import UNKNOWN_MESSAGE
from ...store.results import PutMessageResult, PutMessageStatus
from ..processor import BrokerParts, Processor, handles
from ..queues import require_topic
from ..request import RequestRejected, body_in_steps, header_of, reply, success_response
from ..sends.acknowledger import Acknowledger
from ..sends.send_message import CODES
from .order_releases import OrderReleases
from .pop_message import PopMessageProcessor

_BIT_SET_BYTES_MAX: Final = 4_096
"""The maximum bytes of the bit set in a batch acknowledgement; our own check points need few."""

_SAME_TIME_MS: Final = 1_000
"""Milliseconds by which a receipt's pop time may lead the clock: repeated changes add to it."""


class AckMessageProcessor(Processor):
    """The responses to acknowledgements and changes of invisible times."""

    def __init__(
        self,
        broker: BrokerParts,
        pops: PopMessageProcessor,
        acknowledger: Acknowledger,
        releases: OrderReleases,
    ) -> None:
        super().__init__(broker)
        self._pops = pops
        self._releases = releases
        self._store = broker.store
        self._acknowledger = acknowledger
        self._log = broker.revive_log
        self._order = broker.order_info
        self._counters = broker.pop_counters

    @handles(RequestCode.ACK_MESSAGE)
    def ack_message(self, connection: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Answer ACK_MESSAGE when the acknowledgement is stored."""
        header: AckMessageRequestHeader = header_of(request)
        receipt = self._check(header)
        queue = header.topic, header.consumer_group, header.queue_id
        if receipt.is_in_order:
            refusal = self._ack_in_order(queue, header.offset, receipt.pop_time)
            if refusal is not None:
                raise refusal
            return success_response(request)
        put = self._put_ack(header, receipt)
        self._counters.acknowledge(queue, 1, receipt.pop_time)
        self._reply_when_stored(connection, request, put)
        return None

    @handles(RequestCode.BATCH_ACK_MESSAGE)
    def batch_ack_message(self, connection: Channel, request: RemotingCommand) -> ResponseSteps:
        """Answer BATCH_ACK_MESSAGE when all acknowledgements are stored.

        A refused acknowledgement does not stop the others; the response is then the last refusal.
        """
        if not request.body:
            raise RequestRejected(ResponseCode.NO_MESSAGE, "the body has no acks")
        body = yield from body_in_steps(request, BatchAckMessageRequestBody)
        if not body.acks:
            raise RequestRejected(ResponseCode.NO_MESSAGE, "the body has no acks")
        last: PutMessageResult | None = None
        refusal: RequestRejected | None = None
        for ack in body.acks:
            try:
                put = self._ack_batch(ack, body.broker_name)
            except RequestRejected as error:
                refusal = error
            else:
                if put is not None and put.status is not PutMessageStatus.PUT_OK:
                    refusal = RequestRejected(CODES[put.status], put.remark or "")
                else:
                    last = put or last
            yield None
        if refusal is not None:
            raise refusal
        if last is None:
            return success_response(request)
        self._reply_when_stored(connection, request, last)
        return None

    @handles(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    def change_invisible_time(
        self, connection: Channel, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Answer CHANGE_MESSAGE_INVISIBLETIME with the parts of the new receipt."""
        header: ChangeInvisibleTimeRequestHeader = header_of(request)
        self._pops.check_invisible_time(header.invisible_time, 0)
        receipt = self._check(header)
        now_ms = self._broker.now_ms()
        queue = header.topic, header.consumer_group, header.queue_id
        if receipt.is_in_order:
            return self._change_in_order(request, queue, header, receipt, now_ms)
        if now_ms <= receipt.pop_time < now_ms + _SAME_TIME_MS:
            # a later pop time: acknowledging the old check point must not acknowledge the new one
            now_ms = receipt.pop_time + 1
        put = self._log.put_check_point(
            PopCheckPoint(
                start_offset=header.offset,
                pop_time=now_ms,
                invisible_time=header.invisible_time,
                count=1,
                queue_id=header.queue_id,
                topic=header.topic,
                group=header.consumer_group,
                diffs=(0,),
                broker_name=receipt.broker_name,
                is_suspended=header.suspend,
            ),
            receipt.revive_queue_id,
        )
        if put.status is PutMessageStatus.PUT_OK:
            put = self._put_ack(header, receipt)
            self._counters.changed_total += 1
        fields = ChangeInvisibleTimeResponseHeader(
            now_ms, header.invisible_time, receipt.revive_queue_id
        )
        self._reply_when_stored(connection, request, put, fields)
        return None

    def _reply_when_stored(
        self,
        connection: Channel,
        request: RemotingCommand,
        put: PutMessageResult,
        fields: ChangeInvisibleTimeResponseHeader | None = None,
    ) -> None:
        bare = request.without_content()

        def on_stored(result: PutMessageResult) -> None:
            if result.status is PutMessageStatus.PUT_OK:
                response = success_response(bare, fields)
            else:
                response = bare.respond(CODES[result.status], result.remark)
            reply(connection, bare, response)

        self._acknowledger.when_stored(put, on_stored)

    # ---- one message

    def _check(
        self, header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader
    ) -> PopReceipt:
        """Return a message's receipt; refuse an invalid one, or one of a missing message."""
        config = require_topic(self._broker.topics, header.topic)
        if not 0 <= header.queue_id < config.read_queue_nums:
            raise RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has readQueueNums "
                f"[{config.read_queue_nums}]",
            )
        low, high = self._store.queue_offsets(header.topic, header.queue_id)
        if not low <= header.offset < high:
            raise RequestRejected(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{header.topic}@{header.queue_id}, "
                f"commit:{header.offset}, store:{low}~{high}",
            )
        try:
            receipt = PopReceipt.decode(header.extra_info)
        except HeaderError as error:
            raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        self._check_revive_queue(receipt.revive_queue_id)
        return receipt

    def _check_revive_queue(self, revive_queue_id: int) -> None:
        if revive_queue_id == ORDER_REVIVE_QUEUE or 0 <= revive_queue_id < self._log.queue_nums:
            return
        raise RequestRejected(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the receipt names revive queue {revive_queue_id}, and this broker has 0 to "
            f"{self._log.queue_nums - 1} (reviveQueueNum): acknowledge with the receipt of the pop",
        )

    def _put_ack(
        self,
        header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader,
        receipt: PopReceipt,
    ) -> PutMessageResult:
        ack = AckMsg(
            ack_offset=header.offset,
            start_offset=receipt.start_offset,
            consumer_group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            pop_time=receipt.pop_time,
            broker_name=receipt.broker_name,
        )
        visible_ms = receipt.pop_time + receipt.invisible_time
        return self._log.put_ack(ack, receipt.revive_queue_id, visible_ms)

    # ---- several messages of one check point

    def _ack_batch(self, batch: BatchAck, broker_name: str | None) -> PutMessageResult | None:
        """Acknowledge messages of a check point; return None if nothing has to be stored."""
        try:
            topic = real_topic(batch.topic, batch.consumer_group, batch.retry)
            bits = decode_bits(batch.bit_set or "", _BIT_SET_BYTES_MAX)
        except HeaderError as error:
            raise RequestRejected(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
        self._check_revive_queue(batch.revive_queue_id)
        config = self._broker.topics.get(topic)
        if config is None or not 0 <= batch.queue_id < config.read_queue_nums:
            return None  # RocketMQ ignores such a batch, too
        low, high = self._store.queue_offsets(topic, batch.queue_id)
        offsets = [
            batch.start_offset + bit for bit in bits if low <= batch.start_offset + bit < high
        ]
        queue = topic, batch.consumer_group, batch.queue_id
        if batch.revive_queue_id == ORDER_REVIVE_QUEUE:
            refusals = [
                self._ack_in_order(queue, queue_offset, batch.pop_time) for queue_offset in offsets
            ]
            for refusal in filter(None, refusals):
                raise refusal
            return None
        if not offsets:
            return None
        ack: Ack = BatchAckMsg(
            ack_offset_list=tuple(offsets),
            start_offset=batch.start_offset,
            consumer_group=batch.consumer_group,
            topic=topic,
            queue_id=batch.queue_id,
            pop_time=batch.pop_time,
            broker_name=broker_name or self._broker.config.broker_name,
        )
        self._counters.acknowledge(queue, len(offsets), batch.pop_time)
        visible_ms = batch.pop_time + batch.invisible_time
        return self._log.put_ack(ack, batch.revive_queue_id, visible_ms)

    # ---- in order

    def _ack_in_order(
        self, queue: PopQueue, queue_offset: int, pop_time: int
    ) -> RequestRejected | None:
        topic, group, queue_id = queue
        stored = self._broker.offsets.query(group, topic, queue_id)
        if stored is not None and queue_offset < stored:
            return None  # the message was acknowledged, or skipped by a reset
        next_offset = self._order.commit_and_next(queue, queue_offset, pop_time, stored)
        if next_offset == UNKNOWN_MESSAGE:
            return RequestRejected(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{stored}, "
                f"commit:{queue_offset}, next:{next_offset}",
            )
        if next_offset < 0:
            return None  # a later pop has the message
        self._counters.acknowledge(queue, 1, pop_time)
        if not self._broker.consumers.is_reset(group, topic, queue_id):
            self._broker.offsets.advance(group, topic, queue_id, next_offset)
        self._releases.schedule(queue)
        return None

    def _change_in_order(
        self,
        request: RemotingCommand,
        queue: PopQueue,
        header: ChangeInvisibleTimeRequestHeader,
        receipt: PopReceipt,
        now_ms: int,
    ) -> RemotingCommand:
        visible_ms = now_ms + header.invisible_time
        self._order.update_next_visible_time(queue, header.offset, receipt.pop_time, visible_ms)
        self._counters.changed_total += 1
        self._releases.schedule(queue)
        fields = ChangeInvisibleTimeResponseHeader(
            receipt.pop_time, visible_ms - receipt.pop_time, receipt.revive_queue_id
        )
        return success_response(request, fields)
