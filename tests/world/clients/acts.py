"""Acts of client processes, step by step: sends, waits, and everything that users may do with a
consumer.

Each act has a function that draws its arguments, and one that runs in a thread of the process.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from world.clients.listening import queue_of

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import ClientError
from rmq_spark.client.message import Message
from rmq_spark.client.results import SendStatus

TOPICS = ("T0", "T1")
_ROUTE_SECONDS = 7.0
"""Seconds to connect to a name server and request a route, in addition to a send's timeout."""

_ON_TOP_SECONDS = 1.1
"""Maximum seconds by which a future's timeout is late."""

_ASK_SECONDS = 15.0
_CLAIMED_SECONDS = 10.0
"""Seconds after a lie about sends within which a delayed response may still arrive."""

ACTS = {}


class Act(NamedTuple):
    """One kind of step."""

    draw: object
    play: object


def act(draw):
    """Register a function as an act under its own name."""

    def known(play):
        ACTS[play.__name__] = Act(draw, play)
        return play

    return known


@act(lambda dice: {"seconds": dice.choice([0.01, 0.1, 0.3, 1.0, 1.0, 3.0])})
def wait(life, seconds):
    time.sleep(seconds)


# ---- producers


@act(
    lambda dice: {
        "topic": dice.choice(TOPICS),
        "how": dice.choice(["sync", "sync", "ordered", "async", "batch", "one way", "delayed"]),
        "count": dice.choice([1, 5, 20]),
        "gap": dice.choice([0, 0, 0.01, 0.2]),
        "size": dice.choice([0, 0, 0, 200, 6_000]),
        "timeout_ms": dice.choice([3_000, 3_000, 300]),
    }
)
def send(life, topic, how, count, gap, size, timeout_ms, tags=()):
    """Send messages with these tags in turn, or without tags."""
    producer = life.running_producer()
    messages = [_message(life, topic, how, size, tags) for _ in range(count)]
    seconds = (producer.send_timeout_ms if how == "one way" else timeout_ms) / 1000 + _ROUTE_SECONDS
    watch, process = life.world.watch, life.process
    if how == "batch":
        with watch.within(process, "send_batch", seconds):
            _send(life, lambda: producer.send_batch(messages, timeout_ms), messages)
    elif how == "async":
        _send_async(life, producer, messages, timeout_ms, gap)
    else:
        for message in messages:
            with watch.within(process, f"send, {how},", seconds):
                if how == "one way":
                    _send(life, lambda each=message: producer.send_one_way(each), [])
                else:
                    _send(
                        life,
                        lambda each=message: [producer.send(each, timeout_ms=timeout_ms)],
                        [message],
                    )
            time.sleep(gap)


def _message(life, topic, how, size, tags):
    number = len(life.world.ledger.sent)
    body = f"m{number} {how} of {life.host.name}".encode().ljust(size, b".")
    tag = tags[number % len(tags)] if tags else None
    life.world.ledger.sends(body, topic, tag)
    return Message(
        topic,
        body,
        tags=tag,
        sharding_key=f"key{number % 2}" if how == "ordered" else None,
        delay_level=number % 3 + 1 if how == "delayed" else 0,
    )


def _send(life, call, messages):
    try:
        _sent(life, call(), messages)
    except ClientError as error:
        life.world.note(f"{life.process.name} could not send: {error}")


def _send_async(life, producer, messages, timeout_ms, gap):
    futures = []
    for message in messages:
        try:
            futures.append((message, producer.send_async(message, timeout_ms=timeout_ms)))
        except ClientError as error:
            life.world.note(f"{life.process.name} could not send: {error}")
        time.sleep(gap)
    for message, future in futures:
        with life.world.watch.within(life.process, "a future", timeout_ms / 1000 + _ON_TOP_SECONDS):
            _send(life, lambda each=future: [each.result()], [message])


def _sent(life, results, messages):
    """Record sent messages, with their places if these are known."""
    if not results or any(result.send_status is not SendStatus.SEND_OK for result in results):
        return
    name = results[0].queue.broker_name
    if life.world.may_be_wrong(name, _CLAIMED_SECONDS, lambda lie: lie.is_about_sends):
        return
    for message in messages:
        is_placed = len(results) == len(messages) == 1 and not message.delay_level
        place = (*queue_of(results[0].queue), results[0].queue_offset) if is_placed else None
        life.world.ledger.is_acknowledged(message.body, place)


@act(
    lambda dice: {
        "retries": dice.choice([0, 2, 5]),
        "send_latency_fault_enable": dice.random() < 0.5,
        "pending_max": dice.choice([2, 10_000]),
    }
)
def produce_with(life, **settings):
    """Use these settings for the next producer of this process."""
    life.producer_settings = settings


# ---- consumers


def act_of_consumers(draw):
    """Register an act for processes with a consumer; the act ends if it can reach no broker."""

    def known(play):
        def guarded(life, *, which=0, **arguments):
            if not life.consumings:
                return
            consuming = life.consumings[which % len(life.consumings)]
            try:
                play(life, consuming, **arguments)
            except ClientError as error:
                life.world.note(f"{life.process.name} could not {play.__name__}: {error}")

        ACTS[play.__name__] = Act(draw, guarded)
        return play

    return known


@act_of_consumers(lambda dice: {"seconds": dice.choice([0.0, 0.5, 5.0])})
def shut_down_and_start(life, consuming, seconds, keeps_client=False):
    """Restart the consumer with a new client or the previous one's."""
    if keeps_client:
        consuming.end_alone()
        time.sleep(seconds)
        consuming.begin(consuming.instance)
    else:
        life.end()
        time.sleep(seconds)
        life.begin()


@act_of_consumers(
    lambda dice: {"seconds": dice.choice([0.1, 2.0, 6.0]), "topic": dice.choice(TOPICS)}
)
def unsubscribe_and_subscribe(life, consuming, seconds, topic):
    if topic in consuming.topics and not consuming.is_assigned:
        consuming.disturbs(seconds)
        now = life.world.kernel.now
        consuming.reader.filters.set(life.process.host, topic, None, now)
        consuming.consumer.unsubscribe(topic)
        time.sleep(seconds)
        consuming.consumer.subscribe(topic)


@act_of_consumers(lambda dice: {"seconds": dice.choice([0.1, 2.0, 6.0])})
def pause_and_resume(life, consuming, seconds):
    consumer = consuming.consumer
    if consuming.kind != "lite":
        consumer.suspend()
        time.sleep(seconds)
        consumer.resume()
        return
    queues = consumer.assignment()
    consumer.pause(queues)
    time.sleep(seconds)
    consumer.resume(queues & consumer.assignment())


@act_of_consumers(
    lambda dice: {"where": dice.choice(["begin", "end", "middle"]), "seed": dice.randrange(100)}
)
def seek(life, consuming, where, seed):
    """Seek in one of its queues; earlier messages need not be delivered any more."""
    consumer = consuming.consumer
    if consuming.kind != "lite" or not consumer.assignment():
        return
    queues = sorted(consumer.assignment())
    queue = queues[seed % len(queues)]
    place = queue_of(queue)
    world = life.world
    consuming.disturbs(_ASK_SECONDS)
    world.ledger.moves.disturb(consuming.group, place)
    with world.watch.within(life.process, "seek", _ASK_SECONDS * 2):
        if where == "begin":
            consumer.seek_to_begin(queue)
        elif where == "end":
            try:
                consumer.seek_to_end(queue)
            finally:  # also if the result is unknown
                world.ledger.skips(consuming.group, place, world.end_of(place))
        else:
            offset = world.end_of(place) // 2
            world.ledger.skips(consuming.group, place, offset)
            consumer.seek(queue, offset)


@act_of_consumers(lambda dice: {"topic": dice.choice(TOPICS), "seconds": dice.choice([0, 5, 60])})
def reset(life, consuming, topic, seconds):
    """Reset the group back by this number of seconds, as an operator."""
    if consuming.reader.is_broadcasting:
        return
    world = life.world
    consuming.disturbs(_ASK_SECONDS)
    reset_to_time(world, consuming.instance, consuming.group, topic, seconds)


def reset_to_time(world, instance, group, topic, seconds):
    """Reset a group back by this number of seconds, and check that brokers have the new offsets."""
    offsets, began_at, ledger = {}, world.kernel.now, world.ledger
    places = world.queues_of(topic)
    try:
        with ledger.moves.moving(group, places) as moved, Admin(instance=instance) as admin:
            offsets = admin.reset_to_time(
                group, topic, time.time_ns() // 1_000_000 - seconds * 1_000
            )
            for queue, offset in offsets.items():
                moved(queue_of(queue), offset)
                ledger.check_committed(group, queue_of(queue), offset, began_at)
    finally:  # also if the result is unknown
        told = {queue_of(queue): offset for queue, offset in offsets.items()}
        for place in places:
            ledger.skips(group, place, told.get(place, world.end_of(place)))
