"""Batch planning works alike with both isolations: limits, delays, AvailableNow, losses and names.

A query reads units: single messages, or with isolation=committed whole batches of four rows. Each
test runs with both.
"""

from contextlib import ExitStack
from itertools import count

import pytest
from support.spark.exactly_once_sink import CommittingSink, own_producers
from support.spark.source_queries import options_for, query, queue_of
from support.spark.streaming_engine import Engine, assert_read
from support.suite.clocks import Clock

from rmq_spark.client.manifest import commits_topic_name
from rmq_spark.client.message import Message
from rmq_spark.spark.brokers.fan_out import instance_for
from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.errors import DataLoss
from rmq_spark.spark.exactly_once.committed_planner import CommittedBatchPlanner
from rmq_spark.spark.options.options import BatchLimits
from rmq_spark.spark.plan.micro_batch_planner import NO_LIMITS
from rmq_spark.spark.plan.source_offset import SourceOffset
from rocketpoll import EmbeddedBroker

HOUR_MS = 3_600_000
_numbers = count()


class Messages:
    """Units that are single messages of one queue."""

    rows = 1
    isolation = "uncommitted"

    def __init__(self, broker, topic, _monkeypatch):
        self.broker = broker
        self.topic = topic
        self.queue = queue_of(topic)
        self.next_offset = 0

    def put(self, units):
        """Store this number of units; return their bodies."""
        bodies = [f"{next(_numbers)}".ljust(100) for _ in range(units)]
        with self.broker.producer() as producer:
            for body in bodies:
                sent = producer.send(Message(self.topic, body.encode()), self.queue)
        self.next_offset = sent.queue_offset + 1
        return bodies

    def planner(self, stack, clock, **more):
        return stack.enter_context(query(self.broker, self.topic, clock, **more))

    @staticmethod
    def count(pieces):
        """Return the number of rows that the tasks of these partitions would read."""
        return sum(piece.end - piece.start for piece in pieces)


class Batches:
    """Units that are committed batches of four rows in two queues."""

    rows = 4
    isolation = "committed"
    count = staticmethod(lambda pieces: sum(piece.row_count for piece in pieces))

    def __init__(self, broker, topic, monkeypatch):
        self.broker = broker
        self.topic = topic
        self.queue = queue_of(commits_topic_name(topic))
        self.next_offset = 0
        self._sink = CommittingSink(monkeypatch, broker, topic)
        self._number = 0

    def put(self, units):
        bodies = []
        for _ in range(units):
            partitions = [[f"{next(_numbers)}".ljust(100) for _ in range(2)] for _ in range(2)]
            bodies += self._sink.write(self._number, partitions)
            self._number += 1
        self.next_offset += units
        return bodies

    def planner(self, stack, clock, **more):
        options = options_for(self.broker, self.topic, isolation="committed", **more)
        instance = instance_for(options.access)
        stack.callback(instance.shutdown)
        return CommittedBatchPlanner(options, lambda given: QueueClient(given, instance), clock)


@pytest.fixture(params=[Messages, Batches], ids=lambda kind: kind.isolation)
def kind(request):
    return request.param


@pytest.fixture
def source(kind, rocketpoll_broker, monkeypatch):
    topic = f"both-{next(_numbers)}"
    rocketpoll_broker.create_topic(topic, 2)
    with own_producers(monkeypatch):
        yield kind(rocketpoll_broker, topic, monkeypatch)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def planned(source, clock):
    """Return a factory of planners for queries that start at the first unit."""
    with ExitStack() as stack:
        options = {"startingOffsets": "earliest", "suspendTimeoutMs": "1"}
        yield lambda **more: source.planner(stack, clock, **{**options, **more})


def units_of(source, batches, at, limits, batches_max=100):
    """Return the units of each batch until nothing is new, and the last offset."""
    units = []
    for _ in range(batches_max):
        end = batches.latest_offset(at, limits)
        if end == at:
            return units, at
        rows = source.count(batches.plan_ranges(at, end))
        assert rows % source.rows == 0
        units.append(rows // source.rows)
        at = end
    raise AssertionError(f"there is always one more: {units}")


@pytest.mark.parametrize(
    ("limits", "units"),
    [
        (lambda rows: BatchLimits(rows_max=3 * rows), [3, 3, 1]),
        (lambda rows: BatchLimits(rows_max=3 * rows - 1), [2, 2, 2, 1]),
        (lambda _: BatchLimits(rows_max=1), [1] * 7),
        (lambda rows: BatchLimits(rows_max=7 * rows), [7]),
        (lambda _: BatchLimits(rows_max=1, bytes_max=1 << 30), [1] * 7),
        (lambda _: BatchLimits(rows_max=1 << 30, bytes_max=1), [1] * 7),
        (lambda _: NO_LIMITS, [7]),
    ],
    ids=["rows", "rows between units", "one row", "all rows", "both", "bytes", "none"],
)
def test_limits_cut_batches_in_whole_units(source, planned, limits, units):
    source.put(7)
    batches = planned()
    assert units_of(source, batches, batches.initial_offset(), limits(source.rows))[0] == units


def test_byte_limit_of_a_batch_divides_a_backlog_evenly(source, planned):
    source.put(12)
    batches = planned()
    units, _ = units_of(source, batches, batches.initial_offset(), BatchLimits(bytes_max=3_000))
    assert sum(units) == 12
    assert len(units) > 1
    assert max(units) - min(units[:-1]) <= 1


def test_fewer_rows_than_the_minimum_are_read_once_the_delay_is_over(source, planned, clock):
    limits = BatchLimits(rows_min=3 * source.rows, wait_ms_max=HOUR_MS)
    batches = planned()
    source.put(1)
    first = batches.latest_offset(batches.initial_offset(), limits)
    assert source.count(batches.plan_ranges(batches.initial_offset(), first)) == source.rows
    source.put(2)
    # checks that find too few units are no batches, and do not restart the delay
    for _ in range(4):
        clock.now += 0.24 * HOUR_MS / 1000
        assert batches.latest_offset(first, limits) == first
    clock.now += 0.05 * HOUR_MS / 1000
    second = batches.latest_offset(first, limits)
    assert source.count(batches.plan_ranges(first, second)) == 2 * source.rows
    source.put(1)
    clock.now += 0.9 * HOUR_MS / 1000
    assert batches.latest_offset(second, limits) == second  # the delay begins with a batch
    source.put(2)
    third = batches.latest_offset(second, limits)
    assert source.count(batches.plan_ranges(second, third)) == 3 * source.rows


def test_minimum_batch_rows_compare_with_all_available_rows(source, planned, clock):
    limits = BatchLimits(rows_max=2 * source.rows, rows_min=3 * source.rows, wait_ms_max=HOUR_MS)
    batches = planned()
    source.put(1)
    at = batches.latest_offset(batches.initial_offset(), limits)
    source.put(4)
    assert units_of(source, batches, at, limits)[0] == [2]  # after that, two are too few
    clock.now += HOUR_MS / 1000
    at = batches.latest_offset(at, limits)
    assert units_of(source, batches, at, limits)[0] == []
    clock.now += HOUR_MS / 1000
    assert units_of(source, batches, at, limits)[0] == [2]


@pytest.mark.parametrize("is_known", [True, False], ids=["running", "from a checkpoint"])
def test_available_now_reads_the_last_rows_below_the_minimum(source, planned, clock, is_known):
    limits = BatchLimits(rows_max=2 * source.rows, rows_min=5 * source.rows, wait_ms_max=HOUR_MS)
    source.put(2)
    batches = planned()
    at = batches.latest_offset(batches.initial_offset(), limits)
    source.put(5)
    if not is_known:
        batches, at = planned(), SourceOffset.from_json(at.to_json())
    batches.prepare_available_now()
    source.put(3)
    assert units_of(source, batches, at, limits)[0] == [2, 2, 1]


@pytest.mark.parametrize("rows", [2, 5, None], ids=["two units", "five units", "no limit"])
def test_limits_count_from_the_first_unit_that_has_not_expired(source, planned, monkeypatch, rows):
    limits = BatchLimits(rows_max=None if rows is None else rows * source.rows)
    source.put(1)
    batches = planned(failOnDataLoss="false")
    at = batches.latest_offset(batches.initial_offset(), limits)
    source.put(10)
    real, expired = QueueClient.starts, {source.queue: source.next_offset - 6}

    def starts(self, queues):
        return {queue: max(at, expired.get(queue, 0)) for queue, at in real(self, queues).items()}

    monkeypatch.setattr(QueueClient, "starts", starts)
    assert units_of(source, batches, at, limits)[0] == {2: [2] * 3, 5: [5, 1], None: [6]}[rows]
    strict = planned()
    with pytest.raises(DataLoss):
        strict.latest_offset(SourceOffset.from_json(at.to_json()), limits)


def test_repeated_offset_and_plan_requests_return_the_same_answers(source, planned):
    source.put(3)
    limits = BatchLimits(rows_max=2 * source.rows)
    batches = planned()
    start = batches.initial_offset()
    assert batches.initial_offset() == start
    end = batches.latest_offset(start, limits)
    pieces = batches.plan_ranges(start, end)
    assert batches.latest_offset(start, limits) == end
    assert batches.plan_ranges(start, end) == pieces
    last = batches.latest_offset(end, limits)
    assert batches.latest_offset(last, limits) == last
    assert batches.latest_offset(last, limits) == last
    source.put(1)
    assert (
        source.count(batches.plan_ranges(last, batches.latest_offset(last, limits))) == source.rows
    )
    again = planned()  # after a restart
    known = [SourceOffset.from_json(each.to_json()) for each in (start, end)]
    assert again.plan_ranges(*known) == pieces
    assert again.plan_ranges(*known) == pieces


def test_renamed_broker_keeps_its_rows_with_both_isolations(kind, tmp_path, monkeypatch):
    with ExitStack() as stack:
        stack.enter_context(own_producers(monkeypatch))
        with EmbeddedBroker(tmp_path, flushDiskType="ASYNC_FLUSH") as broker:
            broker.create_topic("T", 2)
            source = kind(broker, "T", monkeypatch)
            bodies = source.put(2)
            running = Engine(broker.address, topic="T", isolation=kind.isolation)
            running.start()
            running.run()
            bodies += source.put(2)
            running.stop()
        stack.close()
        stack.enter_context(own_producers(monkeypatch))
        names = '{"broker-a": "broker-z"}'
        with EmbeddedBroker(tmp_path, brokerName="broker-z") as broker:
            new = Engine(broker.address, topic="T", isolation=kind.isolation, brokerNames=names)
            running.options = new.options
            for each in (running, new):
                each.start()
                each.run()
                assert_read(each, bodies)
                each.stop()
