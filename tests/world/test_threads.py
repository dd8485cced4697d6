"""Python's threads, locks, queues and pools in a world's time and in its random order."""

from __future__ import annotations

import queue
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from world.kernel import Kernel
from world.threads import EPOCH_SECONDS, Threads


def in_a_world(work, seed=1, **settings):
    """What a function gives that runs as main of a world."""
    kernel = Kernel(random.Random(seed))
    with Threads(kernel, **settings) as threads:
        try:
            return work(kernel, threads)
        finally:
            kernel.close()


def test_hours_of_sleep_take_no_time():
    def work(kernel, threads):
        began = time.monotonic(), time.time()
        time.sleep(3_600)
        return time.monotonic() - began[0], time.time() - began[1]

    real = time.perf_counter()
    assert in_a_world(work) == (3_600, 3_600)
    assert time.perf_counter() - real < 60


def test_wall_clock_can_be_moved_without_the_monotonic_clock():
    def work(kernel, threads):
        threads.wall_ahead -= 86_400
        return time.time(), time.monotonic()

    assert in_a_world(work) == (EPOCH_SECONDS - 86_400, 0)


def test_producers_and_consumers_meet_in_the_same_order_whenever_the_seed_is_the_same():
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


def test_thread_pool_runs_in_simulated_time():
    def work(kernel, threads):
        with ThreadPoolExecutor(2) as pool:
            doubled = list(pool.map(lambda number: (time.sleep(1), number * 2)[1], range(6)))
        return doubled, time.monotonic()

    assert in_a_world(work) == ([0, 2, 4, 6, 8, 10], 3.0)


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


def test_lock_excludes_other_threads_under_line_preemption():
    def work(kernel, threads):
        counter, lock = {"value": 0}, threading.Lock()

        def locked():
            for _ in range(30):
                with lock:
                    count_up(counter, 1)

        workers = [threading.Thread(target=locked) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return counter["value"]

    assert in_a_world(work, preemption=0.3, line_preemption=0.2, in_files="test_threads") == 90


def test_exception_in_a_simulated_thread_is_raised_by_main():
    def work(kernel, threads):
        threading.Thread(target=lambda: 1 / 0).start()
        time.sleep(1)

    with pytest.raises(ZeroDivisionError):
        in_a_world(work)


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


def test_simulated_threads_have_their_own_name_number_and_locals():
    def work(kernel, threads):
        own, told = threading.local(), []

        def see(value):
            own.value = value
            time.sleep(1)
            me = threading.current_thread()
            told.append((me.name, me.ident == threading.get_ident(), own.value))

        workers = [threading.Thread(target=see, args=(n,), name=f"t{n}") for n in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len({worker.ident for worker in workers}) == 3
        return sorted(told)

    assert in_a_world(work) == [(f"t{n}", True, n) for n in range(3)]
