"""SimpleConsumer for asyncio: awaits messages that brokers pop, and acknowledges them.

    receive ──thread──▶ pop ──▶ broker holds it ──▶ thread: messages, or the next pop ──▶ loop
            └─ cancelled ──▶ messages that come all the same are given back to the group

No thread waits while a broker holds a pop. The steps of a `receive` are the threaded consumer's.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import Final

from rmq_spark.client.aio.client import Client, shared_or_own
from rmq_spark.client.aio.loop_bridge import LoopPromise, schedule_call
from rmq_spark.client.aio.wrapper import AsyncWrapper, run_in_thread
from rmq_spark.client.arguments import check_flag, check_group, explain_keywords
from rmq_spark.client.consumer.simple_consumer import (
    INVISIBLE_MS,
    RECEIVE_TIMEOUT_MS,
    PopSteps,
    check_pop_start,
    check_receive,
)
from rmq_spark.client.consumer.simple_consumer import SimpleConsumer as ThreadedSimpleConsumer
from rmq_spark.client.errors import ClientError
from rmq_spark.client.message import MessageExt
from rmq_spark.client.results import PopResult
from rmq_spark.client.times import LATEST
from rmq_spark.wire.pop import POP_MESSAGES_MAX

_log: Final = logging.getLogger(__name__)


class LoopSimpleConsumer(ThreadedSimpleConsumer):
    """The threaded consumer inside a `SimpleConsumer`; its pops call back."""

    def receive_steps(self, max_messages: int, invisible_ms: int, timeout_ms: int) -> PopSteps:
        """Return the steps of a `receive`, whose arguments are checked."""
        return self._receive_steps(max_messages, invisible_ms, timeout_ms)

    def pop_next(self, steps: PopSteps, popped: Future[PopResult] | None) -> Future[PopResult]:
        """Send the next pop of a `receive`; raise StopIteration with its messages at the end."""
        address, header = next(steps) if popped is None else steps.send(popped.result())
        return self._instance.api.pop_async(address, header)

    def give_back(self, messages: Iterable[MessageExt]) -> None:
        """Let messages that nobody receives be delivered again soon, as far as possible."""
        try:
            for message in messages:
                self.change_invisible_duration(message, 0)
        except ClientError as error:  # their invisible time ends all the same
            _log.info("messages of a cancelled receive come again later: %s", error)


class _Receive:
    """One `receive`: a thread runs each of its steps, and the loop awaits the promise."""

    def __init__(
        self, consumer: LoopSimpleConsumer, steps: PopSteps, promise: LoopPromise[list[MessageExt]]
    ) -> None:
        self._consumer = consumer
        self._steps = steps
        self._promise = promise
        self._lock = threading.Lock()
        self._found: list[MessageExt] = []
        self._is_abandoned = False

    def run(self, popped: Future[PopResult] | None = None) -> None:
        """Take the result of a pop and send the next one; in a thread."""
        try:
            popping = self._consumer.pop_next(self._steps, popped)
        except StopIteration as end:
            with self._lock:
                self._found, is_abandoned = end.value, self._is_abandoned
            if is_abandoned:
                self._consumer.give_back(end.value)
            else:
                self._promise.set_result(end.value)
        except BaseException as error:  # noqa: BLE001  # whatever it raises is for the coroutine
            self._promise.set_exception(error)
        else:
            popping.add_done_callback(lambda done: schedule_call(partial(self.run, done)))

    def abandon(self) -> None:
        """Give back the messages that have come, or that come yet; nobody awaits the promise."""
        with self._lock:
            self._is_abandoned = True
            found = self._found
        if found:
            schedule_call(partial(self._consumer.give_back, found))


class SimpleConsumer(AsyncWrapper[LoopSimpleConsumer]):
    """A member of a consumer group that receives messages and acknowledges them one by one.

    More members than queues share the work, and a slow message holds up no other. What a member
    does not acknowledge within its invisible time is delivered again, with ``reconsume_times`` one
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
        start: Where a new group begins in each queue: ``"earliest"``, the first message, or
            ``"latest"``, before the last one, and in a young queue at the first. Groups that pop
            cannot begin at a time.
        in_order: True to receive the messages of each queue in their order: the next ones come
            when all before them are acknowledged, or are delivered again.
        namespace: Namespace of the names of topics and groups: a topic ``orders`` is ``eu%orders``
            for brokers. A shared client has its own.

    Raises:
        MessageRejected: The group is not a valid name.
        TypeError: An argument has the wrong type.
    """

    @explain_keywords
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

        If it is cancelled, messages that brokers deliver to it all the same are given back, and
        delivered again within about two seconds.

        Args:
            max_messages: The most messages to return, 1 to 32.
            invisible_ms: Milliseconds, at least 1,000, in which they have to be acknowledged.
            timeout_ms: Milliseconds to wait for the first message.

        Raises:
            ClientShutDown: The consumer is not running, or belongs to another loop or process.
            MessageRejected: A number is out of range, or no topic is subscribed to.
            ClientError: A broker does not answer, or refuses.
            TypeError: An argument is no number.
        """
        check_receive(max_messages, invisible_ms, timeout_ms)
        bridge = self._get_bridge()
        consumer = self._get_started()
        steps = consumer.receive_steps(max_messages, invisible_ms, timeout_ms)
        promise: LoopPromise[list[MessageExt]] = LoopPromise(bridge)
        receive = _Receive(consumer, steps, promise)
        self._receives.add(promise.future)
        schedule_call(receive.run)
        try:
            return await promise.future
        except BaseException:
            receive.abandon()
            raise
        finally:
            self._receives.discard(promise.future)

    def _on_close(self) -> None:
        for waiting in self._receives:
            if not waiting.done():
                waiting.set_exception(self._closed_error())

    def __str__(self) -> str:
        return f"the consumer {self.group!r}"
