"""Aggregations with a watermark over two brokers survive the same kills: every count is exact.

A watermark silently drops late rows. So while a broker is down, a query must not advance with the
other one.
"""

import os
from collections import Counter
from contextlib import ExitStack
from itertools import count

import pytest
from support.servers.joining_name_server import JoiningNameServer
from support.spark.driver_processes import Query, wait_until
from support.spark.restart_campaign import Campaign, kills, patience_seconds
from support.spark.streaming_engine import send

from rocketpoll import EmbeddedBroker

# Longer campaigns: make restarts ROUNDS=120
ROUNDS = int(os.environ.get("ROCKETPOLL_AGGREGATE_RESTARTS", "2"))
MESSAGES = 20
TOPICS = ("left", "right")
WINDOW_SECONDS = 10
DELAY_SECONDS = 2 * WINDOW_SECONDS
_BEGIN_SECONDS = 1_700_000_000
_OUTAGE_WINDOWS = 4


class WindowsCampaign(Campaign):
    """A campaign in which each `send` fills one window of ten seconds, later than all before."""

    def __init__(self, directory, brokers):
        super().__init__(directory, brokers)
        self.sent = Counter()  # number of messages by window
        self._awaited = set()  # windows that are not in the sink yet
        self._last = _BEGIN_SECONDS
        self._seconds = count(_BEGIN_SECONDS, WINDOW_SECONDS)
        self._stack = ExitStack()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._stack.close()

    def made_query(self):
        for broker in self.brokers:
            for topic in TOPICS:
                broker.create_topic(topic, 2)
        names = self._stack.enter_context(JoiningNameServer(*self.brokers))
        return Query(
            self._directory,
            windows={"topics": TOPICS, "seconds": WINDOW_SECONDS, "delay": DELAY_SECONDS},
            namesrvAddr=names.address,
            startingOffsets="earliest",
        )

    def send(self):
        self._send_to(self.brokers)

    def send_to_others(self, broker):
        """Send so much that the watermark would pass the messages of the dead broker."""
        others = [each for each in self.brokers if each is not broker]
        for _ in range(_OUTAGE_WINDOWS):
            self._send_to(others)

    def wait(self):
        """Wait until all closed windows are in the sink; open ones need later messages."""
        last = self._last - DELAY_SECONDS - WINDOW_SECONDS
        over = {window for window in self._awaited if window <= last}

        def has_all():
            for began, rows in self.query.new_rows():
                assert began in self._awaited, f"the window of {began} is there twice"
                assert rows == self.sent[began], f"of {self.sent[began]} rows of {began}: {rows}"
                self._awaited.remove(began)
            return over.isdisjoint(self._awaited)

        wait_until(has_all, what=f"all windows until {last}")

    def counts(self):
        """Return start and row count of each closed window."""
        counts = Counter()
        for began, rows in self.query.rows():
            assert began not in counts, f"the window of {began} is there twice"
            counts[began] = rows
        return counts

    def _send_to(self, brokers):
        self._last = second = next(self._seconds)
        self._awaited.add(second)
        for broker in brokers:
            for topic in TOPICS:
                self.sent[second] += len(send(broker, topic, MESSAGES, str(second)))


@pytest.mark.wide
@pytest.mark.timeout(patience_seconds(ROUNDS))
def test_kills_keep_window_aggregates_exact(tmp_path):
    brokers = [
        EmbeddedBroker(tmp_path / name, own_process=True, brokerName=name)
        for name in ("broker-a", "broker-b")
    ]
    with WindowsCampaign(tmp_path, brokers) as campaign:
        for victim, point in kills(ROUNDS):
            campaign.round(victim, point)
        print(campaign.figures())  # noqa: T201  # progress of a long run
        expected = Counter(campaign.sent)
        for _ in range(_OUTAGE_WINDOWS):  # to close all earlier windows
            campaign.send()
            campaign.wait()
        found = campaign.counts()
        assert {window: found[window] for window in expected} == expected
        assert campaign.query.differing() == []
