"""Common tests of every kind of world: some seeds, saved failures, and one story run twice."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from world.shrinking import failure_of, shrunk
from world.story import Story

SHRINK_SECONDS = 30.0
_ROOT = Path(__file__).parents[2]


def assert_all_end_well(seeds, draw, world_of, program):
    """Run the story of each seed; shrink a failing one, which ``program`` can run again."""
    for seed in seeds:
        gc.collect()  # a world disables the collector
        failure = failure_of(draw(seed), world_of)
        if failure is not None:
            short = shrunk(failure, SHRINK_SECONDS)
            path = kept(short.story, f"{draw.__name__}-{seed}", program)
            pytest.fail(
                f"seed {seed}: {failure.error}\n{short}\nto tell it again: PYTHONPATH=.:tests "
                f"python -m {program} --story {path}"
            )


def kept(story, name, program):
    """Save a story in a file, from which it can be run again even if its seed draws another one
    later; return the path. The story may differ from what ``program`` draws, and be shorter."""
    path = _ROOT / "build" / program / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(story.to_json())
    return path.relative_to(_ROOT)


def assert_ends_well(path, world_of):
    """Run a saved story."""
    failure = failure_of(Story.from_json(path.read_text()), world_of)
    assert failure is None, str(failure)


def assert_told_alike_in_any_process(seeds, draw, world_of):
    """Check that these stories run byte for byte alike, whatever hashes Python uses, and whatever
    ran before."""

    def program(order):
        return (
            f"from {draw.__module__} import draw\nfrom {world_of.__module__} import "
            f"{world_of.__name__} as World\ntold = {{}}\nfor seed in {order}:\n"
            " world = World(draw(seed)); world.tell()\n told[seed] = ('\\n'.join(world.trace), "
            "world.checksum, world.kernel.events, repr(world.kernel.now))\n"
            "for seed in sorted(told):\n print(*told[seed])"
        )

    def told(hash_seed, order):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": f"{_ROOT}:{_ROOT / 'tests'}",
        }
        return subprocess.run(
            [sys.executable, "-c", program(order)],
            env=environment,
            capture_output=True,
            check=True,
            timeout=300,
        ).stdout

    first = told("1", list(seeds))
    assert len(first) > 5_000
    assert told("2", list(seeds)[::-1]) == first
