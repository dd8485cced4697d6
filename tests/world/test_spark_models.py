"""The models of queries detect wrong queries and accept right ones; tests report the events by
hand."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from world.spark.ledger import Ledger
from world.spark.producers import Sent
from world.spark.workers import Crashed
from world.stage import Broken
from world.story import Trouble

from rmq_spark.errors import RocketPollError
from rmq_spark.spark.errors import OptionError

ONE, OTHER = ("T0", "broker-a", 0), ("T0", "broker-a", 1)
OF_ANOTHER = ("T0", "broker-b", 0)


class Scene:
    """A stream of one topic, its model, and a world with nothing but a clock."""

    def __init__(self, **options):
        self.kernel = SimpleNamespace(now=100.0)
        self.calm_since = None
        self.lied_about = self.liars = frozenset()
        self.story = SimpleNamespace(troubles=(), clients=())
        self.ledger = Ledger(self)
        self.run = SimpleNamespace(name="stream 1")
        self.name, self.topics, self.options = "stream", ["T0"], options
        self.model = self.ledger.stream(self)
        self.model.began()

    def complain(self, what):
        raise Broken(what)

    def sent(self, number, queue, offset):
        """Record a sent message that is stored at an offset."""
        body, keys = f"m{number}".encode(), f"k{number}"
        sent = Sent(number, "T0", body, None, keys, {}, self.kernel.now, None, None)
        self.ledger.sends(sent)
        self.ledger.is_acknowledged(sent, (*queue, offset))
        return {
            "topic": queue[0],
            "brokerName": queue[1],
            "queueId": queue[2],
            "queueOffset": offset,
            "body": body,
            "keys": keys,
        }

    def stores(self, number, queue, offset):
        """Record a stored message that an audit has found, and that passes every filter."""
        self.sent(number, queue, offset)
        body = f"m{number}".encode()
        self.ledger.sent[body] = self.ledger.sent[body]._replace(
            tags="Aa", properties={"colour": "red"}
        )
        self.ledger.stored[queue][offset] = body

    def plans(self, batch, **more):
        self.model.planned(batch, json.dumps({"offsets": {}, **more}), is_new=False)

    def runs(self, batch, *rows):
        """Report rows of a batch's tasks, and its commit."""
        self.plans(batch)
        self.model.ran(batch, [rows])
        self.model.committed(batch)

    def told_to_read_again(self, queue):
        topic, broker, number = queue
        self.ledger.takes_away(broker=broker)
        self.model.logged(
            f"messages are lost, continuing without them: queue {number} of {topic} on {broker} is "
            "not the one that was read: all are read"
        )


@pytest.mark.parametrize("is_first", [True, False])
def test_repeated_rows_of_a_reread_queue_are_accepted(is_first):
    scene = Scene()
    again, once = scene.sent(1, ONE, 0), scene.sent(2, OTHER, 0)
    scene.runs(0, again)
    scene.told_to_read_again(ONE)
    scene.runs(1, *((again, once) if is_first else (once, again)))


@pytest.mark.parametrize("is_first", [True, False])
def test_repeated_rows_are_accepted_only_for_the_reread_queue(is_first):
    scene = Scene()
    again, once = scene.sent(1, ONE, 0), scene.sent(2, OTHER, 0)
    scene.runs(0, again, once)
    scene.told_to_read_again(ONE)
    with pytest.raises(Broken, match="message 2 to T0 is in batches 0 and 1"):
        scene.runs(1, *((again, once) if is_first else (once, again)))


def test_available_now_run_skips_a_gone_broker_only():
    scene = Scene(startingOffsets="earliest")
    scene.sent(1, OF_ANOTHER, 0)
    scene.kernel.now += 10
    scene.model.began()
    scene.plans(0, gone=["broker-b"])
    scene.model.came_to_its_end()
    scene.plans(1, gone=["broker-a"])
    with pytest.raises(Broken, match=r"come to its end without.*message 1 to T0"):
        scene.model.came_to_its_end()


def test_gone_broker_is_known_by_its_first_name():
    scene = Scene(startingOffsets="earliest")
    scene.sent(1, OF_ANOTHER, 0)
    scene.ledger.renames("broker-b", "broker-b-renamed")
    scene.kernel.now += 10
    scene.model.began()
    scene.plans(0, gone=["broker-b-renamed"])
    scene.model.came_to_its_end()


@pytest.mark.parametrize("isolation", ["all", "committed"])
def test_query_may_fail_in_calm_weather_only_by_killed_tasks(isolation):
    scene = Scene(isolation=isolation)
    scene.calm_since = scene.kernel.now - 10
    scene.model.began()
    scene.model.failed(Crashed("stream 1 executor 7"))
    with pytest.raises(Broken, match="it has ended in calm weather"):
        scene.model.failed(RocketPollError("no broker answers"))


def none_there(topic):
    problem = f"queue 0 of {topic} on broker-a has the offsets from 2 to 5, not 0; correct it, or "
    return OptionError("startingOffsets", problem + "set failOnDataLoss to false")


def test_missing_start_position_may_end_a_first_start_only():
    scene = Scene(startingOffsets=json.dumps({"T0": {"*": {"*": 0}}}))
    scene.calm_since = scene.kernel.now - 10
    scene.model.began()
    with pytest.raises(Broken, match="it has ended in calm weather"):
        scene.model.failed(none_there("T0"))  # none of the topic's messages is lost
    scene.ledger.takes_away(broker="broker-a", expired=True)
    scene.model.failed(none_there("T0"))
    scene.plans(0)
    with pytest.raises(Broken, match="it has ended in calm weather"):
        scene.model.failed(none_there("T0"))


@pytest.mark.parametrize(
    ("about", "may_go"),
    [("one broker less", True), ("fewer queues", True), ("another body", False)],
)
def test_assigned_queues_may_be_refused_during_a_name_server_lie(about, may_go):
    scene = Scene()
    scene.story.troubles = (Trouble("lie", 1.0, 2.0, {"broker": 0, "about": about}),)
    refused = OptionError("assign", "topic T0 has no queue 1 on broker broker-b")
    with nullcontext() if may_go else pytest.raises(Broken, match="nobody has taken away"):
        scene.model.failed(refused)


def test_repeated_reads_may_differ_only_by_claimed_losses():
    scene = Scene()
    read = scene.ledger.reads(scene)
    row = scene.sent(1, ONE, 0)
    scene.runs(0, row)
    with pytest.raises(Broken, match="one action has it, and one has not: message 1"):
        read.ran_again([[]], [[row]])
    with pytest.raises(Broken, match="batch 0 had it, and has not when it is run again"):
        scene.model.ran(0, [[]])
    scene.lied_about = {"broker-a"}
    read.ran_again([[]], [[row]])
    scene.model.ran(0, [[]])


@pytest.mark.parametrize("options", [{"tags": "Aa"}, {"sql": "colour = 'red'"}, {}])
def test_broker_claims_may_hide_only_messages_sent_before_their_end(options):
    scene = Scene(**options)
    scene.runs(0)
    scene.lied_about = {"broker-a"}
    scene.ledger.takes_away(broker="broker-a")
    scene.stores(1, ONE, 0)
    assert len([*scene.model.outstanding()]) == (not options)
    scene.kernel.now += 1
    scene.stores(2, ONE, 1)
    assert len([*scene.model.outstanding()]) == 1 + (not options)
