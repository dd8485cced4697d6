"""A model of popped messages, compared with a broker that is stopped and killed at random moments.

The model knows the acknowledged messages, and until when each message is invisible. In every case
no message is lost, and without a kill none is delivered while it is invisible or acknowledged.
"""

import asyncio
import random
import shutil

import pytest
from support.brokers.in_process import run as run_loop
from support.brokers.in_process import small_broker, started
from support.brokers.pop_stories import Story
from support.clients.pops import ack, ack_all, change, pop
from support.disks.faulty_disk import ManualClock
from support.suite.selection import count, spread

STEPS = 40
COPIES_MAX = 10
SEEDS = spread(4, range(count("ROCKETPOLL_POPS", 10, wide=40)))


class Model:
    """Knows which messages must be delivered, and which must not."""

    def __init__(self):
        self.sent = set()
        self.acked = set()
        self.hidden_until = {}
        self.held = {}
        """The last receipt of each message."""
        self.was_killed = False

    def deliver(self, messages, now_ms, invisible_ms):
        for each in messages:
            assert each.text in self.sent
            if not self.was_killed:
                assert each.text not in self.acked, f"{each} is acknowledged"
                assert self.hidden_until.get(each.text, 0) <= now_ms, f"{each} is invisible"
            self.hidden_until[each.text] = now_ms + invisible_ms
            self.held[each.text] = each

    def usable(self, now_ms):
        """Return the receipts that have not expired."""
        return [
            each
            for text, each in self.held.items()
            if text not in self.acked and self.hidden_until[text] > now_ms
        ]


async def live(rng, model, story):
    """Do random steps with a broker."""
    for _ in range(rng.randrange(5, STEPS)):
        now_ms = story.clock.now_ms
        usable = model.usable(now_ms)
        deed = rng.choice(("send", "pop", "pop", "ack", "ack", "change", "wait"))
        if deed == "send":
            for _ in range(rng.randrange(1, 6)):
                text = f"m{len(model.sent)}"
                model.sent.add(text)
                await story.client.put(text, queue_id=rng.randrange(4))
        elif deed == "pop":
            invisible_ms = rng.choice((1_000, 3_000, 10_000))
            found = await pop(
                story.client, max_msg_nums=rng.randrange(1, 33), invisible_time=invisible_ms
            )
            model.deliver(found, now_ms, invisible_ms)
        elif deed == "ack" and usable:
            several = rng.sample(usable, rng.randrange(1, len(usable) + 1))
            if len(several) > 1 and rng.random() < 0.5:
                assert await ack_all(story.client, several) == 0
            else:
                for each in several:
                    assert await ack(story.client, each) == 0
            model.acked.update(each.text for each in several)
        elif deed == "change" and usable:
            each = rng.choice(usable)
            invisible_ms = rng.choice((0, 2_000, 20_000))
            assert await change(story.client, each, invisible_ms) == 0
            model.hidden_until[each.text] = now_ms + invisible_ms
        elif deed == "wait":
            await story.pass_time(rng.choice((200, 1_500, 6_000)))


async def drain(model, story):
    """Pop until nothing is returned: all sent messages must be acknowledged."""
    for _ in range(40):
        found = await pop(story.client, invisible_time=20_000)
        model.deliver(found, story.clock.now_ms, 20_000)
        for each in found:
            assert await ack(story.client, each) == 0
            model.acked.add(each.text)
        if not found:
            await story.pass_time(2_000)
    assert model.acked == model.sent


def is_copied(source, target):
    """Copy a directory, as a kill leaves it; return False if a file was replaced meanwhile."""
    try:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.tmp"))
    except shutil.Error:
        shutil.rmtree(target)
        return False
    return True


@pytest.mark.parametrize("seed", SEEDS)
def test_no_popped_message_is_lost_whatever_happens_to_the_broker(tmp_path, seed):
    rng, model, clock = random.Random(seed), Model(), ManualClock()
    root = tmp_path / "0"

    async def life(number, *, is_last):
        settings = {
            "flushDiskType": rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH")),
            # the clock moves while the disk works
            "osPageCacheBusyTimeOutMills": 1 << 30,
            "syncFlushTimeout": 1 << 30,
        }
        asyncio.get_running_loop().stand_still()  # independent of the machine's speed
        async with started(small_broker(tmp_path / str(number), **settings), None, clock) as broker:
            if number == 0:
                broker.make_topic("T")
                broker.controller.tables.save()
            story = Story(broker, await broker.connect(), clock)
            await live(rng, model, story)
            if is_last:
                await drain(model, story)
            elif is_kill:
                await story.settle()
                copy(number)
        if not is_last and not is_kill:
            copy(number)

    def copy(number):
        source, target = tmp_path / str(number), tmp_path / str(number + 1)
        assert any(is_copied(source, target) for _ in range(COPIES_MAX)), "files vanish each time"

    root.mkdir()
    lives = rng.randrange(1, 4)
    for number in range(lives):
        is_kill = rng.random() < 0.6
        is_last = number == lives - 1
        run_loop(life(number, is_last=is_last))
        model.was_killed = model.was_killed or (is_kill and not is_last)
