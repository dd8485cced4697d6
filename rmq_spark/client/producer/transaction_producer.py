"""TransactionProducer: messages that are delivered if the work of the application is done.

    half message ─> stored, and no consumer sees it
        ─> the application's own work, such as the commit of a database
        ─> COMMIT: delivered     ROLLBACK: dropped     neither: the broker asks `check_listener`

If this process crashes, the request is lost, or the state is UNKNOWN, the broker asks a client of
the group until it learns the outcome. So the listener must read the outcome from what the work has
stored, for example from a row of the database, and not from memory.

The request that ends a transaction has a response, so that the producer can log that no broker has
accepted it. The caller gets no error: the work is done by then, and the broker's check finds out.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, NamedTuple

from rmq_spark.client import observer
from rmq_spark.client.arguments import (
    check_kind,
    check_range,
    check_send_topic,
    check_topic,
    explain_all_keywords,
    wrong_kind,
)
from rmq_spark.client.errors import BrokerRefused, ClientError, MessageRejected, SendFailed
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import CorrelatedMessage, Message, MessageExt
from rmq_spark.client.producer.producer import Producer
from rmq_spark.client.producer.topic_sender import Selector
from rmq_spark.client.results import SendResult, SendStatus
from rmq_spark.errors import excerpt
from rmq_spark.wire.codes import MessageSysFlag, RequestCode
from rmq_spark.wire.headers.members import (
    CheckTransactionStateRequestHeader,
    EndTransactionRequestHeader,
)
from rmq_spark.wire.message.message_id import decode_offset_message_id
from rmq_spark.wire.message.properties import (
    IMMUNITY_SECONDS,
    PRODUCER_GROUP,
    TRAN_MSG,
    change_properties,
)
from rmq_spark.wire.message_queue import MessageQueue

_log = logging.getLogger(__name__)

_PREPARED: Final = MessageSysFlag.TRANSACTION_PREPARED.value
_REGISTRATION_MS: Final = 1_000


class TransactionState(Enum):
    """Outcome of a transaction; the values are RocketMQ's.

    Attributes:
        COMMIT: The message is delivered.
        ROLLBACK: The message is dropped.
        UNKNOWN: Not known yet: the broker asks later.
    """

    COMMIT = MessageSysFlag.TRANSACTION_COMMIT.value
    ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK.value
    UNKNOWN = 0


CheckListener = Callable[[MessageExt], TransactionState]
"""Finds out how the transaction of a message has ended; called in a thread of the client."""

LocalTransaction = Callable[[SendResult], TransactionState]
"""Does the work of a transaction, and returns how it has ended."""


class TransactionResult(NamedTuple):
    """Outcome of a transaction.

    Attributes:
        send_result: Where the half message is stored; its ``message_id`` is that of the message
            that consumers get.
        state: How the transaction has ended.
        is_acknowledged: Whether a broker has stored this state; if not, it asks the check listener.
    """

    send_result: SendResult
    state: TransactionState
    is_acknowledged: bool


class _HalfMessage(NamedTuple):
    """A message to store unseen, and the arguments of its send."""

    message: Message
    queue: MessageQueue | Selector | None
    timeout_ms: int
    immunity_seconds: int | None


class _CheckResponder:
    """Answers the brokers that ask a producer group how transactions have ended."""

    def __init__(
        self, group: str, check_listener: CheckListener, instance: Callable[[], ClientInstance]
    ) -> None:
        self._group = group
        self._check_listener = check_listener
        self._instance = instance

    def check_transaction_state(
        self, address: str, message: MessageExt, header: CheckTransactionStateRequestHeader
    ) -> None:
        instance = self._instance()
        namespace = instance.namespace
        try:
            returned = self._check_listener(namespace.strip_message(message))
            state = check_state("what check_listener has returned", returned)
        except Exception:  # noqa: BLE001  # the broker asks again
            _log.exception(
                "check_listener of %s failed for message %s of %s; the broker asks it again",
                self._group,
                message.message_id,
                message.topic,
            )
            state = TransactionState.UNKNOWN
        end = EndTransactionRequestHeader(
            namespace.wrap(self._group),
            header.tran_state_table_offset,
            header.commit_log_offset,
            state.value,
            header.msg_id or message.message_id,
            from_transaction_check=True,
            transaction_id=header.transaction_id,
            topic=message.topic,
            broker_name=header.broker_name,
        )
        instance.api.end_transaction_one_way(address, end)


@explain_all_keywords
class TransactionProducer(Producer):
    """Sends messages that become visible when the application's own work is done, or never.

    The other sends of `Producer` work as well. Several clients of a group may answer for each
    other, so all of them need the same ``check_listener``.

    Example:
        def check(message):  # called if this process ended too early, or its answer was lost
            return COMMIT if database.has_order(message.keys) else ROLLBACK

        with TransactionProducer("shop", "localhost:9876", check_listener=check) as producer:
            with producer.transaction(Message("orders", b"one", keys="order-42")):
                database.insert_order("order-42")

    Args:
        group: Name of the producer group.
        namesrv: Addresses of the name servers, as ``"host:port;host:port"`` or an iterable of
            ``"host:port"``. Defaults to the environment variable NAMESRV_ADDR.
        check_listener: A function from the message of an open transaction to its
            `TransactionState`. Several threads may call it at once. If it raises an error, the
            broker asks again later.
        topics: Topics of the transactions. Their brokers know this client from its start on, and
            can ask it about messages of an earlier process. Other brokers know it from its first
            transaction on.
        instance: A `ClientInstance` to share with other producers and consumers; ``namesrv``
            is then ignored. Without it, the producer has an instance of its own.
        settings: The other settings of `Producer`.

    Raises:
        MessageRejected: The group is not a valid name, or a number is out of range.
        TypeError: An argument has the wrong type.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str] | None = None,
        *,
        check_listener: CheckListener,
        topics: Iterable[str] = (),
        instance: ClientInstance | None = None,
        **settings: Any,
    ) -> None:
        check_transaction_listener(check_listener)
        self._topics = check_topics(topics)
        member = _CheckResponder(group, check_listener, lambda: self.instance)
        super().__init__(group, namesrv, instance=instance, member=member, **settings)

    def start(self) -> None:
        """Start the producer. Calling it again has no effect.

        Raises:
            MessageRejected: Another producer of the instance has the same group.
            ClientShutDown: The instance was shut down.
            RouteNotFound: One of ``topics`` does not exist, and no broker creates it.
            ClientError: The name servers cannot be reached, to find the brokers of ``topics``.
        """
        with self._state_lock:
            is_new = not self._is_running
            super().start()
            if is_new:
                try:
                    for topic in self._topics:
                        self._sender.ensure_registered(topic, _REGISTRATION_MS)
                except BaseException:
                    self.shutdown()
                    raise

    def transaction(
        self,
        message: Message,
        queue: MessageQueue | Selector | None = None,
        timeout_ms: int | None = None,
        *,
        check_immunity_seconds: int | None = None,
    ) -> Transaction:
        """Return a transaction for a ``with`` statement, whose block does the work.

        The message is stored, unseen, before the block begins. It is committed when the block ends,
        and rolled back if the block raises an `Exception`. If the block ends in any other way, such
        as KeyboardInterrupt or the death of the process, the broker asks the check listener.

        A commit may fail although the database has stored it: if that is possible, call
        ``leave_open`` of the transaction, and the check listener decides.

        Args:
            message: The message to send; it cannot be delayed.
            queue: The queue to send to, or a function that chooses one of the topic's queues. By
                default, the producer takes the queues in turn, or by the message's sharding key.
            timeout_ms: Milliseconds for all tries to store the message, and for the request that
                ends the transaction; ``send_timeout_ms`` by default.
            check_immunity_seconds: Seconds for which the broker does not ask; by default its
                setting transactionTimeOut, 6 s.

        Raises:
            MessageRejected: No broker would accept the message, or it is delayed.
            TypeError: An argument has the wrong type.
        """
        check_kind("message", message, Message, "a Message", "Message('orders', b'body')")
        if message.delay_level:
            raise MessageRejected(
                "delay_level in a transaction",
                "0, because brokers cannot delay it",
                message.delay_level,
            )
        if isinstance(message, CorrelatedMessage):
            raise MessageRejected("message in a transaction", "no request and no reply", message)
        if check_immunity_seconds is not None:
            check_range("check_immunity_seconds", check_immunity_seconds)
        half = _HalfMessage(message, queue, self._time(timeout_ms), check_immunity_seconds)
        return Transaction(half, self._send_observed_half, self._end_transaction)

    def send_in_transaction(
        self,
        message: Message,
        local_transaction: LocalTransaction,
        queue: MessageQueue | Selector | None = None,
        timeout_ms: int | None = None,
        *,
        check_immunity_seconds: int | None = None,
    ) -> TransactionResult:
        """Store a message unseen, call a function, and end the transaction as it says.

        If the function raises an error, the transaction stays open, the broker asks the check
        listener, and the error is raised again.

        Args:
            message: The message to send; it cannot be delayed.
            local_transaction: A function from the result of the send to a `TransactionState`.
            queue: The queue to send to, or a function that chooses one of the topic's queues.
            timeout_ms: Milliseconds for all tries to store the message, and for the request that
                ends the transaction; ``send_timeout_ms`` by default.
            check_immunity_seconds: Seconds for which the broker does not ask; by default its
                setting transactionTimeOut, 6 s.

        Returns:
            Where the message is stored, and how the transaction has ended.

        Raises:
            ClientShutDown: The producer is not running.
            MessageRejected: No broker would accept the message, or it is delayed.
            RouteNotFound: The topic does not exist, and no broker creates it.
            BrokerRefused: A broker refused the message, or does not accept transactions.
            SendFailed: All tries failed, or the message was not stored safely and was rolled back.
                The function was not called.
            TypeError: The function returned no `TransactionState`. The transaction stays open.
        """
        check_local_transaction(local_transaction)
        transaction = self.transaction(
            message, queue, timeout_ms, check_immunity_seconds=check_immunity_seconds
        )
        sent = transaction.begin()
        try:
            state = check_state("what local_transaction has returned", local_transaction(sent))
        except BaseException:
            transaction.leave_open()
            raise
        return transaction.end(state)

    # ---- for Transaction

    def _send_observed_half(self, half: _HalfMessage) -> SendResult:
        sending = observer.observe_send((half.message,))
        if sending is None:
            return self._send_half(half)
        with sending:
            result = self._send_half(half._replace(message=sending.messages[0]))
            sending.on_results((result,))
        return result

    def _send_half(self, half: _HalfMessage) -> SendResult:
        message, queue, timeout_ms, immunity_seconds = half
        prepared = self._prepare(message)
        # The broker asks only clients that it knows: without this, it would know this one later.
        self._ensure_registered(message, min(timeout_ms, _REGISTRATION_MS))
        properties = {
            TRAN_MSG: "true",
            PRODUCER_GROUP: self.instance.namespace.wrap(self.group),
            IMMUNITY_SECONDS: None if immunity_seconds is None else str(immunity_seconds),
        }
        prepared = prepared._replace(
            properties_text=change_properties(prepared.properties_text, properties),
            sys_flag=prepared.sys_flag | _PREPARED,
        )
        fixed = self._sender.fixed_queue(message, queue)
        if fixed is not None:
            return self._sync_sender.send_once(prepared, fixed, timeout_ms)
        return self._sync_sender.send(prepared, timeout_ms)

    def _end_transaction(self, sent: SendResult, state: TransactionState, timeout_ms: int) -> bool:
        """End a transaction; return whether a broker has stored its state."""
        _, position = decode_offset_message_id(sent.offset_message_id)
        namespace = self.instance.namespace
        header = EndTransactionRequestHeader(
            namespace.wrap(self.group),
            sent.queue_offset,
            position,
            state.value,
            sent.message_id,
            transaction_id=sent.transaction_id,
            topic=namespace.wrap(sent.queue.topic),
            broker_name=sent.queue.broker_name,
        )
        try:
            self._check_running()
            address = self.instance.routes.master_address(sent.queue.broker_name)
            self.instance.api.end_transaction(address, header, timeout_ms)
            if self._tracer is not None:
                self._tracer.record_end(sent, address, f"{state.name}_MESSAGE")
        except ClientError as error:
            _log.warning(
                "%s of %s failed, the broker asks check_listener of %s: %s",
                state.name,
                sent.message_id,
                self.group,
                error,
            )
            return False
        return True


class Transaction:
    """One transaction of a `TransactionProducer`, in a ``with`` statement.

    Attributes:
        send_result: Where the message is stored, unseen; None before the block begins.
        result: Outcome of the transaction; None while it is open.
    """

    def __init__(
        self,
        half: _HalfMessage,
        send: Callable[[_HalfMessage], SendResult],
        end: Callable[[SendResult, TransactionState, int], bool],
    ) -> None:
        self._half = half
        self._send = send
        self._end = end
        self._process_id = 0
        self._is_left_open = False
        self.send_result: SendResult | None = None
        self.result: TransactionResult | None = None

    @property
    def message_id(self) -> str:
        """The id of the message, which consumers and the check listener get as well."""
        return self._sent().message_id

    def begin(self) -> SendResult:
        """Store the message unseen; the ``with`` statement calls this."""
        if self.send_result is not None:
            raise RuntimeError("a transaction begins once. Call transaction() for another")
        sent = self._send(self._half)
        self.send_result = sent
        self._process_id = os.getpid()
        if sent.send_status is not SendStatus.SEND_OK:
            self.end(TransactionState.ROLLBACK)
            remark = "the message is stored less safely than the broker promises, and rolled back"
            refused = BrokerRefused(
                sent.send_status.value, remark, sent.queue.broker_name, RequestCode.SEND_MESSAGE_V2
            )
            raise SendFailed(sent.queue.topic, [refused])
        return sent

    def commit(self) -> TransactionResult:
        """Commit now, before the block ends."""
        return self.end(TransactionState.COMMIT)

    def rollback(self) -> TransactionResult:
        """Roll back now, although the block may end without an error."""
        return self.end(TransactionState.ROLLBACK)

    def leave_open(self) -> None:
        """Keep the transaction open when the block ends; the broker asks the check listener."""
        self._sent()
        self._is_left_open = True

    def end(self, state: TransactionState) -> TransactionResult:
        """End the transaction once; a second end, or one after `leave_open`, has no effect."""
        sent = self._sent()
        if self.result is None:
            is_open = self._is_left_open or state is TransactionState.UNKNOWN
            is_acknowledged = not is_open and self._end(sent, state, self._half.timeout_ms)
            state = TransactionState.UNKNOWN if is_open else state
            self.result = TransactionResult(sent, state, is_acknowledged)
        return self.result

    def _sent(self) -> SendResult:
        if self.send_result is None:
            raise RuntimeError("the transaction has not begun. Use it in a with statement")
        return self.send_result

    def __enter__(self) -> Transaction:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if os.getpid() != self._process_id:  # a forked child: the parent ends it
            return
        if kind is None:
            self.commit()
        elif issubclass(kind, Exception):
            self.rollback()
        else:
            self.leave_open()


def check_topics(topics: Iterable[str]) -> tuple[str, ...]:
    """Return the topics of transactions as a tuple; raise an error if they are not valid."""
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise wrong_kind("topics", "several names of topics", excerpt(topics), '["orders"]')
    return tuple(check_send_topic(check_topic(topic, "topics")) for topic in topics)


def check_transaction_listener(listener: object) -> None:
    """Raise TypeError if a check listener is not a function."""
    needed = "a function from a message to a TransactionState"
    _check_function("check_listener", listener, needed, "message")


def check_local_transaction(function: object) -> None:
    """Raise TypeError if a local transaction is not a function."""
    needed = "a function that returns a TransactionState"
    _check_function("local_transaction", function, needed, "result")


def _check_function(name: str, found: object, needed: str, parameter: str) -> None:
    if not callable(found):
        example = f"lambda {parameter}: TransactionState.COMMIT"
        raise wrong_kind(name, needed, excerpt(found), example)


def check_state(what: str, state: object) -> TransactionState:
    """Return a state; raise TypeError for anything else, such as a forgotten return."""
    if not isinstance(state, TransactionState):
        raise wrong_kind(what, "a TransactionState", excerpt(state), "TransactionState.COMMIT")
    return state
