"""kill -9 of every process of a Spark query, at every point of a batch.

    campaign.round(victim, point)    hold the query there, kill a process, and resume

Subclasses define what is sent and expected. A round checks only new rows, so that it takes as long
at the end of a campaign as at its beginning.
"""

import os
import signal
import time
from collections import Counter
from itertools import count, cycle, islice
from random import Random

from support.spark.driver_processes import PATIENCE_SECONDS, Driver

SEED = int(os.environ.get("ROCKETPOLL_RESTARTS_SEED", "0"))

KILLS = (
    ("worker", "task"),
    ("broker", "latest"),
    ("planner", "partitions-done"),
    ("driver", "sink-done"),  # before commits/N
    ("driver", "latest"),  # after commits/N
    ("broker", "task"),
    ("planner", "latest-done"),
    ("driver", "latest-done"),  # before offsets/N
    ("driver", "partitions"),  # after offsets/N
    ("driver", "partitions-done"),
    ("driver", "task"),
    ("driver", "sink"),
)
"""Victims and points, each victim once first, so that a short campaign has them all."""
LOGGED = {
    "latest-done": 0,
    "partitions": 1,
    "partitions-done": 1,
    "task": 1,
    "sink": 1,
    "sink-done": 1,
    "latest": 0,
    "unsent": 1,
    "sent": 1,
    "manifest": 1,
    "begin": 1,
    "copying": 1,
    "copied": 1,
    "ended": 1,
    "shown": 1,
    "stored": 1,
    "manifest-done": 1,
}
"""The number of planned and uncommitted batches while the query is held at each point."""
_LOGS = ("offsets", "commits")
_POLL_SECONDS = 0.02
_WAITS = 4
"""The maximum number of waits in a round: for its point, for the query's end, for a driver, for
rows."""

_RETAINED = {"spark.sql.streaming.minBatchesToRetain": "100"}
"""Options that retain few batches; Spark lists the files of all retained batches for each batch."""


def patience_seconds(rounds):
    """Return the seconds after which a campaign counts as stuck, even on a busy machine.

    Each wait has its own timeout and error; this is their sum, with a round each for the start and
    the end of the campaign. A limit measured on a quiet machine would fail on a busy one.
    """
    return _WAITS * PATIENCE_SECONDS * (rounds + 2)


def wait_for_rows(find, number, what="rows"):
    """Wait for this number of rows; any new row restarts the timeout.

    Args:
        find: Returns the current number.
        number: The number to wait for.
        what: What they are, for the error message.
    """
    __tracebackhide__ = True
    found, deadline = find(), time.monotonic() + PATIENCE_SECONDS
    while found < number:
        assert time.monotonic() < deadline, (
            f"{found} of {number} {what}, and no more for {PATIENCE_SECONDS} s"
        )
        time.sleep(_POLL_SECONDS)
        had, found = found, find()
        if found > had:
            deadline = time.monotonic() + PATIENCE_SECONDS


def kills(rounds, seed=SEED):
    """Return this number of kills: all in order, then repeatedly in random orders."""
    return islice(_kills(Random(seed)), rounds)


def _kills(dice):
    for turn in count():
        yield from dice.sample(KILLS, len(KILLS)) if turn else KILLS


class Campaign:
    """One query on some brokers, and its drivers; the next driver starts in the background."""

    def __init__(self, directory, brokers):
        """The brokers are not started yet."""
        self._directory = directory
        self._brokers = cycle(brokers)
        self.brokers = brokers
        self.sent = []
        self.killed = Counter()
        self._round_seconds = []

    def __enter__(self):
        self._driver = self._made_driver()
        self._next_driver = None
        for broker in self.brokers:
            broker.start()
        self.query = self.made_query()
        self._driver.start(self.query)
        self.send()
        self.wait()
        return self

    def __exit__(self, *_):
        for driver in (self._driver, self._next_driver):
            if driver is not None:
                driver.kill()
        for broker in self.brokers:
            broker.stop()

    def made_query(self):
        """Create topics and a query of them."""
        raise NotImplementedError

    def send(self):
        """Send more messages while nothing is being killed, so that all succeed."""
        raise NotImplementedError

    def send_to_others(self, broker):
        """Send to all brokers but the dead one."""

    def wait(self):
        """Wait until the sink has all messages that it can have by now."""
        raise NotImplementedError

    def round(self, victim, point):
        """Hold the query at a point, kill a process, resume, and wait for all rows."""
        __tracebackhide__ = True
        began = time.monotonic()
        if victim == "driver":
            self.ready_driver()
        self.hold(point)
        self.send()
        pid = self.reached(point)
        planned, committed = (max(self.query.logged(log), default=-1) for log in _LOGS)
        assert planned - committed == LOGGED[point]
        getattr(self, f"_kill_{victim}")(pid)
        self.killed[victim] += 1
        self.send()
        self.wait()
        self._round_seconds.append(time.monotonic() - began)
        print(f"{sum(self.killed.values())}: {victim} at {point}, {self._round_seconds[-1]:.1f} s")  # noqa: T201  # progress of a long run

    def figures(self):
        """Return the figures of the report: kills by victim, and the time of a round in
        each tenth."""
        tenth = max(1, len(self._round_seconds) // 10)
        starts = range(0, len(self._round_seconds), tenth)
        means = [sum(part := self._round_seconds[at : at + tenth]) / len(part) for at in starts]
        return f"killed {dict(self.killed)}; s a round: {[round(mean, 1) for mean in means]}"

    def _made_driver(self):
        return Driver(self._directory / "drivers", **_RETAINED)

    def hold(self, point):
        """Block the query at a point when it gets there."""
        self.query.hold(point)

    def reached(self, point):
        """Wait until the query is blocked at a point; return the id of the process to kill."""
        return self.query.reached(point)

    def _kill_driver(self, _):
        self.end_driver()
        self.query.release()
        self.start_next_driver()

    def ready_driver(self):
        """Start the next driver in the background."""
        self._next_driver = self._made_driver()

    def end_driver(self):
        """Kill the driver without starting another."""
        self._driver.kill()

    def end_behind(self, pid, others):
        """Suspend the driver and its worker while the next driver runs and ``others`` are called;
        resume it and return the error that ends it."""
        left = self._driver
        left.pause(pid)
        try:
            self.query.release()
            self.start_next_driver()
            others()
            left.resume(pid)
            return left.end()
        finally:
            left.kill()

    def start_next_driver(self):
        """Start the query in the next driver."""
        self._driver, self._next_driver = self._next_driver, None
        self._driver.start(self.query)

    def _kill_planner(self, pid):
        __tracebackhide__ = True
        os.kill(pid, signal.SIGKILL)
        self.query.release()
        assert self._driver.end() is not None
        self._driver.start(self.query)

    def _kill_worker(self, pid):
        os.kill(pid, signal.SIGKILL)
        self.query.release()

    def _kill_broker(self, _):
        broker = next(self._brokers)
        broker.kill()
        self.query.release()
        self.send_to_others(broker)
        broker.restart()
