"""A broker killed repeatedly under Java clients loses no acknowledged message.

The clients are never restarted: producer and consumer resume by themselves as soon as a broker is
back. ROCKETPOLL_BROKER_KILLS sets the number of kills; a real RocketMQ, which starts in seconds, is
killed only twice.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from random import Random

import pytest
from support.brokers.broker_kinds import (
    POLLS_PER_REMINDER,
    RocketPollBroker,
    every_kind,
    started_broker,
    wait_until,
    wait_until_known,
)
from support.rocketmq import java_vectors
from support.rocketmq.java_clients import JavaClients, Scenario
from support.rocketmq.java_load import Load, by_place, differences

from rocketpoll.broker.store.config import FlushDiskType

pytestmark = pytest.mark.interop

KILLS = int(os.environ.get("ROCKETPOLL_BROKER_KILLS", "12"))
KILLS_OF_ROCKETMQ = 2
SEED = int(os.environ.get("ROCKETPOLL_SEED", "1"))
QUEUES = 4
ACKNOWLEDGED_BETWEEN_KILLS = (1, 200)

CONSUMED_SECONDS_MAX = 90
"""If a broker is killed that holds a pull, the client of 4.9 waits for the answer
for 30 seconds."""


@pytest.fixture(params=every_kind(java_vectors.TRIED_VERSIONS))
def broker(request, tmp_path):
    """One that acknowledges what is on the disk."""
    yield from started_broker(request.param, tmp_path, FlushDiskType.SYNC_FLUSH)


@pytest.fixture
def clients(broker, tmp_path):
    with JavaClients(broker.version, tmp_path / "clients", broker.name_server) as clients:
        wait_until_known(broker, clients)
        yield clients


@pytest.mark.wide
def test_killed_broker_loses_nothing_under_java_clients(broker, clients, tmp_path):
    scenario = Scenario(clients, broker.address, "killed")
    topic = scenario.topic(QUEUES)
    to_topic = (broker.version, tmp_path / "producer", "LoadProducer", broker.name_server, topic)
    from_topic = (
        broker.version,
        tmp_path / "consumer",
        "LoadConsumer",
        broker.name_server,
        topic,
        "load",
    )
    dice = Random(SEED)
    with closing(Load(*to_topic)) as producer, closing(Load(*from_topic)) as consumer:
        wait_until("something consumed", lambda: consumer.reported)
        for _ in range(KILLS if isinstance(broker, RocketPollBroker) else KILLS_OF_ROCKETMQ):
            enough = len(producer.reported) + dice.randint(*ACKNOWLEDGED_BETWEEN_KILLS)
            wait_until(
                "more that is acknowledged", lambda enough=enough: len(producer.reported) >= enough
            )
            broker.kill()
            broker.start()
            wait_until_sending(broker, clients, producer)
        producer.finish()
        with suppress(AssertionError):  # what is missing is said below
            wait_until(
                "all consumed",
                lambda: has_all(scenario, topic, producer, consumer),
                CONSUMED_SECONDS_MAX,
            )
        consumer.finish()

    assert list(differences(producer.reported, consumer.reported, ends_of(scenario, topic))) == []


def ends_of(scenario, topic: str) -> dict[int, int]:
    return {queue_id: scenario.max_offset(topic, queue_id) for queue_id in range(QUEUES)}


def has_all(scenario, topic: str, producer, consumer) -> bool:
    """The ends are asked for again and again: a broker may know of them later
    than of its last message."""
    seen = by_place(consumer.reported)
    return by_place(producer.reported).keys() <= seen.keys() and len(seen) >= sum(
        ends_of(scenario, topic).values()
    )


def wait_until_sending(broker, clients, producer) -> None:
    """Come back when a message is acknowledged again."""
    before = len(producer.reported)
    polls = 0

    def is_sending() -> bool:
        nonlocal polls
        polls += 1
        if polls % POLLS_PER_REMINDER == 0:
            producer.check_is_running()
            broker.remind(clients)
        return len(producer.reported) > before

    wait_until("a message that is acknowledged", is_sending)
