"""``python -m world.clients.transacting``: runs stories of clients with transactions.

python -m world.clients.transacting --first 0 --seeds 1000      the stories of these seeds
python -m world.clients.transacting --seed 157                  one, with its trace
"""

import random
import sys
from dataclasses import replace

from world.clients.acts import ACTS
from world.clients.drawing import draw_plainly
from world.clients.transactions import TRANSACT
from world.clients.world import ClientWorld
from world.story import Client, Step
from world.telling import main

_SETTINGS = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionCheckMax": "1000000",
}


def draw(seed):
    """Return the story of a seed: two or three producers have transactions, and groups consume."""
    dice = random.Random(f"{seed}: transactions")
    producers = tuple(_producer(dice, f"t{number}") for number in range(dice.choice([2, 3])))
    story = draw_plainly(seed, producers)
    return replace(story, settings={**story.settings, **_SETTINGS})


def _producer(dice, name):
    steps = []
    for _ in range(dice.choice([4, 8, 16])):
        kind = dice.choice((TRANSACT, TRANSACT, TRANSACT, "send", "wait"))
        steps.append(Step(kind, ACTS[kind].draw(dice)))
    return Client(name, (Step(TRANSACT, ACTS[TRANSACT].draw(dice)), *steps))


if __name__ == "__main__":
    sys.exit(main("python -m world.clients.transacting", __doc__, draw, ClientWorld))
