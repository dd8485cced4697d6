"""``python -m world.spark``: tells stories of Spark's source and sink;
one that fails is shrunk, and kept.

python -m world.spark --first 0 --seeds 1000      those of these seeds
python -m world.spark --seed 157                  one, with its trace
python -m world.spark --story FILE                one that was kept
"""

from __future__ import annotations

import sys

from world.spark.drawing import draw
from world.spark.world import SparkWorld
from world.telling import main

if __name__ == "__main__":
    sys.exit(main("python -m world.spark", __doc__, draw, SparkWorld))
