"""``python -m world.clients.lied_to``: runs stories of clients in which brokers lie.

Each is a story of ``python -m world.clients`` with lies (`world.cluster.lies`) in it.

python -m world.clients.lied_to --first 0 --seeds 1000      the stories of these seeds
python -m world.clients.lied_to --seed 157                  one, with its trace
"""

import sys

from world.clients.drawing import TROUBLES_SECONDS, drawn_without_lies
from world.clients.world import ClientWorld
from world.cluster.lying import with_lies
from world.telling import main


def draw(seed):
    """Return the story of a seed, with lies."""
    return with_lies(drawn_without_lies(seed), TROUBLES_SECONDS, 2, share=1.0)


if __name__ == "__main__":
    sys.exit(main("python -m world.clients.lied_to", __doc__, draw, ClientWorld))
