"""Starts of a store with many queues, and a checkpoint that has to flush all of them.

    .venv/bin/python -m benchmarks.store.many_queues --queues 4000

Each life of the store is a process of its own: the first puts a message to each queue and stops
cleanly, the next starts, puts another to each and dies without a word, the last starts after that.
Before each start the caches of the whole machine are emptied, which needs root; the benchmark
prints what remains in them.

If there are more queues than may be open at a time, a part is flushed now and then, as a broker's
housekeeping does. With ``--async`` the store uses ASYNC_FLUSH, and a start after a crash has to
check the queues one by one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.machine import describe_machine, load_average
from benchmarks.report import describe_conditions
from benchmarks.store import LIBRARIES, samples
from benchmarks.store.workspace import open_store
from rocketpoll.broker.store.config import FlushDiskType
from rocketpoll.broker.store.message_store import MessageStore

_BUILD = Path(__file__).parents[2] / "build"
_QUEUES = 4_000
_QUEUES_OF_A_TOPIC = 8
_FLUSHED_AT_ONCE = 4_000
_PUT_AT_ONCE = 500
_PATIENCE_SECONDS = 60.0
_BLOCK_BYTES = 512
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")
_STATM = Path("/proc/self/statm")


def main() -> None:
    """Measure in a directory that is removed afterwards."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.store.many_queues", description="See benchmarks/README.md"
    )
    parser.add_argument("--queues", type=int, default=_QUEUES, help="how many (%(default)s)")
    parser.add_argument("--async", action="store_true", dest="is_async", help="with ASYNC_FLUSH")
    given = parser.parse_args()
    how = FlushDiskType.ASYNC_FLUSH if given.is_async else FlushDiskType.SYNC_FLUSH
    machine = describe_machine(LIBRARIES)
    machine["load_average_before"] = load_average()
    _BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-queues-", dir=_BUILD) as directory:
        for life in (fill_and_stop, start_and_crash, start_and_stop):
            _empty_caches()
            _in_process(life, Path(directory), given.queues, how)
        _say_used(Path(directory))
    machine["load_average_after"] = load_average()
    sys.stdout.write(f"\n{describe_conditions(machine)}\n")


def fill_and_stop(root: Path, queues: int, how: FlushDiskType) -> None:
    """Put a message to each queue of a new store, and stop it."""
    store = open_store(root, how)
    _put_to_each(store, queues)
    began = time.perf_counter()
    store.save_checkpoint()
    _say(f"checkpoint, {min(queues, _FLUSHED_AT_ONCE)} queues to flush", began)
    began = time.perf_counter()
    store.shutdown()
    _say("stop behind it", began)


def start_and_crash(root: Path, queues: int, how: FlushDiskType) -> None:
    """Start after a clean stop, put another message to each queue, and end as with `kill -9`."""
    _put_to_each(_started(root, how, "start after a stop"), queues)
    os._exit(0)


def start_and_stop(root: Path, _: int, how: FlushDiskType) -> None:
    """Start after a crash, and stop."""
    store = _started(root, how, "start after a crash")
    began = time.perf_counter()
    store.shutdown()
    _say("stop, with what was found to flush", began)


def _started(root: Path, how: FlushDiskType, what: str) -> MessageStore:
    began = time.perf_counter()
    store = open_store(root, how)
    _say(what, began)
    return store


def _put_to_each(store: MessageStore, queues: int) -> None:
    for number in range(queues):
        topic, queue_id = divmod(number, _QUEUES_OF_A_TOPIC)
        message = replace(samples.message(number), topic=f"topic-{topic}", queue_id=queue_id)
        result = store.put_message(message)
        if number % _PUT_AT_ONCE == 0 or number == queues - 1:
            store.wait_until_stored(result, _PATIENCE_SECONDS)
        if number % _FLUSHED_AT_ONCE == _FLUSHED_AT_ONCE - 1 and number < queues - 1:
            store.save_checkpoint()


def _say(what: str, began: float) -> None:
    seconds = time.perf_counter() - began
    resident = int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20
    descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
    sys.stdout.write(
        f"{what:<40} {seconds:8.2f} s {resident:6d} MiB {descriptors:6d} descriptors\n"
    )
    sys.stdout.flush()


def _say_used(directory: Path) -> None:
    used = sum(path.stat().st_blocks for path in directory.rglob("*")) * _BLOCK_BYTES >> 20
    sys.stdout.write(f"{used} MiB of the disk\n")


def _empty_caches() -> None:
    os.sync()
    try:
        _DROP_CACHES.write_text("3")
    except OSError as error:
        sys.stdout.write(
            f"the caches are not emptied, so starts are faster than they would be: {error}\n"
        )


def _in_process(
    life: Callable[[Path, int, FlushDiskType], None], root: Path, queues: int, how: FlushDiskType
) -> None:
    process = multiprocessing.get_context("spawn").Process(target=life, args=(root, queues, how))
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(f"{life.__name__} has ended with {process.exitcode}")


if __name__ == "__main__":
    main()
