"""``python -m world.clients.popping``: runs stories of clients with groups that pop.

python -m world.clients.popping --first 0 --seeds 1000      the stories of these seeds
python -m world.clients.popping --seed 157                  one, with its trace
"""

import random
import sys
from dataclasses import replace

from world.clients.acts import ACTS
from world.clients.drawing import draw_plainly
from world.clients.pops import POP
from world.clients.world import ClientWorld
from world.story import Client, Step
from world.telling import main

_BACK_SECONDS = 60


def draw(seed):
    """Return the story of a seed: one or two groups pop, another one does not."""
    dice = random.Random(f"{seed}: pops")
    members = []
    for number in range(dice.choice([1, 1, 2])):
        group = {
            "group": f"S{number}",
            "in_order": dice.random() < 0.3,
            "invisible_ms": dice.choice([1_000, 3_000, 9_000]),
        }
        members += [
            _member(dice, f"s{number}m{member}", group) for member in range(dice.choice([1, 2, 3]))
        ]
    story = draw_plainly(seed, tuple(members))
    troubles = (each for each in story.troubles if not _sets_far_back(each))
    return replace(story, troubles=tuple(troubles))


def _sets_far_back(trouble):
    """Return whether the clock is set back so far that popped messages stay invisible for long.

    Check points contain a time of day, as RocketMQ's do.
    """
    return trouble.kind == "clock" and trouble.arguments["ahead_seconds"] < -_BACK_SECONDS


def _member(dice, name, group):
    pops = {
        **group,
        "count": dice.choice([1, 4, 32]),
        "timeout_ms": dice.choice([0, 500, 5_000]),
        "carelessness": dice.choice([0.0, 0.3, 0.6]),
    }
    steps = []
    for _ in range(dice.choice([0, 2, 6])):
        steps += [Step(kind, ACTS[kind].draw(dice)) for kind in ("wait", "rejoin")]
    return Client(name, (Step(POP, pops), *steps))


if __name__ == "__main__":
    sys.exit(main("python -m world.clients.popping", __doc__, draw, ClientWorld))
