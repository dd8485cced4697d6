"""A broker in a simulated world with several brokers: its machine, its disk, and its successive
lives."""

import errno
from pathlib import Path

from support.brokers.in_process import small_broker
from world.broker import BrokerLife
from world.disk import Platter, Verdict

_PORT = 10911
_ROOT = Path("/machine/home/store")
_START_SECONDS = 30.0
_STOP_SECONDS = 60.0


class Broker:
    """One of the brokers of a world."""

    def __init__(self, world, name, host):
        self._world = world
        self._platter = self._empty_platter()
        self._config = self._config_of(name, host)
        self._dice = world.dice_for(f"disk {name}")
        self.name = name
        self.host = host
        self.port = _PORT
        self.address = f"{host}:{_PORT}"
        self.life = None
        self.slave_address = None
        """Address of a slave that answers for this broker."""
        self.down_seconds = 0.1
        self._unreadable = None
        self.degradation = None
        """A function that is asked first about disk operations; it returns a verdict, or None."""
        self.is_wanted = True
        """Whether the broker is restarted after its end."""

    def _empty_platter(self):
        return Platter(self._world.threads.wall_seconds, _ROOT.parent)

    def _config_of(self, name, host, **more):
        return small_broker(
            _ROOT,
            brokerName=name,
            listenPort=_PORT,
            bindAddress=host,
            **self._world.story.settings,
            **more,
        )

    @property
    def is_serving(self):
        """Return whether it serves clients."""
        return self.life is not None and self.life.is_serving_since(self._world.kernel.now)

    def topic(self, name):
        """Return its configuration of a topic; None if it has none, or is down."""
        if not self.is_serving:
            return None
        return self.life.controller.tables.topics.get(name)

    def topics(self):
        """Return the configurations of all its topics; empty if it is down."""
        if not self.is_serving:
            return ()
        return self.life.controller.tables.topics.wrapper().topic_config_table.values()

    async def live(self):
        """Serve in successive lives while it is wanted."""
        while self.is_wanted:
            self._world.lives += 1
            self.life = life = BrokerLife(
                self._world,
                self._config,
                f"{self.name} {self._world.lives}",
                self._platter,
                self._disk,
            )
            self._world.note(f"{life.process.name} begins")
            self._world.network.power_is_back()
            life.begin()
            started = await self._world.tasks.within(
                _START_SECONDS, life.started, "not within its time"
            )
            if started is True:
                self._watch_offsets(life.controller.tables.offsets)
            elif started not in ("kill", "power"):
                self._world.complain(f"{life.process.name} cannot start: {started!r}")
            how = await life.ended
            if how == "power":
                self._platter.lose_power(self._world.dice_for(f"power {self._world.lives}"))
            self._world.ledger.broker_ended(self.name)
            self._world.note(f"{life.process.name} has ended: {how}")
            await self._world.tasks.sleep(self.down_seconds)

    def _disk(self, operation):
        verdict = None if self.degradation is None else self.degradation(operation)
        if verdict is not None:
            return verdict
        if operation.kind == "read" and self._unreadable is not None:
            path, seconds = self._unreadable
            if operation.path.endswith(path):
                self._unreadable = None
                return Verdict(seconds, error=errno.EIO)
        is_flush = operation.kind.startswith("flush")
        return Verdict(self._dice.random() * self._world.story.flush_seconds if is_flush else 0.0)

    def refuse_read(self, path, seconds):
        """Let the next read of a file fail after this time."""
        self._unreadable = path, seconds

    def kill(self):
        """End it like `kill -9`."""
        self.life.process.kill()

    def lose_power(self):
        """Cut its power, which drops some of the unflushed writes."""
        self.life.process.kill(power_lost=True)

    def copy_disk(self):
        """Return a copy of its disk."""
        return self._platter.copy()

    def content(self, path):
        """Return the content of a file on its disk, as other programs on its machine see it."""
        return self._platter.need(path).data

    def spoil(self, content):
        """Flip a bit of some bytes on its disk; return whether they exist."""
        return self._platter.spoil(content, self._dice)

    async def put_back(self, copy, seconds):
        """End the broker, and restart it on an older copy of its disk."""
        self.down_seconds = seconds
        self.kill()
        await self.life.ended
        self._platter.put_back(copy)

    async def rename(self, name, seconds):
        """Stop the broker cleanly, and restart it under another name."""
        self.down_seconds = seconds
        await self.stop()
        self._config = self._config_of(name, self.host)
        self.name = name

    async def stand_in(self, copy, host, seconds):
        """Kill the broker, and let a slave with an older copy of its disk answer for it."""
        self.down_seconds = seconds
        self.kill()
        await self.life.ended
        platter = self._empty_platter()
        platter.put_back(copy)
        config = self._config_of(self.name, host, brokerRole="SLAVE")
        slave = BrokerLife(self._world, config, f"slave of {self.name}", platter, self._disk)
        slave.begin()
        started = await self._world.tasks.within(_START_SECONDS, slave.started, "not in time")
        if started is True:
            self.slave_address = f"{host}:{_PORT}"
        elif started not in ("kill", "power"):
            self._world.complain(f"a slave of {self.name} cannot start: {started!r}")
        await self._world.tasks.sleep(seconds)
        self.slave_address = None
        slave.stop()
        await slave.ended

    def use_disk(self, ratio):
        """Set the usage of its disk."""
        self._platter.used_ratio = ratio

    async def stop(self):
        """Stop it cleanly."""
        life = self.life
        life.stop()
        if not await self._world.tasks.within(_STOP_SECONDS, life.ended, otherwise=False):
            self._world.complain(f"{life.process.name} has not stopped within {_STOP_SECONDS} s")

    def _watch_offsets(self, offsets):
        """Let the ledger see each offset that a group commits."""
        commit, world = offsets.commit, self._world

        def watched(group, topic, queue_id, queue_offset):
            commit(group, topic, queue_id, queue_offset)
            world.ledger.committed(group, (topic, self.name, queue_id), queue_offset)

        offsets.commit = watched
