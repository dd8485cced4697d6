"""A world: one story with a broker, its clients and troubles, in one process and virtual time.

World(story).tell() ──> a trace that is the same, byte for byte, for the same story
                   └──> Broken: a broken promise, with the trace up to there
"""

import errno
from functools import partial
from pathlib import Path

from support.brokers.in_process import small_broker
from world.acts import GROUPS, QUEUES
from world.acts.groups import query_offset
from world.acts.pops import acknowledge_all, pop
from world.acts.pulls import Asked, pull_once
from world.acts.staging import ask_last
from world.acts.transactions import answer_checks
from world.broker import BrokerLife
from world.disk import ROOMY, Platter
from world.drawing import DELAY_LEVELS_MS
from world.fate import Fate
from world.ledger import Ledger
from world.locks import Locks
from world.logs import Logs
from world.offsets import Offsets
from world.player import Player
from world.stage import Broken, Stage, forget_earlier_stories
from world.story import Client
from world.threads import Threads
from world.watch import Watch

_PORT = 9876
_ROOT = Path("/machine/home/store")
PREEMPTED = (
    r"broker/(store|state|schedule)/(?!startup/directory_lock|bulk/)|broker/runtime/housekeeping"
)
_START_SECONDS = 30.0
_FLUSHES_OF_A_START = 10
_BEFALL = ("clock", "full", "cut", "accept")
_START_AGAIN_SECONDS = 1.0
_STOP_SECONDS = 60.0
_STORY_SECONDS = 5_000.0
_AUDIT_SECONDS = 120.0
_QUIET_SECONDS = 3.0
_IDLE_SECONDS = 135.0
_SETTLE_SECONDS = 300.0
_SETTLED_LOOKS = 3
_LOOK_SECONDS = 1.0
_INVISIBLE_SECONDS = 9.0
_REVIVED_SECONDS = 4.0


class World(Stage):
    """The world of a story of one broker."""

    address = ("127.0.0.1", _PORT)
    broker_name = "broker-a"

    def __init__(self, story):
        super().__init__(story)
        self.ledger = Ledger(self, is_sync=story.is_sync)
        self.offsets = Offsets(
            self, int(story.settings["flushConsumerOffsetInterval"]) / 1000 + 1.0
        )
        self.locks = Locks(self.ledger.complain)
        self.watch = Watch(self)
        self.life = None
        self._config = small_broker(_ROOT, listenPort=_PORT, **story.settings)

    def tell(self):
        """Run the story to its end, and check all promises."""
        forget_earlier_stories()
        with (
            Threads(
                self.kernel, self.story.preemption, self.story.line_preemption, PREEMPTED
            ) as self.threads,
            Logs(
                self.kernel,
                self.note,
                self.complain,
                self.watch.is_excused,
                self.watch.is_expected,
            ),
        ):
            self.platter = Platter(self.threads.wall_seconds, _ROOT.parent)
            try:
                self._tell()
            finally:
                self.kernel.close()

    # ---- queries of its parts

    def delay_seconds(self, level):
        """Return the delay of a level in seconds."""
        return DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1] / 1000 if level > 0 else 0.0

    # ---- the story

    def _tell(self):
        for trouble in self.story.troubles:
            if trouble.kind in _BEFALL:
                self.kernel.at(trouble.begin, partial(self._befall, trouble))
        clients = [
            self.tasks.begin(Player(self, plan).play(), plan.name) for plan in self.story.clients
        ]
        for ending in self.story.endings:
            self._live(ending)
        self._start(None)
        self.kernel.run(max(self.watch.troubles_end - self.kernel.now, 0))
        if self.watch.has_disk_failed:
            self._stop()
            self._start(None)
        for client in clients:
            if not self.kernel.run(_STORY_SECONDS, client):
                self.ledger.complain(f"it does not come to an end: {self.tasks.running}")
        self._wait_for_delays()
        self._settle_transactions()
        self._settle_pops()
        self._audit()
        self.kernel.run(_QUIET_SECONDS)
        if self.life.controller.server.connections:  # of silent clients
            self.kernel.run(_IDLE_SECONDS)
        self.watch.check_nothing_is_left(self.life.controller, self.life.disk)
        self._stop()
        self._start(None)
        self._audit()
        self._stop()

    def _befall(self, trouble):
        """Start the troubles of one moment."""
        self.note(f"{trouble.kind} {trouble.arguments}")
        if trouble.kind == "clock":
            self.threads.wall_ahead += trouble.arguments["ahead_seconds"]
            self.watch.clock_moved(self.threads.wall_ahead)
        elif trouble.kind == "full":
            self.platter.used_ratio = trouble.arguments["used_ratio"]
            self.kernel.after(trouble.seconds, self._make_room)
        elif trouble.kind == "accept":
            self.network.accept_errno = getattr(errno, trouble.arguments["errno"])
            self.kernel.after(trouble.seconds, self._accept_again)
        else:
            self.network.cut_all()

    def _accept_again(self):
        self.network.accept_errno = None

    def _make_room(self):
        self.platter.used_ratio = ROOMY

    def _live(self, ending):
        """Run one life of the broker, and a while without one."""
        life = self._start(ending)
        self.kernel.run(ending.seconds, life.ended)
        if not life.ended.is_kept:
            if ending.kind == "stop":
                self._stop()
            else:
                life.process.kill(power_lost=ending.kind == "power")
                self._ended()
        elif life.ended.value != "stopped":
            self._ended()
        self.kernel.run(ending.down_seconds)

    def _start(self, ending):
        self.lives += 1
        fate = Fate(self, self.dice_for(f"fate {self.lives}"), ending)
        self.note(f"life {self.lives} begins")
        self.network.power_is_back()
        self.life = life = BrokerLife(
            self, self._config, f"broker {self.lives}", self.platter, fate
        )
        life.begin()
        slow_seconds = sum(
            trouble.arguments["flush_seconds"]
            for trouble in self.story.troubles
            if trouble.kind == "slow"
        )
        patience = _START_SECONDS + _FLUSHES_OF_A_START * slow_seconds
        if not self.kernel.run(patience, life.started):
            self.ledger.complain(f"the broker has not started within {patience} s")
        why_not = life.started.value
        self.note(f"started: {why_not}")
        if isinstance(why_not, Exception):
            if not self.watch.is_excused(why_not):
                raise Broken(f"the broker cannot start: {why_not!r}") from why_not
            self._ended()
            self.kernel.run(_START_AGAIN_SECONDS)
            return self._start(ending)
        return life

    def _stop(self):
        self.note(f"life {self.lives} is to stop")
        self.life.stop()
        if not self.kernel.run(_STOP_SECONDS, self.life.ended):
            self.ledger.complain(f"the broker has not stopped within {_STOP_SECONDS} s")
        self._ended()

    def _ended(self):
        self.kernel.run(0, self.life.ended)
        self.watch.check_no_rescue(self.life.controller)
        kind = self.life.ended.value
        self.note(f"life {self.lives} has ended: {kind}")
        if kind == "power":
            self.platter.lose_power(self.dice_for(f"power {self.lives}"))
        for each in (self.ledger, self.offsets, self.locks, self.watch):
            each.life_ended("stop" if kind == "stopped" else kind)

    # ---- final checks

    def _wait_for_delays(self):
        """Wait until every delayed message, and every one that was sent back, must have been
        delivered."""
        longest = max(DELAY_LEVELS_MS) / 1000
        self.kernel.run(longest + self.watch.slack_seconds + 1.0)

    def _settle_transactions(self):
        """Let a producer answer checks until all transactions have ended."""
        if not any(sent.end for sent in self.ledger.sent.values()):
            return
        producer = Player(self, Client("settler", ()))
        ended = self.tasks.begin(self._answer_until_settled(producer), producer.name)
        if not self.kernel.run(_SETTLE_SECONDS, ended):
            pending = self.life.controller.transactions.pending_count
            self.ledger.complain(f"{pending} transactions do not come to an end")

    async def _answer_until_settled(self, producer):
        quiet = 0
        while quiet < _SETTLED_LOOKS:
            await answer_checks(producer, _LOOK_SECONDS)
            quiet = 0 if self.life.controller.transactions.pending_count else quiet + 1
        producer.leave()

    def _settle_pops(self):
        """Pop and acknowledge until all messages must have come, and none comes again."""
        if not self.ledger.pops.topics:
            return
        member = Player(self, Client("last member", ()))
        ended = self.tasks.begin(self._pop_all(member), member.name)
        if not self.kernel.run(_SETTLE_SECONDS, ended):
            self.ledger.complain("the pops do not come to an end")
        self.ledger.pops.check_all_came()

    async def _pop_all(self, member):
        pops = self.ledger.pops
        invisible_ms = int(_INVISIBLE_SECONDS * 1_000)
        longest = _INVISIBLE_SECONDS + _REVIVED_SECONDS + self.watch.slack_seconds
        until = self.kernel.now + longest
        while True:
            is_last = self.kernel.now >= until or next(pops.pending(), None) is None
            if is_last:
                await self.tasks.sleep(longest)
            for group, topic in pops.topics:
                while found := await pop(member, group, topic, -1, 32, invisible_ms, 0):
                    await acknowledge_all(member, found)
            if is_last:
                break
            await self.tasks.sleep(_LOOK_SECONDS)
        member.leave()

    def _audit(self):
        """Read every queue from beginning to end."""
        auditor = Player(self, Client(f"auditor {self.lives}", ()))
        if not self.kernel.run(
            _AUDIT_SECONDS, self.tasks.begin(self._read_all(auditor), auditor.name)
        ):
            self.ledger.complain("the audit does not come to an end")
        self.ledger.check_deliveries()
        self.note("audited")

    async def _read_all(self, auditor):
        ledger = self.ledger
        own = [
            (topic, 0)
            for number in range(GROUPS)
            for topic in (f"%RETRY%G{number}", f"%DLQ%G{number}")
        ]
        known = [
            (sent.topic, queue_id) for sent in ledger.sent.values() for queue_id in range(QUEUES)
        ]
        for topic, queue_id in dict.fromkeys([*ledger.queues, *known, *own]):
            must = ledger.expected(topic, queue_id, 0)
            found, offset, told = set(), 0, None
            while told is None or told.next_offset < told.max_offset:
                told = await pull_once(auditor, Asked(topic, queue_id, offset), group="auditor")
                if told is None or (not told.messages and told.next_offset <= offset):
                    break
                found |= {message.queue_offset for message in told.messages}
                offset = told.next_offset
            low, high = (told.min_offset, told.max_offset) if told else (0, 0)
            ledger.audited(topic, queue_id, must, found, low, high)
            gap = next((offset for offset in range(low, high) if offset not in found), None)
            if gap is not None:  # a pull from there reports the same queue
                await pull_once(auditor, Asked(topic, queue_id, gap), group="auditor")
        for key in self.offsets.known():
            await query_offset(auditor, key)
        for sink in ledger.batches.sinks():
            await ask_last(auditor, sink)
        ledger.batches.audited()
        auditor.leave()
