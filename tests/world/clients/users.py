"""Acts of programs with a running consumer: explicit commits, filters, seeks by time,
other queues."""

import time

from world.clients.acts import TOPICS, act_of_consumers
from world.clients.listening import queue_of

from rmq_spark.client.errors import ClientError

TAGS = ("red", "blue")
_ASK_SECONDS = 15.0
_AGAIN_SECONDS = 1.0


def _queue_of(consumer, seed):
    queues = sorted(consumer.assignment())
    return queues[seed % len(queues)] if queues else None


@act_of_consumers(
    lambda dice: {
        "where": dice.choice(["begin", "end", "middle"]),
        "seed": dice.randrange(100),
    }
)
def commit_given(life, consuming, where, seed):
    """Commit an explicit offset of a queue."""
    if consuming.kind != "lite":
        return
    world, ledger, group = life.world, life.world.ledger, consuming.group
    queue = _queue_of(consuming.consumer, seed)
    if queue is None or queue.topic in ledger.recreated_topics:
        return
    place = queue_of(queue)
    end = world.end_of(place)
    offset = {"begin": 0, "end": end, "middle": end // 2}[where]
    consuming.disturbs(_ASK_SECONDS)
    own = ledger.moves.disturb(group, place)
    ledger.skips(group, place, offset)
    began_at = world.kernel.now
    with world.watch.within(life.process, "commit of an offset", _ASK_SECONDS * 2):
        consuming.consumer.commit({queue: offset})
    if consuming.reader.is_broadcasting:
        return
    # otherwise an operator's move counts
    if ledger.moves.is_where_it_was(group, place, began_at, own):
        ledger.check_committed(group, place, offset, began_at)


@act_of_consumers(
    lambda dice: {
        "topic": dice.choice(TOPICS),
        "tag": dice.choice(TAGS),
        "seconds": dice.choice([0.1, 3.0, 12.0, 30.0]),
    }
)
def change_filter(life, consuming, topic, tag, seconds):
    """Subscribe to one tag only, for a while."""
    if consuming.is_assigned or topic not in consuming.topics:
        return
    filters, kernel, host = consuming.reader.filters, life.world.kernel, life.process.host
    filters.set(host, topic, tag, kernel.now)
    consuming.consumer.subscribe(topic, tag)
    filters.set(host, topic, tag, kernel.now)
    time.sleep(seconds)
    while True:
        filters.end(host, kernel.now, topic)
        try:
            consuming.consumer.subscribe(topic)
        except ClientError as error:
            life.world.note(f"{life.process.name} cannot subscribe to all: {error}")
            if not consuming.consumer.is_running:
                return
            filters.set(host, topic, tag, kernel.now)
            time.sleep(_AGAIN_SECONDS)
        else:
            filters.end(host, kernel.now, topic)
            return


@act_of_consumers(lambda dice: {"seconds": dice.choice([0, 1, 5, 60]), "seed": dice.randrange(100)})
def seek_to_time(life, consuming, seconds, seed):
    """Seek back by this number of seconds in one of its queues."""
    if consuming.kind != "lite":
        return
    queue = _queue_of(consuming.consumer, seed)
    if queue is None:
        return
    world, place = life.world, queue_of(queue)
    consuming.disturbs(_ASK_SECONDS)
    world.ledger.moves.disturb(consuming.group, place)
    try:
        with world.watch.within(life.process, "seek to a time", _ASK_SECONDS * 2):
            now_ms = time.time_ns() // 1_000_000
            consuming.consumer.seek_to_time(queue, now_ms - seconds * 1_000)
    finally:
        world.ledger.skips(consuming.group, place, world.end_of(place))


@act_of_consumers(lambda dice: {"seconds": dice.choice([0, 0.5, 6.0]), "seed": dice.randrange(4)})
def assign_others(life, consuming, seconds, seed):
    """Assign fewer of its queues, for a while."""
    if not consuming.is_assigned:
        return
    consuming.disturbs(seconds + _ASK_SECONDS)
    queues = sorted(consuming.all_queues())
    consuming.consumer.assign(queues[seed:])
    time.sleep(seconds)
    consuming.assign_all_at_last(consuming.consumer)
