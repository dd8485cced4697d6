"""Python's threads, locks, queues and pools in a world's time and in its random order."""

import queue
import random
import threading
import time
from contextlib import suppress

import pytest
from world.kernel import Kernel
from world.threads import EPOCH_SECONDS, Threads


def in_a_world(work, seed=1, **settings):
    """Run a function as main of a world; return its result."""
    kernel = Kernel(random.Random(seed))
    with Threads(kernel, **settings) as threads:
        try:
            return work(kernel, threads)
        finally:
            kernel.close()


def test_wall_clock_can_be_moved_without_the_monotonic_clock():
    def work(kernel, threads):
        threads.wall_ahead -= 86_400
        return time.time(), time.monotonic()

    assert in_a_world(work) == (EPOCH_SECONDS - 86_400, 0)


def test_simulated_threads_run_in_the_same_order_for_the_same_seed():
    def work(kernel, threads):
        met, mailbox = [], queue.Queue(maxsize=2)

        def produce(name):
            for number in range(5):
                time.sleep(random.random())
                mailbox.put((name, number))

        def consume():
            with suppress(queue.Empty):
                while True:
                    met.append((*mailbox.get(timeout=10), round(time.monotonic(), 6)))

        workers = [threading.Thread(target=produce, args=(name,)) for name in "abc"]
        workers.append(threading.Thread(target=consume))
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return met

    told = in_a_world(work, preemption=0.3)
    assert len(told) == 15
    assert told == in_a_world(work, preemption=0.3)
    assert told != in_a_world(work, seed=2, preemption=0.3)


def count_up(counter, times):
    for _ in range(times):
        value = counter["value"]
        counter["value"] = value + 1


@pytest.mark.parametrize("line_preemption", [0.0, 0.2])
def test_race_between_two_lines_is_seen_with_line_preemption(line_preemption):
    def work(kernel, threads):
        counter = {"value": 0}
        workers = [threading.Thread(target=count_up, args=(counter, 50)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return counter["value"]

    counted = in_a_world(work, line_preemption=line_preemption, in_files="test_threads")
    assert (counted < 100) is bool(line_preemption)


def test_simulated_world_restores_patched_modules():
    before = threading.Lock, threading.Thread, time.monotonic, queue.SimpleQueue, random.getstate()
    in_a_world(lambda kernel, threads: random.random())
    assert (
        threading.Lock,
        threading.Thread,
        time.monotonic,
        queue.SimpleQueue,
        random.getstate(),
    ) == before


def test_reentrant_lock_is_released_while_its_owner_waits():
    def work(kernel, threads):
        told, condition = [], threading.Condition()

        def wait():
            with condition, condition:
                told.append("waits")
                condition.wait()
                told.append("goes on")

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(1)
        with condition:
            condition.notify()
            told.append("woken")
            time.sleep(1)
            told.append("let go")
        waiter.join()
        with pytest.raises(RuntimeError):
            condition.release()
        return told

    assert in_a_world(work) == ["waits", "woken", "let go", "goes on"]
