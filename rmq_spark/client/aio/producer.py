"""Producer for asyncio: sends from the loop if the broker is connected, otherwise from a thread.

    send ──▶ room? ──▶ route and broker known ──▶ sent; the response resolves a future
              │                └── not yet ──▶ a thread of the producer asks and connects
              └── none: waits in the loop until a response has made room

Retries, queue selection, limits and errors are those of the threaded producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Final

from rmq_spark.client import observer
from rmq_spark.client.aio.client import Client, shared_or_own
from rmq_spark.client.aio.loop_bridge import LoopBridge, LoopPromise
from rmq_spark.client.aio.wrapper import AsyncWrapper, run_in_thread
from rmq_spark.client.arguments import check_group, check_kind, check_time_ms, explain_all_keywords
from rmq_spark.client.errors import TooManyPending
from rmq_spark.client.instance.request_futures import RequestFuture
from rmq_spark.client.message import CorrelatedMessage, Message, MessageExt
from rmq_spark.client.producer.prepared_message import PreparedMessage, SendRules
from rmq_spark.client.producer.producer import (
    PENDING_BYTES_MAX,
    PENDING_MAX,
    RETRIES,
    SEND_TIMEOUT_MS,
    topic_sender,
)
from rmq_spark.client.producer.producer import Producer as ThreadedProducer
from rmq_spark.client.producer.topic_sender import Selector, may_need_queue
from rmq_spark.client.results import ProducerHealth, SendResult
from rmq_spark.client.serializers import Serializer
from rmq_spark.client.transport.frame_writer import CallSoon
from rmq_spark.wire.message_queue import MessageQueue
from rmq_spark.wire.names import TRACE_TOPIC


class WaiterQueue:
    """Coroutines of one loop that wait for room, first come, first served."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiters: dict[RoomWaiter, None] = {}

    def wake_first(self) -> None:
        """Wake the first waiter, if there is one, because there may be room."""
        if self.waiters:
            next(iter(self.waiters)).wake()

    def wake_all(self) -> None:
        """Wake all that wait."""
        for waiter in self.waiters:
            waiter.wake()


class RoomWaiter:
    """A coroutine's place at the end of a `WaiterQueue`; only the first may look for room."""

    def __init__(self, queue: WaiterQueue) -> None:
        self._queue = queue
        self._wakeup: asyncio.Future[None] | None = None
        queue.waiters[self] = None

    def leave(self) -> None:
        """Leave the queue and wake the next waiter; no effect if it has already left."""
        if self._queue.waiters.pop(self, self) is None:
            self._queue.wake_first()

    @property
    def is_first(self) -> bool:
        """True if no other waiter is ahead."""
        return next(iter(self._queue.waiters)) is self

    def wake(self) -> None:
        """Wake the coroutine, which checks for room again."""
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Wait to be woken, for at most ``seconds``."""
        self._wakeup = self._queue.loop.create_future()
        timer = self._queue.loop.call_later(seconds, self.wake)
        try:
            await self._wakeup
        finally:
            timer.cancel()
            self._wakeup = None


LARGE_BODY_BYTES: Final = 1 << 16
"""Bodies of at least this many bytes are compressed in a thread, because that takes
milliseconds."""


@explain_all_keywords
class Producer(AsyncWrapper["LoopProducer"]):
    """Sends messages under the name of a producer group.

    Use it in an ``async with`` statement. Any number of tasks may send at once; what they send at
    the same time may be stored in any order. Batches and tables are sent by the eight threads that
    a process has for the blocking calls of its coroutines. A call that is cancelled before a thread
    is free is not made; a call that is cancelled later continues, and its result is dropped.

    Example:
        async with Producer("shop", "localhost:9876") as producer:
            result = await producer.send(Message("orders", b"one", key="order-42"))
            print(result.queue, result.queue_offset)

    Args:
        group: Name of the producer group.
        namesrv: Addresses of the name servers, as ``"host:port;host:port"`` or an iterable of
            ``"host:port"``. Defaults to the environment variable NAMESRV_ADDR.
        client: A `Client` to share with other producers and consumers; ``namesrv`` is then ignored.
            Without it, the producer has a client of its own.
        namespace: Namespace of the names of topics and groups: a topic ``orders`` is ``eu%orders``
            for brokers. A shared client has its own.
        rules: Settings of the messages: size limit, compression, queues of new topics.
        send_timeout_ms: Milliseconds that one send may take, with all its tries; 3,000 by default.
        retries: Further tries of a send whose connection failed, and of `send_batch` and
            `send_one_way`; 2 by default.
        send_latency_fault_enable: Whether brokers that answer slowly are avoided for a while.
        pending_max: Number of sends that may wait for their responses at once; 10,000 by default.
            Further sends wait until there is room.
        pending_bytes_max: Most bytes of the bodies of these sends together; 64 MiB by default.
        serializer: Serializer of bodies that are not bytes: ``"json"``, ``"msgpack"``, ``"text"``,
            `avro`, or an object with ``dumps`` and ``loads``; it is called in a thread. Without
            one, bodies must be bytes.
        enable_trace: Whether the sends of single messages and batches are recorded in the topic of
            traces, in the background, for ``rocketpoll message``, the console and RocketMQ's
            tools.
        trace_topic: The topic of traces; RocketMQ's, RMQ_SYS_TRACE_TOPIC, by default.

    Raises:
        MessageRejected: The group is not a valid name. Other arguments that cannot work raise an
            error from the first call that is awaited.
        TypeError: The group is not a str.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str] | None = None,
        *,
        client: Client | None = None,
        namespace: str | None = None,
        rules: SendRules | None = None,
        send_timeout_ms: int = SEND_TIMEOUT_MS,
        retries: int = RETRIES,
        send_latency_fault_enable: bool = False,
        pending_max: int = PENDING_MAX,
        pending_bytes_max: int = PENDING_BYTES_MAX,
        serializer: str | Serializer | None = None,
        enable_trace: bool = False,
        trace_topic: str = TRACE_TOPIC,
    ) -> None:
        self.group = check_group(group)

        def create() -> LoopProducer:
            return self._create_threaded(
                instance=self._client.instance(),
                rules=rules,
                send_timeout_ms=send_timeout_ms,
                retries=retries,
                send_latency_fault_enable=send_latency_fault_enable,
                pending_max=pending_max,
                pending_bytes_max=pending_bytes_max,
                serializer=serializer,
                enable_trace=enable_trace,
                trace_topic=trace_topic,
            )

        client = shared_or_own(client, namesrv, namespace)
        super().__init__(client, create, lambda one: one.start(), lambda one: one.shutdown())
        self._waiter_queue: WaiterQueue | None = None
        self._request_slots: asyncio.Semaphore | None = None

    def _create_threaded(self, **settings: Any) -> LoopProducer:
        return LoopProducer(self.group, **settings)

    def _on_close(self) -> None:
        if self._waiter_queue is not None:
            self._waiter_queue.wake_all()

    def health(self) -> ProducerHealth:
        """Return the state of this producer right now, from memory, without waiting."""
        return self._get_started().health()

    # ---- sending

    async def send(
        self,
        message: Message,
        queue: MessageQueue | Selector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and wait until a broker has stored it.

        A send whose connection fails is tried again, at another broker if there is one. A send with
        a given queue or a sharding key is tried only once: in another queue it would be out of
        order.

        If a send is cancelled, the message was either not sent, or is in flight. A message in
        flight may be stored, is not sent again, and its result is dropped.

        Args:
            message: The message to send.
            queue: The queue to send to, or a function that chooses one of the topic's queues. By
                default, the producer takes the queues in turn, or by the message's sharding key.
            timeout_ms: Milliseconds for all tries together, and as many before them to wait for
                room, while too many sends are pending; ``send_timeout_ms`` by default.

        Returns:
            The queue and the offset at which the message is stored.

        Raises:
            ClientShutDown: The producer is not running, or belongs to another loop or process.
            MessageRejected: No broker would accept the message.
            TooManyPending: Too many sends wait for responses, and no room was made within the time.
            RouteNotFound: The topic does not exist, and no broker creates it.
            BrokerRefused: A broker refused the message.
            SendFailed: All tries failed. The message may have been stored all the same.
            ClientError: The only try of a message with a given queue or a sharding key failed.
        """
        sending = observer.observe_send((message,))
        if sending is None:
            return await self._start_send(message, queue, timeout_ms)
        with sending:
            result = await self._start_send(sending.messages[0], queue, timeout_ms)
            sending.on_results((result,))
        return result

    def send_async(
        self,
        message: Message,
        queue: MessageQueue | Selector | None = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendResult]:
        """Start to send a message, and return the future of its result at once.

        Thousands of sends cost less processor time as futures than as coroutines, because
        `asyncio.gather` runs each coroutine as a task. If the future is cancelled, the message was
        either not sent, or is in flight. A message in flight may be stored, is not sent again, and
        its result is dropped.

        Args:
            message: The message to send.
            queue: The queue to send to, or a function that chooses one of the topic's queues. By
                default, the producer takes the queues in turn, or by the message's sharding key.
            timeout_ms: Milliseconds for all tries together, and as many before them to wait for
                room, while too many sends are pending; ``send_timeout_ms`` by default.

        Returns:
            A future that yields the queue and the offset at which the message is stored. It fails
            with `TooManyPending` if no room was made within the time, with `RouteNotFound` if there
            is no such topic and no broker creates it, with `BrokerRefused` if a broker refused the
            message, with `SendFailed` after the last try, and with another `ClientError` if only
            one try was possible: the message may have been stored all the same. It also fails if
            the topic does not have the queue, or if a body that a thread serializes or compresses
            is refused.

        Raises:
            ClientShutDown: The producer is not running, or belongs to another loop or process.
            MessageRejected: No broker would accept the message, or a number is out of range.
            TypeError: An argument has the wrong type.

        Example:
            futures = [producer.send_async(Message("orders", body)) for body in bodies]
            results = await asyncio.gather(*futures)
        """
        sending = observer.observe_send((message,))
        if sending is None:
            return asyncio.ensure_future(self._start_send(message, queue, timeout_ms))
        try:
            pending = self._start_send(sending.messages[0], queue, timeout_ms)
        except BaseException:
            with sending:
                raise

        async def observe() -> SendResult:
            with sending:
                result = await pending
                sending.on_results((result,))
            return result

        return asyncio.ensure_future(observe())

    def _start_send(
        self, message: Message, queue: MessageQueue | Selector | None, timeout_ms: int | None
    ) -> Awaitable[SendResult]:
        """Return the future of a send; the send has already started unless it must wait."""
        bridge, producer = self._get_bridge(), self._wrapped
        if self._is_closing:
            raise self._closed_error()
        if producer is None:
            producer = self._get_started()
        waiter_queue = self._get_waiter_queue(bridge)
        if timeout_ms is None:
            timeout_ms = producer.send_timeout_ms
        else:
            check_time_ms("timeout_ms", timeout_ms)
        prepared = producer.prepare_small(message)
        is_free = not may_need_queue(message, queue)
        if prepared is None or not is_free or waiter_queue.waiters:  # earlier sends wait for room
            return self._send(bridge, producer, message, prepared, queue, timeout_ms)
        promise: LoopPromise[SendResult] = LoopPromise(bridge, waiter_queue.wake_first)
        if producer.send_nonblocking(prepared, None, timeout_ms, promise, bridge.loop.call_soon):
            return promise.future
        waiter = RoomWaiter(
            waiter_queue
        )  # made here, not in the task, so that later sends of this turn queue up behind it
        waiting = asyncio.ensure_future(
            self._send_when_room(bridge, producer, prepared, None, timeout_ms, waiter)
        )
        # runs even if the task is cancelled before it begins
        waiting.add_done_callback(lambda _: waiter.leave())
        return waiting

    def _get_waiter_queue(self, bridge: LoopBridge) -> WaiterQueue:
        waiter_queue = self._waiter_queue
        if waiter_queue is None:
            waiter_queue = self._waiter_queue = WaiterQueue(bridge.loop)
        return waiter_queue

    async def _send(
        self,
        bridge: LoopBridge,
        producer: LoopProducer,
        message: Message,
        prepared: PreparedMessage | None,
        queue: MessageQueue | Selector | None,
        timeout_ms: int,
    ) -> SendResult:
        if prepared is None:
            prepared = await self._call(lambda one: one.prepare(message))
        fixed = None
        if may_need_queue(message, queue):
            sender = topic_sender(producer)
            topic = sender.full_topic(message)
            queues = sender.instance.routes.known_publish_queues(topic) or await self._call(
                lambda one: topic_sender(one).publish_queues(topic)
            )
            fixed = sender.fixed_queue(message, queue, queues)
        waiter = RoomWaiter(self._get_waiter_queue(bridge))
        return await self._send_when_room(bridge, producer, prepared, fixed, timeout_ms, waiter)

    async def _send_when_room(
        self,
        bridge: LoopBridge,
        producer: LoopProducer,
        prepared: PreparedMessage,
        fixed: MessageQueue | None,
        timeout_ms: int,
        waiter: RoomWaiter,
    ) -> SendResult:
        waiter_queue = self._get_waiter_queue(bridge)
        promise: LoopPromise[SendResult] = LoopPromise(bridge, waiter_queue.wake_first)
        deadline: float | None = None
        soon = bridge.loop.call_soon
        try:
            while not (
                waiter.is_first
                and producer.send_nonblocking(prepared, fixed, timeout_ms, promise, soon)
            ):
                now = bridge.loop.time()
                deadline = now + timeout_ms / 1000 if deadline is None else deadline
                if now >= deadline:
                    raise producer.too_many_pending()
                await waiter.wait(deadline - now)
                producer.check_running()
        finally:
            waiter.leave()
        return await promise.future

    # ---- requests and replies

    async def request(
        self,
        message: Message,
        queue: MessageQueue | Selector | None = None,
        timeout_ms: int | None = None,
    ) -> MessageExt:
        """Send a message, and wait for the reply of the consumer that gets it.

        The consumer answers with `reply`, or with ``producer.reply`` of a Java client. The message
        is stored and delivered like any other; if it is delivered twice, the first reply counts.

        If a request is cancelled, its message may be stored all the same; a late reply is dropped.

        Args:
            message: The message to send.
            queue: The queue to send to, or a function that chooses one of the topic's queues. By
                default, the producer takes the queues in turn, or by the message's sharding key.
            timeout_ms: Milliseconds until the reply must arrive, including all tries of the send;
                ``send_timeout_ms`` by default.

        Returns:
            The reply. It was not read from a queue: its ``queue_offset`` is -1.

        Raises:
            ClientShutDown: The producer is not running, belongs to another loop or process, or was
                closed meanwhile.
            MessageRejected: No broker would accept the message.
            RouteNotFound: The topic does not exist, and no broker creates it.
            TooManyPending: Too many requests wait for their replies, or too many sends for their
                responses, and no room was made within the time.
            BrokerRefused: A broker refused the message.
            SendFailed: All tries of the send failed. The message may have been stored all the same.
            ClientError: The only try of a message with a given queue or a sharding key failed.
            ReplyTimeout: No reply arrived in time; the error says whether the message is stored.
            BodyError: The reply is compressed, and cannot be inflated.

        Example:
            reply = await producer.request(Message("prices", b"AAPL"), timeout_ms=5_000)
            print(reply.body)
        """
        bridge, producer = self._get_bridge(), self._get_started()
        if timeout_ms is None:
            timeout_ms = producer.send_timeout_ms
        else:
            check_time_ms("timeout_ms", timeout_ms)
        deadline = bridge.loop.time() + timeout_ms / 1000
        slots = self._request_slots
        if slots is None:
            slots = self._request_slots = asyncio.Semaphore(producer.requests_max)
        if slots.locked():
            try:
                await asyncio.wait_for(slots.acquire(), timeout_ms / 1000)
            except asyncio.TimeoutError:
                raise TooManyPending(producer.requests_max, 0) from None
        else:
            await slots.acquire()
        try:
            await self._call(lambda one: one.ensure_registered(message, timeout_ms))
            promise: LoopPromise[MessageExt] = LoopPromise(bridge)
            left_ms = max(int((deadline - bridge.loop.time()) * 1000), 1)
            request, waiting = producer.begin_request(message, timeout_ms, left_ms, promise)
            sent = None
            try:
                # The send has the whole timeout: if it is late, `ReplyTimeout` is raised first.
                sent = self.send_async(request, queue, timeout_ms)
                sent.add_done_callback(waiting.on_sent)
                return await promise.future
            finally:
                waiting.discard()
                if sent is not None:
                    sent.cancel()
        finally:
            slots.release()

    async def reply(
        self,
        request: MessageExt,
        body: Any,
        properties: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Reply to a request, and wait until its sender has the reply and a broker has stored it.

        ``await producer.send(request.reply(body))`` does the same.

        Args:
            request: The message that a consumer got; its sender waits in `request`.
            body: Payload of the reply, as of a `Message`.
            properties: Properties of the reply, text to text.
            timeout_ms: Milliseconds for all tries together; ``send_timeout_ms`` by default.

        Returns:
            The place at which the reply is stored, in the cluster's topic of replies.

        Raises:
            ClientShutDown: The producer is not running, or belongs to another loop or process.
            MessageRejected: The message is not a request, or no broker would accept the reply.
            BrokerRefused: The sender of the request is not connected to the broker any more.
            SendFailed: All tries failed. The sender may have the reply all the same.
            ClientError: The only try, at the broker that has the request, failed.
        """
        self._get_bridge()
        check_kind("request", request, MessageExt, "the message received", "messages[0]")
        return await self.send(request.reply(body, properties), timeout_ms=timeout_ms)

    recall = run_in_thread(ThreadedProducer.recall)
    send_one_way = run_in_thread(ThreadedProducer.send_one_way)
    send_batch = run_in_thread(ThreadedProducer.send_batch)
    publish_queues = run_in_thread(ThreadedProducer.publish_queues)
    send_table = run_in_thread(ThreadedProducer.send_table)  # type: ignore[arg-type]  # a setting could be named self
    send_batches = run_in_thread(ThreadedProducer.send_batches)  # type: ignore[arg-type]  # as for send_table

    def __str__(self) -> str:
        return f"the producer {self.group!r}"


class LoopProducer(ThreadedProducer):
    """The threaded producer inside a `Producer`; it can send without waiting."""

    def prepare(self, message: Message) -> PreparedMessage:
        """Check a message, and return it prepared for sending."""
        return self._prepare(message)

    def prepare_small(self, message: Message) -> PreparedMessage | None:
        """Return a message prepared for sending; None if preparing its body may take long."""
        if not isinstance(message, Message):
            check_kind("message", message, Message, "a Message", "Message('orders', b'body')")
        is_small = isinstance(message.body, bytes) and len(message.body) < LARGE_BODY_BYTES
        is_small = is_small and not message.has_timer  # brokers may have to be asked first
        return self._prepare(message) if is_small else None

    def check_running(self) -> None:
        """Raise `ClientShutDown` if the producer is not running."""
        self._check_running()

    def send_nonblocking(
        self,
        prepared: PreparedMessage,
        fixed: MessageQueue | None,
        timeout_ms: int,
        promise: LoopPromise[SendResult],
        call_soon: CallSoon,
    ) -> bool:
        """Send a message without waiting; return False if there is no room for it."""
        return self._async_sender.send_nonblocking(prepared, fixed, timeout_ms, promise, call_soon)

    @property
    def requests_max(self) -> int:
        """Number of requests that may wait for their replies at once."""
        return self._pending_max

    def ensure_registered(self, message: Message, timeout_ms: int) -> None:
        """Make the brokers of a message's topic know this client."""
        self._ensure_registered(message, timeout_ms)

    def begin_request(
        self, message: Message, timeout_ms: int, left_ms: int, promise: LoopPromise[MessageExt]
    ) -> tuple[CorrelatedMessage, RequestFuture]:
        """Return the request made from a message, and the future of its reply."""
        return self._begin_request(message, timeout_ms, left_ms, promise)

    def too_many_pending(self) -> TooManyPending:
        """Return the error of a send that timed out while waiting for room."""
        return TooManyPending(self._async_sender.permits.count, self._async_sender.permits.bytes)
