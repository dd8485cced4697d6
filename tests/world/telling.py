"""The command line of a kind of world: runs thousands of its stories, or one with its trace.

It shrinks a failing story and saves it as a file.
"""

import argparse
import gc
import time
from collections import Counter
from pathlib import Path

from world.shrinking import shrunk, tell
from world.story import Story


def main(program, description, draw, world_of):
    """Run the command line; return 0, or 1 if a story has failed. ``draw`` returns the story of a
    seed, ``world_of`` the world of a story."""
    parser = argparse.ArgumentParser(
        prog=program, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, help="this one alone, with its trace")
    parser.add_argument("--story", type=Path, help="a story that was kept, with its trace")
    parser.add_argument(
        "--keep",
        type=Path,
        default=Path("build") / program.rpartition(" ")[2],
        help="where stories that fail are kept",
    )
    parser.add_argument(
        "--shrink-seconds", type=float, default=60.0, help="how long to shrink one at most"
    )
    given = parser.parse_args()
    if given.story is not None:
        return _tell_one(world_of(Story.from_json(given.story.read_text())))
    if given.seed is not None:
        return _tell_one(world_of(draw(given.seed)))
    return _tell_many(given, program, draw, world_of)


def _tell_one(world):
    try:
        world.tell()
    finally:
        print("\n".join(world.trace))
        print(f"{world.lives} lives, {world.kernel.now:.3f} s, checksum {world.checksum:08x}")
    return 0


def _tell_many(given, program, draw, world_of):
    began = time.perf_counter()
    failures = lives = 0
    counts = Counter()
    for seed in range(given.first, given.first + given.seeds):
        gc.collect()
        failure, world = tell(draw(seed), world_of)
        lives += world.lives
        counts.update(world.counts())
        if failure is None:
            continue
        failures += 1
        print(f"seed {seed}: {failure.error}", flush=True)
        if given.shrink_seconds:
            failure = shrunk(failure, given.shrink_seconds)
        given.keep.mkdir(parents=True, exist_ok=True)
        path = given.keep / f"{seed}.json"
        path.write_text(failure.story.to_json())
        print(
            f"{failure}\nto tell it again: PYTHONPATH=.:tests {program} --story {path}", flush=True
        )
    seconds = time.perf_counter() - began
    print(
        f"{given.seeds} seeds, {lives} lives, {failures} failed, {seconds:.1f} s, "
        f"{lives / seconds * 60:.0f} lives a minute"
    )
    for what, count in counts.items():
        print(f"{count:12,} {what}")
    return 1 if failures else 0
