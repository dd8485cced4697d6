"""kill -9 of every process of an exactly-once batch: readers of committed rows get each row once.

The topic itself may have duplicates; with visibleTo=all, no consumer sees any.
"""

import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle, islice

import pytest
from support.rocketmq import java_vectors
from support.rocketmq.masters import OneBroker, OneOfTwo
from support.spark.driver_processes import PATIENCE_SECONDS, PROGRAM, Query, wait_until
from support.spark.exactly_once_sink import CommittingSink
from support.spark.restart_campaign import Campaign, patience_seconds, wait_for_rows
from support.spark.streaming_engine import Engine, assert_read, send
from support.suite.selection import PEERS, count

from rocketpoll import Admin, EmbeddedBroker
from rocketpoll.broker.embedded import embedded_broker

HELD_BROKER = PROGRAM.with_name("held_broker.py")

# Longer campaigns: ROCKETPOLL_EXACTLY_ONCE=120, ROCKETPOLL_VISIBLE_TO_ALL=540
ROUNDS = count("ROCKETPOLL_EXACTLY_ONCE", 2, wide=12)
ROUNDS_WHERE_ALL_SEE = count("ROCKETPOLL_VISIBLE_TO_ALL", 3, wide=27)
MESSAGES = 40
KILLS = (
    ("driver", "manifest-done"),
    ("broker", "sent"),
    ("worker", "sent"),
    ("driver", "manifest"),
    ("planner", "manifest-done"),  # the committing process: the query fails
    ("driver", "sent"),
    ("planner", "manifest"),
    ("broker", "manifest"),
    ("driver", "latest"),
    ("driver", "stored"),
    ("broker", "stored"),
    ("planner", "stored"),
)

IN_THE_BROKER = ("begin", "copying", "copied", "ended")
"""Points of a commit at which the broker is held, and so is the process that waits for it."""
POINTS_WHERE_ALL_SEE = (
    *("copying", "unsent", "ended", "shown", "begin", "sent", "copied", "manifest"),
    "manifest-done",
)
_VICTIMS = {"unsent": ("broker", "driver", "worker"), "sent": ("worker", "broker", "driver")}
KILLS_WHERE_ALL_SEE = tuple(
    (_VICTIMS.get(point, ("broker", "driver", "planner"))[(turn + number) % 3], point)
    for turn in range(3)
    for number, point in enumerate(POINTS_WHERE_ALL_SEE)
)
"""Victims and points with visibleTo=all. In a commit, the worker is the planner's process."""


class ExactlyOnceCampaign(Campaign):
    """Copies a topic to another one, exactly once."""

    visible_to = "committed_readers"

    def made_query(self):
        broker = self.brokers[0]  # with two brokers, this one leads to both
        self.make_topic_in(broker)
        broker.create_topic("out", 4)
        self.reader = Engine(
            broker.address, subscribe="out", isolation="committed", waitForTopic="true"
        )
        self.reader.start()
        common = {"namesrvAddr": broker.address, "retryTimeoutMs": str(PATIENCE_SECONDS * 1000)}
        into = {**common, "topic": "out", "delivery": "exactly_once", "visibleTo": self.visible_to}
        options = {**common, "subscribe": "in", "startingOffsets": "earliest"}
        return Query(self._directory, into=into, **options)

    def make_topic_in(self, broker):
        """Create the topic to be copied."""
        broker.create_topic("in", 4)

    def __exit__(self, *exc_info):
        self.reader.stop()
        super().__exit__(*exc_info)

    def send(self):
        self.sent += send(self.brokers[0], "in", MESSAGES)

    def wait(self):
        def count_those_that_count():
            self.reader.run()
            return len(self.reader.rows())

        wait_for_rows(count_those_that_count, len(self.sent))


class VisibleToAllCampaign(ExactlyOnceCampaign):
    """Copies a topic with visibleTo=all: an ordinary consumer must see each row once."""

    visible_to = "all"

    def __exit__(self, *exc_info):
        self.query.release()  # a held broker cannot stop
        super().__exit__(*exc_info)

    def hold(self, point):
        """Hold the query at a point; for points of the broker, hold the broker in the
        next commit."""
        if point not in IN_THE_BROKER:
            super().hold(point)
            return
        self.query.hold("latest")
        self.query.reached("latest")  # all later messages form one batch

    def reached(self, point):
        """Wait until the query or the broker is held at this point."""
        if point not in IN_THE_BROKER:
            return super().reached(point)
        for each in ("manifest", point):
            self.query.hold(each)
        self.query.release("latest")
        planner = self.query.reached("manifest")
        self.query.release("manifest")
        self.query.reached(point)
        return planner

    def wait(self):
        """Wait for all rows; check that none is repeated or unexpected."""

        def count_those_that_all_see():
            found = Counter(message.text for message in self.brokers[0].messages("out"))
            assert found <= Counter(self.sent)
            return found.total()

        wait_for_rows(count_those_that_all_see, len(self.sent), "rows for everybody")
        super().wait()


@pytest.fixture
def held_broker(tmp_path, monkeypatch):
    """Run a broker that is held where hold files of the query say so."""
    program = [sys.executable, str(HELD_BROKER), str(tmp_path / "holds")]
    monkeypatch.setattr(embedded_broker, "broker_command", lambda settings: [*program, *settings])
    return EmbeddedBroker(tmp_path / "b", own_process=True)


@pytest.mark.timeout(patience_seconds(ROUNDS_WHERE_ALL_SEE))
def test_kills_show_each_row_once_where_visible_to_all(tmp_path, held_broker):
    with VisibleToAllCampaign(tmp_path, [held_broker]) as rounds:
        for victim, point in islice(cycle(KILLS_WHERE_ALL_SEE), ROUNDS_WHERE_ALL_SEE):
            rounds.round(victim, point)
        rounds.reader.run()
        assert_read(rounds.reader, rounds.sent)


def own(_, directory):
    return [EmbeddedBroker(directory / "b", own_process=True)]


def one(version, directory):
    return [OneBroker(version, directory)]


BROKERS = [
    pytest.param(own, None, id="rocketpoll"),
    *(
        pytest.param(made, version, id=f"{name}rocketmq-{version}", marks=pytest.mark.interop)
        for version in java_vectors.VERSIONS
        for name, made in (("", one), ("two-", OneOfTwo.both))
        if PEERS
    ),
]


@pytest.mark.parametrize(("brokers", "version"), BROKERS)
@pytest.mark.timeout(patience_seconds(ROUNDS))
def test_kills_count_each_row_exactly_once(tmp_path, brokers, version):
    with ExactlyOnceCampaign(tmp_path, brokers(version, tmp_path)) as rounds:
        for victim, point in islice(cycle(KILLS), ROUNDS):
            rounds.round(victim, point)
        rounds.reader.run()
        assert_read(rounds.reader, rounds.sent)
        assert len(rounds.brokers[0].messages("out")) > len(rounds.sent)


# ---- a driver is killed while its stored manifest is not visible


class Hidden:
    """A campaign in which another sink's open batch sometimes hides the broker's new messages."""

    def __init__(self, rounds, other):
        self._rounds, self._other = rounds, other
        self._broker = rounds.brokers[0]
        self._before = "shown" if rounds.visible_to == "all" else "manifest"

    def manifests(self):
        """Return the number of visible manifests."""
        return len(self._broker.messages("out_COMMITS"))

    def round(self, shown_when, batch):
        """Kill a driver while its manifest is hidden; the manifest becomes visible later."""
        rounds, seen = self._rounds, self.manifests()
        rounds.ready_driver()
        rounds.hold(self._before)
        rounds.send()
        rounds.reached(self._before)
        with self._amid(batch):
            rounds.hold("stored")
            rounds.query.release(self._before)
            rounds.reached("stored")
            rounds.end_driver()
            rounds.query.release("stored")
            assert self.manifests() == seen
            shown_when(self)
        wait_until(lambda: self.manifests() > seen, what="the manifest")
        rounds.query.release()
        rounds.send()
        rounds.wait()
        assert self.manifests() >= seen + 3

    @contextmanager
    def _amid(self, batch):
        sent = self._other.send(batch, self._other.rows(2))
        self._rounds.query.hold("ended")
        with ThreadPoolExecutor(1) as aside:
            done = aside.submit(self._other.commit, batch, sent)
            self._rounds.query.reached("ended")
            yield
            self._rounds.query.release("ended")
            done.result()

    def behind_the_second(self):
        """Let the next driver store its own manifest, which is hidden as well."""
        seen = self.manifests()
        self._goes_on_to("stored")
        assert self.manifests() == seen

    def before_the_second(self):
        """Make the manifest visible after the next driver has sent all rows again."""
        self._goes_on_to(self._before)

    def by_another_start(self):
        """Restart the broker as well."""
        self._broker.kill()
        self._rounds.query.release("ended")
        self._broker.restart()
        self._rounds.start_next_driver()

    def _goes_on_to(self, point):
        self._rounds.hold(point)
        self._rounds.start_next_driver()
        self._rounds.reached(point)


@pytest.mark.wide
@pytest.mark.parametrize("campaign", [ExactlyOnceCampaign, VisibleToAllCampaign])
@pytest.mark.usefixtures("own_producers")
@pytest.mark.timeout(patience_seconds(6))
def test_batch_with_a_hidden_manifest_counts_once_after_its_driver_is_killed(
    tmp_path, monkeypatch, held_broker, campaign
):
    with campaign(tmp_path, [held_broker]) as rounds:
        held_broker.create_topic("others", 1)
        given = {"query": "another", "visibleTo": "all", "retryTimeoutMs": "900000"}
        hidden = Hidden(rounds, CommittingSink(monkeypatch, held_broker, "others", **given))
        shown = (Hidden.behind_the_second, Hidden.before_the_second, Hidden.by_another_start)
        for batch, shown_when in enumerate(shown):
            hidden.round(shown_when, batch)
        assert_read(rounds.reader, rounds.sent)
        assert len(held_broker.messages("others")) == 2 * len(shown)


class CommitsElsewhereCampaign(ExactlyOnceCampaign):
    """A campaign with two brokers: one has the copied topic, the other the commits topic."""

    def make_topic_in(self, broker):
        with Admin(broker.address) as admin:
            admin.create_topic("in", 4, broker_name=max(admin.masters()))


@pytest.mark.parametrize(("brokers", "version"), BROKERS)
@pytest.mark.timeout(patience_seconds(1))
def test_batch_whose_commits_broker_is_away_counts_once_after_its_driver_is_killed(
    tmp_path, brokers, version
):
    with CommitsElsewhereCampaign(tmp_path, brokers(version, tmp_path)) as rounds:
        of_commits, *others = rounds.brokers
        rounds.ready_driver()
        rounds.hold("stored")
        rounds.send()
        rounds.reached("stored")
        of_commits.kill()
        rounds.end_driver()
        rounds.query.release()
        if others:  # the batch runs again without the dead one
            rounds.hold("manifest")
            rounds.start_next_driver()
            rounds.reached("manifest")
            rounds.query.release()
            of_commits.restart()
        else:
            of_commits.restart()
            rounds.start_next_driver()
        rounds.send()
        rounds.wait()
        assert_read(rounds.reader, rounds.sent)
        assert len(rounds.brokers[0].messages("out")) > len(rounds.sent)


# ---- two drivers of one query


@pytest.mark.parametrize(
    "campaign",
    [ExactlyOnceCampaign, pytest.param(VisibleToAllCampaign, marks=pytest.mark.wide)],
)
@pytest.mark.timeout(patience_seconds(3))
def test_suspended_driver_ends_with_an_error_after_another_driver_took_over(tmp_path, campaign):
    with campaign(tmp_path, [EmbeddedBroker(tmp_path / "b", own_process=True)]) as rounds:

        def send_and_wait():
            for _ in range(2):
                rounds.wait()
                rounds.send()
            rounds.wait()

        rounds.ready_driver()
        rounds.hold("manifest")
        rounds.send()
        committer = rounds.reached("manifest")
        assert "another driver" in rounds.end_behind(committer, send_and_wait)
        rounds.send()
        rounds.wait()
        assert_read(rounds.reader, rounds.sent)
