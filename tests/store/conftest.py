"""Fixtures of the store's tests."""

from __future__ import annotations

import os
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def dice() -> random.Random:
    """Return a random generator seeded by ROCKETPOLL_SEED, so that a failed run can be repeated."""
    return random.Random(int(os.environ.get("ROCKETPOLL_SEED", "1")))


@pytest.fixture
def disk_path():
    """Return a directory on a real disk, because other tests may keep their files in memory."""
    build = Path(__file__).parents[2] / "build"
    build.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=build) as directory:
        yield Path(directory)
