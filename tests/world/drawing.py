"""Draws stories from a seed: settings, lives, clients and troubles, and how often each occurs.

Each seed has its own character, because most bugs need several rare things at once: one only sends,
one has a disk that is always full, one has a broker that dies every second.
"""

import random

from world.acts import ACTS, OF_CLIENTS, OF_COMMITTERS, OF_POPPERS, OF_SINKS
from world.story import Client, Ending, Step, Story, Trouble

DELAY_LEVELS_MS = (1_000, 2_000, 3_000, 10_000)

_PAUSES = (0, 0, 0.001, 0.01, 0.1, 0.7, 2.5)


def draw(seed):
    """Return the story of a seed."""
    dice = random.Random(seed)
    is_sync = dice.random() < 0.7
    settings = {
        "flushDiskType": "SYNC_FLUSH" if is_sync else "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": str(dice.choice([16, 64, 256]) * 1024),
        "mappedFileSizeConsumeQueue": str(20 * dice.choice([8, 50, 400])),
        "maxMessageSize": str(12 * 1024),
        "maxHashSlotNum": "16",
        "maxIndexNum": str(dice.choice([64, 256])),
        "checkpointIntervalMills": str(dice.choice([500, 2_000, 60_000])),
        "checkWholeLogBytes": str(dice.choice([0, 0, 1 << 28])),
        "flushConsumerOffsetInterval": str(dice.choice([500, 5_000])),
        "flushDelayOffsetInterval": str(dice.choice([500, 10_000])),
        "cleanResourceInterval": str(dice.choice([1_000, 10_000])),
        "messageDelayLevel": " ".join(f"{level // 1_000}s" for level in DELAY_LEVELS_MS),
        "transactionTimeOut": "300",
        "transactionCheckInterval": "500",
        "transactionCheckMax": "1000000",
        "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    }
    lives = dice.choice([0, 1, 1, 2, 3, 5])
    return Story(
        seed=seed,
        settings=settings,
        endings=tuple(_ending(dice) for _ in range(lives)),
        clients=(
            *(_client(dice, number) for number in range(dice.choice([1, 2, 3, 4]))),
            *(_consumer(dice, number) for number in range(dice.choice([0, 0, 1, 2]))),
            *_sinks(random.Random(f"{seed} sinks")),
            *_committers(random.Random(f"{seed} transactions")),
            *_poppers(random.Random(f"{seed} pops")),
        ),
        troubles=(
            *(_trouble(dice) for _ in range(dice.choice([0, 0, 0, 1, 2, 4]))),
            *_rarer_troubles(random.Random(f"{seed} rarer troubles")),
        ),
        latency_seconds=dice.choice([0.000_05, 0.000_5, 0.01]),
        flush_seconds=dice.choice([0.000_2, 0.002, 0.02]),
        preemption=dice.choice([0, 0.02, 0.2]),
        line_preemption=dice.choice([0] * 9 + [0.02]),
    )


def _ending(dice):
    return Ending(
        kind=dice.choice(["stop", "kill", "kill", "power", "power", "power"]),
        seconds=dice.choice([0.05, 0.3, 1.0, 3.0, 12.0]),
        operation=dice.choice(
            [None, None, dice.randrange(1, 40), dice.randrange(1, 300), dice.randrange(1, 3_000)]
        ),
        is_done=dice.random() < 0.5,
        down_seconds=dice.choice([0.01, 0.5, 5.0]),
    )


def _client(dice, number):
    kinds = dice.choices(OF_CLIENTS, k=dice.choice([2, 3, 5, 8]))
    count = dice.choice([3, 10, 25, 60])
    pauses = dice.choice([(0, 0, 0.001), _PAUSES])
    steps = []
    for _ in range(count):
        kind = dice.choice(kinds)
        steps.append(Step(kind, ACTS[kind].draw(dice)))
        if pause := dice.choice(pauses):
            steps.append(Step("wait", {"seconds": pause}))
    return Client(f"c{number}", tuple(steps))


def _consumer(dice, number):
    """Draw a client that mostly waits for other clients' messages."""
    act = ACTS["consume"]
    return Client(
        f"consumer{number}",
        tuple(Step("consume", act.draw(dice)) for _ in range(dice.choice([1, 3, 10]))),
    )


def _clients_of(dice, name, lengths, kinds):
    """Draw some clients of a kind, or none, each with as many steps as one of the lengths."""
    for number in range(dice.choice([0, 0, 1, 2])):
        steps = []
        for _ in range(dice.choice(lengths)):
            kind = dice.choice(kinds)
            steps.append(Step(kind, ACTS[kind].draw(dice)))
            if pause := dice.choice(_PAUSES):
                steps.append(Step("wait", {"seconds": pause}))
        yield Client(f"{name}{number}", tuple(steps))


def _sinks(dice):
    """Draw the clients that commit batches, in some of the stories."""
    kinds = (*OF_SINKS, "stage", "stage", "commit_batch")
    return _clients_of(dice, "sink", [4, 12, 30], kinds)


def _committers(dice):
    """Draw the producers with transactions, in some of the stories."""
    kinds = ("transact", "transact", "transact", *OF_COMMITTERS)
    return _clients_of(dice, "committer", [4, 12, 30], kinds)


def _poppers(dice):
    """Draw the members of groups that pop, in some of the stories."""
    return _clients_of(dice, "popper", [6, 15, 30], ("pop", *OF_POPPERS))


def _trouble(dice):
    kind = dice.choice(["slow", "lack", "lack", "broken", "clock", "cut", "full"])
    return Trouble(
        kind, dice.uniform(0, 10), dice.choice([0.1, 1.0, 5.0, 20.0]), _TROUBLES[kind](dice)
    )


def _rarer_troubles(dice):
    """Draw a disk that cannot read or find its content, and a system that accepts no
    connections."""
    for _ in range(dice.choice([0, 0, 0, 1, 2])):
        kind = dice.choice(["broken", "broken", "accept"])
        if kind == "accept":
            arguments = {"errno": dice.choice(["EMFILE", "ENFILE", "ENOMEM"])}
        else:
            operation = dice.choice(["read", "read", "open", "resize", "names", "make_directory"])
            arguments = {
                "operation": operation,
                "number": dice.choice([1, 2, 10, 50]),
                "through": 0,
            }
        yield Trouble(kind, dice.uniform(0, 10), dice.choice([0.1, 1.0, 5.0, 20.0]), arguments)


_LACKS = {
    "ENOSPC": ("create", "resize", "write"),
    "EDQUOT": ("create", "write"),
    "EMFILE": ("create", "open", "names", "flush_directory"),
    "ENFILE": ("create", "open", "names", "flush_directory"),
    "ENOMEM": ("create", "open", "read"),
}


def _lack(dice):
    name = dice.choice(list(_LACKS))
    return {
        "errno": name,
        "kinds": list(_LACKS[name]),
        "through": dice.choice([0, 1, 50, 1_000, 20_000]),
    }


_TROUBLES = {
    "slow": lambda dice: {"flush_seconds": dice.choice([0.1, 1.0, 6.0])},
    "lack": _lack,
    "broken": lambda dice: {
        "operation": dice.choice(
            ["write", "flush", "flush", "flush_directory", "create", "rename", "delete"]
        ),
        "number": dice.choice([1, 2, 10]),
        "through": dice.choice([0, 50]),
    },
    "clock": lambda dice: {
        "ahead_seconds": dice.choice([-3_600 * 24, -30, -3, 3, 30, 3_600 * 24 * 400])
    },
    "cut": lambda dice: {},
    "full": lambda dice: {"used_ratio": dice.choice([0.8, 0.87, 0.87, 0.95])},
}
