"""``python -m world.spark.at_commits``: stories of exactly-once sinks with troubles at their
commits.

Each is a story of ``python -m world.spark`` with such a sink; a failing one is shrunk and saved.
For each kind of trouble (`commits`), the seed decides how many batches it hits; with visibleTo=all,
an onlooker reads all the time.

python -m world.spark.at_commits --first 0 --seeds 1000      the stories of these seeds
python -m world.spark.at_commits --seed 57                   one, with its trace
"""

import random
import sys
from dataclasses import replace
from itertools import count

from world.spark.commits import KINDS
from world.spark.drawing import draw as draw_any
from world.spark.rarities import is_exactly_once, is_sink
from world.spark.world import SparkWorld
from world.story import Client, Step
from world.telling import main

_STORIES_APART = 1_000_000_000
"""Number of seeds between stories, so that each seed finds its own story with a sink."""

_ODDS = (0, 0.4, 0.8)
_MORE = (3, 6)
_AFTER_SECONDS = (0.05, 0.3, 1.0)
_ROWS = (1, 7, 20)


def draw(seed):
    """Return a story with an exactly-once sink and troubles at its commits."""
    stories = (draw_any(seed + number * _STORIES_APART) for number in count())
    story = next(each for each in stories if any(map(is_exactly_once, each.clients)))
    dice = random.Random(f"{story.seed} at commits")
    clients = [_troubled(dice, each) if is_exactly_once(each) else each for each in story.clients]
    if any("visibleTo" in each.steps[0].arguments["options"] for each in filter(is_sink, clients)):
        clients.append(Client("onlooker", ()))
    return replace(story, clients=tuple(clients))


def _troubled(dice, client):
    sink, *writes = client.steps
    arguments = {name: dice.choice(_ODDS) for name in KINDS}
    for _ in range(dice.choice(_MORE)):
        rows = [dice.choice(_ROWS) for _ in range(dice.choice((1, 2, 3)))]
        writes.append(Step("write", {"after": dice.choice(_AFTER_SECONDS), "partitions": rows}))
    return replace(client, steps=(Step("sink", {**sink.arguments, **arguments}), *writes))


if __name__ == "__main__":
    sys.exit(main("python -m world.spark.at_commits", __doc__, draw, SparkWorld))
