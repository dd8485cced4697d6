"""Consumer for asyncio: messages that threads have pulled ahead, taken in the loop.

    pull ──▶ request cache ──wake──▶ loop: poll, or the next of `async for`
    listener of queues ◀──post──┘        └──▶ handout ──▶ the next ones, without a look around

A message is taken from the cache in the very step of the loop in which it is returned, behind the
last await: no cancellation can come in between, and a message of a cancelled wait is still there
for the next. Which queues, how far and how much is pulled ahead is the threaded consumer's.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import isawaitable
from time import monotonic
from types import NoneType
from typing import Final, TypeVar

from rmq_spark.client import observing
from rmq_spark.client.aio.client import Client
from rmq_spark.client.aio.loop_bridge import LoopBridge, Wakes
from rmq_spark.client.aio.member import Member, threaded
from rmq_spark.client.arguments import check_group, check_kind, check_range, check_time_ms
from rmq_spark.client.concurrency.worker_threads import Crew, SharedCrew
from rmq_spark.client.consumer.dispatch.listeners import check_listener
from rmq_spark.client.consumer.lite_pull_consumer_impl import ListenerOutcome, MessageQueueListener
from rmq_spark.client.consumer.offsets.commit import Commit
from rmq_spark.client.consumer.queues.assigned_queues import AssignedQueue, Handout
from rmq_spark.client.consumer.seek import SeekableMember
from rmq_spark.client.consumer.settings import LitePullSettings
from rmq_spark.client.health import ConsumerHealth
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.client.message import MessageExt
from rmq_spark.wire.message_queue import MessageQueue

# ---- LoopConsumer: the threaded consumer behind one of asyncio; it gives messages, and waits for
# none.

TellListener = Callable[
    [str, frozenset[MessageQueue], frozenset[MessageQueue], ListenerOutcome], object
]
"""Has the listener called in the loop, and the outcome called when it has ended."""


def _in_the_loop(topic: str, all_queues: object, own_queues: object) -> None:
    """Stand for the listener, which `LoopConsumer` has called in its loop."""


class LoopConsumer(SeekableMember):
    """The threaded consumer behind a `Consumer`; its threads are those of the client's crew."""

    def __init__(
        self,
        group: str,
        instance: ClientInstance,
        settings: LitePullSettings,
        tell: TellListener | None,
        crew: SharedCrew,
    ) -> None:
        self._shared_crew = crew
        self._tell = tell
        self.handout: Handout | None = None
        self._handed_of: AssignedQueue | None = None
        super().__init__(group, instance, settings, None if tell is None else _in_the_loop)

    def _call_listener(
        self,
        topic: str,
        all_queues: frozenset[MessageQueue],
        mine: frozenset[MessageQueue],
        outcome: ListenerOutcome,
    ) -> None:
        def ended(error: BaseException | None) -> None:  # in the loop, which waits for no lock
            self._services.schedule(partial(outcome, error))

        if self._tell is not None:
            self._tell(topic, all_queues, mine, ended)

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

    def take(self, most: int | None) -> list[MessageExt] | None:
        """Return up to so many messages of one queue that are here; None without any."""
        self._end_handout()
        return self._take(0, most) or None

    def next_handed(self) -> MessageExt | None:
        """Return the next message of those of one pull; None if there is none, or none any more."""
        if self.handout is None or (message := self.handout.next()) is None:
            return None
        observing.handed(self.group, message)
        return message

    def hand_out(self) -> MessageExt | None:
        """Return the next message, if need be the first of another pull; None without any."""
        if (message := self.next_handed()) is None:
            try:
                self._end_handout()
                self._begin_handout()
            except BaseException:  # out of a signal handler, at any line
                self._return_again()
                raise
            message = self.next_handed()
        if message is not None and self._handed_of is not None:
            self._note_returned(self._handed_of)
        return message

    def _begin_handout(self) -> None:
        request = self._cache.poll(0, one_by_one=True)
        if request is not None:
            self._handed_of, self.handout = request.assigned, request.assigned.handout
            if self.handout is not None:
                self.handout.asking_confirms = self._lite.auto_commit

    def _end_handout(self) -> None:
        of, self._handed_of, self.handout = self._handed_of, None, None
        if of is not None and (left := of.end_handout()) is not None:
            self._cache.put_back(left)

    def _forked(self) -> None:
        """Hand out nothing of what the parent process has pulled."""
        super()._forked()
        self.handout = self._handed_of = None

    def wanted_commit(self, offsets: Mapping[MessageQueue, int] | None) -> Commit:
        """Return what `commit` stores: the offsets given, or how far all was returned."""
        return self._wanted_commit(offsets)

    def store(self, commit: Commit, *, all_of_them: bool) -> None:
        """Store the group's offsets, and wait until the brokers have them.

        Those of queues that were given up since are another member's to store: with
        ``all_of_them`` that is an error, otherwise they are left out.
        """
        if all_of_them:
            for queue in commit.offsets:
                self._checked(queue)
        held = self._assigned.queues
        offsets = {queue: at for queue, at in commit.offsets.items() if queue in held}
        self._persist_now(commit._replace(offsets=offsets))


_Taken = TypeVar("_Taken")

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
            change; a function or a coroutine function. New queues are assigned when it is called,
            and their messages come when it has ended without an error: it may await `seek`. If it
            raises, it is called again every second.

    Raises:
        MessageRejected: The group is not a valid name. A setting that is out of range is an error
            of the first call that is awaited.
        TypeError: An argument has the wrong type.
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
            name = "message_queue_listener"
            check_listener(name, message_queue_listener, *parameters, is_awaited=True)
        self._settings = settings or LitePullSettings()
        self._listener = message_queue_listener
        if not isinstance(client, Client):
            client = Client(client)
        super().__init__(client)
        self._bridge: LoopBridge | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrivals: Wakes | None = None
        self._listening: set[asyncio.Task[None]] = set()
        self._let_others_run_at = 0.0

    # ---- life

    def _here(self) -> LoopBridge:
        bridge = super()._here()
        if self._bridge is None:
            self._bridge, self._loop, self._arrivals = bridge, bridge.loop, Wakes(bridge.loop)
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
            self._bridge.post_with_others(self._arrivals.wake_all)

    def _tell_listener(
        self,
        topic: str,
        all_queues: frozenset[MessageQueue],
        own: frozenset[MessageQueue],
        outcome: ListenerOutcome,
    ) -> None:
        if self._bridge is not None:
            self._bridge.post(partial(self._call_listener, topic, all_queues, own, outcome))

    def _call_listener(
        self,
        topic: str,
        all_queues: frozenset[MessageQueue],
        own: frozenset[MessageQueue],
        outcome: ListenerOutcome,
    ) -> None:
        """Run the listener in the loop as a task of its own, and hand over how it has ended."""
        listener = self._listener
        if listener is None or self._is_over:
            return

        async def run() -> None:
            result = listener(topic, all_queues, own)
            if isawaitable(result):
                await result

        def ended(task: asyncio.Task[None]) -> None:
            self._listening.discard(task)
            outcome(asyncio.CancelledError() if task.cancelled() else task.exception())

        task = get_running_loop().create_task(run())
        self._listening.add(task)
        task.add_done_callback(ended)

    def _start(self, threaded: LoopConsumer) -> None:
        threaded.start()

    def _end(self, threaded: LoopConsumer) -> None:
        threaded.shutdown()

    def _closed(self) -> None:
        for task in list(self._listening):
            if task is not asyncio.current_task():
                task.cancel()
        if self._arrivals is not None:
            self._arrivals.end()

    def health(self) -> ConsumerHealth:
        """Return the state of this consumer right now, without asking or waiting for anybody.

        Its ``threads`` are those of its own: there are none, as the client's do its work.
        """
        return self._now().health()

    # ---- which queues

    subscribe = threaded(SeekableMember.subscribe, in_turn=True)
    unsubscribe = threaded(SeekableMember.unsubscribe, in_turn=True)
    assign = threaded(SeekableMember.assign, in_turn=True)
    fetch_message_queues = threaded(SeekableMember.fetch_message_queues)

    def assignment(self) -> frozenset[MessageQueue]:
        """Return the queues that this consumer has now."""
        return self._now().assignment()

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return and pull no messages of these queues until `resume`.

        Args:
            queues: Queues of this consumer.

        Raises:
            ClientShutDown: The consumer is not running, or belongs to another loop or process.
            NotAssigned: One of the queues is not this consumer's.
            TypeError: Something else than several queues was given.
        """
        self._now().pause(queues)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return and pull messages of paused queues again; of others, nothing changes.

        Args:
            queues: Queues of this consumer.

        Raises:
            ClientShutDown: The consumer is not running, or belongs to another loop or process.
            NotAssigned: One of the queues is not this consumer's.
            TypeError: Something else than several queues was given.
        """
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
            MessageRejected: The time is negative, or longer than 24 days; or ``max_messages`` is
                less than 1.
            TypeError: An argument is no number.
        """
        if timeout_ms is not None:
            check_time_ms("timeout_ms", timeout_ms)
        if max_messages is not None:
            check_range("max_messages", max_messages)
        consumer = self._now()
        consumer.check_running()
        milliseconds = self._settings.poll_timeout_ms if timeout_ms is None else timeout_ms
        take = partial(consumer.take, max_messages)
        return await self._next(consumer, milliseconds / 1000, take) or []

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> MessageExt:
        """Return the next message, waiting for it as long as it takes.

        Asking for it says that the message before is dealt with. The iteration ends when the
        consumer is closed. One that is cancelled has taken nothing.
        """
        consumer = self._built
        if (
            consumer is not None
            and (handout := consumer.handout) is not None
            and not self._is_over
            and get_running_loop() is self._loop
            and monotonic() < self._let_others_run_at
            and (message := handout.next()) is not None
        ):
            observing.handed(self.group, message)
            return message
        consumer = self._now()
        if not self._is_over:
            consumer.check_running()
        message = await self._next(consumer, None, consumer.hand_out)
        if message is None:
            raise StopAsyncIteration
        return message

    async def _next(
        self, consumer: LoopConsumer, seconds: float | None, take: Callable[[], _Taken | None]
    ) -> _Taken | None:
        """Return what there is to take, waiting for it; None if the time, or the consumer, ends."""
        arrivals, loop = self._arrivals, get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        if monotonic() >= self._let_others_run_at:
            await asyncio.sleep(0)
            self._let_others_run_at = monotonic() + BUSY_SECONDS
        consumer.confirm_returned()
        while not self._is_over and consumer.is_running:
            taken = take()
            if taken is not None or arrivals is None:
                return taken  # nothing may be awaited between taking and this
            patience = None if deadline is None else deadline - loop.time()
            if patience is not None and patience <= 0:
                break
            await arrivals.wait(patience)
            self._let_others_run_at = monotonic() + BUSY_SECONDS
        return None

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
        wanted = self._now().wanted_commit(offsets)
        is_asked_for = offsets is not None
        await self._call_in_turn(lambda one: one.store(wanted, all_of_them=is_asked_for))

    committed = threaded(SeekableMember.committed, in_turn=True)
    seek = threaded(SeekableMember.seek, in_turn=True)
    seek_to_begin = threaded(SeekableMember.seek_to_begin, in_turn=True)
    seek_to_end = threaded(SeekableMember.seek_to_end, in_turn=True)
    seek_to_time = threaded(SeekableMember.seek_to_time, in_turn=True)
    offset_for_timestamp = threaded(SeekableMember.offset_for_timestamp)

    def __str__(self) -> str:
        return f"the consumer {self.group!r}"
