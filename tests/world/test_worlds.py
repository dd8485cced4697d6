"""Some random stories of a broker; `make world SEEDS=20000` runs more.

A failing story is shrunk, and the report says how to run it again.
"""

import os
import random
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from support.suite.selection import count, some, spread
from world.acts import ACTS
from world.acts.pops import POP_GROUPS
from world.drawing import draw
from world.shrinking import failure_of, shrunk
from world.story import Client, Ending, Step, Story, Trouble
from world.trials import (
    SHRINK_SECONDS,
    assert_all_end_well,
    assert_ends_well,
    assert_told_alike_in_any_process,
)
from world.world import PREEMPTED, World

from rocketpoll.broker.runtime import housekeeping
from rocketpoll.broker.store import message_store
from rocketpoll.broker.store.bulk import bulk_tools, lazy_numpy
from rocketpoll.broker.store.queues.consume_queue import ConsumeQueue
from rocketpoll.broker.store.startup import directory_lock
from rocketpoll.broker.transaction.transactional_message_service import (
    TransactionalMessageService,
)

SEEDS = count("ROCKETPOLL_WORLD_SEEDS", 100, wide=200)
FIRST = int(os.environ.get("ROCKETPOLL_WORLD_FIRST", "0"))
AT_A_TIME = 5
CHANGES = some(range(30, 275), "ROCKETPOLL_POP_CHANGES", 2)
KEPT = sorted((Path(__file__).parent / "stories").glob("*.json"))


@pytest.mark.parametrize("first", spread(2, range(FIRST, FIRST + SEEDS, AT_A_TIME)))
def test_broker_worlds_end_well(first):
    assert_all_end_well(range(first, first + AT_A_TIME), draw, World, "world")


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_broker_story_that_once_failed_passes(path):
    assert_ends_well(path, World)


def test_story_json_round_trip():
    for seed in range(50):
        story = draw(seed)
        again = Story.from_json(story.to_json())
        assert again.to_json() == story.to_json()
        assert again == story or story.troubles


@pytest.mark.deep
def test_simulated_world_is_identical_for_a_seed_in_any_process():
    assert_told_alike_in_any_process((3, 8, 21, 34), draw, World)


def test_statements_that_run_once_per_process_are_not_interrupted():
    """Otherwise the first story of a process would run differently."""
    once = [bulk_tools, lazy_numpy, directory_lock]
    assert not [module for module in once if re.search(PREEMPTED, module.__file__)]
    assert all(re.search(PREEMPTED, module.__file__) for module in (housekeeping, message_store))


def test_random_worlds_cover_all_acts_and_faults():
    """A step or fault that no seed draws is not tested."""
    stories = [draw(seed) for seed in range(300)]
    acts = {step.kind for story in stories for client in story.clients for step in client.steps}
    assert acts == set(ACTS)
    endings = [ending for story in stories for ending in story.endings]
    assert {ending.kind for ending in endings} == {"stop", "kill", "power"}
    assert sum(ending.operation is not None and ending.operation < 40 for ending in endings) > 100
    troubles = [trouble for story in stories for trouble in story.troubles]
    assert {trouble.kind for trouble in troubles} == {
        "slow", "lack", "broken", "clock", "cut", "full", "accept",
    }  # fmt: skip
    broken = {each.arguments["operation"] for each in troubles if each.kind == "broken"}
    assert broken > {"read", "open", "resize", "names", "make_directory"}


@pytest.mark.wide
def test_world_finds_loss_of_acknowledged_messages(monkeypatch):
    """A test of the checks themselves; `make seeded` has many more."""
    monkeypatch.setattr(
        "rocketpoll.broker.processor.sends.acknowledger.Acknowledger.when_stored",
        lambda _self, result, then, **_rest: then(result),
    )
    found = [
        failure for seed in range(40) if (failure := failure_of(draw(seed), World)) is not None
    ]
    assert any(
        "is lost" in str(failure.error) or "where" in str(failure.error) for failure in found
    )


def full_when_it_ends(seed):
    """Draw a story in which clients send many messages at a time to a full disk, and the life ends
    then."""
    dice, drawn = random.Random(seed), draw(seed)
    until = dice.uniform(1, 3)
    lack = {"errno": "ENOSPC", "kinds": ["create", "resize", "write"]}
    through = dice.choice([1_000, 5_000, 20_000])
    full = Trouble("lack", dice.uniform(0.5, until - 0.2), 4.0, {**lack, "through": through})
    kinds = [dice.choice(["batch", "chunk", "burst"]) for _ in range(40)]
    steps = [
        step
        for kind in kinds
        for step in (Step(kind, ACTS[kind].draw(dice)), Step("wait", {"seconds": 0.1}))
    ]
    ending = Ending(dice.choice(["stop", "kill", "power"]), until, down_seconds=6.0)
    return replace(
        drawn,
        endings=(ending,),
        clients=(*drawn.clients[:1], Client("many", tuple(steps))),
        troubles=(full,),
    )


@pytest.mark.parametrize("first", spread(1, range(FIRST, FIRST + SEEDS // 5, AT_A_TIME)))
def test_messages_refused_on_a_full_disk_stay_away_after_restart(first):
    assert_all_end_well(range(first, first + AT_A_TIME), full_when_it_ends, World, "world")


@pytest.mark.deep
def test_world_finds_refused_messages_left_in_the_log(monkeypatch):
    monkeypatch.setattr("rocketpoll.broker.store.log.commit_log.CommitLog.wipe", lambda _: None)
    failures = (failure_of(full_when_it_ends(seed), World) for seed in range(40))
    assert any("was refused" in str(failure.error) for failure in failures if failure is not None)


def full_in_a_commit(seed):
    """Draw a story in which the disk is full, or the life ends, when half a batch is copied."""
    dice, drawn = random.Random(f"{seed} full in a commit"), draw(seed)
    kinds = ["create", "resize", *dice.choice([(), ("write",)])]
    arguments = {"errno": "ENOSPC", "kinds": kinds, "through": dice.choice([1_000, 5_000])}
    arguments["below"] = "commitlog"  # otherwise the commit could not begin
    chunks = [
        {"topic": f"T{number % 2}", "queue_id": number % 3, "sizes": [300] * dice.choice([9, 40])}
        for number in range(8)
    ]
    steps = (
        *(Step("stage", {"chunks": chunks, "counts": True}) for _ in range(2)),
        Step("wait", {"seconds": 4.0}),
        *(Step("commit_batch", {}), Step("wait", {"seconds": 1.0})) * 4,
    )
    ending = Ending(
        dice.choice(["stop", "kill", "power"]), dice.uniform(4.0, 9.0), down_seconds=2.0
    )
    settings = {**drawn.settings, "mappedFileSizeCommitLog": str(16 * 1024)}
    return replace(
        drawn,
        settings=settings,
        endings=(ending,),
        clients=(*drawn.clients[:1], Client("sink", steps)),
        troubles=(Trouble("lack", 3.0, 4.0, arguments),),
    )


@pytest.mark.parametrize("first", spread(1, range(FIRST, FIRST + SEEDS // 5, AT_A_TIME)))
def test_world_batch_on_a_full_disk_is_visible_whole_or_not_at_all(first):
    assert_all_end_well(range(first, first + AT_A_TIME), full_in_a_commit, World, "world")


@pytest.mark.wide
def test_world_finds_visible_rows_of_a_failed_batch(monkeypatch):
    monkeypatch.setattr(
        "rocketpoll.broker.store.batch_commit.coordinator.rollback_rows", lambda *_: None
    )
    failures = (failure_of(full_in_a_commit(seed), World) for seed in range(20))
    assert any("batch" in str(failure.error) for failure in failures if failure is not None)


def expired_and_killed(seed):
    """Draw a story in which a nearly full disk lets old files expire, and the power fails."""
    dice, drawn = random.Random(f"{seed} expired and killed"), draw(seed)
    steps = tuple(
        step
        for _ in range(30)
        for step in (
            Step("batch", {"topic": "T0", "queue_id": dice.randrange(3), "sizes": [900] * 6}),
            Step("wait", {"seconds": dice.choice([0.05, 0.2])}),
        )
    )
    settings = {
        **drawn.settings,
        "mappedFileSizeCommitLog": str(16 * 1024),
        "cleanResourceInterval": "500",
    }
    endings = tuple(
        Ending(dice.choice(["power", "power", "kill"]), dice.uniform(2.0, 5.0), down_seconds=0.5)
        for _ in range(2)
    )
    full = Trouble("full", dice.uniform(0.5, 2.0), 12.0, {"used_ratio": 0.87})
    return replace(
        drawn,
        settings=settings,
        endings=endings,
        clients=(*drawn.clients[:1], Client("many", steps)),
        troubles=(full,),
    )


def test_world_finds_all_messages_after_expiration_and_kill():
    assert_all_end_well(range(FIRST, FIRST + SEEDS // 33), expired_and_killed, World, "world")


@pytest.mark.deep
def test_world_finds_a_message_hidden_with_expired_ones(monkeypatch):
    find = ConsumeQueue._first_at_or_after

    def one_more(queue, physical_offset):
        found = find(queue, physical_offset)
        return found + 1 if found and found + 1 < queue.max_offset else found

    monkeypatch.setattr(ConsumeQueue, "_first_at_or_after", one_more)
    failures = (failure_of(expired_and_killed(seed), World) for seed in range(20))
    assert any("is hidden" in str(failure.error) for failure in failures if failure is not None)


@pytest.mark.wide
def test_failing_story_is_shortened_and_fails_alike(monkeypatch):
    monkeypatch.setattr(
        "rocketpoll.broker.longpolling.pull_request_hold_service.PullRequestHoldService.notify_message_arriving",
        lambda *_: 0,
    )
    failure = next(
        failure for seed in range(40) if (failure := failure_of(draw(seed), World)) is not None
    )
    short = shrunk(failure, SHRINK_SECONDS)
    assert short.kind == failure.kind
    assert len(short.story.parts()) <= 12


@pytest.mark.parametrize(
    ("first", "kinds"), spread(1, product(range(1, 5), [("kill", "power"), ("power", "kill")]))
)
def test_broker_life_can_end_at_every_disk_change(first, kinds):
    """The changes go from the start of a new store to its first message and its next start, with
    kills and power losses."""
    base = draw(1)
    for number in range(first, 60, 4):
        endings = tuple(
            Ending(kinds[number % 2], 1.0, number, is_done=done, down_seconds=0.01)
            for done in (False, True)
        )
        World(Story(base.seed, base.settings, endings, base.clients[:1], ())).tell()


def transactions_of(seed):
    """Return a story of two producers with transactions, whose broker ends twice."""
    dice = random.Random(f"transactions {seed}")
    drawn = draw(1)
    clients = tuple(
        Client(f"committer{number}", tuple(_transact(dice) for _ in range(6)))
        for number in range(2)
    )
    endings = tuple(
        Ending(
            dice.choice(["kill", "power"]),
            dice.uniform(0.5, 3.0),
            dice.choice([None, dice.randrange(1, 60), dice.randrange(1, 200)]),
            is_done=dice.random() < 0.5,
        )
        for _ in range(2)
    )
    settings = {**drawn.settings, "flushDiskType": "SYNC_FLUSH"}
    return Story(seed, settings, endings, clients, ())


def _transact(dice):
    kind = dice.choice(["transact", "transact", "answer_checks"])
    return Step(kind, ACTS[kind].draw(dice))


@pytest.mark.parametrize("first", spread(1, range(FIRST, FIRST + SEEDS // 5, AT_A_TIME)))
def test_transactions_end_as_decided_although_the_broker_is_killed_and_loses_power(first):
    assert_all_end_well(range(first, first + AT_A_TIME), transactions_of, World, "world")


@pytest.mark.deep
def test_world_finds_a_half_message_that_is_passed_without_a_check(monkeypatch):
    def pass_unseen(service, *_):
        service._half_offset += 1
        return True

    monkeypatch.setattr(TransactionalMessageService, "_resolve_half_message", pass_unseen)
    failures = (failure_of(transactions_of(seed), World) for seed in range(20))
    found = [str(failure.error) for failure in failures if failure is not None]
    assert any("was committed and never delivered" in error for error in found), found


def pops_of(seed):
    """Return a story of pops and sends whose broker ends twice; in some, the clock jumps."""
    dice = random.Random(f"pops {seed}")
    drawn = draw(1)
    kinds = ("pop", "pop", "acknowledge", "change_invisible_time")
    clients = (
        *(Client(f"c{number}", tuple(_steps(dice, ("send", "batch"), 8))) for number in range(2)),
        *(Client(f"popper{number}", tuple(_steps(dice, kinds, 14))) for number in range(2)),
    )
    endings = tuple(
        Ending(
            dice.choice(["stop", "kill", "power"]),
            dice.uniform(0.5, 6.0),
            dice.choice([None, dice.randrange(1, 60), dice.randrange(1, 400)]),
            is_done=dice.random() < 0.5,
            down_seconds=dice.choice([0.1, 5.0]),
        )
        for _ in range(dice.choice([0, 1, 2, 3]))
    )
    jumps = tuple(
        Trouble("clock", dice.uniform(0, 12), 1.0, {"ahead_seconds": dice.choice([-30, -3, 3, 30])})
        for _ in range(dice.choice([0, 0, 1, 2]))
    )
    settings = {
        **drawn.settings,
        "flushDiskType": dice.choice(["SYNC_FLUSH", "SYNC_FLUSH", "ASYNC_FLUSH"]),
    }
    return Story(seed, settings, endings, clients, jumps)


def _steps(dice, kinds, count):
    for _ in range(count):
        kind = dice.choice(kinds)
        yield Step(kind, ACTS[kind].draw(dice))
        if pause := dice.choice([0, 0.01, 0.7, 2.5]):
            yield Step("wait", {"seconds": pause})


@pytest.mark.parametrize("first", spread(1, range(FIRST, FIRST + SEEDS // 5, AT_A_TIME)))
def test_popped_messages_come_again_until_acknowledged_although_the_broker_is_killed(first):
    assert_all_end_well(range(first, first + AT_A_TIME), pops_of, World, "world")


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "instead", "what"),
    [
        (
            "state.tables.consumer_order_info.ConsumerOrderInfoManager.commit_and_next",
            lambda _self, _queue, queue_offset, *_: queue_offset + 1,
            "never came",
        ),
        ("pop.pop_revive_service.PopReviveService._unacknowledged", lambda *_: (), "never came"),
        ("pop.pop_revive_service.acked_offsets", lambda _: (), "was acknowledged"),
    ],
)
def test_world_finds_popped_messages_that_are_lost_or_come_again(monkeypatch, name, instead, what):
    monkeypatch.setattr(f"rocketpoll.broker.{name}", instead)
    failures = (failure_of(pops_of(seed), World) for seed in range(10))
    found = [str(failure.error) for failure in failures if failure is not None]
    assert any(what in error for error in found), found


def test_popped_message_comes_again_whatever_disk_change_ends_the_broker():
    base = pops_of(1)
    place = {"topic": "T0", "queue_id": 0}
    send = Step("batch", {**place, "sizes": [60, 60, 60]})
    pop = {"topic": "T0", "queue_id": -1, "count": 32, "invisible_ms": 1_000, "poll_ms": 0}
    steps = [
        step
        for group in POP_GROUPS
        for step in (
            Step("pop", {**pop, "group": group}),
            Step("change_invisible_time", {"group": group, "invisible_ms": 1_000}),
            Step("acknowledge", {"group": group, "share": 0.5}),
        )
    ]
    client = Client("popper", (send, *steps, Step("wait", {"seconds": 2.5}), *steps))
    settings = {**base.settings, "flushDiskType": "SYNC_FLUSH"}
    for number in CHANGES:
        for kind in ("kill", "power"):
            for done in (False, True):
                ending = Ending(kind, 6.0, number, is_done=done, down_seconds=0.01)
                World(Story(number, settings, (ending,), (client,), ())).tell()
