"""A query of topics that are created, grow and are deleted at random, as in the tests of Spark's
Kafka source."""

import random
from collections import Counter
from contextlib import nullcontext

import pytest
from support.spark.streaming_engine import POINTS, Crashed, Engine, assert_read
from support.spark.topic_churn import CALM, SEED, WILD, World, rounds

from rocketpoll import EmbeddedBroker

ROUNDS = rounds(15)
OPTIONS = [{}, {"maxOffsetsPerTrigger": 9}, {"maxBytesPerTrigger": "2k", "minPartitions": 6}]


class StressedEngine:
    """The query without Spark, where crashes are cheap."""

    def __init__(self, broker, pattern, **options):
        self.engine = Engine(broker.address, subscribePattern=pattern, **options)

    def run_a_while(self, dice):
        engine = self.engine
        if not engine.is_running:
            engine.start(available_now=dice.random() < 0.2)
        if dice.random() < 0.4:
            engine.crash_at = dice.choice(POINTS)
        try:
            for _ in range(dice.randint(1, 4)):
                engine.trigger()
        except Crashed:
            return
        engine.crash_at = None
        if dice.random() < 0.3:
            engine.stop()

    def catch_up(self):
        if self.engine.is_running:
            self.engine.stop()
        self.engine.start()
        self.engine.run()
        self.engine.stop()

    def committed(self):
        sink, commits = self.engine.sink, self.engine.commits
        return {row.body for batch_id, rows in sink.items() if batch_id < commits for row in rows}

    def between_batches(self):
        return nullcontext()


@pytest.fixture(scope="module")
def broker():
    """Run a separate broker that can be restarted."""
    with EmbeddedBroker() as broker:
        yield broker


def world_of(broker, name, options, **more):
    dice = random.Random(f"{SEED} {name} {options}")
    return World(broker, dice, lambda pattern: StressedEngine(broker, pattern, **options, **more))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_topic_churn_without_deletions_reads_every_row_once(broker, options):
    world = world_of(broker, "calm", options)
    world.stress(CALM, ROUNDS)
    assert_read(world.query.engine, world.bodies)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_topic_churn_with_deletions_loses_only_unread_rows(broker, options):
    world = world_of(broker, "wild", options, failOnDataLoss="false")
    world.stress(WILD, ROUNDS)
    found = Counter(row.body for row in world.query.engine.rows())
    assert found.total() == len(found)  # without duplicates
    assert set(world.bodies) - set(world.gone) <= set(found) <= set(world.bodies)
