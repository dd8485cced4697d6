"""A broker in a simulated world: one life after the other, on the disk that the last one left."""

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

# What a first broker loads beside its work (Arrow loads pandas with the first array), a second one
# of the process need not: stories would differ by who was told before.
load_numpy()
pa.array([0]).to_numpy()


class BrokerLife:
    """One life of a broker, from its start to its end."""

    def __init__(self, world, config, name, platter, fate):
        """``fate`` decides the result of each disk operation; the platter has the
        disk's content.
        """
        self._world = world
        self._config = config
        self.state = fate
        self.process = Process(world.kernel, name, config.bind_address)
        self.disk = Disk(world.kernel, platter, self.process, fate)
        self.controller = None
        self.started = Promise()  # True, or why it could not start
        self.ended = Promise()
        self._loop = None
        self._stop = None
        self._serving_since = None
        self.served_since = None
        """The time from which it served clients, if it ever did; its end does not change this."""

    def begin(self):
        """Start the process; ``started`` and ``ended`` are called at its start and end."""
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
        """Ask it to stop cleanly."""
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
            self.process.end()  # which is no better than a kill
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
            return  # which the broker's own handler leaves to its listener
        self._world.complain(f"unhandled in the loop: {context['message']}: {error!r}", error)

    def _died(self):
        kind = "kill" if self.process.has_power else "power"
        self.started.keep(kind)
        self.ended.keep(kind)
