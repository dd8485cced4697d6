"""Whole brokers with real sockets: in the loop of a story, whose clock can be moved,
or in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time

from broker_clients import BrokerClients
from story_loops import MovedLoop

from rmq_spark.wire.bodies.configs import TopicConfig
from rocketpoll.broker.controller import BrokerController, time_of_day_ms
from rocketpoll.broker.settings.settings import config_of

SMALL = {
    "listenPort": "0",
    "flushDiskType": "ASYNC_FLUSH",
    "mappedFileSizeCommitLog": str(1 << 20),
    "maxMessageSize": str(1 << 19),
    "mappedFileSizeConsumeQueue": str(20 * 4_000),
    "maxHashSlotNum": "64",
    "maxIndexNum": "256",
}


def small_broker(root, **settings):
    """The configuration of a broker in a directory, by the names that files use."""
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }
    return config_of({**SMALL, "storePathRootDir": str(root), **texts})


class StoryLoops:
    """Which loop the next story is told on; the fixture `on_each_loop` has it told on each."""

    new = MovedLoop


class Broker:
    """A running broker and its clients, as a story sees them."""

    def __init__(self, controller, clients):
        self.controller = controller
        self.clients = clients

    @property
    def store(self):
        return self.controller.store

    @property
    def holds(self):
        return self.controller.hold_service

    @property
    def limits(self):
        return self.controller._config

    @property
    def port(self):
        return self.controller.port

    async def connect(self, **settings):
        return await self.clients.connect(**settings)

    async def held(self, number, seconds=10):
        """Wait until so many pulls wait."""
        await self.until(lambda: self.holds.hold_count == number, seconds)

    async def until(self, condition, seconds=10):
        """Wait for what the broker is about to do."""
        async with _patience(seconds):
            while not condition():  # noqa: ASYNC110  # nobody would set an event
                await asyncio.sleep(0.001)

    def move(self, seconds):
        """Put the clock forward."""
        asyncio.get_running_loop().move(seconds)

    def make_topic(self, topic="T", queues=4, perm=6):
        """A topic, as an operator would create it."""
        make_topic(self.controller, topic, queues, perm)


def make_topic(controller, topic="T", queues=4, perm=6):
    """A topic, as an operator would create it."""
    config = TopicConfig(
        topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm
    )
    controller.tables.topics.put(config)


@contextlib.asynccontextmanager
async def _patience(seconds):
    """Fail if this takes so long that it will not come; by a clock that nobody moves."""
    task = asyncio.current_task()
    timer = threading.Timer(
        seconds, asyncio.get_running_loop().call_soon_threadsafe, (task.cancel,)
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    except asyncio.CancelledError:
        raise AssertionError("it has not come to that") from None
    finally:
        timer.cancel()


@contextlib.asynccontextmanager
async def started(config, disk=None, now_ms=time_of_day_ms):
    """A broker that runs while the story is inside; all is let go of behind it."""
    controller = BrokerController(config, disk, now_ms)
    await controller.start()
    try:
        async with BrokerClients(controller.port) as clients:
            yield Broker(controller, clients)
    finally:
        await controller.stop()
    assert controller.server.connections == 0
    assert (controller.server.in_flight_bytes, controller.server.unread_bytes) == (0, 0)
    assert controller.hold_service.hold_count == 0
    assert controller.hold_service.queue_count == 0


def run(story):
    """Run a coroutine in a loop of its own whose clock can be moved."""
    loop = StoryLoops.new()
    try:
        loop.run_until_complete(story)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def tell(story, root, disk=None, now_ms=time_of_day_ms, **settings):
    """Run a story against a small broker with these settings."""

    async def whole():
        async with started(small_broker(root, **settings), disk, now_ms) as broker:
            await story(broker)

    run(whole())


class BrokerThread:
    """A broker on a loop of its own in another thread, as its clients see it: from outside."""

    def __init__(self, config, new_event_loop=asyncio.new_event_loop):
        self.config = config
        self._new_event_loop = new_event_loop

    def __enter__(self):
        self._loop = self._new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="Broker")
        self._thread.start()
        self.controller = BrokerController(self.config)
        self.port = self._await(self.controller.start())
        return self

    def __exit__(self, *_):
        self._await(self.controller.stop())
        self._await(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _await(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def ask(self, question):
        """What a function finds on the broker's own thread."""

        async def answer():
            return question(self.controller)

        return self._await(answer())

    def until(self, question, seconds=10):
        """Wait for what the broker is about to do."""
        deadline = time.monotonic() + seconds
        while not self.ask(question):
            assert time.monotonic() < deadline, "it has not come to that"
