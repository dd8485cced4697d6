"""Tasks in a simulated world: retried, run twice at a time, with workers killed and reused.

For each partition the first attempt that ends counts. The results of all others are dropped.
"""

import pickle
import time
from functools import partial

from world.tasks import Promise

FAILURES_MAX = 4
_KILLED_AFTER = (0.0, 0.001, 0.01, 0.1)
_SPARK_SECONDS = (0.0, 0.0, 0.01)
"""Seconds that Spark takes for the rows of a record batch."""


class Fate:
    """The share of tasks with two attempts at a time, and of attempts that are killed."""

    def __init__(self, speculation, kills):
        self.speculation = speculation
        self.kills = kills


class TaskSet:
    """Tasks that run together."""

    def __init__(self, run, work, fate):
        """``work(worker, number, attempt, partition)`` runs an attempt in its worker."""
        self._run = run
        self._work = work
        self._fate = fate

    def begin(self, partitions):
        """Start all tasks; return a promise of their results in order, and of an error or None."""
        return self._run.world.tasks.begin(self._all(partitions), f"tasks of {self._run.name}")

    async def _all(self, partitions):
        tasks = self._run.world.tasks
        under_way = [tasks.begin(self._task(*each), "task") for each in enumerate(partitions)]
        answers = [await task for task in under_way]
        errors = [answer.error for answer in answers if answer.error is not None]
        return [answer.value for answer in answers], errors[0] if errors else None

    async def _task(self, number, partition):
        run, attempts = self._run, 0
        for failures in range(1, FAILURES_MAX + 1):
            at_once = 2 if run.dice.random() < self._fate.speculation else 1
            under_way = [
                self._attempt(number, attempts + each, partition) for each in range(at_once)
            ]
            attempts += at_once
            answer = await self._first_spelling(under_way)
            if answer.error is None or run.killed.is_kept:
                break
            run.world.note(
                f"{run.name}: task {number} failed, {failures} times now: {answer.error}"
            )
        return answer

    async def _first_spelling(self, attempts):
        """Return the first successful result, or the last error; kill attempts that are late."""
        first, left = Promise(), list(attempts)

        def answered(attempt):
            left.remove(attempt)
            _, promise = attempt
            if promise.value.error is None or not left:
                first.keep(promise.value)

        for attempt in attempts:
            attempt[1].then(partial(answered, attempt))
        answer = await first
        for worker, promise in attempts:
            if promise.is_kept and worker.is_alive:
                self._run.idle.append(worker)
            else:
                worker.kill()
        return answer

    def _attempt(self, number, attempt, partition):
        """Run an attempt in a worker, which fate may kill meanwhile."""
        run = self._run
        worker = run.idle.pop() if run.idle else run.worker("executor")
        promise = worker.ask(partial(self._work, worker, number, attempt, partition))
        if run.dice.random() < self._fate.kills:
            run.world.kernel.after(
                run.dice.choice(_KILLED_AFTER), partial(self._kill, worker, promise)
            )
        return worker, promise

    def _kill(self, worker, promise):
        if not promise.is_kept:
            self._run.world.note(f"{worker.name} is killed")
            worker.kill()


def reading(run, read, seen):
    """Return an attempt of a reading task: it reads all rows of its partition, as Spark does.
    ``read`` is the pickled reader; ``seen`` gets the pieces and rows of each finished attempt."""

    def work(worker, number, attempt, partition):
        reader, rows = pickle.loads(read), []  # noqa: S301  # as Spark does
        piece = pickle.loads(partition)  # noqa: S301  # as Spark does
        for batch in reader.read(piece):
            rows += batch.to_pylist()
            time.sleep(run.dice.choice(_SPARK_SECONDS))
        if piece.value is not None:  # Spark adds an empty partition if there are none
            seen(piece.ranges, rows)
        return rows

    return work
