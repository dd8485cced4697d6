"""A broker process that is killed, or whose machine loses power, keeps its promises to clients.

The operations of a store on its disk are recorded below Python's `os`, so that missing calls are
noticed as well. The last tests break the broker's calls on purpose, and require the campaign to
notice.
"""

import os
import random
from itertools import repeat

import pytest
from real_world.campaign import ALL_LOST, WORK, Campaign, Life
from real_world.machine import STORE
from support.suite.selection import some
from system_calls.rules import Rule
from world.acts import ACTS, Act

pytestmark = pytest.mark.deep

# Longer campaigns: ROCKETPOLL_POWER_LOSS_LIVES=1000; these leave out known bugs.
LIVES = int(os.environ.get("ROCKETPOLL_POWER_LOSS_LIVES", "6"))
WITHOUT = os.environ.get("ROCKETPOLL_POWER_LOSS_WITHOUT", "").split(",")

SENDS = {name: ACTS[name] for name in ("send", "batch", "chunk")}
FILES = [f"{STORE}/{name}/*[0-9]" for name in ("commitlog", "consumequeue", "index")]
"""# One rule for each, because other files may make up for lost ones."""


@pytest.fixture
def dice():
    return random.Random(int(os.environ.get("ROCKETPOLL_SEED", "1")))


def test_power_losses_and_kills_lose_nothing_promised(tmp_path, dice):
    acts = {name: act for name, act in WORK.items() if name not in WITHOUT}
    campaign = Campaign(tmp_path, dice, acts, full_disks=0.0 if "full" in WITHOUT else 0.25)
    campaign.run(LIVES)
    print(campaign)
    assert campaign.findings == []
    assert (
        campaign.counts["acknowledged"] > 5 * LIVES
    )  # otherwise the brokers were too slow to report anything


# ---- the campaign detects broken brokers


def forget(*paths):
    return [Rule("forget", "flush", path) for path in paths]


WRONGS = {
    "files are not flushed": forget(*FILES),
    "directories are not flushed": forget("*/"),
    "the directory of the store is not flushed": forget("var/", "/"),
    "small files are not flushed": forget("*.tmp", "*/abort"),
    "a table is not flushed": forget("*/config/topics.json.tmp"),
    "a short write is taken for whole": [Rule("lie", "write", "*/commitlog/*", 7)],
}


@pytest.mark.parametrize("wrong", some(WRONGS, "ROCKETPOLL_WRONG_BROKERS", 2))
def test_power_loss_campaign_detects_a_wrong_broker(tmp_path, dice, wrong):
    campaign = Campaign(tmp_path, dice, SENDS)
    campaign.live(repeat(Life(tuple(WRONGS[wrong]), odds=ALL_LOST), 2))
    assert campaign.findings != []


async def fill_files_in_two_goes(player):
    """Fill several files of a queue; one is partly full at a checkpoint."""
    world, seen = player.world, {}
    for sizes in ([1] * 60, [1] * 80):
        await ACTS["chunk"].play(player, "T0", 0, sizes)
        seen.clear()
        while world.is_serving and len(seen) < 3:  # a checkpoint that begins behind that has ended
            seen[(world.machine.disk / STORE / "checkpoint").stat().st_mtime_ns] = None
            await world.tasks.sleep(0.02)


def test_power_loss_campaign_detects_a_checkpoint_written_before_queue_flushes(tmp_path, dice):
    """The audit notices a lost file or a lost end of a queue, but not in the last file."""
    not_full = f"{STORE}/consumequeue/T0/0/{3 * 50 * 20:020}"
    rule = Rule("late", "flush", not_full, number=2, until=f"{STORE}/")
    campaign = Campaign(tmp_path, dice, {"fill": Act(fill_files_in_two_goes, lambda dice: {})})
    campaign.live([Life((rule,), work_seconds=20)])
    assert campaign.findings != []
