"""``python -m world.clients``: tells stories of clients;
one that fails is shrunk, and kept as a file.

python -m world.clients --first 0 --seeds 1000      those of these seeds
python -m world.clients --seed 157                  one, with its trace
python -m world.clients --story FILE                one that was kept
"""

from __future__ import annotations

import sys

from world.clients.drawing import draw
from world.clients.world import ClientWorld
from world.telling import main

if __name__ == "__main__":
    sys.exit(main("python -m world.clients", __doc__, draw, ClientWorld))
