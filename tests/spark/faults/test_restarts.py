"""kill -9 of every process of a Spark query at every point of a batch, with a
ledger of its rows.
"""

from collections import Counter

import pytest
from support.spark.driver_processes import Query
from support.spark.restart_campaign import Campaign, kills, patience_seconds, wait_for_rows
from support.spark.streaming_engine import send
from support.suite.selection import count

from rocketpoll import EmbeddedBroker

# Longer campaigns: make restarts ROUNDS=120
ROUNDS = count("ROCKETPOLL_RESTARTS", 2, wide=12)
MESSAGES = 60
TOPIC = "restarts"


class RowsCampaign(Campaign):
    """A campaign in which each message becomes one row."""

    def made_query(self):
        (broker,) = self.brokers
        broker.create_topic(TOPIC)
        return Query(
            self._directory, namesrvAddr=broker.address, subscribe=TOPIC, startingOffsets="earliest"
        )

    def __init__(self, directory, brokers):
        super().__init__(directory, brokers)
        self._found = 0

    def send(self):
        self.sent += send(self.brokers[0], TOPIC, MESSAGES, "m" * 200)

    def wait(self):
        def count_found():
            self._found += len(self.query.new_rows())
            return self._found

        wait_for_rows(count_found, len(self.sent))

    def stored(self):
        """Return the bodies that the broker holds."""
        return [message.body.decode() for message in self.brokers[0].messages(TOPIC)]


@pytest.mark.timeout(patience_seconds(ROUNDS))
def test_kills_lose_and_repeat_no_row(tmp_path):
    broker = EmbeddedBroker(
        tmp_path / "broker",
        own_process=True,
        maxTransferBytesExtended=4096,  # so that a task has several record batches
    )
    with RowsCampaign(tmp_path, [broker]) as campaign:
        for victim, point in kills(ROUNDS):
            campaign.round(victim, point)
        print(campaign.figures())  # noqa: T201  # progress of a long run
        rows = campaign.query.rows()
        assert Counter(body for *_, body in rows) == Counter(campaign.sent)
        assert Counter(campaign.sent) == Counter(campaign.stored())
        assert len({tuple(where) for *where, _ in rows}) == len(rows)
        assert campaign.query.differing() == []
