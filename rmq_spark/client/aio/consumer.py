"""Consumer for asyncio: returns messages in the loop, which threads have pulled ahead.

    pull ──▶ request cache ──wake──▶ loop: poll, or the next of `async for`
    listener of queues ◀──post──┘        └──▶ cursor ──▶ the next ones, without a check

A message leaves the cache in the same step of the loop that returns it, after the last await. No
cancellation can come in between, so a cancelled wait loses no message. The threaded consumer
decides which queues are pulled and how far ahead.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import isawaitable
from time import monotonic
from typing import Final, TypeVar

from rmq_spark.client import observer
from rmq_spark.client.aio.client import Client, shared_or_own
from rmq_spark.client.aio.loop_bridge import LoopBridge, WakeEvent
from rmq_spark.client.aio.wrapper import AsyncWrapper, run_in_thread
from rmq_spark.client.arguments import check_group, check_range, check_time_ms, explain_all_keywords
from rmq_spark.client.concurrency.scheduler import WorkerThreads
from rmq_spark.client.consumer.dispatch.listeners import check_listener
from rmq_spark.client.consumer.lite_pull_consumer_impl import (
    ListenerOutcome,
    LitePullConsumerImpl,
    MessageQueueListener,
)
from rmq_spark.client.consumer.offsets.offset_manager import CommitRequest
from rmq_spark.client.consumer.queues.assigned_queues import AssignedQueue, MessageCursor
from rmq_spark.client.consumer.settings import LitePullSettings, effective_settings
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import MessageExt
from rmq_spark.client.results import ConsumerHealth
from rmq_spark.client.times import Start
from rmq_spark.wire.message_queue import MessageQueue

# ---- LoopConsumer: the threaded consumer inside an asyncio consumer; it never waits.

ListenerRunner = Callable[
    [str, frozenset[MessageQueue], frozenset[MessageQueue], ListenerOutcome], object
]
"""Schedules a listener's call in the loop; calls the outcome function at its end."""


def _loop_listener(topic: str, all_queues: object, own_queues: object) -> None:
    """Do nothing: `LoopConsumer` runs the user's listener in the event loop."""


class LoopConsumer(LitePullConsumerImpl):
    """The threaded consumer inside a `Consumer`; it uses the shared threads of the client."""

    def __init__(
        self,
        group: str,
        instance: ClientInstance,
        settings: LitePullSettings,
        run_listener: ListenerRunner | None,
        threads: WorkerThreads,
        on_arrival: Callable[[], object],
    ) -> None:
        """Make a consumer; ``on_arrival`` is called, in any thread, if messages may have come."""
        self._shared_threads = threads
        self._run_listener = run_listener
        self.cursor: MessageCursor | None = None
        self._cursor_queue: AssignedQueue | None = None
        super().__init__(
            *(group, None, settings, None if run_listener is None else _loop_listener),
            instance=instance,
        )
        self._request_cache.on_change = on_arrival

    def _call_listener(
        self,
        topic: str,
        all_queues: frozenset[MessageQueue],
        own_queues: frozenset[MessageQueue],
        outcome: ListenerOutcome,
    ) -> None:
        def ended(error: BaseException | None) -> None:  # runs in the loop, and must not block
            self._service_scheduler.schedule(partial(outcome, error))

        if self._run_listener is not None:
            names = self.namespace
            own_queues = names.strip_queues(own_queues)
            self._run_listener(
                names.strip(topic), names.strip_queues(all_queues), own_queues, ended
            )

    def _consumer_threads(self) -> WorkerThreads:
        return WorkerThreads(self.group, self._shared_threads)

    def check_running(self) -> None:
        """Raise `ClientShutDown` if the consumer is not running."""
        self._check_running()

    def confirm_returned(self) -> None:
        """With ``auto_commit``, count the messages that were returned as consumed."""
        self._auto_commit.confirm_returned()

    def poll_now(self, messages_max: int | None) -> list[MessageExt] | None:
        """Return up to ``messages_max`` cached messages of one queue; None if none are cached."""
        self._close_cursor()
        return self._poll_cache(0, messages_max) or None

    def next_from_cursor(self) -> MessageExt | None:
        """Return the next message of the current pull; None if no message is left."""
        if self.cursor is None or (message := self.cursor.next()) is None:
            return None
        observer.observe_message(self.group, message)
        return self.namespace.strip_message(message)

    def next_message(self) -> MessageExt | None:
        """Return the next message, from this pull or a later one; None if none is cached."""
        if (message := self.next_from_cursor()) is None:
            try:
                self._close_cursor()
                self._open_cursor()
            except BaseException:  # a signal handler may raise at any line
                self._requeue_undelivered()
                raise
            message = self.next_from_cursor()
        if message is not None and self._cursor_queue is not None:
            self._record_returned(self._cursor_queue)
        return message

    def _open_cursor(self) -> None:
        request = self._request_cache.poll(0, one_by_one=True)
        if request is not None:
            self._cursor_queue, self.cursor = request.assigned, request.assigned.cursor
            if self.cursor is not None:
                self.cursor.confirms_on_next = self._lite_settings.auto_commit
                if self._tracer is not None:  # all messages at once, as for `poll`
                    self._tracer.record_poll(self.cursor.messages[self.cursor.next_index :])

    def _close_cursor(self) -> None:
        of, self._cursor_queue, self.cursor = self._cursor_queue, None, None
        if of is not None and (left := of.close_cursor()) is not None:
            self._request_cache.put_first(left)

    def _after_fork(self) -> None:
        super()._after_fork()
        self.cursor = self._cursor_queue = None

    def store_commit(self, commit: CommitRequest, *, is_strict: bool) -> None:
        """Store the group's offsets, and wait until the brokers have them.

        A queue that was revoked meanwhile belongs to another member: its offset is omitted, or
        raises an error with ``is_strict``.
        """
        if is_strict:
            for queue in commit.offsets:
                self._get_assigned(queue)
        held = self._assigned_queues.queues
        offsets = {queue: at for queue, at in commit.offsets.items() if queue in held}
        self._store_commit(commit._replace(offsets=offsets))


_Polled = TypeVar("_Polled")

YIELD_INTERVAL_SECONDS: Final = 0.01
"""Seconds after which a task that always finds messages lets the loop's other tasks run."""


@explain_all_keywords
class Consumer(AsyncWrapper["LoopConsumer"]):
    """A member of a consumer group whose messages are awaited, or iterated over.

    Either `subscribe` to topics, and share their queues with the group, or `assign` queues. With
    ``auto_commit``, asking for more messages confirms that the earlier ones were processed;
    messages are delivered at least once. Use it in an ``async with`` statement.

    Example:
        async with Consumer("billing", "localhost:9876") as consumer:
            await consumer.subscribe("orders", "paid || refunded")
            async for message in consumer:
                print(message.keys, message.body)

    Args:
        group: Name of the consumer group.
        namesrv: Addresses of the name servers, as ``"host:port;host:port"`` or an iterable of
            ``"host:port"``. Defaults to the environment variable NAMESRV_ADDR.
        settings: Settings of the consumer; `LitePullSettings()` by default.
        message_queue_listener: Called in the loop with topic, all queues and own queues, when these
            change; a function or a coroutine function. New queues are assigned when it is called,
            and their messages come after it has ended without an error: it may await `seek`. If it
            raises, it is called again every second.
        client: A `Client` to share with other consumers and producers; ``namesrv`` is then ignored.
            Without it, the consumer has a client of its own. One client has one consumer of a
            group.
        start: Where a new group starts in each queue: ``"earliest"``, ``"latest"``, ``"-1h"`` (an
            hour ago), or a time: such as ``"2026-01-31T12:00:00Z"``, a datetime with a zone, or
            milliseconds since 1970. It replaces ``consume_from_where`` of the settings; a group
            that has committed offsets continues at these. As in RocketMQ, a queue whose first
            message is still in the broker's memory is read from that message.
        namespace: Namespace of the names of topics and groups: a topic ``orders`` is ``eu%orders``
            for brokers. A shared client has its own.

    Raises:
        MessageRejected: The group is not a valid name. A setting that is out of range is an error
            of the first call that is awaited.
        TypeError: An argument has the wrong type.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | Iterable[str] | None = None,
        settings: LitePullSettings | None = None,
        message_queue_listener: MessageQueueListener | None = None,
        *,
        client: Client | None = None,
        start: Start | None = None,
        namespace: str | None = None,
    ) -> None:
        self.group = check_group(group)
        self._settings = effective_settings(LitePullSettings, settings, start)
        if message_queue_listener is not None:
            parameters = ("topic", "all_queues", "own_queues")
            name = "message_queue_listener"
            check_listener(name, message_queue_listener, *parameters, allows_coroutine=True)
        self._listener = message_queue_listener
        client = shared_or_own(client, namesrv, namespace)
        super().__init__(client, self._create_threaded, LoopConsumer.start, LoopConsumer.shutdown)
        self._bridge: LoopBridge | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrival_event: WakeEvent | None = None
        self._listener_tasks: set[asyncio.Task[None]] = set()
        self._yield_at = 0.0

    # ---- life cycle

    def _get_bridge(self) -> LoopBridge:
        bridge = super()._get_bridge()
        if self._bridge is None:
            self._bridge, self._loop, self._arrival_event = (
                bridge,
                bridge.loop,
                WakeEvent(bridge.loop),
            )
        return bridge

    def _create_threaded(self) -> LoopConsumer:
        listener = None if self._listener is None else self._post_listener
        return LoopConsumer(
            *(self.group, self._client.instance(), self._settings, listener),
            *(self._client.threads, self._on_arrival),
        )

    def _on_arrival(self) -> None:
        if self._bridge is not None and self._arrival_event is not None:
            self._bridge.post_deferred(self._arrival_event.wake_all)

    def _post_listener(
        self,
        topic: str,
        all_queues: frozenset[MessageQueue],
        own_queues: frozenset[MessageQueue],
        on_done: ListenerOutcome,
    ) -> None:
        if self._bridge is not None:
            self._bridge.post(partial(self._call_listener, topic, all_queues, own_queues, on_done))

    def _call_listener(
        self,
        topic: str,
        all_queues: frozenset[MessageQueue],
        own_queues: frozenset[MessageQueue],
        on_done: ListenerOutcome,
    ) -> None:
        """Run the listener in the loop as a separate task, and pass on its outcome."""
        listener = self._listener
        if listener is None or self._is_closing:
            return

        async def run() -> None:
            result = listener(topic, all_queues, own_queues)
            if isawaitable(result):
                await result

        def ended(task: asyncio.Task[None]) -> None:
            self._listener_tasks.discard(task)
            on_done(asyncio.CancelledError() if task.cancelled() else task.exception())

        task = get_running_loop().create_task(run())
        self._listener_tasks.add(task)
        task.add_done_callback(ended)

    def _on_close(self) -> None:
        for task in list(self._listener_tasks):
            if task is not asyncio.current_task():
                task.cancel()
        if self._arrival_event is not None:
            self._arrival_event.close()

    def health(self) -> ConsumerHealth:
        """Return the state of this consumer right now, from memory, without waiting.

        Its ``threads`` are 0, because the client's threads do its work.
        """
        return self._get_started().health()

    # ---- assigned queues

    subscribe = run_in_thread(LitePullConsumerImpl.subscribe, is_ordered=True)
    unsubscribe = run_in_thread(LitePullConsumerImpl.unsubscribe, is_ordered=True)
    assign = run_in_thread(LitePullConsumerImpl.assign, is_ordered=True)
    fetch_message_queues = run_in_thread(LitePullConsumerImpl.fetch_message_queues)

    def assignment(self) -> frozenset[MessageQueue]:
        """Return the queues that this consumer has now."""
        return self._get_started().assignment()

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return and pull no messages of these queues until `resume`.

        Args:
            queues: Queues of this consumer.

        Raises:
            ClientShutDown: The consumer is not running, or belongs to another loop or process.
            NotAssigned: One of the queues is not this consumer's.
            TypeError: ``queues`` is not an iterable of queues.
        """
        self._get_started().pause(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return and pull messages of paused queues again; other queues stay as they are.

        Args:
            queues: Queues of this consumer.

        Raises:
            ClientShutDown: The consumer is not running, or belongs to another loop or process.
            NotAssigned: One of the queues is not this consumer's.
            TypeError: ``queues`` is not an iterable of queues.
        """
        self._get_started().resume(queues)

    # ---- messages

    async def poll(
        self, timeout_ms: int | None = None, max_messages: int | None = None
    ) -> list[MessageExt]:
        """Return messages of one queue, waiting for them; an empty list if none come in time.

        A cancelled poll loses nothing: the next one returns the messages.

        Args:
            timeout_ms: Milliseconds to wait; by default the setting ``poll_timeout_ms``.
            max_messages: Most messages to return; by default all messages of one pull.

        Raises:
            ClientShutDown: The consumer is not running, or belongs to another loop or process.
            MessageRejected: The time is negative, or longer than 24 days; or ``max_messages`` is
                less than 1.
            TypeError: An argument is not a number.
        """
        if timeout_ms is not None:
            check_time_ms("timeout_ms", timeout_ms)
        if max_messages is not None:
            check_range("max_messages", max_messages)
        consumer = self._get_started()
        consumer.check_running()
        milliseconds = self._settings.poll_timeout_ms if timeout_ms is None else timeout_ms
        poll_now = partial(consumer.poll_now, max_messages)
        return await self._wait_next(consumer, milliseconds / 1000, poll_now) or []

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> MessageExt:
        """Return the next message, waiting for it as long as it takes.

        Requesting a message acknowledges the previous one. The iteration ends when the consumer is
        closed. A cancelled request takes no message.
        """
        consumer = self._wrapped
        if (
            consumer is not None
            and (cursor := consumer.cursor) is not None
            and not self._is_closing
            and get_running_loop() is self._loop
            and monotonic() < self._yield_at
            and (message := cursor.next()) is not None
        ):
            observer.observe_message(self.group, message)
            return consumer.namespace.strip_message(message)
        consumer = self._get_started()
        if not self._is_closing:
            consumer.check_running()
        message = await self._wait_next(consumer, None, consumer.next_message)
        if message is None:
            raise StopAsyncIteration
        return message

    async def _wait_next(
        self, consumer: LoopConsumer, seconds: float | None, poll_now: Callable[[], _Polled | None]
    ) -> _Polled | None:
        """Wait for messages and return them; None at the timeout or once the consumer ends."""
        arrivals, loop = self._arrival_event, get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        if monotonic() >= self._yield_at:
            await asyncio.sleep(0)
            self._yield_at = monotonic() + YIELD_INTERVAL_SECONDS
        consumer.confirm_returned()
        while not self._is_closing and consumer.is_running:
            polled = poll_now()
            if polled is not None or arrivals is None:
                return polled  # nothing may be awaited between `poll_now` and this line
            seconds_left = None if deadline is None else deadline - loop.time()
            if seconds_left is not None and seconds_left <= 0:
                break
            await arrivals.wait(seconds_left)
            self._yield_at = monotonic() + YIELD_INTERVAL_SECONDS
        return None

    # ---- offsets

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store the group's offsets, and wait until the brokers have them.

        A cancelled commit may be stored all the same; later commits come after it.

        Args:
            offsets: The offset to resume at, by queue; by default past all messages returned so
                far.

        Raises:
            NotAssigned: One of the queues is not this consumer's.
            ClientShutDown: The consumer is not running, or belongs to another loop or process.
            ClientError: A broker does not answer. Its offsets are sent again later; the other
                brokers have stored theirs.
        """
        wanted = self._get_started().new_commit(offsets)
        is_asked_for = offsets is not None
        await self._call_in_turn(lambda one: one.store_commit(wanted, is_strict=is_asked_for))

    committed = run_in_thread(LitePullConsumerImpl.committed, is_ordered=True)
    seek = run_in_thread(LitePullConsumerImpl.seek, is_ordered=True)
    seek_to_begin = run_in_thread(LitePullConsumerImpl.seek_to_begin, is_ordered=True)
    seek_to_end = run_in_thread(LitePullConsumerImpl.seek_to_end, is_ordered=True)
    seek_to_time = run_in_thread(LitePullConsumerImpl.seek_to_time, is_ordered=True)
    offset_for_timestamp = run_in_thread(LitePullConsumerImpl.offset_for_timestamp)

    def __str__(self) -> str:
        return f"the consumer {self.group!r}"
