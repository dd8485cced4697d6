"""Shrinks a failing story: removes parts as long as it fails in the same way."""

import re
import time

_NUMBERS = re.compile(r"[0-9][0-9_.]*|'[^']*'|\{[^}]*\}|\[[^]]*\]")


def failure_of(story, world_of):
    """Run a story in a world of this kind; return its failure, or None."""
    return tell(story, world_of)[0]


def tell(story, world_of):
    """Run a story; return its failure or None, and its world."""
    world = world_of(story)
    try:
        world.tell()
    except Exception as error:
        return Failure(story, world_of, error, world.trace), world
    return None, world


class Failure:
    """A story that was run up to a broken promise."""

    def __init__(self, story, world_of, error, trace):
        self.story = story
        self.world_of = world_of
        self.error = error
        self.trace = trace

    @property
    def kind(self):
        """Return the words of the error without numbers and names: failures of one cause have them
        in common."""
        text = f"{type(self.error).__name__}: {self.error}"
        return _NUMBERS.sub("#", text.split(": ", 2)[-1])[:80]

    def __str__(self):
        return "\n".join([*self.trace[-60:], f"{type(self.error).__name__}: {self.error}"])


def shrunk(failure, seconds=60.0):
    """Return the shortest story found in this time that fails in the same way."""
    until = time.monotonic() + seconds
    best = failure
    size = len(best.story.parts())
    while size >= 1 and time.monotonic() < until:
        smaller = _without_one_piece(best, size, until)
        if smaller is None:
            size //= 2
        else:
            best = smaller
            size = min(size, len(best.story.parts()))
    return best


def _without_one_piece(failure, size, until):
    """Return the failure of the story without one run of parts; None if each run is needed."""
    parts = failure.story.parts()
    for start in range(0, len(parts), size):
        if time.monotonic() > until:
            return None
        again = failure_of(failure.story.without(parts[start : start + size]), failure.world_of)
        if again is not None and again.kind == failure.kind:
            return again
    return None
