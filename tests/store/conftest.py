"""What the tests of the store share."""

from __future__ import annotations

import os
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def dice() -> random.Random:
    """Randomness that a failing run can repeat: ROCKETPOLL_SEED."""
    return random.Random(int(os.environ.get("ROCKETPOLL_SEED", "1")))


@pytest.fixture
def disk_path():
    """A directory on a disk, whose files can be out of memory: those of other tests may not be."""
    build = Path(__file__).parents[2] / "build"
    build.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=build) as directory:
        yield Path(directory)
