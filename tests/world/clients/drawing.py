"""Draws stories of clients from a seed: members, their steps, and troubles of members and brokers.

Each seed has its own character, because most bugs need several rare things at once.
"""

import random
from dataclasses import replace

from world.clients.acts import ACTS, TOPICS
from world.clients.consuming import CONSUME
from world.clients.listening import MOODS, MORE_MOODS
from world.clients.themes import with_themes
from world.cluster.lying import with_lies
from world.story import Client, Step, Story, Trouble

TROUBLES_SECONDS = 20.0
"""Seconds within which all troubles start."""

_KINDS = ("concurrent", "concurrent", "orderly", "orderly", "lite", "lite")
_OF_PRODUCERS = ("send", "send", "wait")
_OF_CONSUMERS = (
    "shut_down_and_start",
    "unsubscribe_and_subscribe",
    "pause_and_resume",
    "seek",
    "reset",
)


def draw(seed):
    """Return the story of a seed."""
    return with_lies(drawn_without_lies(seed), TROUBLES_SECONDS, 2)


def drawn_without_lies(seed):
    """Return the story of a seed whose brokers are all honest."""
    dice = random.Random(seed)
    story = _draw(dice, seed, ())
    story = _with_more(story, random.Random(f"{seed}: what came later"))
    return with_themes(story, random.Random(f"{seed}: themes"))


def draw_plainly(seed, others):
    """Return a story with these clients, a group and producers, without lies and themes."""
    return _draw(random.Random(f"{seed}: plainly"), seed, others)


def _draw(dice, seed, others):
    settings = {
        "flushDiskType": "SYNC_FLUSH" if dice.random() < 0.3 else "ASYNC_FLUSH",
        "flushConsumerOffsetInterval": str(dice.choice([2_000, 5_000])),
        "flushIntervalCommitLog": "2000",
        "messageDelayLevel": "1s 2s 3s 10s",
        "mappedFileSizeCommitLog": str(1 << 20),
        "mappedFileSizeConsumeQueue": str(20 * 500),
    }
    clients = []
    for number in range(dice.choice([1, 2])):
        group = _group(dice, f"G{number}")
        members = dice.choice([1, 2, 2, 3])
        clients += [_member(dice, group, f"g{number}m{member}") for member in range(members)]
    clients += [_producer(dice, f"p{number}") for number in range(dice.choice([1, 1, 2]))]
    clients += others
    names = [client.name for client in clients]
    return Story(
        seed=seed,
        settings=settings,
        endings=(),
        clients=tuple(clients),
        troubles=tuple(
            _trouble(dice, names, _TROUBLES) for _ in range(dice.choice([0, 0, 1, 2, 3, 5]))
        ),
        latency_seconds=dice.choice([0.000_1, 0.000_5, 0.02]),
        flush_seconds=dice.choice([0.000_2, 0.002]),
        preemption=dice.choice([0, 0.02, 0.2]),
        line_preemption=dice.choice([0] * 9 + [0.02]),
    )


def _with_more(story, dice):
    """Return a story with later additions from a separate random generator, so that the rest stays
    the same."""
    moods = dice.choices(MORE_MOODS, k=dice.choice([0, 0, 1, 2]))
    count = dice.choice([0, 0, 0, 1, 2])
    troubles = tuple(_trouble(dice, (), _OF_ANSWERS) for _ in range(count))
    return replace(
        story,
        clients=tuple(_with_more_of(dice, client, moods) for client in story.clients),
        troubles=(*story.troubles, *troubles),
    )


def _with_more_of(dice, client, moods):
    steps = []
    for step in client.steps:
        arguments = step.arguments
        if step.kind == CONSUME:
            arguments = {**arguments, "moods": [*arguments["moods"], *moods]}
        elif step.kind == "shut_down_and_start":
            arguments = {**arguments, "keeps_client": dice.random() < 0.5}
        steps.append(replace(step, arguments=arguments))
    return replace(client, steps=tuple(steps))


def _group(dice, name):
    """Draw the settings that all members of a group share."""
    kind = dice.choice(_KINDS)
    broadcasting = dice.random() < 0.15
    settings = {
        "rebalance_interval_ms": dice.choice([2_000, 20_000]),
        "persist_consumer_offset_interval_ms": dice.choice([1_000, 5_000]),
        "pull_batch_size": dice.choice([1, 8, 32]),
    }
    more = {}
    if kind == "lite":
        settings["auto_commit_interval_ms"] = dice.choice([1_000, 5_000])
        more["auto_commit"] = dice.random() < 0.7
    else:
        settings["consume_thread_max"] = dice.choice([1, 3, 20])
        settings["consume_message_batch_max_size"] = dice.choice([1, 1, 4])
        settings["max_reconsume_times"] = dice.choice([-1, -1, 2])
        if kind == "concurrent":
            settings["consume_timeout_ms"] = dice.choice([2_000, 900_000])
        else:
            settings["suspend_current_queue_time_ms"] = dice.choice([10, 1_000])
    return {
        "kind": kind,
        "group": name,
        "topics": dice.choice([[TOPICS[0]], list(TOPICS)]),
        "broadcasting": broadcasting,
        "moods": dice.choices(("good", "slow", "very slow", *MOODS), k=dice.choice([1, 1, 2, 4])),
        "settings": settings,
        "queue_messages_max": dice.choice([2, 1_000, 1_000]),
        **more,
    }


def _member(dice, group, name):
    steps = [Step(CONSUME, group)]
    for _ in range(dice.choice([0, 1, 3, 6, 10])):
        kind = dice.choice((*_OF_CONSUMERS, "send"))
        steps += [_step(dice, "wait"), _step(dice, kind)]
    return Client(name, tuple(steps))


def _producer(dice, name):
    kinds = [_step(dice, dice.choice(_OF_PRODUCERS)) for _ in range(dice.choice([5, 15, 30]))]
    return Client(name, (_step(dice, "send"), *kinds))


def _step(dice, kind):
    return Step(kind, ACTS[kind].draw(dice))


def _trouble(dice, names, kinds):
    kind = dice.choice(list(kinds))
    begin = dice.uniform(0, TROUBLES_SECONDS)
    return Trouble(
        kind, begin, dice.choice([0.2, 2.0, 2.0, 8.0, 8.0, 40.0]), kinds[kind](dice, names)
    )


def _broker(dice, _):
    return {"broker": dice.randrange(2)}


_TROUBLES = {
    "kill a broker": _broker,
    "stop a broker": _broker,
    "kill a client": lambda dice, names: {"client": dice.choice(names)},
    "cut": lambda dice, _: {"broker": dice.choice([None, 0, 1])},
    "silence": lambda dice, _: {"broker": dice.choice([None, 0, 1])},
    "hold up": _broker,
    "slow": lambda dice, _: {"latency_seconds": dice.choice([0.2, 1.0])},
    "clock": lambda dice, _: {"ahead_seconds": dice.choice([-3_600.0, -5.0, 5.0, 3_600.0])},
}

_OF_ANSWERS = {"twice": _broker, "late": _broker}
