"""``python -m world.spark.lied_to``: runs stories of Spark in which brokers lie.

Each is a story of ``python -m world.spark`` with lies (`world.cluster.lies`) in it.

python -m world.spark.lied_to --first 0 --seeds 1000      the stories of these seeds
python -m world.spark.lied_to --seed 157                  one, with its trace
"""

import sys

from world.spark.drawing import drawn_without_lies, lied_to
from world.spark.world import SparkWorld
from world.telling import main


def draw(seed):
    """Return the story of a seed, with lies."""
    return lied_to(drawn_without_lies(seed), share=1.0)


if __name__ == "__main__":
    sys.exit(main("python -m world.spark.lied_to", __doc__, draw, SparkWorld))
