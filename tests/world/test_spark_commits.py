"""Some random stories of exactly-once sinks with troubles at their commits.

`make commitworld SEEDS=1000` runs more.
"""

import os

import pytest
from support.suite.selection import spread
from world.shrinking import failure_of
from world.spark.at_commits import draw
from world.spark.commits import KINDS
from world.spark.rarities import is_exactly_once
from world.spark.world import SparkWorld
from world.trials import assert_all_end_well

from rocketpoll.broker.store.batch_commit import rollback

SEEDS = int(os.environ.get("ROCKETPOLL_SPARK_WORLD_SEEDS", "40")) // 10
FIRST = int(os.environ.get("ROCKETPOLL_SPARK_WORLD_FIRST", "0"))


@pytest.mark.parametrize("seed", spread(2, range(FIRST, FIRST + SEEDS)))
def test_commit_worlds_count_every_batch_once(seed):
    assert_all_end_well([seed], draw, SparkWorld, "world.spark.at_commits")


def test_commit_stories_draw_every_trouble_for_both_visibilities():
    drawn = set()
    for story in (draw(seed) for seed in range(40)):
        sinks = [each.steps[0].arguments for each in story.clients if is_exactly_once(each)]
        are_for_all = ["visibleTo" in each["options"] for each in sinks]
        drawn |= {
            (is_for_all, what)
            for each, is_for_all in zip(sinks, are_for_all, strict=True)
            for what in KINDS
            if each[what]
        }
        assert any(are_for_all) == any(each.name == "onlooker" for each in story.clients)
    assert len(drawn) == 8


@pytest.mark.deep
def test_visible_batch_of_a_broker_killed_in_its_commit_is_detected(monkeypatch):
    """A test of the checks themselves; `make seeded` has more."""
    monkeypatch.setattr(rollback, "rollback_rows", lambda *_: None)
    failure = failure_of(draw(11), SparkWorld)
    assert "onlooker sees" in str(failure.error)
