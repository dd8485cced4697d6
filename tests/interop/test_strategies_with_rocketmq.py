"""Our allocation strategies assign the same queues as RocketMQ's, for thousands of
random groups."""

import json
import random
import subprocess

import pytest
from support.rocketmq import java_vectors
from support.rocketmq.java_programs import java_program

from rmq_spark.client.consumer.rebalance.strategies import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    in_java_order,
    in_queue_order,
)
from rmq_spark.wire.message_queue import MessageQueue

pytestmark = pytest.mark.interop

CASES_OF_EACH = 400
ANSWER_SECONDS_MAX = 60
ROOMS = ("north", "south", "east", "中", "\U0001f600", "\uffee")
ENDS = ("", "ä", "\U0001f680")


def room_of(name):
    return name.partition("@")[0] if "@" in name else ""


def strategy_of(case):
    """Return our strategy for a case of Java's program."""
    return {
        "AVG": AllocateMessageQueueAveragely,
        "AVG_BY_CIRCLE": AllocateMessageQueueAveragelyByCircle,
        "CONFIG": lambda: AllocateMessageQueueByConfig(
            tuple(MessageQueue(*each) for each in case["config"])
        ),
        "MACHINE_ROOM": lambda: AllocateMessageQueueByMachineRoom(frozenset(case["rooms"])),
        "MACHINE_ROOM_NEARBY": lambda: AllocateMachineRoomNearby(
            AllocateMessageQueueAveragely(), lambda queue: room_of(queue.broker_name), room_of
        ),
        "CONSISTENT_HASH": lambda: AllocateMessageQueueConsistentHash(case["virtualNodes"]),
    }[case["strategy"]]()


def case_of(strategy, dice):
    """Return a random group and topic. Nearby needs a machine room in every name."""
    needs_rooms = strategy == "MACHINE_ROOM_NEARBY"
    forms = (
        ("{}@{}",) if needs_rooms else ("{}@{}", "{}@{}", "{}{}", "{}@{}@", "{}@", "@{}", "{}@{}@x")
    )
    names = [dice.choice(forms).format(dice.choice(ROOMS), dice.choice("abAB")) for _ in range(6)]
    queues = {("T", dice.choice(names), dice.randrange(16)) for _ in range(dice.randint(1, 40))}
    ids = {
        f"{dice.choice(ROOMS)}@{dice.randrange(20)}#{dice.choice(ENDS)}"
        for _ in range(dice.randint(1, 12))
    }
    # Both lists are unsorted: strategies have to sort them.
    return {
        "strategy": strategy,
        "queues": dice.sample(sorted(queues), len(queues)),
        "consumers": dice.sample(sorted(ids), len(ids)),
        "me": dice.choice(sorted(ids)) if dice.random() < 0.97 else "somebody else",
        "config": sorted(queues)[: dice.randint(0, 5)],
        "rooms": dice.sample(ROOMS, dice.randint(0, len(ROOMS))),
        "virtualNodes": dice.choice([1, 3, 10, 10, 50]),
    }


@pytest.mark.wide
@pytest.mark.parametrize("version", java_vectors.TRIED_VERSIONS)
@pytest.mark.parametrize(
    "strategy",
    ["AVG", "AVG_BY_CIRCLE", "CONFIG", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY", "CONSISTENT_HASH"],
)
def test_strategies_allocate_the_same_queues_as_javas(version, strategy):
    dice = random.Random(strategy)
    cases = [case_of(strategy, dice) for _ in range(CASES_OF_EACH)]
    run = subprocess.run(
        java_program("rebalance", version).command("rocketpoll.rebalance.Main"),
        input="".join(json.dumps(case) + "\n" for case in cases),
        capture_output=True,
        encoding="utf-8",
        timeout=ANSWER_SECONDS_MAX,
        check=True,
    )
    java = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(java) == len(cases)
    given_out = 0
    for case, theirs in zip(cases, java, strict=True):
        queues = in_queue_order([MessageQueue(*each) for each in case["queues"]])
        ours = strategy_of(case).allocate(case["me"], queues, in_java_order(case["consumers"]))
        assert [[each.topic, each.broker_name, each.queue_id] for each in ours] == theirs[
            "answer"
        ], case
        given_out += len(ours)
    assert given_out > CASES_OF_EACH / 4
