"""Operators that change topics and groups in use, with `Admin` in a separate process.

They restore what they close or remove, or else the world does at the end.
"""

import time
from math import inf

from world.clients.acts import ACTS, TOPICS, Act, reset_to_time
from world.cluster.name_server import ADDRESS

from rmq_spark.client.admin.admin import Admin
from rmq_spark.client.errors import ClientError
from rmq_spark.client.instance.instance import ClientInstance
from rmq_spark.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from rmq_spark.wire.message_queue import MessageQueue

BY_HAND = "H"
GROUPS = ("G0", "G1", BY_HAND)
MAKE_AGAIN = "make_topic_again"
READ, WRITE = 4, 2
_TRIES = 10
_TRIES_TO_GIVE_BACK = 1_000
"""One try per second of a story, in which each broker comes back."""
_AGAIN_SECONDS = 1.0
_ASK_SECONDS = 15.0
_ROUTES_SECONDS = 60.0
"""Seconds until all clients know of a change of a topic, and have rebalanced."""


def act_of_operators(draw):
    """Register an act whose process has an `Admin`; the act ends if a broker cannot be reached."""

    def known(play):
        def guarded(life, **arguments):
            instance = ClientInstance(ADDRESS)
            try:
                with Admin(instance=instance) as admin:
                    play(life.world, admin, **arguments)
            except ClientError as error:
                life.world.note(f"{life.process.name} could not {play.__name__}: {error}")

        ACTS[play.__name__] = Act(draw, guarded)
        return play

    return known


def _reader(world, group):
    """Return the reader that must get a group's messages; None for BROADCASTING, and unknown
    groups."""
    return world.ledger.readers.get(group)


def _insist(world, change, tries=_TRIES):
    """Repeat a change until it succeeds, for a limited time; return whether it did."""
    for _ in range(tries):
        try:
            change()
        except ClientError as error:  # noqa: PERF203  # retried
            world.note(f"an operator tries again: {error}")
            time.sleep(_AGAIN_SECONDS)
        else:
            return True
    return False


def _give_back(world, change):
    """Undo a change, however long that takes: programs may wait for it before they can start."""
    return _insist(world, change, _TRIES_TO_GIVE_BACK)


# ---- offsets of groups


@act_of_operators(
    lambda dice: {
        "group": dice.choice(GROUPS),
        "topic": dice.choice(TOPICS),
        "where": dice.choice(["begin", "end", "middle"]),
        "seed": dice.randrange(100),
    }
)
def set_offset(world, admin, group, topic, where, seed):
    """Set a group's offset in one queue."""
    reader, ledger = _reader(world, group), world.ledger
    if reader is None or topic not in reader.topics or topic in ledger.recreated_topics:
        return
    places = world.queues_of(topic)
    place = places[seed % len(places)]
    end = world.end_of(place)
    offset = {"begin": 0, "end": end, "middle": end // 2}[where]
    ledger.disturbed(_ROUTES_SECONDS, group)
    ledger.skips(group, place, offset)
    began_at = world.kernel.now
    with ledger.moves.moving(group, [place]) as moved:
        admin.set_offset(group, MessageQueue(*place), offset, missing_ok=True)
        moved(place, offset)
        ledger.check_committed(group, place, offset, began_at)


@act_of_operators(
    lambda dice: {
        "group": dice.choice(GROUPS),
        "topic": dice.choice(TOPICS),
        "seconds": dice.choice([0, 1, 5, 60]),
    }
)
def reset_group(world, admin, group, topic, seconds):
    """Reset a group by a number of seconds, as an operator does while no member is online."""
    reader = _reader(world, group)
    if reader is None or topic not in reader.topics:
        return
    world.ledger.disturbed(_ROUTES_SECONDS, group)
    reset_to_time(world, admin.instance, group, topic, seconds)


# ---- changes of topics and groups


@act_of_operators(
    lambda dice: {
        "topic": dice.choice(TOPICS),
        "write_queues": dice.choice([1, 2, 3, 4]),
        "read_queues": dice.choice([1, 2, 4, 4]),
    }
)
def change_queues(world, admin, topic, write_queues, read_queues):
    """Give a topic more or fewer queues; some may be unreadable for a while."""
    world.has_queues(topic, max(write_queues, read_queues))
    world.ledger.disturbed(_ROUTES_SECONDS)
    config = TopicConfig(
        topic_name=topic, read_queue_nums=read_queues, write_queue_nums=write_queues
    )
    _insist(world, lambda: admin.create_topic(topic, config=config))
    world.ledger.disturbed(_ROUTES_SECONDS)


@act_of_operators(
    lambda dice: {
        "topic": dice.choice(TOPICS),
        "perm": dice.choice([READ, WRITE]),
        "seconds": dice.choice([0.5, 3.0, 12.0]),
    }
)
def close_topic(world, admin, topic, perm, seconds):
    """Forbid writing to a topic, or reading it, for a while."""
    for each, until_made in ((perm, _insist), (READ | WRITE, _give_back)):
        count = world.queue_count(topic)
        config = TopicConfig(
            topic_name=topic, read_queue_nums=count, write_queue_nums=count, perm=each
        )
        world.ledger.disturbed(_ROUTES_SECONDS)
        until_made(world, lambda config=config: admin.create_topic(topic, config=config))
        world.ledger.disturbed(_ROUTES_SECONDS)
        time.sleep(seconds)


@act_of_operators(
    lambda dice: {"group": dice.choice(GROUPS), "seconds": dice.choice([0.5, 3.0, 12.0])}
)
def close_group(world, admin, group, seconds):
    """Disable consumption of a group for a while."""
    for enable, until_made in ((False, _insist), (True, _give_back)):
        config = SubscriptionGroupConfig(group_name=group, consume_enable=enable)
        world.ledger.disturbed(_ROUTES_SECONDS, group)
        until_made(world, lambda config=config: admin.create_group(group, config=config))
        world.ledger.disturbed(_ROUTES_SECONDS, group)
        time.sleep(seconds)


@act_of_operators(lambda dice: {"topic": TOPICS[1], "seconds": dice.choice([0, 0.5, 6.0, 20.0])})
def make_topic_again(world, admin, topic, seconds):
    """Delete a topic and create it again; messages sent then must arrive."""
    ledger = world.ledger
    ledger.recreated_topics[topic] = inf
    old_ends = {queue: world.end_of(queue) for queue in world.queues_of(topic)}
    ledger.disturbed(_ROUTES_SECONDS)
    if not _insist(world, lambda: admin.delete_topic(topic, missing_ok=True)):
        return
    time.sleep(seconds)
    if _give_back(world, lambda: admin.create_topic(topic, world.queue_count(topic))):
        ledger.is_made_again(topic, old_ends)
    ledger.disturbed(_ROUTES_SECONDS)


# ---- queries


@act_of_operators(lambda dice: {"group": dice.choice(GROUPS), "topic": dice.choice(TOPICS)})
def look_around(world, admin, group, topic):
    """Check that an operator's queries return the actual state."""
    for lag in admin.lag(group, topic):
        queue = (lag.queue.topic, lag.queue.broker_name, lag.queue.queue_id)
        if world.may_be_wrong(lag.queue.broker_name, _ASK_SECONDS):
            continue
        if topic not in world.ledger.recreated_topics and lag.broker_offset > world.end_of(queue):
            world.complain(f"{queue} ends before {lag.broker_offset}, which an operator is shown")
    admin.progress(group)
    admin.members(group)
    admin.queue_reports(group)
    admin.topic_configs(topic)
