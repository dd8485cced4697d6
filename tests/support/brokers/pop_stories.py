"""Stories of popped messages: a whole broker, a client, and one clock for both of the broker's."""

import asyncio

from support.brokers.in_process import run as run_loop
from support.brokers.in_process import small_broker, started
from support.clients.pops import pop
from support.disks.faulty_disk import ManualClock

REDELIVERED_MS = 1_600
"""The most milliseconds from the end of an invisible time to the redelivery: a second, and the step
of the clock.
"""


class Story:
    """A broker, a client, and one clock for both of the broker's."""

    def __init__(self, broker, client, clock):
        self.broker = broker
        self.client = client
        self.clock = clock

    async def pass_time(self, milliseconds):
        """Let time pass, and let the broker do what is due."""
        step = 500
        while milliseconds > 0:
            now = min(step, milliseconds)
            milliseconds -= now
            self.clock.now_ms += now
            self.broker.move(now / 1_000)
            await self.settle()

    async def settle(self):
        """Wait until due work is done and on the disk, which is slow here."""
        store, before = self.broker.store, None
        while before != (before := store.state().written_offset):
            for _ in range(3):
                await self.client.ask(0)
                while store.confirm_offset() < store.state().written_offset:  # noqa: ASYNC110  # a thread flushes
                    await asyncio.sleep(0)  # the clock stands still

    async def texts(self, **fields):
        """Pop, and return the texts of the messages."""
        return sorted(each.text for each in await pop(self.client, **fields))


def run(story, root, **settings):
    """Run a story with a topic of four queues and a client."""
    clock = ManualClock()

    async def whole():
        asyncio.get_running_loop().stand_still()  # however slow the machine is
        async with started(small_broker(root, **settings), None, clock) as broker:
            broker.make_topic("T")
            await story(Story(broker, await broker.connect(), clock))

    run_loop(whole())
