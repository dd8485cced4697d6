"""Some hundred stories, each of another seed; `make world SEEDS=20000` tells more.

One that fails is made short, and says how it is told again.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from breadth import count
from world.acts import ACTS
from world.drawing import draw
from world.shrinking import failure_of, shrunk
from world.story import Ending, Story
from world.trials import (
    SHRINK_SECONDS,
    assert_all_end_well,
    assert_ends_well,
    assert_told_alike_in_any_process,
)
from world.world import World

SEEDS = count("ROCKETPOLL_WORLD_SEEDS", 100, wide=200)
FIRST = int(os.environ.get("ROCKETPOLL_WORLD_FIRST", "0"))
AT_A_TIME = 20
KEPT = sorted((Path(__file__).parent / "stories").glob("*.json"))


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, AT_A_TIME))
def test_no_promise_is_broken(first):
    assert_all_end_well(range(first, first + AT_A_TIME), draw, World, "world")


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_story_that_once_failed_ends_well(path):
    assert_ends_well(path, World)


def test_a_story_is_written_down_and_read_again():
    for seed in range(50):
        story = draw(seed)
        again = Story.from_json(story.to_json())
        assert again.to_json() == story.to_json()
        assert again == story or story.troubles


def test_the_same_seed_tells_the_same_story_byte_for_byte_in_any_process():
    assert_told_alike_in_any_process((3, 8, 21, 34), draw, World)


def test_the_stories_have_everything_in_them():
    """What no seed draws is not tested, however many there are."""
    stories = [draw(seed) for seed in range(300)]
    acts = {step.kind for story in stories for client in story.clients for step in client.steps}
    assert acts == set(ACTS)
    endings = [ending for story in stories for ending in story.endings]
    assert {ending.kind for ending in endings} == {"stop", "kill", "power"}
    assert sum(ending.operation is not None and ending.operation < 40 for ending in endings) > 100
    troubles = [trouble for story in stories for trouble in story.troubles]
    assert {trouble.kind for trouble in troubles} == {
        "slow", "lack", "broken", "clock", "cut", "full",
    }  # fmt: skip


def test_a_broker_that_loses_what_it_has_acknowledged_is_found_out(monkeypatch):
    """The proof proves itself; `make seeded` has many more."""
    monkeypatch.setattr(
        "rocketpoll.broker.processor.acknowledger.Acknowledger.when_stored",
        lambda _self, result, then, **_rest: then(result),
    )
    found = [failure for seed in range(40) if (failure := failure_of(draw(seed), World)) is not None]
    assert any("is lost" in str(failure.error) or "where" in str(failure.error) for failure in found)


def test_a_story_is_made_short_and_fails_in_the_same_way(monkeypatch):
    monkeypatch.setattr(
        "rocketpoll.broker.longpolling.pull_request_hold_service.PullRequestHoldService.notify_message_arriving",
        lambda *_: 0,
    )
    failure = next(failure for seed in range(40) if (failure := failure_of(draw(seed), World)) is not None)
    short = shrunk(failure, SHRINK_SECONDS)
    assert short.kind == failure.kind
    assert len(short.story.parts()) <= 12


def test_a_life_may_end_at_every_change_of_the_disk_from_the_first_on():
    """From the start of a store that is not there yet to its first message, and the start behind that."""
    base = draw(1)
    number = 0
    for number in range(1, 60):
        for kind in ("kill", "power"):
            endings = tuple(
                Ending(kind, 1.0, number, is_done=done, down_seconds=0.01) for done in (False, True)
            )
            story = Story(base.seed, base.settings, endings, base.clients[:1], ())
            world = World(story)
            world.tell()
    assert number
