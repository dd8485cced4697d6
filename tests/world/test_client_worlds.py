"""Some random stories of clients; `make clientworld SEEDS=20000` runs more.

A failing story is shrunk, and the report says how to run it again.
"""

import os
from pathlib import Path

import pytest
from support.suite.selection import spread
from world.clients import popping, transacting
from world.clients.acts import ACTS
from world.clients.consuming import CONSUME
from world.clients.drawing import draw
from world.clients.listening import MOODS, MORE_MOODS
from world.clients.pops import POP
from world.clients.world import ClientWorld
from world.shrinking import failure_of, tell
from world.story import Client, Step, Story, Trouble
from world.trials import assert_all_end_well, assert_ends_well, assert_told_alike_in_any_process

SEEDS = int(os.environ.get("ROCKETPOLL_CLIENT_WORLD_SEEDS", "64"))
FIRST = int(os.environ.get("ROCKETPOLL_CLIENT_WORLD_FIRST", "0"))
AT_A_TIME = 2
_ORDER_INFO = "rocketpoll.broker.state.tables.consumer_order_info.ConsumerOrderInfoManager"
_TRANSACTIONS = (
    "rocketpoll.broker.transaction.transactional_message_service.TransactionalMessageService"
)
KEPT = sorted((Path(__file__).parent / "client_stories").glob("*.json"))


@pytest.mark.parametrize("first", spread(2, range(FIRST, FIRST + SEEDS, AT_A_TIME)))
def test_client_worlds_end_well(first):
    assert_all_end_well(range(first, first + AT_A_TIME), draw, ClientWorld, "world.clients")


@pytest.mark.parametrize("first", spread(1, range(FIRST, FIRST + SEEDS // 8, AT_A_TIME)))
def test_client_worlds_with_transactions_end_well(first):
    program = "world.clients.transacting"
    assert_all_end_well(range(first, first + 2), transacting.draw, ClientWorld, program)


@pytest.mark.parametrize("first", spread(1, range(FIRST, FIRST + SEEDS // 8, AT_A_TIME)))
def test_client_worlds_with_groups_that_pop_end_well(first):
    program = "world.clients.popping"
    assert_all_end_well(range(first, first + 2), popping.draw, ClientWorld, program)


def cut_off_pops(seconds, ahead_seconds):
    """Return a story of a sender and a member that pops; both lose their connections just after the
    clock was set."""
    sends = {"topic": "T0", "how": "sync", "count": 30, "gap": 0.03, "size": 0, "timeout_ms": 3_000}
    pops = {
        "group": "S0",
        "in_order": False,
        "invisible_ms": 3_000,
        "count": 4,
        "timeout_ms": 500,
        "carelessness": 0.3,
    }
    clients = Client("p0", (Step("send", sends),)), Client("s0", (Step(POP, pops),))
    cut = Trouble("cut", seconds, 1.0, {"broker": None})
    clock = Trouble("clock", seconds - 0.01, 1.0, {"ahead_seconds": ahead_seconds})
    settings = {
        "flushDiskType": "ASYNC_FLUSH",
        "mappedFileSizeCommitLog": "1048576",
        "mappedFileSizeConsumeQueue": "10000",
    }
    return Story(1, settings, (), clients, (cut, clock), latency_seconds=0.02)


CUTS_SECONDS = [1.185, 1.222, 1.259]
"""Times of cuts; the cut at 1.222 s loses the response to an acknowledgement that is stored."""


@pytest.mark.parametrize("ahead_seconds", spread(1, [0.0, 3_600.0, -30.0]))
def test_pop_settles_once_if_the_answer_to_its_acknowledgement_is_lost(ahead_seconds):
    unanswered = 0
    for seconds in CUTS_SECONDS:
        failure, world = tell(cut_off_pops(seconds, ahead_seconds), ClientWorld)
        assert failure is None, str(failure)
        unanswered += world.ledger.pops.unanswered
    assert unanswered


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_client_story_that_once_failed_passes(path):
    assert_ends_well(path, ClientWorld)


@pytest.mark.wide
def test_client_world_is_identical_for_a_seed_in_any_process():
    assert_told_alike_in_any_process((1, 6, 13, 34), draw, ClientWorld)


def test_client_stories_draw_every_kind_of_step_and_trouble():
    """A step or trouble that no seed draws is not tested."""
    others = [each.draw(seed) for each in (transacting, popping) for seed in range(20)]
    stories = [*(draw(seed) for seed in range(300)), *others]
    steps = [step for story in stories for client in story.clients for step in client.steps]
    assert {step.kind for step in steps} == {CONSUME, POP, *ACTS}
    consumers = [step.arguments for step in steps if step.kind == CONSUME]
    assert {(each["kind"], each["broadcasting"]) for each in consumers} == {
        (kind, broadcasting)
        for kind in ("concurrent", "orderly", "lite")
        for broadcasting in (False, True)
    }
    assert {mood for each in consumers for mood in each["moods"]} == {
        "good",
        *MOODS,
        *MORE_MOODS,
    }
    assert {trouble.kind for story in stories for trouble in story.troubles} == {
        "kill a broker", "stop a broker", "kill a client", "cut", "silence", "hold up", "slow",
        "clock", "twice", "late", "lie",
    }  # fmt: skip


@pytest.mark.wide
@pytest.mark.parametrize(
    ("method", "instead", "said", "first"),
    [
        (
            "rmq_spark.client.consumer.queues.process_queue.ProcessQueue.commit_offset",
            property(lambda queue: queue._end_offset),
            "committed",
            0,
        ),
        (
            "rmq_spark.client.consumer.queues.process_queue.ProcessQueue.is_locked",
            property(lambda _: True),
            "both at",
            0,
        ),
        (
            "rmq_spark.client.consumer.offsets.local_offset_store.LocalFileOffsetStore._read",
            lambda _: {},
            "once more, which was finished",
            713040,
        ),
        (
            "rmq_spark.client.consumer.push_consumer_impl.PushConsumerImpl._reset_queue",
            lambda *_: False,
            "moved to",
            713050,
        ),
    ],
    ids=["commits-what-is-under-way", "believes-in-any-lock", "forgets", "goes-on-as-before"],
)
def test_client_breaking_a_promise_is_detected(monkeypatch, method, instead, said, first):
    """A test of the checks themselves; `make seeded` has more."""
    monkeypatch.setattr(method, instead)
    failures = (failure_of(draw(seed), ClientWorld) for seed in range(first, first + 24))
    assert said in str(next(failure for failure in failures if failure is not None).error)


def _pass_unchecked(service, *_):
    service._half_offset += 1
    return True


@pytest.mark.wide
@pytest.mark.parametrize(
    ("method", "instead", "said"),
    [
        ("is_committed", lambda *_: False, "was committed once"),
        ("_resolve_half_message", _pass_unchecked, "never came to"),
    ],
)
def test_client_world_finds_lost_and_repeated_transactions(monkeypatch, method, instead, said):
    monkeypatch.setattr(f"{_TRANSACTIONS}.{method}", instead)
    failures = (failure_of(transacting.draw(seed), ClientWorld) for seed in range(24))
    assert said in str(next(failure for failure in failures if failure is not None).error)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("method", "instead", "said", "first"),
    [
        (
            "rmq_spark.client.consumer.simple_consumer.SimpleConsumer.ack",
            lambda *_: None,
            "and was acknowledged",
            0,
        ),
        (
            "rocketpoll.broker.pop.pop_revive_service.PopReviveService._redeliver",
            lambda *_: True,
            "never came to",
            0,
        ),
        (
            f"{_ORDER_INFO}.is_blocked",
            lambda *_: False,
            "and is invisible until",
            3,
        ),
        (
            f"{_ORDER_INFO}.commit_and_next",
            lambda _, __, queue_offset, *___: queue_offset + 1,
            " before [",
            3,
        ),
    ],
    ids=["forgets-to-acknowledge", "does-not-redeliver", "blocks-no-queue", "skips-in-order"],
)
def test_client_world_finds_lost_and_repeated_pops(monkeypatch, method, instead, said, first):
    monkeypatch.setattr(method, instead)
    failures = (failure_of(popping.draw(seed), ClientWorld) for seed in range(first, 24))
    assert said in str(next(failure for failure in failures if failure is not None).error)
