"""A scheduler whose clock moves only when a test moves it; due tasks run in the test's thread."""

import heapq
import itertools

from rmq_spark.client.concurrency.scheduler import Task


class MovedTasks:
    """A `ThreadScheduler` without threads."""

    def __init__(self):
        self.now_ms = 0
        self._tasks = []
        self._numbers = itertools.count()

    def __call__(self):
        """Return the time: the scheduler is its own clock."""
        return self.now_ms

    def schedule(self, action, delay_ms=0):
        task = Task(action, self.now_ms + delay_ms)
        heapq.heappush(self._tasks, (task.due_at, next(self._numbers), task))
        return task

    def for_broker(self, _):
        """Return this scheduler for every broker."""
        return self

    @property
    def pending(self):
        return sum(not task.is_cancelled for _, _, task in self._tasks)

    def stop(self, wait_ms):  # noqa: ARG002  # no task is ever running
        self._tasks.clear()
        return True

    def move(self, ms):
        """Move the clock, and run each task at its time."""
        end = self.now_ms + ms
        while self._tasks and self._tasks[0][0] <= end:
            due, _, task = heapq.heappop(self._tasks)
            self.now_ms = max(self.now_ms, due)
            task.run()
        self.now_ms = end
