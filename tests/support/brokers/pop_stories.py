"""Stories of popped messages: a whole broker, a client, and one clock for both."""

import asyncio

from support.brokers.in_process import run as run_loop
from support.brokers.in_process import small_broker, started
from support.clients.pops import pop
from support.disks.faulty_disk import ManualClock
from support.suite.coroutine_tests import run_by

REDELIVERED_MS = 1_600
"""Maximum milliseconds from the end of the invisible time to the redelivery: one second, and the
step of the clock."""


class Story:
    """A broker, a client, and one clock for both."""

    def __init__(self, broker, client, clock):
        self.broker = broker
        self.client = client
        self.clock = clock

    async def pass_time(self, milliseconds):
        """Advance the clock, and run the timers that are due."""
        step = 500
        while milliseconds > 0:
            now = min(step, milliseconds)
            milliseconds -= now
            self.clock.now_ms += now
            self.broker.move(now / 1_000)
            await self.settle()

    async def settle(self):
        """Wait until due work is done and flushed."""
        store, before = self.broker.store, None
        while before != (before := store.state().written_offset):
            for _ in range(3):
                await self.client.ask(0)
                while store.confirm_offset() < store.state().written_offset:  # noqa: ASYNC110  # a thread flushes
                    await asyncio.sleep(0)  # the clock stands still

    async def texts(self, **fields):
        """Pop messages; return their bodies as text."""
        return sorted(each.text for each in await pop(self.client, **fields))


def run(story, root, **settings):
    """Run a story on a topic of four queues, with one client."""
    clock = ManualClock()

    async def whole():
        asyncio.get_running_loop().stand_still()  # independent of the machine's speed
        async with started(small_broker(root, **settings), None, clock) as broker:
            broker.make_topic("T")
            await story(Story(broker, await broker.connect(), clock))

    run_loop(whole())


on_popping_broker = run_by(run)
