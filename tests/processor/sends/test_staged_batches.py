"""Requests for staged batches: their responses, and their refusals."""

import zlib

import pytest
from support.brokers.connections import FakeConnection, body_in, finished
from support.brokers.processors import never_parked, nobody_waits, open_parts, saved_at_once
from support.stores.small_store import bodies, message, small_config
from support.stores.staged_batches import at_once, no_pause, result_of, sized
from support.suite.log_records import lines_of

from rmq_spark.wire.bodies.configs import TopicConfig
from rmq_spark.wire.bodies.staged_batches import (
    AbortBatchRequestBody,
    CommitBatchRequestBody,
    CommittedBatch,
    SinksBody,
    StagedAttempt,
)
from rmq_spark.wire.codes import RequestCode, ResponseCode
from rmq_spark.wire.extensions import Extension
from rmq_spark.wire.headers.members import (
    BatchRequestHeader,
    ForgetSinkRequestHeader,
    LastBatchRequestHeader,
    StageChunkRequestHeader,
)
from rocketpoll.broker.processor.dispatcher import RequestDispatcher
from rocketpoll.broker.processor.extensions.staged_batches import StagedBatchesProcessor
from rocketpoll.broker.processor.sends.admission import TopicAdmission
from rocketpoll.broker.settings.config import BrokerConfig

SINK = "query-T"


class Room:
    def __init__(self, parts):
        config = BrokerConfig(store=small_config(parts.root))
        self.connection = FakeConnection()
        self.connection.extensions = frozenset([Extension.STAGED_BATCHES])
        self.busy = None
        processor = StagedBatchesProcessor(
            parts.broker(
                run_in_batch_thread=at_once, run_steps=result_of, busy_reason=lambda: self.busy
            ),
            TopicAdmission(config, parts.topics, saved_at_once, nobody_waits),
            self._beside,
        )
        processor._pause = no_pause
        self._dispatch = RequestDispatcher([processor.handlers()], 1_024, never_parked)

    def _beside(self, connection, request, steps):
        return self._dispatch.wrap_errors(connection, request, steps)

    def ask(self, code, header, body=None):
        answer = finished(self._dispatch(self.connection, self.connection.ask(code, header, body)))
        return answer or self.connection.sent.pop()

    def stage(self, *texts, batch_id=0, number=0, topic="T", owner="q", body=None):
        header = StageChunkRequestHeader(SINK, batch_id, owner, "a", number, topic, 0, "TBW102")
        _, _, staged = sized(texts)
        return self.ask(RequestCode.STAGE_CHUNK, header, staged if body is None else body)

    def commit(self, *texts, batch_id=0, owner="q"):
        _, _, staged = sized(texts)
        attempt = StagedAttempt(attempt="a", chunks=1, rows=len(texts), crc=zlib.crc32(staged))
        body = CommitBatchRequestBody(attempts=(attempt,))
        header = BatchRequestHeader(SINK, batch_id, owner)
        return self.ask(RequestCode.COMMIT_BATCH, header, body)

    def forget(self):
        return self.ask(RequestCode.FORGET_SINK, ForgetSinkRequestHeader(SINK))

    def sinks(self):
        return body_in(SinksBody, self.ask(RequestCode.ALL_SINKS, None)).sinks

    def last(self):
        return self.ask(RequestCode.LAST_BATCH, LastBatchRequestHeader(SINK))


@pytest.fixture
def room(parts):
    return Room(parts)


def test_staged_rows_are_committed_and_their_last_batch_is_found(parts, room):
    assert room.last().code == ResponseCode.QUERY_NOT_FOUND
    staged = room.stage("a", "b")
    assert (staged.code, staged.ext_fields["isCommitted"]) == (0, "false")
    assert bodies(parts.store) == []
    answer = room.commit("a", "b")
    assert answer.code == 0, answer.remark
    committed = body_in(CommittedBatch, answer)
    assert (committed.batch_id, committed.rows, len(committed.spans)) == (0, 2, 1)
    assert bodies(parts.store) == ["a", "b"]
    assert body_in(CommittedBatch, room.last()) == committed


def test_repeated_stage_and_commit_succeed_without_effect(parts, room):
    room.stage("a")
    first = room.commit("a")
    assert room.stage("a").ext_fields["isCommitted"] == "true"
    assert room.commit("a").body == first.body
    assert bodies(parts.store) == ["a"]


def test_staged_rows_for_a_queue_removed_meanwhile_are_refused(parts, room):
    """No consumer would read rows in that queue."""
    header = StageChunkRequestHeader(SINK, 0, "q", "a", 0, "Shrunk", 3, "TBW102")
    _, _, staged = sized(["a"], "Shrunk", 3)
    assert room.ask(RequestCode.STAGE_CHUNK, header, staged).code == 0
    parts.topics.put(TopicConfig(topic_name="Shrunk", read_queue_nums=2, write_queue_nums=2))
    attempt = StagedAttempt(attempt="a", chunks=1, rows=1, crc=zlib.crc32(staged))
    body = CommitBatchRequestBody(attempts=(attempt,))
    answer = room.ask(RequestCode.COMMIT_BATCH, BatchRequestHeader(SINK, 0, "q"), body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "topic Shrunk has only 2 queues now" in answer.remark
    assert bodies(parts.store, "Shrunk", 3) == []


def test_abort_batch_forgets_staged_rows_and_keeps_committed_ones(parts, room):
    room.stage("a")
    room.commit("a")
    room.stage("b", batch_id=1)
    for batch_id in (0, 1):
        header = BatchRequestHeader(SINK, batch_id, "q")
        assert room.ask(RequestCode.ABORT_BATCH, header).code == 0
    assert "is not staged" in room.commit("b", batch_id=1).remark
    assert bodies(parts.store) == ["a"]


def test_abort_of_some_attempts_keeps_other_attempts(parts, room):
    """A replaced driver knows only its own attempts."""
    room.stage("a")
    header = BatchRequestHeader(SINK, 0, "q")
    body = AbortBatchRequestBody(attempts=("of-another", "a.b"))
    assert room.ask(RequestCode.ABORT_BATCH, header, body).code == 0
    room.commit("a")
    assert bodies(parts.store) == ["a"]
    room.stage("b", batch_id=1)
    body = AbortBatchRequestBody(attempts=("a",))
    room.ask(RequestCode.ABORT_BATCH, BatchRequestHeader(SINK, 1, "q"), body)
    assert "is not staged" in room.commit("b", batch_id=1).remark


def test_impossible_commit_is_refused_for_good(parts, room):
    room.stage("a")
    room.commit("a")
    assert room.commit("b").code == 0  # the batch is already committed
    for answer, told in (
        (room.commit("b", batch_id=1), "is not staged"),
        (room.commit("b", batch_id=1, owner="other"), "belongs to q"),
        (room.stage("b", batch_id=1, owner="other"), "belongs to q"),
        (room.stage("b", batch_id=1, topic="Other"), "the request names queue 0 of Other"),
        (room.stage("b", batch_id=1, number=-1), "chunks start at 0"),
    ):
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert told in answer.remark
    assert bodies(parts.store) == ["a"]


def test_batch_of_an_older_checkpoint_is_refused_with_advice(parts, room):
    room.stage("a", batch_id=40)
    room.commit("a", batch_id=40)
    for answer in (room.stage("b"), room.commit("b")):
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        for told in (SINK, "batch 40", "batch 0", f"rocketpoll sink forget {SINK}"):
            assert told in answer.remark
    assert bodies(parts.store) == ["a"]


def test_sinks_are_listed_and_one_is_forgotten(parts, room):
    assert room.sinks() == {}
    room.stage("a", batch_id=40)
    room.commit("a", batch_id=40)
    [(sink, last)] = room.sinks().items()
    assert (sink, last.batch_id, last.owner, last.rows, last.topics) == (SINK, 40, "q", 1, ("T",))
    assert last.committed_ms > 0
    assert room.forget().code == 0
    assert room.sinks() == {}
    assert room.forget().code == ResponseCode.QUERY_NOT_FOUND
    room.stage("b", owner="another query")
    assert room.commit("b", owner="another query").code == 0
    assert bodies(parts.store) == ["a", "b"]


def test_staged_rows_damaged_in_transit_are_refused(room):
    _, _, staged = sized(["a"])
    damaged = bytearray(staged)
    damaged[8 + 88] ^= 1
    answer = room.stage("a", body=bytes(damaged))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "bodyCRC" in answer.remark


def test_commit_of_rows_for_a_deleted_topic_names_the_topic(parts, room):
    room.stage("a")
    parts.topics.begin_deletion("T")
    parts.topics.delete("T")
    answer = room.commit("a")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "topic T was deleted after rows had been staged for it" in answer.remark
    assert bodies(parts.store) == []


def test_commit_to_a_topic_no_longer_writable_is_refused(parts, room):
    room.stage("a")
    parts.make_topic("T", perm=4)
    assert "topic T is no longer writable" in room.commit("a").remark


def test_busy_broker_refuses_staged_chunks(room):
    room.busy = "[REJECTREQUEST]system busy"
    assert room.stage("a").code == ResponseCode.SYSTEM_BUSY


def test_commit_in_a_stopping_store_is_refused(parts, room):
    room.stage("a")
    parts.store.stop_accepting("the broker is stopping")
    answer = room.commit("a")
    assert (answer.code, answer.remark) == (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "the broker is stopping",
    )


def test_full_staging_area_is_answered_and_logged_once(tmp_path, caplog):
    parts = open_parts(tmp_path, staged_bytes_max=400)
    parts.make_topic("T")
    room = Room(parts)
    room.stage("b" * 200)
    for _ in range(3):
        answer = room.stage("a", "b" * 100, number=1)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "(maxStagedBytes)" in answer.remark
        assert room.stage("b" * 190).code == 0
    assert len(lines_of(caplog)) == 1
    parts.store.shutdown()


def test_staging_without_agreed_extension_is_refused(room):
    room.connection.extensions = frozenset([Extension.APPEND_CHUNK])
    assert room.stage("a").code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert room.last().code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_foreign_message_between_stage_and_commit_is_stored(parts, room):
    room.stage("a")
    parts.store.put_message(message("other"))
    room.commit("a")
    assert bodies(parts.store) == ["other", "a"]
