"""``python -m world.spark``: runs stories of Spark's source and sink; shrinks and saves a failing
one.

python -m world.spark --first 0 --seeds 1000      the stories of these seeds
python -m world.spark --seed 157                  one, with its trace
python -m world.spark --story FILE                a saved story
"""

import sys

from world.spark.drawing import draw
from world.spark.world import SparkWorld
from world.telling import main

if __name__ == "__main__":
    sys.exit(main("python -m world.spark", __doc__, draw, SparkWorld))
