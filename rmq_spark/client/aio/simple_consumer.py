"""SimpleConsumer for asyncio: awaits messages that brokers pop, and acknowledges them.

    receive ──thread──▶ pop ──▶ broker holds it ──▶ thread: messages, or the next pop ──▶ loop
            └─ cancelled ──▶ the next `receive` continues the pop that the broker holds;
                             messages that arrive earlier are given back to the group
    close ──▶ waits a moment until all that nobody receives is given back

No thread waits while a broker holds a pop. The steps of a `receive` are the threaded consumer's.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from rmq_spark.client.aio.client import Client, shared_or_own
from rmq_spark.client.aio.loop_bridge import LoopPromise, schedule_call
from rmq_spark.client.aio.wrapper import AsyncWrapper, run_in_thread
from rmq_spark.client.arguments import check_flag, check_group, explain_all_keywords
from rmq_spark.client.consumer.simple_consumer import (
    INVISIBLE_MS,
    RECEIVE_TIMEOUT_MS,
    PopSteps,
    check_pop_start,
    check_receive,
)
from rmq_spark.client.consumer.simple_consumer import SimpleConsumer as ThreadedSimpleConsumer
from rmq_spark.client.message import MessageExt
from rmq_spark.client.times import LATEST
from rmq_spark.wire.pop import POP_MESSAGES_MAX

if TYPE_CHECKING:
    from rmq_spark.client.results import PopResult
    from rmq_spark.client.transport.pending_requests import ResponseFuture


class LoopSimpleConsumer(ThreadedSimpleConsumer):
    """The threaded consumer inside a `SimpleConsumer`; a thread runs each step of a `receive`."""

    def new_receive(self, max_messages: int, invisible_ms: int, timeout_ms: int) -> _ReceiveCall:
        """Return a `receive` that has not begun, and whose arguments are checked."""
        return _ReceiveCall(
            self._receive_steps(max_messages, invisible_ms, timeout_ms),
            form=(max_messages, invisible_ms, self._subscriptions),
            deadline=time.monotonic() + timeout_ms / 1_000,
        )

    def continue_receive(
        self, receive: _ReceiveCall, popped: ResponseFuture[PopResult] | None = None
    ) -> None:
        """Take the result of a pop and send the next one; this runs in a thread."""
        self._unfinished.add(receive)
        try:
            result = None if popped is None else self._pop_result(receive, popped)
            if not receive.is_awaited and (result is None or not result.messages):
                self._end_receive(receive, [])  # no caller waits: no further pop
                return
            step = next(receive.steps) if result is None else receive.steps.send(result)
            popping = self._send_pop(receive, *step)
        except StopIteration as end:
            self._end_receive(receive, end.value)
        except BaseException as error:  # noqa: BLE001  # the coroutine gets any error
            self._end_receive(receive, [], error)
        else:
            popping.add_done_callback(
                lambda _: schedule_call(partial(self.continue_receive, receive, popping))
            )

    def _end_receive(
        self, receive: _ReceiveCall, found: list[MessageExt], error: BaseException | None = None
    ) -> None:
        promise = receive.end(found)
        if promise is None:
            self.release_messages(receive, found)
            return
        if not found:
            self._unfinished.discard(receive)
        if error is None:
            promise.set_result(found)
        else:
            promise.set_exception(error)

    def on_received(self, receive: _ReceiveCall) -> None:
        """Note that a coroutine has the messages, so that `close` need not wait for them."""
        self._unfinished.discard(receive)

    def release_messages(self, receive: _ReceiveCall, messages: Iterable[MessageExt]) -> None:
        """Make messages that nobody receives visible again, so that they are redelivered soon."""
        try:
            self._give_back(messages)
        finally:
            self._unfinished.discard(receive)


class _ReceiveCall:
    """One `receive`: its steps, and the promise that the loop awaits.

    A pop that a broker holds cannot be cancelled. After a cancelled `receive`, the next one
    therefore continues its pop: otherwise short waits in a loop would leave many held pops, which
    would get messages before the awaited one.
    """

    def __init__(self, steps: PopSteps, *, form: object, deadline: float) -> None:
        self.steps = steps
        self._form = form
        self._deadline = deadline
        self._lock = threading.Lock()
        self._promise: LoopPromise[list[MessageExt]] | None = None
        self._found: list[MessageExt] = []
        self._is_over = False

    def await_by(self, promise: LoopPromise[list[MessageExt]]) -> None:
        """Give the messages to a promise."""
        self._promise = promise

    @property
    def is_awaited(self) -> bool:
        return self._promise is not None

    @property
    def is_over(self) -> bool:
        return self._is_over

    def end(self, found: list[MessageExt]) -> LoopPromise[list[MessageExt]] | None:
        """Keep the messages for `abandon`; return the promise that gets them, if any."""
        with self._lock:
            self._is_over, self._found = True, found
            return self._promise

    def abandon(self) -> tuple[list[MessageExt], bool]:
        """Drop the promise; return the messages that nobody gets, and whether a pop is pending."""
        with self._lock:
            self._promise = None
            return self._found, not self._is_over

    def resume_for(self, other: _ReceiveCall, promise: LoopPromise[list[MessageExt]]) -> bool:
        """Give the messages to a promise if ``other`` asks for the same, and ends no earlier."""
        if self._form != other._form or self._deadline > other._deadline:
            return False
        with self._lock:
            if self._is_over:
                return False
            self._promise = promise
            return True


@explain_all_keywords
class SimpleConsumer(AsyncWrapper[LoopSimpleConsumer]):
    """A member of a consumer group that receives messages and acknowledges them one by one.

    More members than queues can share the work, and a slow message delays no other. A message that
    is not acknowledged within its invisible time is delivered again, with ``reconsume_times`` one
    higher. Messages are delivered at least once, in no order. It needs RocketMQ 5 or rocketpoll's
    broker. Use it in an ``async with`` statement; several tasks may receive at the same time.

    Example:
        async with SimpleConsumer("billing", "localhost:9876") as consumer:
            await consumer.subscribe("orders")
            for message in await consumer.receive(16, invisible_ms=30_000):
                print(message.keys, message.body)
                await consumer.ack(message)

    Args:
        group: Name of the consumer group.
        namesrv: Addresses of the name servers, as ``"host:port;host:port"`` or an iterable of
            ``"host:port"``. Defaults to the environment variable NAMESRV_ADDR.
        client: A `Client` to share with other consumers and producers; ``namesrv`` is then ignored.
            Without it, the consumer has a client of its own. One client has one consumer of a
            group.
        start: Where a new group begins in each queue: ``"earliest"``, at the first message, or
            ``"latest"``, at the last one; but a queue whose messages are all in the broker's
            memory is read from its first one. Groups that pop cannot begin at a time.
        in_order: True to receive the messages of each queue in their order: the next ones come
            when all before them are acknowledged, or are delivered again.
        namespace: Namespace of the names of topics and groups: a topic ``orders`` is ``eu%orders``
            for brokers. A shared client has its own.

    Raises:
        MessageRejected: The group is not a valid name.
        TypeError: An argument has the wrong type.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str] | None = None,
        *,
        client: Client | None = None,
        start: str = LATEST,
        in_order: bool = False,
        namespace: str | None = None,
    ) -> None:
        self.group = check_group(group)
        check_pop_start(start)
        check_flag("in_order", in_order)
        client = shared_or_own(client, namesrv, namespace)
        super().__init__(
            client,
            lambda: LoopSimpleConsumer(
                group, instance=client.instance(), start=start, in_order=in_order
            ),
            LoopSimpleConsumer.start,
            LoopSimpleConsumer.close,
        )
        self._receives: set[asyncio.Future[list[MessageExt]]] = set()
        self._abandoned: list[_ReceiveCall] = []

    subscribe = run_in_thread(ThreadedSimpleConsumer.subscribe, is_ordered=True)
    unsubscribe = run_in_thread(ThreadedSimpleConsumer.unsubscribe, is_ordered=True)
    ack = run_in_thread(ThreadedSimpleConsumer.ack)
    change_invisible_duration = run_in_thread(ThreadedSimpleConsumer.change_invisible_duration)

    async def receive(
        self,
        max_messages: int = POP_MESSAGES_MAX,
        *,
        invisible_ms: int = INVISIBLE_MS,
        timeout_ms: int = RECEIVE_TIMEOUT_MS,
    ) -> list[MessageExt]:
        """Return the next messages, or an empty list if none comes in time.

        If it is cancelled, the next call that asks for the same continues its request. Messages
        that arrive before that call are given back, and delivered again within about two seconds.

        Args:
            max_messages: The most messages to return, 1 to 32.
            invisible_ms: Milliseconds, at least 1,000, in which they have to be acknowledged.
            timeout_ms: Milliseconds to wait for the first message.

        Raises:
            ClientShutDown: The consumer is not running, or belongs to another loop or process.
            MessageRejected: A number is out of range, or no topic is subscribed to.
            ClientError: A broker does not answer, or refuses.
            TypeError: An argument is not a number.
        """
        check_receive(max_messages, invisible_ms, timeout_ms)
        bridge = self._get_bridge()
        consumer = self._get_started()
        deadline = time.monotonic() + timeout_ms / 1_000
        while True:
            left_ms = max(int((deadline - time.monotonic()) * 1_000), 0)
            own = consumer.new_receive(max_messages, invisible_ms, left_ms)
            promise: LoopPromise[list[MessageExt]] = LoopPromise(bridge)
            receive = self._resume_abandoned(own, promise)
            if receive is None:
                receive = own
                own.await_by(promise)
                schedule_call(partial(consumer.continue_receive, own))
            self._receives.add(promise.future)
            try:
                found = await promise.future
            except BaseException:
                unreceived, is_pending = receive.abandon()
                if unreceived:
                    schedule_call(partial(consumer.release_messages, receive, unreceived))
                if is_pending:
                    self._abandoned.append(receive)
                raise
            finally:
                self._receives.discard(promise.future)
            consumer.on_received(receive)
            if found or receive is own:
                return found

    def _resume_abandoned(
        self, own: _ReceiveCall, promise: LoopPromise[list[MessageExt]]
    ) -> _ReceiveCall | None:
        """Let a cancelled receive serve the promise; return that receive, None without any."""
        self._abandoned = [each for each in self._abandoned if not each.is_over]
        for index, each in enumerate(self._abandoned):
            if each.resume_for(own, promise):
                return self._abandoned.pop(index)
        return None

    def _on_close(self) -> None:
        for waiting in self._receives:
            if not waiting.done():
                waiting.set_exception(self._closed_error())

    def __str__(self) -> str:
        return f"the consumer {self.group!r}"
