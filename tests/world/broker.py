"""A broker in a simulated world: successive lives on the same disk."""

import asyncio
import threading

import pyarrow as pa
from world.disk import Disk
from world.loop import AsyncioLoop, Loop
from world.machine import Process
from world.tasks import Promise

from rocketpoll.broker.controller import BrokerController
from rocketpoll.broker.server.descriptors import RESOURCE_SHORTAGE_ERRNOS
from rocketpoll.broker.store.bulk.lazy_numpy import load_numpy

# The first broker of a process loads these modules, a second one need not (Arrow loads pandas with
# the first array): without this, stories would depend on those before them.
load_numpy()
pa.array([0]).to_numpy()


class BrokerLife:
    """One life of a broker, from start to end."""

    def __init__(self, world, config, name, platter, fate):
        """``fate`` decides the result of each disk operation; the platter has the
        disk's content."""
        self._world = world
        self._config = config
        self.state = fate
        self.process = Process(world.kernel, name, config.bind_address)
        self.disk = Disk(world.kernel, platter, self.process, fate)
        self.controller = None
        self.started = Promise()  # True, or the reason why the start failed
        self.ended = Promise()
        self._loop = None
        self._stop = None
        self._serving_since = None
        self.served_since = None
        """The time since which it serves clients, or None. Its end does not change this."""

    def begin(self):
        """Start the process; keep ``started`` and ``ended`` at its start and end."""
        thread = threading.Thread(target=self._run, name=self.process.name)
        self.process.on_death(self._died)
        thread.belongs_to(self.process)
        thread.start()

    def is_serving_since(self, time):
        """Return whether it has served clients since then."""
        return (
            self.process.is_alive
            and self._serving_since is not None
            and self._serving_since <= time
        )

    def stop(self):
        """Request a clean stop."""
        if self._stop is not None and self.process.is_alive:
            self._loop.call_soon_threadsafe(self._stop.set)

    def _run(self):
        world = self._world
        kind = Loop if world.story.seed % 2 == 0 else AsyncioLoop
        self._loop = loop = kind(world.kernel, world.network, self.process)
        loop.set_exception_handler(self._complain)
        try:
            loop.run_until_complete(self._serve())
        except Exception as error:
            if not self._world.watch.is_excused(error):
                raise
            self._world.note(f"it could not end in order: {error}")
            self.process.end()  # same effect as a kill
        finally:
            for task in asyncio.all_tasks(loop):
                task._log_destroy_pending = False
            loop.close()
        self.ended.keep("stopped")
        self.process.end()

    async def _serve(self):
        self._stop = asyncio.Event()
        dice = self._world.dice_for(f"chance of {self.process.name}")
        self.controller = BrokerController(self._config, self.disk, random_bytes=dice.randbytes)
        try:
            await self.controller.start()
        except Exception as error:
            self.started.keep(error)
            return
        self._serving_since = self.served_since = self._world.kernel.now
        self.started.keep(True)
        await self._stop.wait()
        self._serving_since = None
        await self.controller.stop()

    def _complain(self, loop, context):
        error = context.get("exception")
        if (
            isinstance(error, OSError)
            and error.errno in RESOURCE_SHORTAGE_ERRNOS
            and "socket" in context
        ):
            return  # the broker's own handler leaves these to its listener
        self._world.complain(f"unhandled in the loop: {context['message']}: {error!r}", error)

    def _died(self):
        kind = "kill" if self.process.has_power else "power"
        self.started.keep(kind)
        self.ended.keep(kind)
