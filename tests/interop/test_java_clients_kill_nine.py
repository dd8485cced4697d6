"""A broker killed repeatedly under Java clients loses no acknowledged message, delivers committed
and due messages, and none that is rolled back or recalled.

The clients are never restarted: producer and consumer resume by themselves as soon as a broker is
back. ROCKETPOLL_BROKER_KILLS sets the number of kills; a real RocketMQ, which starts in seconds, is
killed only twice.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from random import Random
from threading import Thread

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
from support.rocketmq.java_clients import JavaClients, JavaError, Scenario, to_send
from support.rocketmq.java_load import Load, by_place, differences
from support.suite.selection import count

from rocketpoll.broker.store.config import FlushDiskType

pytestmark = pytest.mark.interop

KILLS = int(os.environ.get("ROCKETPOLL_BROKER_KILLS", "12"))
KILLS_OF_ROCKETMQ = 2
KILLS_MEANWHILE = count("ROCKETPOLL_BROKER_KILLS", 4, wide=12)
SEED = int(os.environ.get("ROCKETPOLL_SEED", "1"))
QUEUES = 4
ACKNOWLEDGED_BETWEEN_KILLS = (1, 200)

CONSUMED_SECONDS_MAX = 90
"""Seconds. The 4.9 client waits 30 s for the answer of a killed broker that held its pull."""


@pytest.fixture(params=every_kind(java_vectors.TRIED_VERSIONS))
def broker(request, tmp_path):
    """Run a broker that acknowledges after the flush."""
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
        with suppress(AssertionError):  # the next lines report what is missing
            wait_until(
                "all consumed",
                lambda: has_all(scenario, topic, producer, consumer),
                CONSUMED_SECONDS_MAX,
            )
        consumer.finish()

    assert list(differences(producer.reported, consumer.reported, ends_of(scenario, topic))) == []


def test_transactions_and_timers_of_java_clients_end_rightly_whenever_the_broker_is_killed(
    broker, clients
):
    scenario = Scenario(clients, broker.address, "ended")
    topic, dice = scenario.topic(QUEUES), Random(SEED)
    producer = scenario.transaction_producer(sendTimeoutMs=3_000)
    consumer = scenario.lite(group="readers")
    consumer.assign(topic, *range(QUEUES))
    expected, forbidden = {"last"}, set()
    is_ours, has_timers = isinstance(broker, RocketPollBroker), broker.version.startswith("5")
    ways = ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE"]
    ways += ["timer"] * has_timers + ["recall"] * (has_timers and is_ours)

    def send(body):
        """Send one body in a random way; a failed send may be stored all the same."""
        way = dice.choice(ways)
        if way not in ("timer", "recall"):
            properties = {"local": dice.choice([way, "UNKNOW"]), "check": way}
            forbidden.update({body} if way == "ROLLBACK_MESSAGE" else ())
            producer.send_in_transaction(topic, to_send(body, properties=properties))
            expected.update({body} if way == "COMMIT_MESSAGE" else ())
            return
        delay_ms = 20_000 if way == "recall" else dice.choice([1, 1_500, 3_000])
        (sent,) = producer.send(topic, to_send(body, timers={"setDelayTimeMs": delay_ms}))
        expected.update({body} if way == "timer" else ())
        if way == "recall":
            producer.recall(topic, sent["recallHandle"])
            forbidden.add(body)

    number = 0
    for _ in range(KILLS_MEANWHILE if is_ours else KILLS_OF_ROCKETMQ):
        kill = Thread(target=lambda: (broker.kill(), broker.start()))
        kill_at = number + dice.randrange(1, 20)
        while number < kill_at + 10 or kill.is_alive():
            if number == kill_at:
                kill.start()
            with suppress(JavaError):
                send(f"message {number}")
            number += 1
            consumer.look()
        kill.join()
    # due after all recalled messages
    last = to_send("last", timers={"setDelayTimeMs": 21_000} if has_timers else {})
    wait_until("a last message", lambda: is_sent(broker, clients, producer, topic, last))
    wait_until(
        "all that is committed or due",
        lambda: consumer.look() and expected <= set(consumer.bodies),
        CONSUMED_SECONDS_MAX,
    )
    scenario.stop()
    assert set(consumer.bodies) & forbidden == set()


def is_sent(broker, clients, producer, topic: str, message) -> bool:
    broker.remind(clients)
    with suppress(JavaError):
        producer.send(topic, message)
        return True
    return False


def ends_of(scenario, topic: str) -> dict[int, int]:
    return {queue_id: scenario.max_offset(topic, queue_id) for queue_id in range(QUEUES)}


def has_all(scenario, topic: str, producer, consumer) -> bool:
    """Return whether the consumer has everything; ends are queried again, because a restarted
    broker may report them late."""
    seen = by_place(consumer.reported)
    return by_place(producer.reported).keys() <= seen.keys() and len(seen) >= sum(
        ends_of(scenario, topic).values()
    )


def wait_until_sending(broker, clients, producer) -> None:
    """Return when a send is acknowledged again."""
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
