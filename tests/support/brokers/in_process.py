"""Whole brokers with real sockets in this process: in an event loop whose clock a test can move, or
in a thread.

Brokers run on uvloop where it is installed, and on asyncio's own loop elsewhere. The two differ in
details, such as a timer that is due at once, so tests that depend on the loop run on both.
"""

import asyncio
import contextlib
import threading
import time

from support.clients.remoting_clients import BrokerClients
from support.suite.coroutine_tests import run_by

from rmq_spark.wire.bodies.configs import TopicConfig
from rocketpoll.broker.controller import BrokerController, time_of_day_ms
from rocketpoll.broker.settings.settings import config_of

try:
    import uvloop
except ImportError:  # uvloop does not exist on every platform
    uvloop = None


class MovedLoop(asyncio.SelectorEventLoop):
    """The standard library's event loop with a movable clock."""

    moved_seconds = 0.0
    stands_at = None

    def time(self):
        return (super().time() if self.stands_at is None else self.stands_at) + self.moved_seconds

    def stand_still(self):
        """Stop the clock; it then moves only by `move`."""
        if self.stands_at is None:
            self.stands_at = super().time()

    def move(self, seconds):
        """Move the clock, and run the timers that are due."""
        self.moved_seconds += seconds


LOOPS = {"asyncio": MovedLoop}


class _Timer:
    """A scheduled call; ``handle`` is the handle that its caller got."""

    def __init__(self, when, call):
        self.when = when
        self.call = call
        self.handle = None


if uvloop is not None:

    class MovedUvloop(uvloop.Loop):
        """uvloop with a movable clock. uvloop's timers have a clock of their own, so a move resets
        each of them once. The clock cannot stand still."""

        moved_seconds = 0.0
        stands_at = None

        def __init__(self):
            super().__init__()
            self._timers = {}

        def time(self):
            return super().time() + self.moved_seconds

        def call_at(self, when, callback, *args, context=None):
            return self.call_later(when - self.time(), callback, *args, context=context)

        def call_later(self, delay, callback, *args, context=None):
            timer = _Timer(self.time() + delay, lambda: callback(*args))
            self._timers[timer] = None
            timer.handle = super().call_later(delay, self._ring, timer, context=context)
            return timer.handle

        def move(self, seconds):
            """Move the clock, and run the timers that are due."""
            self.moved_seconds += seconds
            timers = tuple(self._timers)  # a copy: a destructor may add one meanwhile
            self._timers = {timer: None for timer in timers if not timer.handle.cancelled()}
            for timer in tuple(self._timers):
                super().call_later(timer.when - self.time(), self._ring, timer)

        def _ring(self, timer):
            if timer in self._timers and not timer.handle.cancelled():
                del self._timers[timer]
                timer.call()

    LOOPS["uvloop"] = MovedUvloop


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
    """Return a broker configuration for a directory, from settings with the names of
    broker.conf."""
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }
    return config_of({**SMALL, "storePathRootDir": str(root), **texts})


class StoryLoops:
    """Event loops for stories; the fixture `on_each_loop` selects the kind of the next one."""

    new = MovedLoop


class Broker:
    """A running broker and its clients in a story."""

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
        """Wait until this number of pulls is held."""
        await self.until(lambda: self.holds.hold_count == number, seconds)

    async def until(self, condition, seconds=10):
        async with _patience(seconds):
            is_still = asyncio.get_running_loop().stands_at is not None
            while not condition():  # noqa: ASYNC110  # no event signals it
                await asyncio.sleep(0 if is_still else 0.001)

    def move(self, seconds):
        """Move the clock forward."""
        asyncio.get_running_loop().move(seconds)

    def make_topic(self, topic="T", queues=4, perm=6):
        make_topic(self.controller, topic, queues, perm)


def make_topic(controller, topic="T", queues=4, perm=6):
    """Create a topic on the broker's controller."""
    config = TopicConfig(
        topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm
    )
    controller.tables.topics.put(config)


@contextlib.asynccontextmanager
async def _patience(seconds):
    """Fail after this many seconds of real time."""
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
    """Yield a started broker; close it and its clients afterwards."""
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
    """Run a coroutine in a new loop with a movable clock."""
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


in_loop = run_by(lambda story: run(story()), given=0)
on_broker = run_by(tell)


class BrokerThread:
    """A broker on its own loop in another thread."""

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
        """Run a function in the broker's thread; return its result."""

        async def answer():
            return question(self.controller)

        return self._await(answer())

    def until(self, question, seconds=10):
        __tracebackhide__ = True
        deadline = time.monotonic() + seconds
        while not self.ask(question):
            assert time.monotonic() < deadline, "it has not come to that"
