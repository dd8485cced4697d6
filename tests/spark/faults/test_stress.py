"""A query among topics that come, grow and go, at random, as in Spark's tests of its Kafka source."""

import os
import random
from collections import Counter

import pytest
from spark_engine import POINTS, Crashed, Engine, assert_read, send

from rocketpoll import EmbeddedBroker

# Longer campaigns take their length from here: make stress ROUNDS=1000
ROUNDS = int(os.environ.get("ROCKETPOLL_STRESS_ROUNDS", "15"))
SEED = int(os.environ.get("ROCKETPOLL_SEED", "1"))
TOPICS_MAX, QUEUES_MAX = 5, 8
STEPS_MAX = 8
"""Between two looks of the query."""


class World:
    """A broker with topics, a query over all of them, and what was sent to each."""

    def __init__(self, broker, dice, **options):
        self.broker = broker
        self.dice = dice
        self.prefix = f"stress{dice.randrange(1 << 30)}"
        self.query = Engine(broker.address, subscribePattern=f"{self.prefix}-.*", **options)
        self.queues = {}
        self.sent = {}
        self.gone = []
        self.made = 0
        self.add_topic()

    # ---- what happens to the topics

    def add_topic(self):
        if len(self.queues) < TOPICS_MAX:
            self.made += 1
            self._make(f"{self.prefix}-{self.made}")

    def add_data(self):
        topic = self.dice.choice(list(self.queues))
        self.sent[topic] += send(self.broker, topic, self.dice.randint(1, 20))

    def add_queues(self):
        topic = self.dice.choice(list(self.queues))
        self.queues[topic] = min(self.queues[topic] + self.dice.randint(1, 3), QUEUES_MAX)
        self.broker.create_topic(topic, self.queues[topic])

    def delete_topic(self):
        """What no committed batch has may be gone."""
        if len(self.queues) > 1:
            self._delete(self.dice.choice(list(self.queues)))

    def make_topic_again(self):
        topic = self.dice.choice(list(self.queues))
        self._delete(topic)
        self._make(topic)
        self.sent[topic] += send(self.broker, topic, self.dice.randint(0, 60))

    def restart_broker(self):
        if not self.dice.randrange(5):
            self.broker.restart()

    def _make(self, topic):
        self.queues[topic] = self.dice.randint(1, 4)
        self.sent.setdefault(topic, [])
        self.broker.create_topic(topic, self.queues[topic])

    def _delete(self, topic):
        committed = {
            row.body
            for batch_id, rows in self.query.sink.items()
            if batch_id < self.query.commits
            for row in rows
        }
        self.gone += [body for body in self.sent[topic] if body not in committed]
        self.broker.delete_topic(topic)
        del self.queues[topic]

    # ---- what happens to the query

    def run_query(self):
        """Start it if need be; let it run a while, with a crash now and then, or a stop."""
        query = self.query
        if not query.is_running:
            query.start(available_now=self.dice.random() < 0.2)
        if self.dice.random() < 0.4:
            query.crash_at = self.dice.choice(POINTS)
        try:
            for _ in range(self.dice.randint(1, 4)):
                query.trigger()
        except Crashed:
            return
        query.crash_at = None
        if self.dice.random() < 0.3:
            query.stop()

    def catch_up(self):
        """Read all that there is."""
        if self.query.is_running:
            self.query.stop()
        self.query.start()
        self.query.run()
        self.query.stop()

    def bodies(self):
        return [body for bodies in self.sent.values() for body in bodies]


CALM = (World.add_topic, World.add_data, World.add_data, World.add_queues, World.restart_broker)
WILD = (*CALM, World.delete_topic, World.make_topic_again)
OPTIONS = [{}, {"maxOffsetsPerTrigger": 9}, {"maxBytesPerTrigger": "2k", "minPartitions": 6}]


@pytest.fixture(scope="module")
def broker():
    """One that can be restarted while the others go on with theirs."""
    with EmbeddedBroker() as broker:
        yield broker


def stress(world, steps):
    for _ in range(ROUNDS):
        for _ in range(world.dice.randint(1, STEPS_MAX)):
            world.dice.choice(steps)(world)
        world.run_query()
    world.catch_up()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_whatever_is_added_is_read_once(broker, options):
    world = World(broker, random.Random(f"{SEED} calm {options}"), **options)
    stress(world, CALM)
    assert_read(world.query, world.bodies())


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_where_topics_are_deleted_only_what_was_not_read_of_them_is_gone(broker, options):
    world = World(broker, random.Random(f"{SEED} wild {options}"), failOnDataLoss="false", **options)
    stress(world, WILD)
    found = Counter(row.body for row in world.query.rows())
    assert found.total() == len(found)  # nothing twice
    assert set(world.bodies()) - set(world.gone) <= set(found) <= set(world.bodies())
