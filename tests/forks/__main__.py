"""``python -m forks``: runs stories of processes that fork while they use clients.

python -m forks --first 0 --seeds 500      those of these seeds
python -m forks --seed 157                 one; again and again with --times 20
python -m forks --seed 157 --notes DIR     one, and what its processes noted
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rocketpoll import EmbeddedBroker

STORY_SECONDS = 90
STORIES_PER_BROKER = 50
ROOT = Path(__file__).resolve().parents[2]


def tell(seed, broker, directory):
    """Run one story in a process, and kill its remaining processes."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    program = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        "-X",
        "faulthandler",
        "-m",
        "forks.story",
    ]
    with subprocess.Popen(
        [*program, str(seed), broker, str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=directory,
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=STORY_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            out, errors = process.communicate()
            errors = f"the story took {STORY_SECONDS} s:\n{errors}"
        finally:
            _end_all(process.pid)
    if process.returncode != 0 or not out:
        return [f"the story ended with {process.returncode}: {errors[-3000:]}"]
    hangs = [each.read_text() for each in sorted(directory.glob("hang-*"))]
    return json.loads(out.splitlines()[-1]) + [f"hung:\n{each}" for each in hangs if each]


def _end_all(session):
    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        return


def campaign(seeds, *, beside=1, notes=None, say=print):
    """Run the stories of all seeds; return the seeds that failed."""
    failed, began, seeds = [], time.monotonic(), list(seeds)
    for start in range(0, len(seeds), STORIES_PER_BROKER):
        some = seeds[start : start + STORIES_PER_BROKER]
        with EmbeddedBroker(own_process=True) as broker, ThreadPoolExecutor(beside) as pool:

            def told(seed, address=broker.address):
                with tempfile.TemporaryDirectory(prefix="forks-") as temporary:
                    return seed, tell(seed, address, Path(notes or temporary))

            for seed, objections in pool.map(told, some):
                if objections:
                    failed.append(seed)
                    say(f"seed {seed}:")
                    for each in objections:
                        say(f"    {each}")
                    say(f"    again: PYTHONPATH=.:tests python -m forks --seed {seed} --times 20")
        seconds = time.monotonic() - began
        say(f"{start + len(some)} stories in {seconds:.0f} s, {len(failed)} failed")
    return failed


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m forks", description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--beside", type=int, default=1, help="stories at a time")
    parser.add_argument("--notes", help="an empty directory for what one story notes")
    asked = parser.parse_args(arguments)
    seeds = range(asked.first, asked.first + asked.seeds)
    if asked.seed is not None:
        seeds = [asked.seed] * asked.times
    return bool(campaign(seeds, beside=asked.beside, notes=asked.notes))


if __name__ == "__main__":
    sys.exit(main())
