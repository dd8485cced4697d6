"""kill -9 of all that a query on Spark consists of, at every point of a batch: a ledger of its rows."""

import os
import signal
from collections import Counter
from itertools import cycle, islice

import pytest
from spark_drivers import Driver, Query, wait_until
from spark_engine import send

from rocketpoll import EmbeddedBroker

# Longer campaigns take their length from here: make restarts ROUNDS=120
ROUNDS = int(os.environ.get("ROCKETPOLL_RESTARTS", "12"))
KILLS = (
    ("worker", "task"),
    ("broker", "latest"),
    ("broker", "task"),
    ("planner", "latest-done"),
    ("planner", "partitions-done"),
    ("driver", "latest-done"),  # before offsets/N
    ("driver", "partitions"),  # behind it
    ("driver", "partitions-done"),
    ("driver", "task"),
    ("driver", "sink"),
    ("driver", "sink-done"),  # before commits/N
    ("driver", "latest"),  # behind it
)
LOGGED = {
    "latest-done": 0,
    "partitions": 1,
    "partitions-done": 1,
    "task": 1,
    "sink": 1,
    "sink-done": 1,
    "latest": 0,
}
"""How many batches are planned and not committed where the query is held."""

MESSAGES = 60
TOPIC = "restarts"


class Campaign:
    """One query on one broker, and drivers as long as they live; the next one gets ready meanwhile."""

    def __init__(self, directory):
        self._directory = directory
        self._broker = EmbeddedBroker(
            directory / "broker",
            own_process=True,
            maxTransferBytesExtended=4096,  # a task has several record batches
        )
        self.sent = []

    def __enter__(self):
        self._driver = Driver(self._directory / "drivers")
        self._next_driver = None
        self._broker.start()
        self._broker.create_topic(TOPIC)
        self.query = Query(
            self._directory, namesrvAddr=self._broker.address, subscribe=TOPIC, startingOffsets="earliest"
        )
        self._driver.start(self.query)
        self.send()
        self.wait()
        return self

    def __exit__(self, *_):
        for driver in (self._driver, self._next_driver):
            if driver is not None:
                driver.kill()
        self._broker.stop()

    def round(self, victim, point):
        """Hold the query at a point, kill somebody, have it go on, and wait for all rows."""
        if victim == "driver":
            self._next_driver = Driver(self._directory / "drivers")
        self.query.hold(point)
        self.send()
        pid = self.query.reached(point)
        logged = [len(self.query.logged(log)) for log in ("offsets", "commits")]
        assert logged[0] - logged[1] == LOGGED[point]
        getattr(self, f"_kill_{victim}")(pid)
        self.send()
        self.wait()

    def send(self):
        """More messages; none of them is in doubt, as nobody is killed meanwhile."""
        self.sent += send(self._broker, TOPIC, MESSAGES, "m" * 200)

    def wait(self):
        """Until all rows are in the sink."""
        wait_until(lambda: len(self.query.rows()) >= len(self.sent), what=f"{len(self.sent)} rows")

    def stored(self):
        """The bodies that the broker holds."""
        return [message.body.decode() for message in self._broker.messages(TOPIC)]

    def _kill_driver(self, _):
        self._driver.kill()
        self.query.release()
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
        self._broker.kill()
        self.query.release()
        self._broker.restart()


@pytest.mark.timeout(60 * (ROUNDS + 3))
def test_whoever_is_killed_no_row_is_lost_and_none_is_there_twice(tmp_path):
    with Campaign(tmp_path) as campaign:
        for victim, point in islice(cycle(KILLS), ROUNDS):
            campaign.round(victim, point)
        rows = campaign.query.rows()
        assert Counter(body for *_, body in rows) == Counter(campaign.sent)
        assert Counter(campaign.sent) == Counter(campaign.stored())
        assert len({tuple(where) for *where, _ in rows}) == len(rows)
        assert campaign.query.differing() == []
