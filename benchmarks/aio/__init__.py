"""Benchmark of the asyncio client and the threaded one: 100 consumers, and 1,000 pending sends.

python -m benchmarks.aio [--rounds N] [--seconds S] [--only SUBSTRING] [--json PATH]

The broker is a process of its own. The consumers, each of a group of its own, share one client's
connections; each gets every message. Those with threads are polled in a thread each.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import wait
from contextlib import ExitStack, suppress
from functools import partial
from itertools import product
from statistics import median
from types import TracebackType
from typing import Any, TypeVar

from benchmarks.harness import Case, Target
from rocketpoll import (
    ClientInstance,
    ConsumeFromWhere,
    EmbeddedBroker,
    LitePullConsumer,
    LitePullSettings,
    Message,
    Producer,
    aio,
)
from rocketpoll.errors import ClientShutDown

LIBRARIES = ("uvloop",)

CONSUMERS = 100
MESSAGES = 100
SENDS = 1_000
BODY = b"x" * 100
TOPIC = "orders"
_CONSUMED = f"messages to {CONSUMERS} consumers"
_SENT = f"sends, {SENDS:,} under way"
_THREADED = "threads"
_PATIENCE_SECONDS = 120
_CPU_ROUNDS = 5
_CPU_RUNS = 5
_SETTINGS = LitePullSettings(
    consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, pull_batch_size=32
)

_Result = TypeVar("_Result")


class Counter:
    """Messages that have come, counted one by one in any thread; somebody waits for so many."""

    def __init__(self) -> None:
        self.expect(0)

    def expect(self, count: int) -> None:
        """Start counting at 0."""
        self._numbers, self._scheduled = itertools.count(1), count
        self._are_there = threading.Event()

    def observe(self) -> None:
        """Count a message. No two threads get the same number, without a lock."""
        if next(self._numbers) >= self._scheduled:
            self._are_there.set()

    def wait(self) -> None:
        """Wait until the expected number of messages has arrived."""
        if not self._are_there.wait(_PATIENCE_SECONDS):
            raise AssertionError(f"not all of {self._scheduled} messages have come")


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Run a coroutine in this loop, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_SECONDS)

    def stop(self) -> None:
        """End the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Stage:
    """A broker with all clients that the cases use; use it in a with statement."""

    def __init__(self, consumers: int = CONSUMERS) -> None:
        self._consumers = consumers
        self._stack = ExitStack()
        self.threads: dict[str, int] = {}
        """Number of threads that a hundred consumers have added to the process, by variant."""

    def __enter__(self) -> Stage:
        self._broker = self._stack.enter_context(EmbeddedBroker(own_process=True))
        self._producer = self._stack.enter_context(Producer("bench", self._broker.address))
        self._loop = Loop()
        self._stack.callback(self._loop.stop)
        self._aio_producer = aio.Producer("bench-aio", self._broker.address)
        self._loop.run(self._aio_producer.start())
        self._stack.callback(lambda: self._loop.run(self._aio_producer.close()))
        self.send_with_threads(1)
        self.send_with_asyncio(1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    # ---- consumers

    def consumers_with_threads(self) -> Counter:
        """Start consumers, each polled in a thread; return the counter of their messages."""
        topic, counter, before = f"{TOPIC}-threads", Counter(), threading.active_count()
        self._broker.create_topic(topic, 1)
        instance = ClientInstance(self._broker.address)
        self._stack.callback(instance.shutdown)
        for number in range(self._consumers):
            consumer = LitePullConsumer(f"threads-{number}", instance=instance, settings=_SETTINGS)
            consumer.subscribe(topic)
            consumer.start()
            self._stack.callback(consumer.shutdown)
            threading.Thread(target=_poll, args=(consumer, counter), daemon=True).start()
        self._settle(topic, counter)
        self.threads[_THREADED] = threading.active_count() - before
        return counter

    def consumers_with_asyncio(self, *, one_by_one: bool) -> Counter:
        """Start consumers in one loop; return the counter of their messages."""
        variant = "asyncio, async for" if one_by_one else "asyncio, poll"
        topic, counter = f"{TOPIC}-{variant.replace(', ', '-').replace(' ', '-')}", Counter()
        before = threading.active_count()
        self._broker.create_topic(topic, 1)

        async def start() -> aio.Client:
            client = aio.Client(self._broker.address)
            await client.__aenter__()
            consumers = [
                aio.Consumer(f"{topic}-{number}", client=client, settings=_SETTINGS)
                for number in range(self._consumers)
            ]
            await asyncio.gather(*[each.subscribe(topic) for each in consumers])
            await asyncio.gather(*[each.start() for each in consumers])
            work = _iterate if one_by_one else _poll_in_loop
            tasks.extend(asyncio.create_task(work(each, counter)) for each in consumers)
            members.extend(consumers)
            return client

        async def end() -> None:
            await asyncio.gather(*[each.close() for each in members])
            await asyncio.gather(*tasks, return_exceptions=True)
            await client.__aexit__(None, None, None)

        tasks: list[asyncio.Task[None]] = []
        members: list[aio.Consumer] = []
        client = self._loop.run(start())
        self._stack.callback(lambda: self._loop.run(end()))
        self._settle(topic, counter)
        self.threads[variant] = threading.active_count() - before
        return counter

    def _settle(self, topic: str, counter: Counter) -> None:
        """Send one message to all, so that each consumer has its queue and a held pull."""
        counter.expect(self._consumers)
        self._producer.send(Message(topic, BODY))
        counter.wait()

    def consume(self, topic: str, counter: Counter) -> None:
        """Send messages, and wait until each consumer has received each of them."""
        counter.expect(self._consumers * MESSAGES)
        self._producer.send_batch([Message(topic, BODY)] * MESSAGES)
        counter.wait()

    # ---- sends

    def send_with_threads(self, count: int = SENDS) -> None:
        """Send messages as futures, all pending at once, and wait for all."""
        message = Message(TOPIC, BODY)
        futures = [self._producer.send_async(message) for _ in range(count)]
        wait(futures)
        futures[-1].result()

    def send_with_asyncio(self, count: int = SENDS) -> None:
        """Send messages as coroutines, all pending at once, and wait for all."""

        async def send() -> None:
            message = Message(TOPIC, BODY)
            await asyncio.gather(*[self._aio_producer.send(message) for _ in range(count)])

        self._loop.run(send())

    def futures_with_asyncio(self, count: int = SENDS) -> None:
        """Send messages as futures of the loop, all pending at once, and wait for all."""

        async def send() -> None:
            message = Message(TOPIC, BODY)
            await asyncio.gather(*[self._aio_producer.send_async(message) for _ in range(count)])

        self._loop.run(send())


def _poll(consumer: LitePullConsumer, counter: Counter) -> None:
    with suppress(ClientShutDown):
        while True:
            for _ in consumer.poll(1_000):
                counter.observe()


async def _poll_in_loop(consumer: aio.Consumer, counter: Counter) -> None:
    while consumer.is_running:
        for _ in await consumer.poll(1_000):
            counter.observe()


async def _iterate(consumer: aio.Consumer, counter: Counter) -> None:
    async for _ in consumer:
        counter.observe()


def aio_cases(stage: Stage, messages: int) -> list[Case]:
    """Return the cases; ``messages`` is the number that reach consumers in one run."""
    counters = {
        (_THREADED, f"{TOPIC}-threads"): stage.consumers_with_threads(),
        ("asyncio, poll", f"{TOPIC}-asyncio-poll"): stage.consumers_with_asyncio(one_by_one=False),
        ("asyncio, async for", f"{TOPIC}-asyncio-async-for"): stage.consumers_with_asyncio(
            one_by_one=True
        ),
    }
    target = Target("ratio", 1.0)
    found = [
        Case(
            _CONSUMED,
            variant,
            partial(stage.consume, topic, counter),
            messages,
            peer=None if variant == _THREADED else _THREADED,
            target=None if variant == _THREADED else target,
        )
        for (variant, topic), counter in counters.items()
    ]
    found += [
        Case(_SENT, _THREADED, stage.send_with_threads, SENDS),
        Case(_SENT, "asyncio", stage.send_with_asyncio, SENDS, peer=_THREADED, target=target),
        Case(
            _SENT,
            "asyncio, send_async",
            stage.futures_with_asyncio,
            SENDS,
            peer=_THREADED,
            target=target,
        ),
    ]
    return found


def threads_said(stage: Stage) -> Sequence[str]:
    """Return a line for each variant: the threads that its consumers added."""
    return [f"threads, {CONSUMERS} consumers, {name}: {n}" for name, n in stage.threads.items()]


def cpu_said(cases: Sequence[Case]) -> Sequence[str]:
    """Return a line for each case: its CPU time in this process, the median of five rounds.

    Unlike speed, CPU time can be compared on a busy machine, and excludes the broker's part.
    """
    took: dict[str, list[float]] = {case.name: [] for case in cases}
    for _, case in product(range(_CPU_ROUNDS), cases):
        began = time.process_time()
        for _ in range(_CPU_RUNS):
            case.run()
        seconds = time.process_time() - began
        took[case.name].append(seconds / (_CPU_RUNS * case.units_per_run))
    return [f"CPU, {name}: {median(each) * 1e6:.1f} us/msg" for name, each in took.items()]
