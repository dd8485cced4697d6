"""Staged sends repeat the chunks of one attempt unchanged until the broker has stored them."""

import pyarrow as pa
import pytest
from support.servers.fake_servers import FakeCluster

from rmq_spark.client.api.admin_api import StagingApi
from rmq_spark.client.errors import (
    BrokerNotFound,
    ConnectionClosed,
    MessageRejected,
    NotSupported,
    SystemBusy,
)
from rmq_spark.client.producer.arrow_sender import StagedSender
from rmq_spark.client.producer.producer import Producer, topic_sender
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.headers.members import BatchRequestHeader
from rmq_spark.wire.message_queue import MessageQueue

BATCH = BatchRequestHeader("sink", 0, "query")


class Tries:
    """Counts failures; raises the last one."""

    def __init__(self, most=9):
        self.failed, self.succeeded, self.most = [], 0, most

    def wait_or_raise(self, error, topic):
        self.failed.append((type(error), topic))
        if len(self.failed) > self.most:
            raise error

    def reset(self):
        self.succeeded += 1


def rows(count, start=0):
    return pa.record_batch({"body": [b"%d" % n for n in range(start, start + count)]})


@pytest.fixture
def producer(running_broker, api):
    topic = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
    api.admin.create_topic(running_broker.address, topic)
    with Producer("P", running_broker.address) as made:
        yield made


def attempt_of(producer, tries, name="a", **more):
    return StagedSender(topic_sender(producer), BATCH, name, producer.publish_queues, tries, **more)


def commit(producer, api, running_broker, *attempts):
    return api.staging.commit_batch(running_broker.address, BATCH, attempts, 30_000)


@pytest.fixture
def sent(monkeypatch):
    """Record the sent chunks, and fail those with the numbers that the test sets."""

    class Sent(list):
        """Errors by request number."""

    found, stage = Sent(), StagingApi.stage_chunk
    found.errors = {}

    def stage_chunk(self, address, header, body, timeout_ms=None):
        found.append((header, bytes(body)))
        error = found.errors.pop(len(found), None)
        if error is not None:
            raise error
        return stage(self, address, header, body, timeout_ms)

    monkeypatch.setattr(StagingApi, "stage_chunk", stage_chunk)
    return found


def test_staged_rows_of_several_chunks_are_committed_in_order(producer, api, running_broker, sent):
    tries = Tries()
    sends = attempt_of(producer, tries, chunk_bytes=1_000)
    queue = producer.publish_queues("T")[1]
    sends.stage(rows(20), "T", queue)
    sends.stage(rows(10, start=20), "T", queue)
    attempt = sends.finish()
    assert (attempt.chunks, attempt.rows) == (len(sent), 30)
    assert sends.staged_bytes == sum(len(body) for _, body in sent)
    assert {header.queue_id for header, _ in sent} == {1}
    assert (tries.failed, tries.succeeded) == ([], len(sent))
    (span,) = commit(producer, api, running_broker, attempt).spans
    assert (span.queue_id, span.queue_offset, span.count) == (1, 0, 30)


def test_failed_staged_chunk_is_resent_with_its_number_queue_and_bytes(
    producer, api, running_broker, sent
):
    sent.errors = {2: ConnectionClosed("a:1", "gone"), 4: SystemBusy(2, "busy", "a:1", 29003)}
    tries = Tries()
    sends = attempt_of(producer, tries, chunk_bytes=1_000)
    sends.stage(rows(20), "T")
    attempt = sends.finish()
    assert tries.failed == [(ConnectionClosed, "T"), (SystemBusy, "T")]
    by_number = {}
    for header, body in sent:
        by_number.setdefault(header.number, set()).add((header, body))
    assert sorted(by_number) == list(range(attempt.chunks))
    assert {len(each) for each in by_number.values()} == {1}
    assert len(sent) == attempt.chunks + 2
    assert commit(producer, api, running_broker, attempt).rows == 20


def test_staged_chunks_use_queues_round_robin(producer, sent):
    sends = attempt_of(producer, Tries(), chunk_bytes=400)
    sends.stage(rows(8), "T")
    sends.finish()
    assert {header.queue_id for header, _ in sent} == {0, 1}


def test_staged_attempt_of_a_committed_batch_sends_nothing_more(
    producer, api, running_broker, sent
):
    first = attempt_of(producer, Tries())
    first.stage(rows(2), "T")
    commit(producer, api, running_broker, first.finish())
    second = attempt_of(producer, Tries(), "b", in_flight=1, chunk_bytes=400)
    assert not second.is_committed
    sent.clear()
    second.stage(rows(50), "T")
    second.finish()
    assert second.is_committed
    assert len(sent) == 1


def test_staged_chunk_without_tries_left_raises_and_drain_awaits_the_others(producer, sent):
    sent.errors = {1: ConnectionClosed("a:1", "gone")}
    sends = attempt_of(producer, Tries(most=0), chunk_bytes=400)
    with pytest.raises(ConnectionClosed):
        sends.stage(rows(50), "T")
    sends.drain()
    with pytest.raises(MessageRejected, match="body"):
        attempt_of(producer, Tries(most=0)).stage(pa.record_batch({"body": [b""]}), "T")


def test_broker_without_staging_and_missing_broker_give_different_errors():
    with FakeCluster(a=lambda _: 0) as cluster, Producer("P", cluster.address) as producer:
        sends = attempt_of(producer, Tries(most=0))
        with pytest.raises(NotSupported, match="it does not support staged batches"):
            sends.stage(rows(1), "T")
        with pytest.raises(BrokerNotFound):
            sends.stage(rows(1), "T", MessageQueue("T", "nobody", 0))
