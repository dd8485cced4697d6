"""Lives of a broker process that end by kill or power loss, at any system call, and audits after
them.

Each life begins with the files of the last one, is audited by a client, and works for clients until
it dies. Several lives share a disk. A complaint of a ledger is a finding; then a new disk begins.
"""

from __future__ import annotations

import errno
import random
import shutil
from collections import Counter
from dataclasses import dataclass

from real_world import names
from real_world.world import World
from system_calls.rules import Rule
from world.acts import ACTS, OF_SINKS

LIVES_PER_DISK = 15

WORK = {
    **{
        name: ACTS[name]
        for name in (
            *("send", "send_passing", "send_delayed", "send_one_way", "burst", "batch", "chunk"),
            *("pull", "wait_for_messages", "pull_passing", "query_by_key"),
            *("heartbeat", "commit", "give_back", "give_back_again"),
            *("make_topic", "delete_topic", "ask_for"),
            *OF_SINKS,
        )
    },
    **names.ACTS,
}
"""The clients' acts. Some can be left out, to search for other bugs."""

ALL_LOST, NOTHING_LOST = (0.0, 0.0), (1.0, 1.0)
_ODDS = (
    ALL_LOST,
    ALL_LOST,
    (0.0, 1.0),
    (1.0, 0.0),
    (0.5, 0.5),
    (0.9, 0.1),
    (0.1, 0.9),
    NOTHING_LOST,
)
_FULL = Rule("full", "look", share=0.87)
"""Disk usage at which the oldest messages expire, but sends are not refused."""

_FAILURES = (
    ("flush", errno.EIO),
    ("write", errno.EIO),
    ("write", errno.ENOSPC),
    ("open", errno.ENOSPC),
    ("open", errno.EMFILE),
    ("rename", errno.EIO),
    ("delete", errno.EIO),
)


@dataclass(frozen=True)
class Life:
    """One life of a broker: which calls fail, how long it runs, and how it ends.

    ``ending`` is "kill", "power" or "stop"; ``odds`` are those that some of the names and of the
    content that are not durable survive.
    """

    rules: tuple[Rule, ...] = ()
    work_seconds: float = 0.3
    ending: str = "power"
    odds: tuple[float, float] = ALL_LOST

    @property
    def is_in_trouble(self):
        return any(rule.what == "fail" for rule in self.rules)


def drawn_life(dice, *rules):
    """Draw a random life with these rules."""
    rules = [*rules]
    work_seconds = dice.uniform(0.05, 0.8)
    ending = dice.choice(["kill", "power", "power", "power", "stop"])
    if dice.random() < 0.5:
        rules.append(Rule("short", "write"))
    if dice.random() < 0.5:
        rules.append(Rule("slow", "flush", seconds=dice.choice([0.002, 0.02, 0.1])))
    if dice.random() < 0.1:
        kind, error = dice.choice(_FAILURES)
        rules.append(Rule("fail", kind, number=dice.randint(1, 40), error=error))
        ending = (
            "power"  # data of a failed flush is only in memory, and nothing can make it durable
        )
    if dice.random() < 0.6:
        kind = dice.choice(["*", "*", "open", "truncate", "write", "flush", "rename", "delete"])
        number = dice.randint(1, dice.choice([10, 100, 400, 1000]))
        rules.append(Rule(dice.choice(["die", "die behind"]), kind, number=number))
        work_seconds = 2.0
    return Life(tuple(rules), work_seconds, ending, dice.choice(_ODDS))


class Campaign:
    """Runs lives on one disk after the other, and collects ``findings``."""

    def __init__(self, base, dice, acts=WORK, full_disks=0.25, **settings):
        """``full_disks`` is the share of disks so full that the oldest messages are deleted."""
        self._base = base
        self._dice = dice
        self._acts = acts
        self._full_disks = full_disks
        self._settings = settings
        self._disks = 0
        self.findings = []
        self.counts = Counter()
        self.longest_start_seconds = 0.0

    def __str__(self):
        counts = self.counts
        return (
            f"{counts['lives']} lives, {counts['power']} ended by power loss and {counts['kill']} "
            f"by kill; {counts['acknowledged']} messages acknowledged; {len(self.findings)} "
            f"findings; longest start {self.longest_start_seconds:.1f} s"
        )

    def run(self, lives):
        """Draw this number of lives, and run them."""
        while lives > 0:
            count = min(lives, LIVES_PER_DISK)
            is_full = self._dice.random() < self._full_disks
            rules = [_FULL] if is_full else []
            self.live((drawn_life(self._dice, *rules) for _ in range(count)), may_expire=is_full)
            lives -= count

    def live(self, lives, *, may_expire=False):
        """Run these lives on one disk, and a last one without faults."""
        base = self._base / f"disk-{self._disks}"
        self._disks += 1
        world = World(
            base,
            random.Random(self._dice.random()),
            self._acts,
            self._settings,
            may_expire=may_expire,
        )
        try:
            for life in lives:
                self._live(world, life)
            world.look_at_the_end()
        except AssertionError as error:
            self.findings.append(f"{base.name}, life {world.lives}: {error}")
            (base / "story").write_text(f"{world.story()}\n{error}\n")
        else:
            shutil.rmtree(base)
        finally:
            self.counts["lives"] += world.lives
            self.counts["acknowledged"] += world.acknowledged
            self.longest_start_seconds = max(
                self.longest_start_seconds, world.longest_start_seconds
            )
            world.close()

    def _live(self, world, life):
        if world.start(
            life.rules, is_in_trouble=life.is_in_trouble, seed=self._dice.randrange(1 << 30)
        ):
            world.go_on(life.work_seconds)
        ending = life.ending if life.ending != "stop" or world.is_serving else "kill"
        self.counts[ending] += 1
        world.end(ending, life.odds)
