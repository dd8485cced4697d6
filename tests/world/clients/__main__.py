"""``python -m world.clients``: runs stories of clients; shrinks a failing one and saves it.

python -m world.clients --first 0 --seeds 1000      the stories of these seeds
python -m world.clients --seed 157                  one, with its trace
python -m world.clients --story FILE                a saved story
"""

import sys

from world.clients.drawing import draw
from world.clients.world import ClientWorld
from world.telling import main

if __name__ == "__main__":
    sys.exit(main("python -m world.clients", __doc__, draw, ClientWorld))
