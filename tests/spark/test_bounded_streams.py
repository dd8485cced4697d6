"""Bounded streams: repeated runs up to a given end, with kills in between, while messages arrive.

Together the runs read each message before the end once, and none after it.
"""

import json
from collections import Counter
from random import Random

import pytest
from support.spark.source_queries import offsets_in, query, send
from support.suite.selection import count

from rmq_spark.spark.options.options import BatchLimits
from rmq_spark.spark.plan.source_offset import SourceOffset
from rocketpoll.broker.embedded import EmbeddedBroker

QUEUES = 3
EARLIEST = {"startingOffsets": "earliest"}
SPANS_MS = (-10_000, 1, 30_000, 60_000)


@pytest.fixture(scope="module")
def broker():
    with EmbeddedBroker() as broker:
        yield broker


class Runs:
    """Runs one query with AvailableNow on one checkpoint."""

    def __init__(self, broker, topic, dice, ending):
        self._broker = broker
        self._topic = topic
        self._dice = dice
        self._ending = ending
        self.log = []  # end offsets of batches, as JSON
        self.committed = 0
        self.read = Counter()  # positions of messages

    def run(self):
        """Read until there are no more messages before the end, or until the query is killed."""
        dice = self._dice
        limits = BatchLimits(rows_max=dice.choice([None, 1, 3, 7]))
        with query(self._broker, self._topic, **EARLIEST, **self._ending) as batches:
            batches.prepare_available_now()
            start = self._at(self.committed)
            if start is None:
                start = batches.initial_offset()
            if len(self.log) > self.committed:  # killed before the commit was written
                end = self._at(self.committed + 1)
                self._run_batch(batches, start, end)
                start = end
            while (end := batches.latest_offset(start, limits)) != start:
                if dice.random() < 0.15:
                    return False
                self.log.append(json.dumps(end.to_json()))
                if dice.random() < 0.15:
                    return False
                self._run_batch(batches, start, end)
                start = end
        return True

    def _run_batch(self, batches, start, end):
        for queue, first, last, *_ in batches.plan_ranges(start, end):
            self.read.update((queue.queue_id, offset) for offset in range(first, last))
        self.committed += 1

    def _at(self, number):
        return SourceOffset.from_json(json.loads(self.log[number - 1])) if number else None


def offsets_as_ends(dice, topic, _):
    ends = [dice.choice([0, 1, 5, 12, 100]) for _ in range(QUEUES)]
    given = {"endingOffsets": json.dumps({topic: dict(enumerate(ends))})}
    return given, lambda number, offset, __: offset < ends[number]


def one_offset_and_the_present_end(dice, *_):
    end = dice.choice([0, 1, 5])
    given = {"endingOffsets": json.dumps({"*": {"0": end, "*": -1}})}
    return given, lambda number, offset, __: number > 0 or offset < end


def a_time(dice, _, now_ms):
    end = now_ms + dice.choice(SPANS_MS)
    return {"endingTimestamp": str(end)}, lambda _, __, ms: ms < end


def times_by_queue(dice, topic, now_ms):
    ends = [now_ms + dice.choice(SPANS_MS) for _ in range(QUEUES)]
    given = {"endingOffsetsByTimestamp": json.dumps({topic: dict(enumerate(ends))})}
    return given, lambda number, _, ms: ms < ends[number]


@pytest.mark.parametrize("seed", range(count("ROCKETPOLL_BOUNDED_STREAMS", 5, wide=60)))
@pytest.mark.parametrize(
    "ending", [offsets_as_ends, one_offset_and_the_present_end, a_time, times_by_queue]
)
def test_bounded_runs_read_each_message_before_the_end_once(broker, ending, seed):
    dice, topic = Random(seed), f"{ending.__name__}-{seed}"
    broker.create_topic(topic, QUEUES)
    broker.send(topic, "the first")
    (first,) = broker.messages(topic)
    given, is_before = ending(dice, topic, first.store_timestamp)
    runs = Runs(broker, topic, dice, given)
    for _ in range(4):
        for _ in range(dice.randrange(4)):
            bodies = [str(each) for each in range(dice.randrange(5))]
            send(broker, topic, dice.randrange(QUEUES), *bodies)
            broker.clock.advance(dice.choice([0, 1, 20]))
        runs.run()
    while not runs.run():
        pass
    expected = {
        (message.queue.queue_id, message.queue_offset)
        for message in broker.messages(topic)
        if is_before(message.queue.queue_id, message.queue_offset, message.store_timestamp)
    }
    assert runs.read.keys() == expected
    assert [place for place, times in runs.read.items() if times > 1] == []


@pytest.mark.parametrize(
    "ending", [{"endingOffsets": '{"*": {"*": 9}}'}, {"endingTimestamp": "2100-01-01"}], ids=str
)
def test_available_now_leaves_later_messages_to_the_next_run(broker, rocketpoll_topic, ending):
    topic = f"meanwhile-{rocketpoll_topic}"
    broker.create_topic(topic, 1)
    send(broker, topic, 0, *"ab")
    with query(broker, topic, **EARLIEST, **ending) as batches:
        batches.prepare_available_now()
        start = batches.initial_offset()
        send(broker, topic, 0, *"cd")
        end = batches.latest_offset(start, BatchLimits())
        assert offsets_in(end) == {0: 2}
        assert batches.latest_offset(end, BatchLimits()) == end
    with query(broker, topic, **EARLIEST, **ending) as batches:
        batches.prepare_available_now()
        assert offsets_in(batches.latest_offset(end, BatchLimits())) == {0: 4}
