"""Consumer for asyncio: messages that threads have pulled ahead, taken in the loop.

    pull ──▶ request cache ──wake──▶ loop: poll, or the next of `async for`
    listener of queues ◀──post──┘

A message is taken from the cache in the very step of the loop in which it is returned, behind the
last await: no cancellation can come in between, and a message of a cancelled wait is still there
for the next. Which queues, how far and how much is pulled ahead is the threaded consumer's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import NoneType
from typing import Final

from rmq_spark.client.aio.client import Client
from rmq_spark.client.aio.loop_bridge import LoopBridge, Wakes
from rmq_spark.client.aio.member import Member, threaded
from rmq_spark.client.arguments import check_kind, check_range, check_time_ms
from rmq_spark.client.consumer.listeners import check_listener
from rmq_spark.client.consumer.lite_pull_member import LitePullMember, MessageQueueListener
from rmq_spark.client.consumer.service_state import own_instance
from rmq_spark.client.consumer.settings import LitePullSettings
from rmq_spark.client.health import ConsumerHealth
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import MessageExt
from rmq_spark.client.names import check_group
from rmq_spark.client.threads.crews import Crew, SharedCrew
from rmq_spark.wire.message_queue import MessageQueue

BUSY_SECONDS: Final = 0.01
"""Seconds after which a task that always finds messages lets the loop's other tasks run."""


class Consumer(Member["LoopConsumer"]):
    """A member of a consumer group whose messages are awaited, or iterated over.

    Either `subscribe` to topics, and share their queues with the group, or `assign` queues. With
    ``auto_commit``, asking for more says that what was returned before is dealt with; messages are
    delivered at least once. Use it in an ``async with`` statement.

    Example:
        async with Consumer("billing", "localhost:9876") as consumer:
            await consumer.subscribe("orders", "paid || refunded")
            async for message in consumer:
                print(message.keys, message.body)

    Args:
        group: Name of the consumer group.
        client: A `Client` to share with other consumers and producers, or addresses of name servers
            (``"host:port;host:port"``) for a client of its own; None takes them from the
            environment variable NAMESRV_ADDR. One client has one consumer of a group.
        settings: Settings of the consumer; `LitePullSettings()` by default.
        message_queue_listener: Called in the loop with topic, all queues and own queues, when these
            change.
    """

    def __init__(
        self,
        group: str,
        client: Client | str | None = None,
        settings: LitePullSettings | None = None,
        message_queue_listener: MessageQueueListener | None = None,
    ) -> None:
        self.group = check_group(group)
        example = "LitePullSettings(pull_batch_size=16)"
        check_kind("settings", settings, (LitePullSettings, NoneType), "LitePullSettings", example)
        if message_queue_listener is not None:
            parameters = ("topic", "all_queues", "own_queues")
            check_listener("message_queue_listener", message_queue_listener, *parameters)
        self._settings = settings or LitePullSettings()
        self._listener = message_queue_listener
        if not isinstance(client, Client):
            model = self._settings.message_model
            client = Client.of(partial(own_instance, client, model))
        super().__init__(client)
        self._bridge: LoopBridge | None = None
        self._arrivals: Wakes | None = None
        self._let_others_run_at = 0.0

    # ---- life

    def _here(self) -> LoopBridge:
        bridge = super()._here()
        if self._bridge is None:
            self._bridge, self._arrivals = bridge, Wakes(bridge.loop)
        return bridge

    def _build(self) -> LoopConsumer:
        listener = None if self._listener is None else self._tell_listener
        consumer = LoopConsumer(
            self.group, self._client.instance(), self._settings, listener, self._client.crew
        )
        consumer.on_arrival(self._has_arrived)
        return consumer

    def _has_arrived(self) -> None:
        if self._bridge is not None and self._arrivals is not None:
            self._bridge.post(self._arrivals.wake_all)

    def _tell_listener(
        self, topic: str, all_queues: frozenset[MessageQueue], own: frozenset[MessageQueue]
    ) -> None:
        if self._bridge is not None and self._listener is not None:
            self._bridge.post(partial(self._listener, topic, all_queues, own))

    def _start(self, threaded: LoopConsumer) -> None:
        threaded.start()

    def _end(self, threaded: LoopConsumer) -> None:
        threaded.shutdown()

    def _closed(self) -> None:
        if self._arrivals is not None:
            self._arrivals.wake_all()

    def health(self) -> ConsumerHealth:
        """Return the state of this consumer right now, without asking or waiting for anybody.

        Its ``threads`` are those of its own: there are none, as the client's do its work.
        """
        return self._now().health()

    # ---- which queues

    subscribe = threaded(LitePullMember.subscribe, in_turn=True)
    unsubscribe = threaded(LitePullMember.unsubscribe, in_turn=True)
    assign = threaded(LitePullMember.assign, in_turn=True)
    fetch_message_queues = threaded(LitePullMember.fetch_message_queues)

    def assignment(self) -> frozenset[MessageQueue]:
        """Return the queues that this consumer has now."""
        return self._now().assignment()

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return and pull no messages of these queues until `resume`."""
        self._now().pause(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return and pull messages of paused queues again."""
        self._now().resume(queues)

    # ---- messages

    async def poll(
        self, timeout_ms: int | None = None, max_messages: int | None = None
    ) -> list[MessageExt]:
        """Return messages of one queue, waiting for them; an empty list if none come in time.

        A poll that is cancelled has taken nothing: the messages are there for the next.

        Args:
            timeout_ms: Milliseconds to wait; by default the setting ``poll_timeout_ms``.
            max_messages: Most messages to return; by default all that one pull has found.

        Raises:
            ClientShutDown: The consumer is not running, or belongs to another loop or process.
        """
        if timeout_ms is not None:
            check_time_ms("timeout_ms", timeout_ms)
        if max_messages is not None:
            check_range("max_messages", max_messages)
        consumer = self._now()
        consumer.check_running()
        milliseconds = self._settings.poll_timeout_ms if timeout_ms is None else timeout_ms
        return await self._next(consumer, milliseconds / 1000, max_messages)

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> MessageExt:
        """Return the next message, waiting for it as long as it takes.

        Asking for it says that the message before is dealt with. The iteration ends when the
        consumer is closed. One that is cancelled has taken nothing.
        """
        consumer = self._now()
        if not self._is_over:
            consumer.check_running()
        while not self._is_over and consumer.is_running:
            for message in await self._next(consumer, None, 1):
                return message
        raise StopAsyncIteration

    async def _next(
        self, consumer: LoopConsumer, seconds: float | None, most: int | None
    ) -> list[MessageExt]:
        arrivals, loop = self._arrivals, asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        if loop.time() >= self._let_others_run_at:
            await asyncio.sleep(0)
            self._let_others_run_at = loop.time() + BUSY_SECONDS
        consumer.confirm_returned()
        while not self._is_over and consumer.is_running:
            messages = consumer.take(most)
            if messages or arrivals is None:
                return messages  # nothing may be awaited between taking and this
            patience = self._settings.auto_commit_interval_ms / 1000
            if deadline is not None:
                patience = min(patience, deadline - loop.time())
                if patience <= 0:
                    break
            await arrivals.wait(patience)
            consumer.commit_if_due()
            self._let_others_run_at = loop.time() + BUSY_SECONDS
        return []

    # ---- offsets

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store the group's offsets, and wait until the brokers have them.

        A commit that is cancelled may be stored all the same; later ones come behind it.

        Args:
            offsets: The offset to go on at, by queue; by default behind all that was returned when
                this is called.

        Raises:
            NotAssigned: One of the queues is not this consumer's.
            ClientShutDown: The consumer is not running, or belongs to another loop or process.
            ClientError: A broker does not answer. It is told again later; the others have theirs.
        """
        wanted = self._now().offsets_to_commit(offsets)
        is_asked_for = offsets is not None
        await self._call_in_turn(lambda one: one.store(wanted, all_of_them=is_asked_for))

    committed = threaded(LitePullMember.committed, in_turn=True)
    seek = threaded(LitePullMember.seek, in_turn=True)
    seek_to_begin = threaded(LitePullMember.seek_to_begin, in_turn=True)
    seek_to_end = threaded(LitePullMember.seek_to_end, in_turn=True)
    seek_to_time = threaded(LitePullMember.seek_to_time, in_turn=True)
    offset_for_timestamp = threaded(LitePullMember.offset_for_timestamp)

    def __str__(self) -> str:
        return f"the consumer {self.group!r}"


class LoopConsumer(LitePullMember):
    """The threaded consumer behind a `Consumer`; its threads are those of the client's crew."""

    def __init__(
        self,
        group: str,
        instance: ClientInstance,
        settings: LitePullSettings,
        message_queue_listener: MessageQueueListener | None,
        crew: SharedCrew,
    ) -> None:
        self._shared_crew = crew
        super().__init__(group, instance, settings, message_queue_listener)

    def _crew(self) -> Crew:
        return self._shared_crew

    def on_arrival(self, call: Callable[[], object]) -> None:
        """Have a function called, in any thread, whenever `take` may return something."""
        self._cache.on_change(call)

    def check_running(self) -> None:
        """Raise `ClientShutDown` if the consumer is not running."""
        self._check_running()

    def confirm_returned(self) -> None:
        """With ``auto_commit``, count what was returned as dealt with, as its caller says."""
        self._auto_commit.more_is_wanted()

    def commit_if_due(self) -> None:
        """With ``auto_commit``, have the offsets stored if it is time again."""
        self._auto_commit.commit_if_due()

    def take(self, most: int | None) -> list[MessageExt]:
        """Return up to so many messages of one queue that are here, waiting for none."""
        return self._take(0, most)

    def offsets_to_commit(
        self, offsets: Mapping[MessageQueue, int] | None
    ) -> Mapping[MessageQueue, int]:
        """Return the offsets that `commit` stores: those given, or how far all was returned."""
        return self._offsets_to_commit(offsets)

    def store(self, offsets: Mapping[MessageQueue, int], *, all_of_them: bool) -> None:
        """Store the group's offsets, and wait until the brokers have them.

        Those of queues that were given up since are another member's to store: with
        ``all_of_them`` that is an error, otherwise they are left out.
        """
        if all_of_them:
            for queue in offsets:
                self._checked(queue)
        held = self._assigned.queues
        self._persist_now({queue: at for queue, at in offsets.items() if queue in held})
