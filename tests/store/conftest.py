"""What the tests of the store share."""

from __future__ import annotations

import os
import random

import pytest


@pytest.fixture
def dice() -> random.Random:
    """Randomness that a failing run can repeat: ROCKETPOLL_SEED."""
    return random.Random(int(os.environ.get("ROCKETPOLL_SEED", "1")))
