"""``python -m world``: tells stories by the thousand; one that fails is shrunk, and kept as a file.

python -m world --first 0 --seeds 1000      those of these seeds
python -m world --seed 157                  one, with its trace
python -m world --story FILE                one that was kept
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path

from world.drawing import draw
from world.shrinking import failure_of, shrunk
from world.story import Story
from world.world import World


def main():
    parser = argparse.ArgumentParser(prog="python -m world", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, help="this one alone, with its trace")
    parser.add_argument("--story", type=Path, help="a story that was kept, with its trace")
    parser.add_argument(
        "--keep", type=Path, default=Path("build/world"), help="where stories that fail are kept"
    )
    parser.add_argument("--shrink-seconds", type=float, default=60.0, help="how long to shrink one at most")
    given = parser.parse_args()
    if given.story is not None:
        return _tell_one(Story.from_json(given.story.read_text()))
    if given.seed is not None:
        return _tell_one(draw(given.seed))
    return _tell_many(given)


def _tell_one(story):
    world = World(story)
    try:
        world.tell()
    finally:
        print("\n".join(world.trace))
        print(f"{world.lives} lives, {world.kernel.now:.3f} s, checksum {world.checksum:08x}")
    return 0


def _tell_many(given):
    began = time.perf_counter()
    failures = lives = 0
    for seed in range(given.first, given.first + given.seeds):
        gc.collect()
        failure = failure_of(draw(seed))
        if failure is None:
            continue
        failures += 1
        print(f"seed {seed}: {failure.error}", flush=True)
        if given.shrink_seconds:
            failure = shrunk(failure, given.shrink_seconds)
        given.keep.mkdir(parents=True, exist_ok=True)
        path = given.keep / f"{seed}.json"
        path.write_text(failure.story.to_json())
        print(f"{failure}\nto tell it again: PYTHONPATH=.:tests python -m world --story {path}", flush=True)
    seconds = time.perf_counter() - began
    print(
        f"{given.seeds} seeds, {failures} failed, {seconds:.1f} s, {lives / seconds * 60:.0f} lives a minute"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
