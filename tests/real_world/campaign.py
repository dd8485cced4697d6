"""Lives of a broker process that end by kill or power loss, at any call that it makes; and what is found.

Each life begins with what the last one has left, is audited by a client, and works for clients until it
dies. Several lives share a disk. What a ledger complains of is a finding; then a new disk begins.
"""

from __future__ import annotations

import errno
import random
from collections import Counter

from real_world import names
from real_world.world import World
from system_calls.rules import Rule
from world.acts import ACTS
from world.ledger import Broken

LIVES_PER_DISK = 15
_WORK_SECONDS = (0.05, 0.8)
_WORK_SECONDS_MAX = 2.0
_ODDS = ((0.0, 0.0), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (0.5, 0.5), (0.9, 0.1), (0.1, 0.9), (1.0, 1.0))

WORK = {
    **{
        name: ACTS[name]
        for name in (
            *("send", "send_passing", "send_delayed", "send_one_way", "burst", "batch", "chunk"),
            *("pull", "wait_for_messages", "pull_passing", "query_by_key"),
            *("heartbeat", "commit", "give_back", "give_back_again"),
            *("make_topic", "delete_topic", "ask_for"),
        )
    },
    **names.ACTS,
}
"""What clients do. A part of it can be left out, to find what else is wrong."""


class Campaign:
    """Lives, and ``findings``."""

    def __init__(self, base, dice, acts=None, rules=(), lives_per_disk=LIVES_PER_DISK):
        """``rules`` hold in each life, besides what is drawn for it."""
        self._base = base
        self._dice = dice
        self._acts = WORK if acts is None else acts
        self._rules = tuple(rules)
        self._lives_per_disk = lives_per_disk
        self.findings = []
        self.counts = Counter()
        self.longest_start_seconds = 0.0

    def run(self, lives):
        """So many lives, and one more on each disk for the last look at it."""
        left, disks = lives, 0
        while left > 0:
            count = min(left, self._lives_per_disk)
            self._use_disk(self._base / f"disk-{disks}", count)
            left -= count
            disks += 1

    def _use_disk(self, base, lives):
        world = World(base, random.Random(self._dice.random()), self._acts)
        try:
            for _ in range(lives):
                self._live(world)
            self._look_at_the_end(world)
        except (Broken, AssertionError) as error:
            self.findings.append(f"{base.name}: {error}")
            (base / "story").write_text(f"{world.story()}\n{error}\n")
        finally:
            for sent in world.ledger.sent.values():
                self.counts["acknowledged"] += sent.state == "stored"
            self.counts["lives"] += world.lives
            self.longest_start_seconds = max(self.longest_start_seconds, world.longest_start_seconds)
            world.close()

    def _live(self, world):
        dice = self._dice
        rules, is_planned = self._draw_rules()
        if world.start((*self._rules, *rules), dice.randrange(1 << 30)):
            world.go_on(_WORK_SECONDS_MAX if is_planned else dice.uniform(*_WORK_SECONDS))
        kind = dice.choice(["kill", "power", "power", "power", "stop"])
        if any(rule.what == "fail" for rule in rules):
            kind = "power"
        elif kind == "stop" and (world.life.ended.is_kept or not world.life.started.is_kept):
            kind = "kill"
        self.counts[kind] += 1
        world.end(kind, dice.choice(_ODDS))

    def _draw_rules(self):
        """What goes wrong in a life, and whether it ends by that."""
        dice = self._dice
        rules = []
        if dice.random() < 0.5:
            rules.append(Rule("short", "write"))
        if dice.random() < 0.5:
            rules.append(Rule("slow", "flush", seconds=dice.choice([0.002, 0.02, 0.1])))
        if dice.random() < 0.1:
            kind, error = dice.choice(
                [
                    ("flush", errno.EIO),
                    ("write", errno.EIO),
                    ("write", errno.ENOSPC),
                    ("open", errno.ENOSPC),
                    ("open", errno.EMFILE),
                    ("rename", errno.EIO),
                    ("delete", errno.EIO),
                ]
            )
            rules.append(Rule("fail", kind, number=dice.randint(1, 40), error=error))
        is_planned = dice.random() < 0.6
        if is_planned:
            kind = dice.choice(["*", "*", "open", "truncate", "write", "flush", "rename", "delete"])
            number = dice.randint(1, dice.choice([10, 60, 400]))
            rules.append(Rule(dice.choice(["die", "die behind"]), kind, number=number))
        return rules, is_planned

    def _look_at_the_end(self, world):
        """Nothing is under way any more, and nothing can be lost: neither by a stop nor by what follows it."""
        world.is_at_rest = True
        world.start(self._rules)
        world.wait_for_deliveries()
        world.end("stop")
        world.machine.lose_power(self._dice, 0.0, 0.0)
        world.start()
        world.end("stop")
