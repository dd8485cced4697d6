"""Stories in which brokers or the name server lie, with the lies drawn from a seed.

A separate random generator draws them, so that the rest of the story stays the same.
"""

import random
from dataclasses import replace

from world.cluster.lies import WORLD_LIES
from world.story import Trouble

SHARE = 0.15
"""The share of stories with lies."""

_COUNTS = (1, 1, 2, 4)
_SECONDS = (0.5, 2.0, 2.0, 8.0, 20.0)


def with_lies(story, within_seconds, brokers, share=SHARE, kinds=tuple(WORLD_LIES)):
    """Return the story with lies of these kinds, or unchanged."""
    dice = random.Random(f"{story.seed} lies")
    if dice.random() >= share:
        return story
    lies = [
        Trouble(
            "lie",
            dice.uniform(0, within_seconds),
            dice.choice(_SECONDS),
            {"broker": dice.randrange(brokers), "about": dice.choice(kinds)},
        )
        for _ in range(dice.choice(_COUNTS))
    ]
    return replace(story, troubles=(*story.troubles, *lies))
