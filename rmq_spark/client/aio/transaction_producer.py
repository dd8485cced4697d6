"""TransactionProducer for asyncio: the threaded one, with blocks and listeners that may await.

The message is stored, and the transaction ended, in threads of the process. A check listener that
is a coroutine function runs in the loop; any other function, in a thread of the client.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Final

from rmq_spark.client.aio.producer import LoopProducer, Producer
from rmq_spark.client.arguments import explain_all_keywords
from rmq_spark.client.message import Message, MessageExt
from rmq_spark.client.producer.topic_sender import Selector
from rmq_spark.client.producer.transaction_producer import (
    Transaction,
    TransactionResult,
    TransactionState,
    check_local_transaction,
    check_state,
    check_topics,
    check_transaction_listener,
)
from rmq_spark.client.producer.transaction_producer import (
    TransactionProducer as ThreadedTransactionProducer,
)
from rmq_spark.client.results import SendResult
from rmq_spark.wire.message_queue import MessageQueue

CHECK_SECONDS_MAX: Final = 60.0
"""Seconds that a check listener may take in the loop; then the broker asks again later."""


class LoopTransactionProducer(LoopProducer, ThreadedTransactionProducer):
    """The threaded producer inside a `TransactionProducer`."""


@explain_all_keywords
class TransactionProducer(Producer):
    """Sends messages that become visible when the application's own work is done, or never.

    The other sends of `Producer` work as well. Several clients of a group may answer for each
    other, so all of them need the same ``check_listener``.

    Example:
        async with TransactionProducer("shop", "localhost:9876", check_listener=check) as producer:
            async with producer.transaction(Message("orders", b"one", keys="order-42")):
                await database.insert_order("order-42")

    Args:
        group: Name of the producer group.
        namesrv: Addresses of the name servers, as ``"host:port;host:port"`` or an iterable of
            ``"host:port"``. Defaults to the environment variable NAMESRV_ADDR.
        check_listener: A function or a coroutine function from the message of an open transaction
            to its `TransactionState`.
        topics: Topics of the transactions. Their brokers know this client from its start on, and
            can ask it about messages of an earlier process. Other brokers know it from its first
            transaction on.
        settings: The other settings of `Producer`.

    Raises:
        MessageRejected: The group is not a valid name. Other arguments that cannot work raise an
            error from the first call that is awaited.
        TypeError: The group is not a str, or the listener not a function.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str] | None = None,
        *,
        check_listener: Callable[[MessageExt], TransactionState | Awaitable[TransactionState]],
        topics: Iterable[str] = (),
        **settings: Any,
    ) -> None:
        check_transaction_listener(check_listener)
        self._check_listener = check_listener
        self._topics = check_topics(topics)
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(group, namesrv, **settings)

    def _create_threaded(self, **settings: Any) -> LoopProducer:
        return LoopTransactionProducer(
            self.group, check_listener=self._check, topics=self._topics, **settings
        )

    async def start(self) -> None:
        """Start; a cancelled start is undone in the background. Starting again has no effect.

        Raises:
            ClientShutDown: It was closed, or belongs to another event loop or process.
            MessageRejected: A setting is out of range, or its client has another producer of its
                group.
            TypeError: A setting has the wrong type.
            RouteNotFound: One of ``topics`` does not exist, and no broker creates it.
            ClientError: The name servers cannot be reached, to find the brokers of ``topics``.
        """
        self._loop = asyncio.get_running_loop()
        await super().start()

    def _check(self, message: MessageExt) -> TransactionState:
        """Call the check listener in a thread of the client."""
        found = self._check_listener(message)
        if not inspect.isawaitable(found):
            return found
        loop = self._loop
        if loop is None or loop.is_closed():
            raise RuntimeError("the event loop of the check listener is closed")

        async def wait() -> TransactionState:
            return await found

        future = asyncio.run_coroutine_threadsafe(wait(), loop)
        try:
            return future.result(CHECK_SECONDS_MAX)
        except FutureTimeoutError:
            future.cancel()
            raise

    def transaction(
        self,
        message: Message,
        queue: MessageQueue | Selector | None = None,
        timeout_ms: int | None = None,
        *,
        check_immunity_seconds: int | None = None,
    ) -> AsyncTransaction:
        """Return a transaction for an ``async with`` statement, whose block does the work.

        The message is stored, unseen, before the block begins. It is committed when the block ends,
        and rolled back if the block raises an `Exception`. If the block is cancelled, or the
        process ends in it, the broker asks the check listener.

        Args:
            message: The message to send; it cannot be delayed.
            queue: The queue to send to, or a function that chooses one of the topic's queues. By
                default, the producer takes the queues in turn, or by the message's sharding key.
            timeout_ms: Milliseconds for all tries to store the message, and for the request that
                ends the transaction; ``send_timeout_ms`` by default.
            check_immunity_seconds: Seconds for which the broker does not ask; by default its
                setting transactionTimeOut, 6 s.

        Raises:
            ClientShutDown: The producer is not running, or belongs to another loop or process.
            MessageRejected: No broker would accept the message, or it is delayed.
            TypeError: An argument has the wrong type.
        """
        threaded = self._get_started()
        assert isinstance(threaded, LoopTransactionProducer)  # noqa: S101  # the type that _create_threaded makes
        transaction = threaded.transaction(
            message, queue, timeout_ms, check_immunity_seconds=check_immunity_seconds
        )
        return AsyncTransaction(transaction, self._call)

    async def send_in_transaction(
        self,
        message: Message,
        local_transaction: Callable[[SendResult], TransactionState | Awaitable[TransactionState]],
        queue: MessageQueue | Selector | None = None,
        timeout_ms: int | None = None,
        *,
        check_immunity_seconds: int | None = None,
    ) -> TransactionResult:
        """Store a message unseen, call or await a function, and end the transaction as it says.

        If the function raises an error or is cancelled, the transaction stays open, the broker asks
        the check listener, and the error is raised again.

        Args:
            message: The message to send; it cannot be delayed.
            local_transaction: A function or a coroutine function from the result of the send to a
                `TransactionState`.
            queue: The queue to send to, or a function that chooses one of the topic's queues.
            timeout_ms: Milliseconds for all tries to store the message, and for the request that
                ends the transaction; ``send_timeout_ms`` by default.
            check_immunity_seconds: Seconds for which the broker does not ask; by default its
                setting transactionTimeOut, 6 s.

        Returns:
            Where the message is stored, and how the transaction has ended.

        Raises:
            ClientShutDown: The producer is not running, or belongs to another loop or process.
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
        sent = await transaction.begin()
        try:
            found = local_transaction(sent)
            state = await found if inspect.isawaitable(found) else found
            state = check_state("what local_transaction has returned", state)
        except BaseException:
            transaction.leave_open()
            raise
        return await transaction.end(state)


class AsyncTransaction:
    """One transaction of a `TransactionProducer`, in an ``async with`` statement.

    Attributes:
        send_result: Where the message is stored, unseen; None before the block begins.
        result: Outcome of the transaction; None while it is open.
    """

    def __init__(self, threaded: Transaction, call: Callable[..., Awaitable[Any]]) -> None:
        """Wrap a threaded transaction; ``call`` runs a function in a thread."""
        self._threaded = threaded
        self._call = call

    @property
    def send_result(self) -> SendResult | None:  # noqa: D102  # see the class
        return self._threaded.send_result

    @property
    def result(self) -> TransactionResult | None:  # noqa: D102  # see the class
        return self._threaded.result

    @property
    def message_id(self) -> str:
        """The id of the message, which consumers and the check listener get as well."""
        return self._threaded.message_id

    async def begin(self) -> SendResult:
        """Store the message unseen; the ``async with`` statement calls this."""
        sent: SendResult = await self._call(lambda _: self._threaded.begin())
        return sent

    async def commit(self) -> TransactionResult:
        """Commit now, before the block ends."""
        return await self.end(TransactionState.COMMIT)

    async def rollback(self) -> TransactionResult:
        """Roll back now, although the block may end without an error."""
        return await self.end(TransactionState.ROLLBACK)

    def leave_open(self) -> None:
        """Keep the transaction open when the block ends; the broker asks the check listener."""
        self._threaded.leave_open()

    async def end(self, state: TransactionState) -> TransactionResult:
        """End the transaction once; a second end, or one after `leave_open`, has no effect."""
        ended: TransactionResult = await self._call(lambda _: self._threaded.end(state))
        return ended

    async def __aenter__(self) -> AsyncTransaction:
        await self.begin()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.commit()
        elif issubclass(kind, Exception):
            await self.rollback()
        else:
            self.leave_open()
