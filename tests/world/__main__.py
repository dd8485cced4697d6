"""``python -m world``: tells stories of a broker; one that fails is shrunk, and kept as a file.

python -m world --first 0 --seeds 1000      those of these seeds
python -m world --seed 157                  one, with its trace
python -m world --story FILE                one that was kept
"""

from __future__ import annotations

import sys

from world.drawing import draw
from world.telling import main
from world.world import World

if __name__ == "__main__":
    sys.exit(main("python -m world", __doc__, draw, World))
