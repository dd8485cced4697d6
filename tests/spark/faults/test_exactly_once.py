"""kill -9 of whoever has a part in a batch that is to count once: a reader of what counts has every
row once, though the topic has some of them twice; where all see a batch at once, nobody has."""

import time
from collections import Counter
from itertools import cycle, islice

import pytest
from breadth import count
from restart_campaigns import Campaign
from spark_drivers import Query, wait_until
from spark_engine import Engine, assert_read, send

from rocketpoll import EmbeddedBroker

# A longer campaign: ROCKETPOLL_EXACTLY_ONCE=120
ROUNDS = count("ROCKETPOLL_EXACTLY_ONCE", 3, wide=9)
MESSAGES = 40
KILLS = (
    ("driver", "manifest-done"),
    ("worker", "sent"),
    ("driver", "manifest"),
    ("planner", "manifest-done"),  # the process that commits: the query ends with an error
    ("driver", "sent"),
    ("broker", "sent"),
    ("planner", "manifest"),
    ("broker", "manifest"),
    ("driver", "latest"),
)


KILLS_WHERE_ALL_SEE = (
    ("broker", "copy"),
    ("driver", "shown"),
    ("worker", "sent"),
    ("planner", "shown"),
    ("broker", "sent"),
    ("driver", "manifest-done"),
    ("broker", "manifest"),
    ("planner", "manifest"),
    ("broker", "shown"),
    ("driver", "manifest"),
    ("driver", "sent"),
)
_COPY_SECONDS = 0.5


class ExactlyOnceCampaign(Campaign):
    """A topic that is copied to another one."""

    visible_to = "committed_readers"

    def made_query(self):
        (broker,) = self.brokers
        broker.create_topic("in", 4)
        broker.create_topic("out", 4)
        self.reader = Engine(
            broker.address, subscribe="out", isolation="committed", waitForTopic="true"
        )
        self.reader.start()
        into = {"namesrvAddr": broker.address, "topic": "out", "delivery": "exactly_once"}
        into["visibleTo"] = self.visible_to
        options = {"namesrvAddr": broker.address, "subscribe": "in"}
        return Query(self._directory, into=into, startingOffsets="earliest", **options)

    def __exit__(self, *exc_info):
        self.reader.stop()
        super().__exit__(*exc_info)

    def send(self):
        self.sent += send(self.brokers[0], "in", MESSAGES)

    def wait(self):
        def has_all():
            self.reader.run()
            return len(self.reader.rows()) >= len(self.sent)

        wait_until(has_all, what=f"{len(self.sent)} rows")


class VisibleToAllCampaign(ExactlyOnceCampaign):
    """The same, where a plain consumer has each row once as well."""

    visible_to = "all"

    def round(self, victim, point):
        """Hold the query and kill; the broker also in the middle of its copy."""
        if point != "copy":
            super().round(victim, point)
            return
        (broker,) = self.brokers
        before = _noted(broker)
        self.query.hold("manifest")
        self.send()
        self.query.reached("manifest")
        self.query.release("manifest")
        deadline = time.monotonic() + _COPY_SECONDS  # it may be quicker than this look at it
        while time.monotonic() < deadline and _noted(broker) == before:
            pass
        broker.kill()
        broker.restart()
        self.send()
        self.wait()

    def wait(self):
        """Wait for all rows; never is one there twice, or one that is not to be there."""

        def has_all():
            found = Counter(message.text for message in self.brokers[0].messages("out"))
            assert found <= Counter(self.sent)
            return found == Counter(self.sent)

        wait_until(has_all, what=f"{len(self.sent)} rows for everybody")
        super().wait()


def _noted(broker):
    """What changes when a broker notes that a commit is under way."""
    files = broker.directory.rglob("stagedBatches*")
    try:
        return {(file.name, file.stat().st_mtime_ns) for file in files}
    except FileNotFoundError:  # it is being replaced
        return None


@pytest.mark.timeout(60 * (ROUNDS + 3))
def test_whoever_is_killed_everybody_sees_each_row_once(tmp_path):
    with VisibleToAllCampaign(
        tmp_path, [EmbeddedBroker(tmp_path / "b", own_process=True)]
    ) as rounds:
        for victim, point in islice(cycle(KILLS_WHERE_ALL_SEE), ROUNDS):
            rounds.round(victim, point)
        rounds.reader.run()
        assert_read(rounds.reader, rounds.sent)


@pytest.mark.timeout(60 * (ROUNDS + 3))
def test_whoever_is_killed_each_row_counts_once(tmp_path):
    with ExactlyOnceCampaign(
        tmp_path, [EmbeddedBroker(tmp_path / "b", own_process=True)]
    ) as rounds:
        for victim, point in islice(cycle(KILLS), ROUNDS):
            rounds.round(victim, point)
        rounds.reader.run()
        assert_read(rounds.reader, rounds.sent)
        assert len(rounds.brokers[0].messages("out")) > len(rounds.sent)
