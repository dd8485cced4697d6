"""kill -9 of all that a query on Spark consists of, at every point of a batch.

    campaign.round(victim, point)    hold the query there, kill somebody, and have all go on

What is sent and what must come of it is said by who derives from it. A round looks only at what is
new, and takes as long at the end of a campaign as at its beginning.
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
    ("driver", "latest"),  # behind it
    ("broker", "task"),
    ("planner", "latest-done"),
    ("driver", "latest-done"),  # before offsets/N
    ("driver", "partitions"),  # behind it
    ("driver", "partitions-done"),
    ("driver", "task"),
    ("driver", "sink"),
)
"""One of each victim first: a short campaign has them all."""
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
"""How many batches are planned and not committed where the query is held."""
_LOGS = ("offsets", "commits")
_POLL_SECONDS = 0.02
_WAITS = 4
"""Waits of a round, at most: for its point, for the end of the query, for a driver, for rows."""

_RETAINED = {"spark.sql.streaming.minBatchesToRetain": "100"}
"""Spark's own default: it lists what it retains for each batch, again and again."""


def patience_seconds(rounds):
    """Return after how many seconds a campaign is stuck, however busy the machine is.

    Each of its waits ends by itself, and says what it has waited for: this is what they may take
    together, with the start and the end of the campaign as a round each. By the clock of a quiet
    machine, on which a round takes seconds, one that does much else would fail it.
    """
    return _WAITS * PATIENCE_SECONDS * (rounds + 2)


def wait_for_rows(find, number, what="rows"):
    """Wait for so many rows; patience begins anew whenever some have come.

    Args:
        find: Returns how many there are.
        number: How many there have to be.
        what: What they are, for who reads that there are too few.
    """
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
    """So many of them: all one after the other, and then again and again in some other order."""
    return islice(_kills(Random(seed)), rounds)


def _kills(dice):
    for turn in count():
        yield from dice.sample(KILLS, len(KILLS)) if turn else KILLS


class Campaign:
    """One query on some brokers, and drivers as long as they live;
    the next one gets ready meanwhile."""

    def __init__(self, directory, brokers):
        """Take brokers that have not been started."""
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
        """Make topics, and the query of them."""
        raise NotImplementedError

    def send(self):
        """Send more messages; none of them is in doubt, as nobody is killed meanwhile."""
        raise NotImplementedError

    def send_to_others(self, broker):
        """Send to all brokers but one, which is dead."""

    def wait(self):
        """Wait until all that was sent has come to the sink, as far as it is to come yet."""
        raise NotImplementedError

    def round(self, victim, point):
        """Hold the query at a point, kill somebody, have it go on, and wait for all rows."""
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
        print(f"{sum(self.killed.values())}: {victim} at {point}, {self._round_seconds[-1]:.1f} s")  # noqa: T201  # for who watches a long one

    def figures(self):
        """What a report says: who was killed how often, and how long a round took in each tenth."""
        tenth = max(1, len(self._round_seconds) // 10)
        starts = range(0, len(self._round_seconds), tenth)
        means = [sum(part := self._round_seconds[at : at + tenth]) / len(part) for at in starts]
        return f"killed {dict(self.killed)}; s a round: {[round(mean, 1) for mean in means]}"

    def _made_driver(self):
        return Driver(self._directory / "drivers", **_RETAINED)

    def hold(self, point):
        """Have the query wait at a point, when it comes there."""
        self.query.hold(point)

    def reached(self, point):
        """Wait until the query is held at a point; the id of the process that can be killed."""
        return self.query.reached(point)

    def _kill_driver(self, _):
        self.end_driver()
        self.query.release()
        self.start_next_driver()

    def ready_driver(self):
        """Have the next driver get ready."""
        self._next_driver = self._made_driver()

    def end_driver(self):
        """Kill the driver, and have nobody go on yet."""
        self._driver.kill()

    def end_behind(self, pid, others):
        """Have the driver stand still, and its worker, while the next one goes on and ``others``
        are done; return the error with which it ends when it goes on as well."""
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
        """Have the next driver go on with the query."""
        self._driver, self._next_driver = self._next_driver, None
        self._driver.start(self.query)

    def _kill_planner(self, pid):
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
