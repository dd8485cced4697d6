"""EndTransactionProcessor: commits or rolls back half messages, and asks producers which.

    END_TRANSACTION ─> the half message at its log offset, if it matches the request
        ─> commit: the message for consumers, and the op message after it, in one write
        ─> roll back: the op message
        ─> unknown: nothing; the next check asks again
    CHECK_TRANSACTION_STATE <─ the check service, for a half message that is open too long

A crash leaves both messages of a commit, or neither. If a crash tears the write apart between them,
which only happens to a commit that was not acknowledged, the next check asks again. An op message
at the end of a hole in the log does not count, because the message before it may be lost.

A commit of a message that is committed delivers nothing and adds only an op message. The process
remembers its last commits. For half messages from before the start, it searches the index for the
committed message. A commit that follows a rollback delivers the message, as in RocketMQ: its
producer's work is done after all.

Most producers end transactions one-way: they do not learn of a refusal, and the next check asks
them again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from rmq_spark.errors import RecordError
from rmq_spark.wire.codes import MessageSysFlag, RequestCode, ResponseCode
from rmq_spark.wire.headers.members import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from rmq_spark.wire.headers.operators import ResumeCheckHalfMessageRequestHeader
from rmq_spark.wire.message.message_id import decode_offset_message_id
from rmq_spark.wire.message.properties import PRODUCER_GROUP, REAL_TOPIC, UNIQ_KEY
from rmq_spark.wire.message.record import StoredMessage, decode_record, encode_record, magic_of
from rmq_spark.wire.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from rmq_spark.wire.remoting.command import RemotingCommand
from rmq_spark.wire.remoting.framing import Buffer

from ...auth.rights import Action, ResourceType
from ...common.channel import Channel, ResponseSteps
from ...schedule.delayed_message import REAL_QUEUE_ID, UndeliverableMessage
from ...schedule.real_topic_delivery import RealTopicDelivery
from ...store.results import PhysicalOffset, PutMessageResult
from ...transaction.half_message import op_message, to_committed, to_resumed
from ..processor import BrokerParts, Processor, handles
from ..queues import is_in_queue
from ..request import (
    HandlerResult,
    RequestRejected,
    TopicNotSaved,
    header_of,
    one_way_command,
    reply,
    success_response,
    system_error,
)
from .send_message import CODES, SendParts

_log = logging.getLogger(__name__)
UNKNOWN: Final = 0
COMMIT: Final = MessageSysFlag.TRANSACTION_COMMIT.value
ROLLBACK: Final = MessageSysFlag.TRANSACTION_ROLLBACK.value
_NOT_FOUND: Final = "Find prepared transaction message failed"


class EndTransactionProcessor(Processor):
    """Commits and rollbacks of transactions, and checks of their state."""

    def __init__(self, broker: BrokerParts, sends: SendParts, delivery: RealTopicDelivery) -> None:
        """Store the parts; ``delivery`` finds the topics of committed messages."""
        super().__init__(broker)
        self._acknowledger = sends.acknowledger
        self._delivery = delivery
        self._turn = 0

    @handles(RequestCode.END_TRANSACTION)
    def end_transaction(self, connection: Channel, request: RemotingCommand) -> HandlerResult:
        """Commit a half message, or roll it back."""
        header: EndTransactionRequestHeader = header_of(request)
        if header.commit_or_rollback == UNKNOWN:
            return success_response(request)
        if header.commit_or_rollback not in (COMMIT, ROLLBACK):
            raise system_error(
                f"commitOrRollback is {header.commit_or_rollback}; send {COMMIT} to commit, "
                f"{ROLLBACK} to roll back, or {UNKNOWN} if the state is unknown"
            )
        half = self._find(connection, header)
        bare = request.without_content()
        refusal = self._broker.store.unavailable_reason()
        if refusal is not None:
            raise RequestRejected(ResponseCode.SERVICE_NOT_AVAILABLE, refusal)
        if header.commit_or_rollback == ROLLBACK:
            self._roll_back(connection, bare, half)
        elif self._broker.transactions.commits.must_search(half):
            return self._search_and_commit(connection, bare, half)
        else:
            self._commit(connection, bare, half)
        return None

    def _find(self, connection: Channel, header: EndTransactionRequestHeader) -> StoredMessage:
        """Return the half message that a request names, if its client may send to the topic."""
        record = self._broker.store.record_at(PhysicalOffset(header.commit_log_offset))
        try:
            half = decode_record(record) if record is not None else None
        except RecordError:
            half = None
        if half is None or record is None or not self._may_end(connection, half, record):
            raise system_error(_NOT_FOUND)
        if half.properties.get(PRODUCER_GROUP) != header.producer_group:
            raise system_error("The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise system_error("The transaction state table offset wrong")
        if half.physical_offset != header.commit_log_offset:
            raise system_error("The commit log offset wrong")
        return half

    def _may_end(self, connection: Channel, half: StoredMessage, record: Buffer) -> bool:
        """Return whether a record is a half message whose topic its client may send to."""
        access = self._broker.access
        if half.topic != HALF_TOPIC or not access.is_enabled:
            return half.topic == HALF_TOPIC
        if not access.allows(
            connection, ResourceType.TOPIC, half.properties.get(REAL_TOPIC, ""), Action.PUB
        ):
            return False
        # A message's body may look like a half message: only real ones are in the queue.
        return is_in_queue(self._broker.store, half, record)

    def _committed(self, half: StoredMessage) -> StoredMessage:
        try:
            target = self._delivery.target(half, to_committed)
        except UndeliverableMessage as error:
            raise RequestRejected(
                ResponseCode.TOPIC_NOT_EXIST,
                f"half message {half.message_id} cannot be committed: {error}",
            ) from None
        if target is None:
            raise TopicNotSaved(half.properties[REAL_TOPIC])
        return target

    def _search_and_commit(
        self, connection: Channel, request: RemotingCommand, half: StoredMessage
    ) -> ResponseSteps:
        """Commit a half message, after a search for its message in the log."""
        yield from self._broker.transactions.commits.search(half)
        self._commit(connection, request, half)
        return None

    def _commit(self, connection: Channel, request: RemotingCommand, half: StoredMessage) -> None:
        commits = self._broker.transactions.commits
        if half in commits:
            (result,) = self._put_end(half)
            self._acknowledger.when_stored(result, partial(self._reply, connection, request))
            return
        committed, op = self._put_end(half, self._committed(half))
        if op.is_stored:
            commits.add(half)
        self._acknowledger.when_stored(
            op, partial(self._end_commit, connection, request, half, committed)
        )

    def _end_commit(
        self,
        connection: Channel,
        request: RemotingCommand,
        half: StoredMessage,
        committed: PutMessageResult,
        op: PutMessageResult,
    ) -> None:
        """Answer a commit whose messages are stored, or refused."""
        if op.is_stored:
            broker = self._broker
            broker.transactions.committed_total += 1
            size = committed.end_offset - committed.physical_offset
            broker.stats.record_put(half.properties[REAL_TOPIC], 1, size)
        self._reply(connection, request, op)

    def _roll_back(
        self, connection: Channel, request: RemotingCommand, half: StoredMessage
    ) -> None:
        (result,) = self._put_end(half)
        if result.is_stored:
            self._broker.transactions.rolled_back_total += 1
        self._acknowledger.when_stored(result, partial(self._reply, connection, request))

    def _put_end(self, half: StoredMessage, *before: StoredMessage) -> Sequence[PutMessageResult]:
        """Append the op message of a half message, and in the same write the messages before it."""
        transactions = self._broker.transactions
        transactions.begin_end(half.queue_offset)
        op = op_message(half, self._broker.now_ms())
        results = self._broker.store.put_together((*before, op))
        if not results[-1].is_stored:
            transactions.cancel_end(half.queue_offset)
        return results

    def _reply(
        self, connection: Channel, request: RemotingCommand, result: PutMessageResult
    ) -> None:
        is_stored = result.is_stored
        code = ResponseCode.SUCCESS if is_stored else CODES[result.status]
        reply(connection, request, request.respond(code, None if is_stored else result.remark))

    @handles(RequestCode.RESUME_CHECK_HALF_MESSAGE)
    def resume_check_half_message(
        self, connection: Channel, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Append a given-up half message once more, so that its producer is asked again."""
        header: ResumeCheckHalfMessageRequestHeader = header_of(request)
        try:
            _, physical_offset = decode_offset_message_id(header.msg_id or "")
            record = self._broker.store.record_at(PhysicalOffset(physical_offset))
            half = decode_record(record) if record is not None else None
        except RecordError:
            half = None
        if half is None or half.topic not in (CHECK_MAX_TIME_TOPIC, HALF_TOPIC):
            raise system_error(
                f"message [{header.msg_id}] is not a half message. Use the offsetMsgId of a "
                f"message in {CHECK_MAX_TIME_TOPIC}"
            )
        bare = request.without_content()
        result = self._broker.store.put_message(to_resumed(half))
        self._acknowledger.when_stored(result, partial(self._reply, connection, bare))
        return None

    # ---- checks

    def send_check(self, half: StoredMessage) -> bool:
        """Ask a producer for the state of a half message; return False if none is connected.

        The clients of a group take turns, because each may answer for all. A client that may not
        send to the topic is not asked.
        """
        properties = half.properties
        topic, queue_id = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
        channel = self._find_producer(properties.get(PRODUCER_GROUP, ""), topic)
        if channel is None:
            return False
        unique_id = properties.get(UNIQ_KEY)
        header = CheckTransactionStateRequestHeader(
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.physical_offset,
            msg_id=unique_id,
            transaction_id=unique_id,
            offset_msg_id=half.offset_message_id,
            topic=topic,
            broker_name=self._broker.config.broker_name,
        )
        shown = replace(
            half,
            topic=topic,
            queue_id=int(queue_id) if queue_id.isdecimal() else 0,
            magic=magic_of(topic),
        )
        try:
            body = encode_record(shown)
        except RecordError as error:  # its properties name an invalid topic
            _log.error("half message %s cannot be checked: %s", half.message_id, error)
            return False
        channel.send(one_way_command(RequestCode.CHECK_TRANSACTION_STATE, header, body))
        return True

    def _find_producer(self, group: str, topic: str) -> Channel | None:
        access = self._broker.access
        connections = [
            info.connection
            for info in self._broker.producers.channels(group)
            if not (info.connection.is_closed or info.connection.is_congested)
        ]
        self._turn += 1
        for at in range(len(connections)):
            connection = connections[(self._turn + at) % len(connections)]
            if not access.is_enabled or access.allows(
                connection, ResourceType.TOPIC, topic, Action.PUB
            ):
                return connection
        return None
