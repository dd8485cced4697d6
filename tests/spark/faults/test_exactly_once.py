"""kill -9 of whoever has a part in a batch that is to count once: a reader of what counts has every
row once, though the topic has some of them twice."""

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


class ExactlyOnceCampaign(Campaign):
    """A topic that is copied to another one."""

    def made_query(self):
        (broker,) = self.brokers
        broker.create_topic("in", 4)
        broker.create_topic("out", 4)
        self.reader = Engine(
            broker.address, subscribe="out", isolation="committed", waitForTopic="true"
        )
        self.reader.start()
        into = {"namesrvAddr": broker.address, "topic": "out", "delivery": "exactly_once"}
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
