"""Requests about staged batches, sent to a broker."""

from zlib import crc32

import pyarrow as pa
import pytest
from support.servers.fake_servers import FakeServer, answering

from rmq_spark.client.errors import MessageIllegal, NotSupported, ProtocolError
from rmq_spark.client.producer.arrow_rows import encode_sized_records
from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.bodies.staged_batches import StagedAttempt
from rmq_spark.wire.codes import RequestCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import BatchRequestHeader, StageChunkRequestHeader
from rmq_spark.wire.message_queue import MessageQueue

BATCH = BatchRequestHeader("sink", 7, "query")
QUEUE = MessageQueue("T", "broker-a", 0)
HEADER = StageChunkRequestHeader(*BATCH, "a", 0, "T", 0, "TBW102")


@pytest.fixture
def address(running_broker, api):
    topic = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1)
    api.admin.create_topic(running_broker.address, topic)
    assert Extension.STAGED_BATCHES in api.agreement(running_broker.address).extensions
    return running_broker.address


def test_staged_batch_is_committed_and_known_as_the_last_batch(address, api):
    body = encode_sized_records(
        pa.record_batch({"body": [b"x", b"y"]}), QUEUE, "1.2.3.4:5", "1.2.3.4:6"
    )
    assert api.staging.last_batch(address, "sink") is None
    assert api.staging.stage_chunk(address, HEADER, body).result() is False
    assert api.max_offset(address, QUEUE) == 0
    attempt = StagedAttempt(attempt="a", chunks=1, rows=2, crc=crc32(body))
    committed = api.staging.commit_batch(address, BATCH, [attempt], 30_000)
    assert (committed.batch_id, committed.owner, committed.rows) == (7, "query", 2)
    assert api.max_offset(address, QUEUE) == 2
    assert api.staging.stage_chunk(address, HEADER, body).result() is True
    assert api.staging.commit_batch(address, BATCH, [attempt]) == committed
    assert api.staging.last_batch(address, "sink") == committed
    api.staging.abort_batch(address, BATCH, ["a"])
    assert api.max_offset(address, QUEUE) == 2


def test_abort_batch_drops_only_the_named_attempts(address, api):
    body = encode_sized_records(pa.record_batch({"body": [b"x"]}), QUEUE, "1.2.3.4:5", "1.2.3.4:6")
    for attempt in ("a", "b"):
        api.staging.stage_chunk(address, HEADER._replace(attempt=attempt), body).result()
    api.staging.abort_batch(address, BATCH, ["a"])
    gone, there = (
        StagedAttempt(attempt=name, chunks=1, rows=1, crc=crc32(body)) for name in ("a", "b")
    )
    with pytest.raises(MessageIllegal, match="chunk 0 of attempt a is not staged"):
        api.staging.commit_batch(address, BATCH, [gone])
    assert api.staging.commit_batch(address, BATCH, [there]).rows == 1


def test_staging_calls_to_a_broker_without_staging_raise_not_supported(api):
    with FakeServer(answering(lambda request: request.respond(3, "not supported"))) as server:
        staging, address = api.staging, server.address
        for call in (
            lambda: staging.stage_chunk(address, HEADER, b"").result(),
            lambda: staging.commit_batch(address, BATCH, []),
            lambda: staging.abort_batch(address, BATCH, []),
            lambda: staging.last_batch(address, "sink"),
        ):
            with pytest.raises(NotSupported):
                call()


def test_malformed_last_batch_response_is_a_protocol_error(api):
    def answer(request):
        known = request.code == RequestCode.LAST_BATCH
        return request.respond(0, body=b"[1]") if known else request.respond(3, "not supported")

    with FakeServer(answering(answer)) as server, pytest.raises(ProtocolError):
        api.staging.last_batch(server.address, "sink")
