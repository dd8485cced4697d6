"""`test_stress` with Spark: one query in one session, while topics are created, grow and are
deleted.
"""

import json
import random
from collections import Counter
from contextlib import contextmanager

import pytest
from support.spark.driver_processes import Query
from support.spark.topic_churn import CALM, SEED, WILD, World, rounds

from rocketpoll import EmbeddedBroker

ROUNDS = rounds(3)


class StressedSpark:
    """The query with Spark. Its sink has each batch once."""

    def __init__(self, driver, query):
        self.query = query
        self._driver = driver
        self._is_running = False

    def run_a_while(self, dice):
        if not self._is_running and dice.random() < 0.3:
            self._run_to_the_end()
            return
        if not self._is_running:
            self._driver.start(self.query)
            self._is_running = True
        for _ in range(dice.randint(1, 3)):
            with self.between_batches():
                pass
        if dice.random() < 0.3:
            self._stop()

    def catch_up(self):
        self._stop()
        self._run_to_the_end()

    def committed(self):
        commits = self.query.logged("commits")
        files = [self.query.sink / f"{batch_id:06d}.json" for batch_id in commits]
        return {
            body for file in files if file.exists() for *_, body in json.loads(file.read_text())
        }

    @contextmanager
    def between_batches(self):
        """What was planned is read before the topic is another one:
        see the limits in docs/restarts.md."""
        if not self._is_running:
            yield
            return
        self.query.hold("latest")
        self.query.reached("latest")
        yield
        self.query.release("latest")

    def _run_to_the_end(self):
        self._driver.start(self.query, trigger={"availableNow": True})
        assert self._driver.end() is None

    def _stop(self):
        if self._is_running:
            assert self._driver.stop() is None
        self._is_running = False


@pytest.fixture
def world_of(driver, tmp_path):
    with EmbeddedBroker() as broker:

        def world_of(name, **options):
            def query_of(pattern):
                query = Query(
                    tmp_path / "query",
                    namesrvAddr=broker.address,
                    subscribePattern=pattern,
                    startingOffsets="earliest",
                    suspendTimeoutMs=100,
                    discoveryIntervalMs=0,
                    **options,
                )
                return StressedSpark(driver, query)

            return World(broker, random.Random(f"{SEED} {name}"), query_of)

        yield world_of


def found_in(world):
    return Counter(body for *_, body in world.query.query.rows())


@pytest.mark.wide
def test_topic_churn_without_deletions_reads_every_row_once_in_spark(world_of):
    world = world_of("calm", maxOffsetsPerTrigger=20)
    world.stress(CALM, ROUNDS)
    assert found_in(world) == Counter(world.bodies)
    assert world.query.query.differing() == []


@pytest.mark.wide
def test_topic_churn_with_deletions_loses_only_unread_rows_in_spark(world_of):
    world = world_of("wild", minPartitions=6, failOnDataLoss="false")
    world.stress(WILD, ROUNDS)
    found = found_in(world)
    assert found.total() == len(found)  # nothing twice
    assert set(world.bodies) - set(world.gone) <= set(found) <= set(world.bodies)
