"""``python -m world``: runs stories of a broker; shrinks a failing one and saves it as a file.

python -m world --first 0 --seeds 1000      the stories of these seeds
python -m world --seed 157                  one, with its trace
python -m world --story FILE                a saved story
"""

import sys

from world.drawing import draw
from world.telling import main
from world.world import World

if __name__ == "__main__":
    sys.exit(main("python -m world", __doc__, draw, World))
