"""A real world: broker processes on one machine, one life after the other,
and clients over all of them.

What clients do, and what must hold, is that of the simulated world: acts, players and ledger of
`world`. Time, sockets, disk and processes are real, and no run is like another; what a power loss
leaves is drawn.
"""

from collections import deque

from real_world.audit import Audit
from real_world.machine import Machine
from real_world.names import Names
from real_world.real_time import RealTime, Sockets
from real_world.watch import SLACK_SECONDS, Watch
from world.ledger import Ledger
from world.offsets import Offsets
from world.player import Player
from world.stage import Broken
from world.story import Client
from world.tasks import Promise, Tasks

DELAYS_SECONDS = (1, 1, 1, 2, 2)
SETTINGS = {
    "flushDiskType": "SYNC_FLUSH",
    "mappedFileSizeCommitLog": str(64 << 10),
    "mappedFileSizeConsumeQueue": str(20 * 50),
    "maxMessageSize": str(16 << 10),
    "maxHashSlotNum": "16",
    "maxIndexNum": "64",
    "checkWholeLogBytes": "0",
    "checkpointIntervalMills": "300",
    "flushConsumerOffsetInterval": "200",
    "flushDelayOffsetInterval": "200",
    "cleanResourceInterval": "300",
    "messageDelayLevel": " ".join(f"{seconds}s" for seconds in DELAYS_SECONDS),
}

_CLOCK_STEP_SECONDS = 0.001
"""Times of storing are whole milliseconds: a delay may seem shorter by so much."""

_ACKNOWLEDGED_MIN = 10
_WORK_SECONDS_MAX = 20.0
_LOOK_SECONDS = 0.05
_START_SECONDS = 300.0
_AUDIT_SECONDS = 60.0
_DELIVERY_SECONDS = 60.0
_CLIENTS = 3
_NOTES = 300


class World:
    """The objects of a campaign on one disk."""

    broker_name = "broker-a"
    address = ("127.0.0.1", 0)

    def __init__(self, base, dice, acts, settings=None, *, may_expire=False, tracer=()):
        """``acts`` are the clients' actions; ``settings`` override `SETTINGS`."""
        self.dice = dice
        self._settings = {**SETTINGS, **(settings or {})}
        self.kernel = RealTime()
        self.tasks = Tasks(self.kernel)
        self.network = Sockets(self.kernel)
        self.machine = Machine(base, tracer)
        self.watch = Watch(
            self.kernel,
            self._complain,
            self.machine.log_min_offset,
            lambda: self.life.is_alive,
            may_expire=may_expire,
        )
        self.ledger = Ledger(self, is_sync=True)
        self.offsets = Offsets(self, SLACK_SECONDS)
        self.names = Names(self._complain)
        self.life = None
        self.longest_start_seconds = 0.0
        self.is_at_rest = False
        self._notes = deque(maxlen=_NOTES)
        for number in range(_CLIENTS):
            player = _RestlessPlayer(self, Client(f"client {number}", ()), acts)
            self.tasks.begin(player.play(), player.name)

    # ---- what acts ask

    @property
    def lives(self):
        return self.machine.lives

    def dice_for(self, part):
        return self.dice

    def note(self, what):
        self._notes.append(f"{self.kernel.now:.3f} {what}")

    def delay_seconds(self, level):
        if level <= 0:
            return 0.0
        return DELAYS_SECONDS[min(level, len(DELAYS_SECONDS)) - 1] - _CLOCK_STEP_SECONDS

    def _complain(self, what):
        self.ledger.complain(what)

    # ---- lives

    def start(self, rules=(), *, is_in_trouble=False, seed=0):
        """Start a broker and audit it; return whether the audit ended before the broker died.
        ``is_in_trouble``: some calls fail, so that the broker may refuse requests, or not start at
        all."""
        began = self.kernel.now
        self.note(f"life {self.lives + 1} begins, with {list(rules)}")
        self._is_in_trouble = is_in_trouble
        is_slow = any(rule.what == "slow" for rule in rules)
        self.watch.life_began(is_in_trouble=is_in_trouble or is_slow)
        self.life = life = self.machine.start(self.kernel.loop, self._settings, rules, seed)
        if not self.kernel.run(_START_SECONDS, life.started):
            self._complain(f"the broker has not started within {_START_SECONDS} s")
        if life.started.value is None:
            return False
        if not is_slow:
            self.longest_start_seconds = max(self.kernel.now - began, self.longest_start_seconds)
        self.note("it serves")
        self.address = ("127.0.0.1", life.started.value)
        return self._audit()

    @property
    def is_serving(self):
        return self.life.started.value is not None and not self.life.ended.is_kept

    def go_on(self, seconds):
        """Let the clients run for this time, once they have sent something, or until the broker
        dies."""
        enough = self.acknowledged + (0 if self._is_in_trouble else _ACKNOWLEDGED_MIN)
        until = self.kernel.now + _WORK_SECONDS_MAX
        while self.acknowledged < enough and self.kernel.now < until:
            if self.kernel.run(_LOOK_SECONDS, self.life.ended):
                return
        self.kernel.run(seconds, self.life.ended)

    @property
    def acknowledged(self):
        """Return the number of acknowledged messages."""
        return sum(sent.state == "stored" for sent in self.ledger.sent.values())

    def end(self, kind, odds=(0.0, 0.0)):
        """End the life: "stop", "kill" or "power", after which unflushed changes survive with these
        odds."""
        if kind != "stop":
            self.watch.life_ends()
        calls = self.life.stop() if kind == "stop" else self.life.kill()
        fault = self.life.fault(is_to_stop=kind == "stop")
        if kind == "stop" and self.life.was_killed:
            kind = "kill"
        self.address = World.address
        self.note(f"life {self.lives} has ended: {kind}, after {calls} calls")
        if fault and not self._is_in_trouble:
            self._complain(fault)
        if kind == "power":
            self.machine.lose_power(self.dice, *odds)
        for each in (self.ledger, self.offsets, self.watch):
            each.life_ended(kind)
        self.names.forget_uncertain()

    def look_at_the_end(self):
        """Check the end: nothing is pending, all messages arrived, and a power loss after a stop
        changes nothing."""
        self.is_at_rest = True
        self.start()
        self._wait_for_deliveries()
        self.end("stop")
        self.machine.lose_power(self.dice, 0.0, 0.0)
        self.start()
        self.end("stop")

    def close(self):
        """Stop all processes."""
        try:
            if self.life is not None and not self.life.ended.is_kept:
                self.life.kill()
        finally:
            self.tasks.end()
            self.network.close()
            self.kernel.close()

    def story(self):
        """Return the latest events."""
        return "\n".join(self._notes)

    def _audit(self):
        """Audit everything; return whether that ended before the broker died."""
        whole = self.tasks.begin(Audit(self).look(), "auditor")
        either = Promise()
        for promise in (whole, self.life.ended):
            promise.then(either.keep)
        if not self.kernel.run(_AUDIT_SECONDS, either):
            self._complain(f"the audit takes longer than {_AUDIT_SECONDS} s")
        return whole.is_kept

    def _wait_for_deliveries(self):
        """Wait for every delayed and every returned message."""
        until = self.kernel.now + _DELIVERY_SECONDS
        while True:
            self.kernel.run(_LOOK_SECONDS)
            self._audit()
            try:
                self.ledger.check_deliveries()
            except Broken:
                if self.kernel.now > until:
                    raise
            else:
                return


class _RestlessPlayer(Player):
    """A client that performs random actions."""

    def __init__(self, world, plan, acts):
        super().__init__(world, plan)
        self._acts = acts

    async def play(self):
        while True:
            while self.world.is_at_rest:
                await self.world.tasks.sleep(0.05)
            name = self.dice.choice(list(self._acts))
            arguments = self._acts[name].draw(self.dice)
            self.world.note(f"{self.name}: {name} {arguments}")
            await self._acts[name].play(self, **arguments)
