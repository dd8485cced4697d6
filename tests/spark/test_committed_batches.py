"""Queries with isolation=committed read whole committed batches, each once, and nothing else."""

import json
from contextlib import suppress
from itertools import count

import pytest
from support.spark.exactly_once_sink import CommittingSink
from support.spark.streaming_engine import POINTS, Crashed, Engine

from rmq_spark.client.manifest import commits_topic_name
from rmq_spark.client.message import Message
from rmq_spark.spark.brokers.queue_client import QueueClient
from rmq_spark.spark.errors import CheckpointError, DataLoss, OptionError, WriteError

_numbers = count()


@pytest.fixture
def topic(rocketpoll_broker):
    name = f"committed-{next(_numbers)}"
    rocketpoll_broker.create_topic(name, 3)
    return name


pytestmark = pytest.mark.usefixtures("own_producers")


@pytest.fixture
def sink(monkeypatch, rocketpoll_broker, topic):
    return CommittingSink(monkeypatch, rocketpoll_broker, topic)


@pytest.fixture
def started(rocketpoll_broker, topic):
    """Return a function that starts a query with the given options."""
    queries = []

    def start(**options):
        queries.append(
            Engine(rocketpoll_broker.address, subscribe=topic, isolation="committed", **options)
        )
        queries[-1].start()
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


@pytest.fixture
def manifests(rocketpoll_broker, topic):
    """Return a function that sends messages to the commits topic, valid manifests or not."""

    def send(body):
        with rocketpoll_broker.producer() as producer:
            producer.send(Message(commits_topic_name(topic), body))

    return send


def read_by(query):
    query.run()
    return sorted(row.body for row in query.rows())


def test_committed_isolation_reads_committed_rows_only(sink, started):
    expected = sink.write(0, sink.rows(3, 0, 5))
    sink.send(1, sink.rows(4, 4))  # a run killed before its commit
    (rows,) = sink.rows(6)
    sink.attempt(1, 0, rows[:3])  # an attempt that failed midway
    winner = [sink.attempt(1, 0, rows)]
    sink.attempt(1, 0, rows)  # a speculative copy that lost
    sink.commit(1, winner)
    sink.writer().abort([None], 2)
    assert read_by(started()) == sorted(expected + rows)


def test_batch_committed_twice_counts_as_first_committed(sink, started):
    """If the driver is killed after it has stored the manifest, Spark runs the batch again, with
    other partitions."""
    (rows,) = sink.rows(6)
    sink.write(0, [rows[:2], rows[2:]])
    sink.run = "run-1"
    sink.write(0, [rows])
    expected = rows + sink.write(1, sink.rows(2))
    query = started()
    assert read_by(query) == sorted(expected)
    with pytest.raises(WriteError, match="batch 0 of query query is not committed"):
        sink.write(0, [rows])  # an outdated driver that was replaced
    sink.write(1, sink.rows(2))
    expected += sink.write(2, sink.rows(1))
    assert read_by(query) == sorted(expected)


def test_committed_batches_of_several_queries_have_separate_sequences(
    sink, started, monkeypatch, rocketpoll_broker, topic
):
    other = CommittingSink(monkeypatch, rocketpoll_broker, topic, query="from-a-new-checkpoint")
    expected = other.write(0, other.rows(2)) + sink.write(7, sink.rows(2))
    expected += other.write(1, other.rows(1)) + sink.write(8, sink.rows(1))
    assert read_by(started()) == sorted(expected)


@pytest.mark.parametrize("options", [{}, {"maxOffsetsPerTrigger": 5}])
def test_committed_query_crashing_at_any_point_reads_each_row_once(sink, started, options):
    query, expected = started(**options), []
    for number, point in enumerate(POINTS):
        expected += sink.write(number, sink.rows(2, 3))
        sink.write(number, sink.rows(1))
        query.crash_at = point
        with suppress(Crashed):
            query.run()
        query.stop()
        query.start()
    assert read_by(query) == sorted(expected)
    assert query.differing == []


def test_repeated_first_batch_keeps_the_commit_state_of_its_start(sink, started):
    """Spark asks for the initial offset again; by then it has moved."""
    sink.write(0, sink.rows(2))
    query = started(startingOffsets="latest")
    query.run()
    sink.write(0, sink.rows(3))  # a repeated batch
    expected = sink.write(1, sink.rows(2))
    query.crash_at = "partitions"
    with pytest.raises(Crashed):
        query.run()
    expected += sink.write(2, sink.rows(1))
    query.start()
    assert read_by(query) == sorted(expected)


def test_available_now_query_ends_with_the_commits_at_its_start(sink, started):
    expected = sink.write(0, sink.rows(2))
    query = started()
    query.stop()
    query.start(available_now=True)
    sink.write(1, sink.rows(2))
    assert read_by(query) == sorted(expected)


def test_committed_read_compares_tags_in_tasks(rocketpoll_broker, topic, sink, started):
    expected = sink.write(0, sink.rows(2))
    with rocketpoll_broker.producer() as producer:
        producer.send(Message(topic, b"of another producer", tags="paid"))
    assert read_by(started()) == sorted(expected)
    assert read_by(started(tags="paid")) == []


def test_committed_query_waits_for_the_first_commit(sink, started):
    query = started(waitForTopic="true")
    query.run()
    expected = sink.write(0, sink.rows(2))
    assert read_by(query) == sorted(expected)


def test_committed_read_positions_by_time_use_commit_times(sink, started):
    expected = sink.write(0, sink.rows(2))
    assert read_by(started(startingOffsets="-1h")) == sorted(expected)
    assert read_by(started(startingOffsets="latest")) == []


def test_batch_of_many_spans_is_committed_by_several_manifests(monkeypatch, sink, started):
    monkeypatch.setattr("rmq_spark.spark.exactly_once.manifest_commit.MANIFEST_BYTES_MAX", 300)
    monkeypatch.setattr("rmq_spark.spark.write.rows.SPAN_ROWS_MAX", 1)
    expected = sink.write(0, sink.rows(4, 4, 4)) + sink.write(1, sink.rows(1))
    query = started(maxOffsetsPerTrigger=1, minPartitions=6)
    assert read_by(query) == sorted(expected)
    assert query.sink


# ---- damaged and missing manifests


def test_invalid_manifest_is_data_loss_or_skipped(sink, started, manifests):
    expected = sink.write(0, sink.rows(2))
    manifests(b"hello")
    expected += sink.write(1, sink.rows(2))
    with pytest.raises(
        DataLoss, match=r"message at offset 1 of queue 0 .* is not a valid manifest"
    ) as why:
        started().run()
    assert "\n" not in str(why.value)
    assert read_by(started(failOnDataLoss="false")) == sorted(expected)


def test_manifest_of_a_newer_version_ends_the_query(sink, started, manifests):
    sink.write(0, sink.rows(2))
    manifests(b'{"v": 2}')
    with pytest.raises(CheckpointError, match="of version 2, and this release of rocketpoll reads"):
        started(failOnDataLoss="false").run()


def test_deleted_commits_topic_counts_as_data_loss_for_committed_reads(
    sink, started, rocketpoll_broker, topic
):
    expected = sink.write(0, sink.rows(2)) + sink.write(1, sink.rows(1))
    query = started()
    query.run()
    query.stop()
    rocketpoll_broker.delete_topic(commits_topic_name(topic))
    sink.write(0, sink.rows(9))  # into a new commits topic
    query.start()
    with pytest.raises(DataLoss, match="ends at offset 1, but its position was 2"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.start()
    expected += sink.write(2, sink.rows(1))
    assert read_by(query) == sorted(expected)


def test_checkpoint_with_the_other_isolation_is_refused(sink, started):
    sink.write(0, sink.rows(2))
    query = started()
    query.run()
    sink.write(1, sink.rows(2))
    query.stop()
    query.options["isolation"] = "uncommitted"
    query.start()
    with pytest.raises(CheckpointError, match=r"a query that read .*_COMMITS with isolation=c"):
        query.run()
    query.options["isolation"] = "committed"
    query.offsets = [json.dumps({**json.loads(each), "committed": 3}) for each in query.offsets]
    query.start()
    with pytest.raises(CheckpointError, match="has an offset that is not rocketpoll's"):
        query.run()
    query.offsets = [each.replace('"committed"', '"other"') for each in query.offsets]
    query.start()
    with pytest.raises(CheckpointError, match=r"that read .* with isolation=uncommitted"):
        query.run()


def test_commits_topic_with_several_queues_is_refused(sink, started, rocketpoll_broker, topic):
    rocketpoll_broker.create_topic(commits_topic_name(topic), 4)
    with pytest.raises(
        OptionError, match=r"has 4 queues, .* batches are ordered within one queue only"
    ):
        started().run()


def test_committed_read_begins_with_the_first_batch_without_expired_rows(
    sink, started, monkeypatch
):
    """The first rows of the topic were deleted by retention."""
    sent = sink.send(0, sink.rows(2))
    sink.commit(0, sent)
    expected = sink.write(1, sink.rows(2, 2, 2))
    real, expired = QueueClient.starts, {span.queue: 2 for each in sent for span in each.rows.spans}

    def starts(self, queues):
        return {queue: max(at, expired.get(queue, 0)) for queue, at in real(self, queues).items()}

    monkeypatch.setattr(QueueClient, "starts", starts)
    assert read_by(started()) == sorted(expected)
